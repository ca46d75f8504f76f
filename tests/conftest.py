"""Shared by all tests. The ledger of every run that finishes in this process is checked here, in one place (law 6)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lmql_lite.runtime.hypothesis import Hypothesis
from lmql_lite.runtime.interpreter import Run
from lmql_lite.runtime.result import Result
from lmql_lite.runtime.session import Session

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def every_ledger_adds_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    finish = Run._result

    def checked(run: Run, hypothesis: Hypothesis) -> Result:
        result = finish(run, hypothesis)
        result.check_ledger()
        return result

    monkeypatch.setattr(Run, "_result", checked)
    yield


@pytest.fixture(autouse=True)
def files_of_queries_go_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A query may name a cache file: it is made where the test runs."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def session() -> Session:
    """A session of its own: nothing is known yet."""
    return Session()


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the checkout."""
    return ROOT
