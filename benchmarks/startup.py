"""How long a person waits for a process: the import, a whole first run, and beside them Python itself.

    python benchmarks/startup.py [--runs 10]

Every row is a new process, from the moment it is started until it has ended; the rows take turns, so that a busy
moment of the machine does not fall on one of them alone. The first turn fills the disk cache and is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LQ = "import sys; from lmql_lite.apps.cli import main; sys.argv[0] = 'lq'; sys.exit(main())"
EXAMPLE = ROOT / "examples" / "01_packing_list.lq"
FLOOR = "python -c pass"
COMMANDS: dict[str, list[str]] = {
    FLOOR: ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import lmql_lite": ["-c", "import lmql_lite"],
    "lq --version": ["-c", LQ, "--version"],
    f"lq check {EXAMPLE.relative_to(ROOT)}": ["-c", LQ, "check", str(EXAMPLE)],
    f"lq run {EXAMPLE.relative_to(ROOT)}": ["-c", LQ, "run", str(EXAMPLE)],
}


def seconds(arguments: list[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    taken = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{arguments} ended with {done.returncode}:\n{done.stderr}")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description="Process start-up times, in milliseconds.")
    parser.add_argument("--runs", type=int, default=10, help="how often every command is run (10)")
    runs = max(parser.parse_args().runs, 2)
    turns = [[seconds(arguments) * 1000 for arguments in COMMANDS.values()] for _ in range(runs + 1)][1:]
    medians = {name: statistics.median(times) for name, times in zip(COMMANDS, zip(*turns, strict=True), strict=True)}
    width = max(map(len, COMMANDS))
    print(f"whole processes, {runs} runs each, Python {sys.version.split()[0]}, milliseconds\n")
    print(f"{'':{width}}  median    min    max  over the floor")
    for name, times in zip(COMMANDS, zip(*turns, strict=True), strict=True):
        over = medians[name] - medians[FLOOR]
        print(f"{name:{width}}  {medians[name]:6.0f} {min(times):6.0f} {max(times):6.0f}  {over:14.0f}")


if __name__ == "__main__":
    main()
