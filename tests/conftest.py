"""Shared by all tests. The ledger of every run that finishes in this process is checked here, in one place (law 6)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from lmql_lite.engine.branch import Branch
from lmql_lite.engine.result import Result
from lmql_lite.engine.run import Run
from lmql_lite.engine.session import Session
from lmql_lite.tokens import Token

ROOT = Path(__file__).parent.parent

settings.register_profile("project", deadline=None)  # a busy machine is not a fault
settings.load_profile("project")


@pytest.fixture(autouse=True)
def every_ledger_adds_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    finish = Run.result

    def checked(run: Run, branch: Branch, pruned: tuple[Token, ...] = ()) -> Result:
        result = finish(run, branch, pruned)
        result.check_ledger()
        return result

    monkeypatch.setattr(Run, "result", checked)
    yield


@pytest.fixture(autouse=True)
def files_of_queries_go_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A query may name a cache file: it is made where the test runs."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def a_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that name no model are on demo, and have no notice about it."""
    monkeypatch.setenv("LQ_MODEL", "demo")
    monkeypatch.setenv("LQ_BASE_URL", "")
    monkeypatch.delenv("LQ_BASE_URL")  # Both lines: what a test leaves in a variable that was never set is not undone.


@pytest.fixture
def session() -> Session:
    """A session of its own: nothing is known yet."""
    return Session()


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the checkout."""
    return ROOT


FAST = (
    "lang",
    "program",
    "observe",
    "store",
    "engine/decode",
    "engine/generate/test_path.py",
    "engine/tools",
    "engine/test_settings.py",
    "engine/test_decorated.py",
    "engine/test_environment_messages.py",
    "cache/test_scores.py",
    "cache/test_token_tree.py",
    "cache/test_byte_tree.py",
    "test_api.py",
    "test_decorators.py",
    "test_docstrings.py",
    "test_errors.py",
    "test_floors.py",
    "test_map.py",
    "test_names.py",
    "test_options.py",
)
"""Files of the fast loop, below this folder: `pytest -m fast` collects no others."""


def _is_fast(path: Path) -> bool:
    name = path.relative_to(Path(__file__).parent).as_posix()
    return any(name == each or name.startswith(f"{each}/") for each in FAST)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_test = collection_path.name.startswith("test_")
    return True if is_test and config.option.markexpr == "fast" and not _is_fast(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_fast(item.path) and item.get_closest_marker("slow") is None:
            item.add_marker(pytest.mark.fast)
