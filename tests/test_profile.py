"""A property fails for what it says, never because the machine is busy."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import settings

TESTS = Path(__file__).parent


def test_a_busy_machine_fails_no_property() -> None:
    assert settings().deadline is None
    found = {
        path.name: re.findall(r"\bdeadline=(?!None)[^,)]+", path.read_text("utf-8")) for path in TESTS.rglob("*.py")
    }
    found.pop(Path(__file__).name)
    assert {name: each for name, each in found.items() if each} == {}
