"""The counted lines of `benchmarks/scenarios.py` are met, and broken texts of the comparison with peers are found."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tests.tables import cases

COUNTED = ("template", "options", "tools", "joke")


def test_the_scenarios_take_no_more_requests_and_tokens_than_the_table_says(root: Path) -> None:
    """Where a server can only be left in the middle of its answer, the number of its tokens depends on how busy the
    machine is: those lines are for who runs the benchmark."""
    command = [sys.executable, str(root / "benchmarks" / "scenarios.py"), "--runs", "1", "--only", *COUNTED]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 1) and not done.stderr, done.stderr
    lines = [line for line in done.stdout.splitlines() if re.match(r"\| .* · .* \| 0 · 0 \|", line)]
    assert len(lines) == 22
    is_due = re.compile(r"requests missed|second run missed|different text|^\| grammars.* missed")
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


@cases("benchmarks", "a text that breaks its condition is counted", globals())
def test_a_text_that_breaks_its_condition_is_counted(
    tasks: ModuleType, task: str, texts: list[str], broken: int
) -> None:
    assert tasks.TASKS[task].broken(texts) == broken


def test_lines_of_code_are_counted_without_comments_and_docstrings() -> None:
    owned = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "owned.py"))
    text = '"""A module.\n\nIts text.\n"""\n\n# a comment\nx = 1\n"""An attribute."""\n'
    text += '\n\ndef f():\n    """Doc."""\n    return """a\nb"""\n'
    assert owned["code_lines"](text) == 4
