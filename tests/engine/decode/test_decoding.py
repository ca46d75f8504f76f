"""The table of decoders: each row has a file, and each file a row."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lmql_lite.engine.decode import decoder as decoders
from lmql_lite.engine.decode.decoder import decoding
from lmql_lite.options import ALIASES, DECODERS

SHARED = {"__init__", "decoder"}
"""Files of the room that are no decoder of a run."""


@pytest.mark.parametrize("name", [name for name in DECODERS if name not in ALIASES])
def test_a_decoder_is_a_row_of_the_table_and_a_file_of_its_name(name: str) -> None:
    assert callable(decoding(name))
    assert decoding(name).__module__.startswith("lmql_lite.engine.decode.")


def test_a_file_of_a_decoder_has_a_row() -> None:
    files = {path.stem for path in Path(decoders.__file__).parent.glob("*.py")} - SHARED
    assert files == DECODERS.keys() - ALIASES.keys()


def test_few_frames_of_the_package_stand_between_a_reader_and_the_question_to_the_model(root: Path) -> None:
    command = [sys.executable, str(root / "benchmarks" / "calls.py")]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
    frames = re.findall(r"^frames where .*? (\d+)  <= (\d+)", printed, re.MULTILINE)
    assert len(frames) == 2 and all(0 < int(count) <= int(most) for count, most in frames), printed
