"""One server of each kind over the demo model, for all tests of a process."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lmql_lite.assets import asset
from tests.servers import llama_cpp, vllm
from tests.servers.processes import ServerProcess

if TYPE_CHECKING:
    import httpx

pytest.register_assert_rewrite("tests.servers.promises")

TEMPLATE = """\
{%- for message in messages -%}
    {{- message['role'] + ': ' + message['content'] -}}
    {%- if not loop.last or message['role'] != 'assistant' -%}{{- '\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'assistant:' -}}{%- endif -%}
"""
"""Of chats: the demo model has none of its own."""


@pytest.fixture(scope="session")
def demo_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model as one file for llama.cpp."""
    pytest.importorskip("gguf", reason="needs gguf: pip install --group servers")
    from tests.servers.gguf import convert

    folder = asset("demo/model", "config.json").parent
    return convert(folder, tmp_path_factory.mktemp("gguf") / "demo.gguf")


@pytest.fixture(scope="session")
def llama_cpp_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    if reason := llama_cpp.missing():
        pytest.skip(reason)
    model: Path = request.getfixturevalue("demo_gguf")
    with llama_cpp.serving(model, tmp_path_factory.mktemp("llama_cpp") / "server.log", TEMPLATE) as server:
        yield server


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    if reason := vllm.missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("vllm")
    template = folder / "chat.jinja"
    template.write_text(TEMPLATE, "utf-8")
    with vllm.serving(asset("demo/model", "config.json").parent, folder / "server.log", template) as server:
        yield server


def client(server: ServerProcess) -> httpx.Client:
    import httpx

    return httpx.Client(base_url=server.address, trust_env=False, verify=False, timeout=60)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what its servers wrote last."""
    report = yield
    arguments: dict[str, Any] = getattr(item, "funcargs", {})
    if report.failed:
        for name, server in arguments.items():
            if isinstance(server, ServerProcess):
                report.sections.append((name, server.logged()[-4000:]))
    return report
