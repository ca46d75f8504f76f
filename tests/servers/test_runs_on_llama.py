"""Whole runs on llama-cpp-python's server: what this process says of the demo model, the same promises (S6, S7)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from lmql_lite.models.openai.model import OpenAIModel
from tests.servers.processes import ServerProcess
from tests.servers.promises import Asked, Promises
from tests.test_examples import EXAMPLES


@pytest.fixture(scope="module")
def known(llama_server: ServerProcess) -> Iterator[OpenAIModel]:
    """The server's model, found out about once for all tests."""
    model = lq.model("openai/demo", base_url=llama_server.base_url)
    assert isinstance(model, OpenAIModel)
    yield model


class TestLlamaCppPython(Promises):
    def test_what_the_server_does_not_tell_is_none_and_what_arrived_is_counted_law_6(self, asked: Asked) -> None:
        usage = asked(EXAMPLES / "01_packing_list.lq").usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.provider_cached_tokens) == (None, None, None)
        dashes = 3  # that the server said, where the program says them
        assert usage.received_tokens == (usage.tokens_from_model or 0) + (usage.wasted_tokens or 0) + dashes
        assert (usage.draft_accepted, usage.forward_passes) == (0, None)

    def test_a_distribution_is_refused_in_a_sentence_where_no_text_is_scored(self, asked: Asked) -> None:
        with pytest.raises(lq.ModelError) as caught:
            asked('"Is a penguin a bird?[A]" distribution A in [" yes", " no"]')
        assert "score" in caught.value.message or "log-prob" in caught.value.message
        assert caught.value.hint

    def test_a_run_that_is_given_up_closes_its_stream_at_once_S32(
        self, asked: Asked, llama_server: ServerProcess
    ) -> None:
        before, query = len(llama_server.logged()), lq.compile('sample(seed=1)\n    "x y z:[X]"\nwhere len(X) > 600')

        async def left() -> None:
            begun = asyncio.Event()

            async def running() -> None:
                async for event in query.stream(model=asked.model, session=lq.Session()):
                    if isinstance(event, events.TokenMoved) and event.token.hole:
                        begun.set()

            run = asyncio.create_task(running())
            await begun.wait()
            run.cancel()
            with suppress(asyncio.CancelledError):
                await run
            deadline = time.monotonic() + 20
            while "Disconnected from client" not in llama_server.logged()[before:]:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)

        asyncio.run(left())
