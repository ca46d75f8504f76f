"""The way of a token is short: functions of the package that a warm query runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_a_warm_query_of_two_tokens_runs_few_functions(root: Path) -> None:
    command = [sys.executable, str(root / "benchmarks" / "calls.py")]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
    (count,) = re.findall(r"^compiled query alone, warm +(\d+) functions", printed, re.MULTILINE)
    assert 100 < int(count) <= 150, printed
