"""Whole runs on llama.cpp's own server: the text of the demo model in this process, and the same promises (S6, S7)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import lmql_lite as lq
from lmql_lite.models.base import Capabilities
from lmql_lite.models.openai.model import OpenAIModel
from tests.servers.conftest import client
from tests.servers.llama_cpp import CONTEXT
from tests.servers.processes import ServerProcess
from tests.servers.promises import Asked
from tests.servers.telling import Counts, Figures, TellingPromises


@pytest.fixture(scope="module")
def base_url(llama_cpp_server: ServerProcess) -> str:
    return llama_cpp_server.base_url


@pytest.fixture(scope="module")
def known(base_url: str) -> OpenAIModel:
    """The server's model, found out about once for all tests."""
    model = lq.model("openai/demo", base_url=base_url)
    assert isinstance(model, OpenAIModel)
    return model


@pytest.fixture(scope="module")
def counts(llama_cpp_server: ServerProcess) -> Iterator[Counts]:
    with client(llama_cpp_server) as asked:

        def counted() -> Figures:
            lines = (line.split() for line in asked.get("/metrics").text.splitlines() if line.startswith("llamacpp:"))
            found = {name.removeprefix("llamacpp:"): int(float(figure)) for name, figure in lines}
            return Figures(
                found["prompt_tokens_total"] + found["prompt_tokens_cached_total"],
                found["tokens_predicted_total"],
                found["requests_processing"] + found["requests_deferred"],
            )

        yield counted


class TestLlamaCpp(TellingPromises):
    def test_what_it_can_do_is_found_out_for_nothing(self, known: OpenAIModel) -> None:
        before = known.requests
        endpoint = asyncio.run(known.probe())
        assert endpoint == Capabilities(
            endpoint.fingerprint,
            takes_languages=True,
            takes_schemas=True,
            alternatives=20,
            takes_seeds=True,
            stops=16,
            context_length=CONTEXT,
        )
        assert known.requests == before

    def test_a_distribution_is_refused_in_a_sentence_where_no_text_is_scored(self, asked: Asked) -> None:
        with pytest.raises(lq.ModelError) as caught:
            asked('"Is a penguin a bird?[A]" distribution A in [" yes", " no"]')
        assert "score" in caught.value.message or "log-prob" in caught.value.message
        assert caught.value.hint and asked.requests == 0
