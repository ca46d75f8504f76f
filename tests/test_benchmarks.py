"""The counted lines of `benchmarks/scenarios.py` are met, and broken texts of the comparison with peers are found."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

COUNTED = ("template", "options", "tools", "joke")


def test_the_scenarios_take_no_more_requests_and_tokens_than_the_readme_says(root: Path) -> None:
    """Where a server can only be left in the middle of its answer, how many tokens it says depends on how busy the
    machine is: those lines are for who runs the benchmark."""
    command = [sys.executable, str(root / "benchmarks" / "scenarios.py"), "--runs", "1", "--only", *COUNTED]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode in (0, 1) and lines and not done.stderr, done.stderr
    counted = [line for line in lines if "requests <=" in line]
    assert sum("cold" in line for line in counted) == sum("warm" in line for line in counted) > 10
    is_due = re.compile(r"requests <= \d+ MISSED|^  grammar.* MISSED|the same text.* MISSED")
    assert [line for line in lines if is_due.search(line)] == []


@pytest.fixture(scope="module")
def tasks() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "tasks.py"
    spec = spec_from_file_location("benchmark_tasks", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PERSON = '{"name": "Ann", "age": 30, "city": "Rome"}'


@pytest.mark.parametrize(
    ("task", "texts", "broken"),
    [
        ("template", ["a", "b", "c", "d"], 0),
        ("template", ["a", "b\n", "c"], 2),
        ("option", [" a new list"], 1),
        ("calls", ["3 + 4 ="] * 10, 0),
        ("calls", ["3 + 4 ="] * 9 + ["3 + x ="], 1),
        ("record", [PERSON], 0),
        ("record", [PERSON.replace("30", "130")], 1),
        ("record", [PERSON.replace("Ann", "A" * 21)], 1),
        ("record", ['{"age": 30, "name": "Ann", "city": "Rome"}'], 1),
        ("record", [PERSON + "."], 1),
        ("free", [PERSON.replace("30", "130")], 0),
        ("free", [PERSON.replace("30", "3.5")], 1),
        ("date", ["2022-07-24"], 0),
        ("date", ["2022-07-24."], 1),
        ("words", [" function"], 0),
        ("scores", [" Rom"], 1),
        ("labels", [" neutral"] * 199, 1),
        ("chat", [""] * 6, 0),
        ("values", [" Rome"] * 250 + ["2022-07-24"] * 250 + ["a\n"] * 250 + [PERSON] * 250, 0),
        ("values", ["Rome"] * 250 + ["2022-07-24"] * 250 + ["a"] * 250 + [PERSON] * 249, 501),
    ],
)  # fmt: skip
def test_a_text_that_breaks_its_condition_is_counted(
    tasks: ModuleType, task: str, texts: list[str], broken: int
) -> None:
    assert tasks.TASKS[task].broken(texts) == broken
