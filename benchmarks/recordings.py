"""Processor time of tests that replay a recording, beside empty ones and beside the same runs on a warm tree.

    python benchmarks/recordings.py [--tests 1000] [--turns 3]

Each line is a process of pytest with so many tests, each with a recording of its own; all import the package and load
the model. Held to: 1.1 times the empty tests and 1 ms for each test.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import pytest
import lmql_lite as lq

MODEL = lq.model("demo")
QUERY = lq.compile('"Things to pack for {{place}}:\\\\n-[THING]" where STOPS_AT(THING, "\\\\n")')
PLACES = ["Rome", "Oslo", "the beach"]


@pytest.mark.parametrize("number", range({tests}))
def test(number{fixture}):
    {body}
"""
RUN = 'assert QUERY.run_sync({"place": PLACES[number % 3]}, model=MODEL)["THING"]'
LINES = {
    "empty": ("", "pass"),
    "a warm tree in memory": ("", RUN),
    "a recording": (", lq_recording", RUN),
}


def seconds(folder: Path, *options: str) -> float:
    """Processor time of one process."""
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    plugin = ["-p", "no:cacheprovider", "-p", "lmql_lite.integrations.pytest_plugin"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, *options],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor time of tests that replay a recording.")
    parser.add_argument("--tests", type=int, default=1000, help="number of tests (1000)")
    parser.add_argument("--turns", type=int, default=3, help="how often each line is run (3)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folders = {}
        for line, (fixture, body) in LINES.items():
            folders[line] = Path(name, line.replace(" ", "_"))
            folders[line].mkdir()
            source = TESTS.format(tests=given.tests, fixture=fixture, body=body)
            (folders[line] / "test_replay.py").write_text(source)
        seconds(folders["a recording"], "--lq-record=new")
        turns = [{line: seconds(folder) for line, folder in folders.items()} for _ in range(given.turns)]
    medians = {line: statistics.median(turn[line] for turn in turns) for line in LINES}
    held = 1.1 * medians["empty"] + given.tests / 1000
    print(f"{given.tests:,} tests, processor time, medians of {given.turns}\n")
    for line, median in medians.items():
        over = (median - medians["empty"]) / given.tests * 1000
        print(f"{line:24} {median:6.2f} s  {over:5.2f} ms a test over the empty ones")
    missed = medians["a recording"] > held
    print(f"{'held to':24} {held:6.2f} s  {'MISSED' if missed else 'met'}")
    sys.exit(missed)


if __name__ == "__main__":
    main()
