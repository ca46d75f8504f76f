"""For the tests of models behind an API; those that use it say so."""

from __future__ import annotations

import pytest

from lmql_lite.models.openai import gate


@pytest.fixture
def quick_and_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries are short, and the environment names no server."""
    monkeypatch.setattr(gate, "FIRST_PAUSE", 0.001)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
