"""Whole runs on real servers: the text of the demo model in this process, and the same promises (S6, S7)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import lmql_lite as lq
from lmql_lite.models.base import Capabilities
from lmql_lite.models.openai.model import OpenAIModel
from tests.servers import llama_cpp, vllm
from tests.servers.conftest import client
from tests.servers.processes import ServerProcess
from tests.servers.promises import MOON, Asked, Counts, Figures, Promises


def found_out_for_nothing(known: OpenAIModel, **capabilities: object) -> None:
    before = known.requests
    endpoint = asyncio.run(known.probe())
    told = {name: getattr(endpoint, name) for name in capabilities}
    assert told == capabilities and endpoint == Capabilities(endpoint.fingerprint, **told)
    assert known.requests == before


@pytest.fixture(scope="class")
def server(request: pytest.FixtureRequest) -> ServerProcess:
    found: ServerProcess = request.getfixturevalue(request.cls.process)
    return found


@pytest.fixture(scope="class")
def base_url(server: ServerProcess) -> str:
    return server.base_url


@pytest.fixture(scope="class")
def known(base_url: str) -> OpenAIModel:
    """The server's model, found out about once for all tests."""
    model = lq.model("openai/demo", base_url=base_url)
    assert isinstance(model, OpenAIModel)
    return model


@pytest.fixture(scope="class")
def counts(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Counts]:
    with client(server) as asked:

        def counted() -> Figures:
            lines = [line.split() for line in asked.get("/metrics").text.splitlines()]
            told = [(words[0].partition("{")[0], words[-1]) for words in lines if words]
            return Figures(*(sum(int(float(each)) for name, each in told if name in names) for names in metrics))

        metrics = request.cls.metrics
        yield counted


class TestLlamaCpp(Promises):
    process = "llama_cpp_server"
    metrics = (
        ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        ("llamacpp:tokens_predicted_total",),
        ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
    )

    def test_what_it_can_do_is_found_out_for_nothing(self, known: OpenAIModel) -> None:
        found_out_for_nothing(
            known,
            takes_languages=True,
            takes_schemas=True,
            alternatives=20,
            takes_seeds=True,
            stops=16,
            context_length=llama_cpp.CONTEXT,
        )


@pytest.mark.xdist_group("vllm")
class TestVLLM(Promises):
    """One server for both files: it takes a minute to start, and 3 GB."""

    process = "vllm_server"
    metrics = (
        ("vllm:prompt_tokens_total",),
        ("vllm:generation_tokens_total",),
        ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    )
    hottest = 2.0
    scores = True

    def test_what_it_can_do_is_found_out_for_nothing(self, known: OpenAIModel) -> None:
        found_out_for_nothing(
            known,
            takes_languages=True,
            most_rules=100,
            takes_schemas=True,
            alternatives=20,
            takes_seeds=True,
            scores=True,
            stops=16,
            context_length=vllm.CONTEXT,
        )

    def test_options_are_scored_as_in_this_process(self, known: OpenAIModel) -> None:
        there, here = (
            lq.score_sync(MOON, [" 1969-07-20", " 1969", " never"], model=model, session=lq.Session()).logprobs
            for model in (known, "demo")
        )
        assert there == pytest.approx(here, abs=2e-3)

    def test_options_in_a_chat_are_scored(self, asked: Asked) -> None:
        result = asked('"{:user}Is a penguin a bird?{:assistant}I say[A]" distribution A in [" yes", " no"]')
        assert result["A"] in (" yes", " no") and asked.requests == 3

    def test_a_name_that_it_does_not_serve_is_refused_with_those_that_it_does(self, base_url: str) -> None:
        with pytest.raises(lq.ModelError, match="has no model called 'demos'") as caught:
            lq.run_sync('"Say:[X]"', model=lq.model("openai/demos", base_url=base_url), session=lq.Session())
        assert caught.value.hint == "did you mean demo?"
