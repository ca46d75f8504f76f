"""Shared by all tests. The ledger of every run that finishes in this process is checked here, in one place (law 6)."""

from __future__ import annotations

import ast
import copy
import functools
import gc
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

import pytest
from hypothesis import settings

from lmql_lite.engine.branch import Branch
from lmql_lite.engine.result import Result
from lmql_lite.engine.run import Run
from lmql_lite.engine.session import Session
from lmql_lite.models.demo import DemoModel
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


@pytest.fixture(autouse=True, scope="session")
def weights_of_demo_are_read_once() -> Iterator[None]:
    """Each session has a demo of its own. The weights and the tokenizer, which nothing changes, are shared."""
    load = DemoModel.load
    shipped = functools.cache(load)

    def loaded(folder: Path | None = None) -> DemoModel:
        if folder is not None:
            return load(folder)
        fresh = copy.copy(shipped())
        fresh._live, fresh._turn = copy.deepcopy(fresh._live), Lock()
        return fresh

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DemoModel, "load", loaded)
        yield


@pytest.fixture(scope="session")
def fresh_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Names of new folders. One that pytest makes takes longer than many a test."""
    top = tmp_path_factory.mktemp("folders")
    return (top / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def files_of_queries_go_elsewhere(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, fresh_folders: Iterator[Path]
) -> None:
    """A query may name a cache file: it is made where the test runs."""
    if "tmp_path" in request.fixturenames:
        folder = request.getfixturevalue("tmp_path")
    else:
        folder = next(fresh_folders)
        folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture(autouse=True)
def nobody_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces `fsync`: written bytes reach other processes at once, and only a power cut would show the difference."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


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


def examples(number: int) -> int:
    """Examples of a property: all where CI runs, a quarter of them for the tests by which a change is judged."""
    return number if os.environ.get("CI") else max(1, number // 4)


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The file of Python, read once for all tests that look at sources."""
    return ast.parse(path.read_text("utf-8"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the checkout."""
    return ROOT


SLOW = (
    "browser",
    "properties",
    "servers",
    "apps/test_eval_kills.py",
    "apps/editors/test_notebook.py",
    "apps/editors/test_vscode.py",
    "apps/test_playground.py",
    "apps/test_playground_reach.py",
    "apps/test_playground_security.py",
    "apps/test_terminal_screens.py",
    "cache/kv/test_block_reuse.py",
    "cache/kv/test_config.py",
    "cache/kv/test_engine.py",
    "cache/kv/test_layout.py",
    "cache/kv/test_sharing.py",
    "cache/responses/test_runs.py",
    "cache/responses/test_response_faults.py",
    "cache/tokens/test_any_order.py",
    "cache/tokens/test_top_k.py",
    "cache/test_encoder.py",
    "constraints/test_json.py",
    "constraints/test_products.py",
    "engine/test_seeded_requests.py",
    "engine/test_filling_types.py",
    "engine/test_json_escapes.py",
    "engine/test_prompt_blocks.py",
    "engine/test_refresh.py",
    "engine/test_state_counts.py",
    "engine/test_use_caches.py",
    "integrations/test_pytest_plugin.py",
    "integrations/test_vllm_ec.py",
    "models/test_chat_models.py",
    "models/test_exact.py",
    "models/test_kv_tiers.py",
    "models/test_multimodal.py",
    "models/test_rotation.py",
    "models/test_transformers.py",
    "program/test_places.py",
    "store/test_growth.py",
    "test_benchmarks.py",
    "test_documentation.py",
    "test_packaging.py",
    "test_picture_example.py",
    "test_recorded_example.py",
    "test_typing.py",
)
"""Folders and files, below this one, whose tests are all marked `slow`: properties at length, the page in a browser,
real servers, torch, processes that are killed, the lines and the types of the documentation."""


def _is_slow(path: Path) -> bool:
    name = path.relative_to(Path(__file__).parent).as_posix()
    return any(name == each or name.startswith(f"{each}/") for each in SLOW)


def pytest_configure(config: pytest.Config) -> None:
    """Leaves out slow tests, but not where CI runs, nor where files, or tests by a mark, are named.

    Where tests are tried twice, one whose garbage fails fails; the collector blames whichever test runs while it frees
    what another one left. Elsewhere that is a warning.
    """
    is_named = config.args_source is pytest.Config.ArgsSource.ARGS or config.option.markexpr
    if not is_named and not os.environ.get("CI"):
        config.option.markexpr = "not slow"
    if os.environ.get("LMQL_LITE_TRY_TWICE"):
        config.option.reruns = 1
    else:
        config.addinivalue_line("filterwarnings", "default::pytest.PytestUnraisableExceptionWarning")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.option.markexpr == "not slow" and _is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_slow(item.path):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Exempts the collected tests from garbage collection, which some tests call often."""
    gc.freeze()
