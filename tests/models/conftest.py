"""For the tests of models behind an API; those that use it say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmql_lite.models.openai import gate
from tests.servers.kinds import VLLM
from tests.servers.stub import serving


@pytest.fixture(scope="module")
def stub_that_stays() -> Iterator[None]:
    """So that the port of all of them stays open, and each one costs nothing."""
    with serving(VLLM, ""):
        yield


@pytest.fixture
def quick_and_alone(stub_that_stays: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries are short, and the environment names no server."""
    monkeypatch.setattr(gate, "FIRST_PAUSE", 0.001)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
