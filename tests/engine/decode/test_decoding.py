"""The table of decoders: each row has a file, and each file a row."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_few_frames_of_the_package_stand_between_a_reader_and_the_question_to_the_model(root: Path) -> None:
    command = [sys.executable, str(root / "benchmarks" / "calls.py")]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
    frames = re.findall(r"^frames where .*? (\d+)  <= (\d+)", printed, re.MULTILINE)
    assert len(frames) == 2 and all(0 < int(count) <= int(most) for count, most in frames), printed
