"""Whole runs on vLLM: the text of the demo model in this process, and the same promises (S6, S7)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import ClassVar

import pytest

import lmql_lite as lq
from lmql_lite.models.base import Capabilities
from lmql_lite.models.openai.model import OpenAIModel
from tests.servers.conftest import client
from tests.servers.processes import ServerProcess
from tests.servers.promises import UNSCORED, Asked
from tests.servers.telling import Counts, Figures, TellingPromises
from tests.servers.vllm import CONTEXT
from tests.test_examples import EXAMPLES, shown

pytestmark = pytest.mark.xdist_group("vllm")
"""One server for both files: it takes a minute to start, and 3 GB."""


@pytest.fixture(scope="module")
def base_url(vllm_server: ServerProcess) -> str:
    return vllm_server.base_url


@pytest.fixture(scope="module")
def known(base_url: str) -> OpenAIModel:
    """The server's model, found out about once for all tests."""
    model = lq.model("openai/demo", base_url=base_url)
    assert isinstance(model, OpenAIModel)
    return model


@pytest.fixture(scope="module")
def counts(vllm_server: ServerProcess) -> Iterator[Counts]:
    with client(vllm_server) as asked:

        def counted() -> Figures:
            lines = asked.get("/metrics").text.splitlines()

            def figure(name: str) -> int:
                return sum(int(float(line.split()[-1])) for line in lines if line.startswith(f"vllm:{name}{{"))

            running = figure("num_requests_running") + figure("num_requests_waiting")
            return Figures(figure("prompt_tokens_total"), figure("generation_tokens_total"), running)

        yield counted


class TestVLLM(TellingPromises):
    hottest: ClassVar = 2.0

    def test_what_it_can_do_is_found_out_for_nothing(self, known: OpenAIModel) -> None:
        before = known.requests
        endpoint = asyncio.run(known.probe())
        assert endpoint == Capabilities(
            endpoint.fingerprint,
            takes_languages=True,
            most_rules=100,
            takes_schemas=True,
            alternatives=20,
            takes_seeds=True,
            scores=True,
            stops=16,
            context_length=CONTEXT,
        )
        assert known.requests == before

    def test_a_distribution_is_that_of_this_process(self, asked: Asked, session: lq.Session) -> None:
        query = lq.compile(EXAMPLES / f"{UNSCORED}.lq")
        expected = (EXAMPLES / "expected" / f"{UNSCORED}.txt").read_text("utf-8")
        assert shown(query, asked(query, session=session)) == expected
        requests = asked.requests
        assert shown(query, asked(query, session=session)) == expected
        assert asked.requests == requests

    def test_options_are_scored_as_in_this_process(self, known: OpenAIModel) -> None:
        options = [" 1969-07-20", " 1969", " never"]
        prompt = "Q: When did the first moon landing take place?\nA:"
        there = lq.score_sync(prompt, options, model=known, session=lq.Session())
        here = lq.score_sync(prompt, options, session=lq.Session())
        assert there.logprobs == pytest.approx(here.logprobs, abs=2e-3)

    def test_options_in_a_chat_are_scored(self, asked: Asked) -> None:
        result = asked('"{:user}Is a penguin a bird?{:assistant}I say[A]" distribution A in [" yes", " no"]')
        assert result["A"] in (" yes", " no") and asked.requests == 3

    def test_a_name_that_it_does_not_serve_is_refused_with_those_that_it_does(self, base_url: str) -> None:
        with pytest.raises(lq.ModelError, match="has no model called 'demos'") as caught:
            lq.run_sync('"Say:[X]"', model=lq.model("openai/demos", base_url=base_url), session=lq.Session())
        assert caught.value.hint == "did you mean demo?"
