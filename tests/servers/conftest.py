"""One llama.cpp server over the demo model, for all tests of a process."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lmql_lite.assets import asset
from tests.servers.llama import LlamaServer, missing, serving

if TYPE_CHECKING:
    import httpx


@pytest.fixture(scope="session")
def demo_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model as one file for llama.cpp."""
    if reason := missing():
        pytest.skip(reason)
    from tests.servers.gguf import convert

    folder = asset("demo/model", "config.json").parent
    return convert(folder, tmp_path_factory.mktemp("gguf") / "demo.gguf")


@pytest.fixture(scope="session")
def llama_server(demo_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with serving(demo_gguf, tmp_path_factory.mktemp("llama") / "server.log") as server:
        yield server


@pytest.fixture
def llama(llama_server: LlamaServer) -> Iterator[httpx.Client]:
    """A client of its own for each test: a failed stream leaves a connection that cannot be used again."""
    import httpx

    with httpx.Client(base_url=llama_server.address, trust_env=False, verify=False, timeout=60) as client:
        yield client


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what the server wrote last."""
    report = yield
    arguments: dict[str, Any] = getattr(item, "funcargs", {})
    server = arguments.get("llama_server")
    if report.failed and isinstance(server, LlamaServer):
        report.sections.append(("llama.cpp server", server.logged()[-4000:]))
    return report
