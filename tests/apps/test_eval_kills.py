"""`lq eval` killed at 50 random moments: what a kill costs, and what the report says in the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.data.folder import attempts_in

ROWS, KILLS, AT_ONCE = 400, 50, 4
QUERY = """
sample
    import asyncio
    with open("calls.txt", "a") as file:
        file.write(word + "\\n")
    await asyncio.sleep(0.01)
    "{word}[X]"
where
    X in [" a", " b", " c"]
"""
KILLER = f"""
import os, random, signal, time
from pathlib import Path
import lmql_lite.apps.eval_command, lmql_lite.data.run, lmql_lite.models.demo
from lmql_lite.apps.cli import main

def lines():
    return Path("calls.txt").read_bytes().count(b"\\n") if Path("calls.txt").exists() else 0

def go():  # a fork is a new process in a fraction of the time
    if child := os.fork():
        return child
    main(["eval", "q.lq", "d.csv", "-o", "r", "-m", "exact", "-j", "{AT_ONCE}"])
    os._exit(0)

chance, killed = random.Random(0), 0
for number in range({KILLS}):
    before, child, wanted = lines(), go(), chance.randrange(1, 12)
    while lines() < before + wanted and os.waitpid(child, os.WNOHANG)[0] == 0:
        time.sleep(0.001)
    time.sleep(chance.random() / 100)
    os.kill(child, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
print(killed)
"""


def ends(folder: str) -> dict[str, Any]:
    return {each["id"]: (each["value"], each["variables"], each["seed"]) for each in attempts_in(Path(folder))}


@pytest.mark.slow
def test_fifty_kills_cost_the_rows_that_were_running_and_change_no_report() -> None:
    Path("q.lq").write_text(QUERY)
    Path("d.csv").write_text("id,word,target\n" + "".join(f"r{n},w{n},a\n" for n in range(ROWS)))
    killed = subprocess.run([sys.executable, "-c", KILLER], capture_output=True, text=True, timeout=900)
    assert killed.stdout.split()[-1:] == [str(KILLS)], killed.stderr
    command = [sys.executable, "-m", "lmql_lite", "eval", "q.lq", "d.csv", "-m", "exact", "-j", str(AT_ONCE)]
    assert subprocess.run([*command, "-o", "r"], capture_output=True, timeout=300).returncode == 0
    calls = Path("calls.txt").read_text().split()
    assert ROWS < len(calls) <= ROWS + KILLS * AT_ONCE
    assert len(list(attempts_in(Path("r")))) == ROWS, "a row that has ended is not run again"
    assert subprocess.run([*command, "-o", "whole"], capture_output=True, timeout=300).returncode == 0
    assert ends("r") == ends("whole")
    killed_report, whole_report = (json.loads((Path(name) / "report.json").read_text()) for name in ("r", "whole"))
    for name in ("identity", "ids", "attempts", "errors", "metrics", "metric_errors"):
        assert killed_report[name] == whole_report[name]
