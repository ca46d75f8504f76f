"""What goes wrong with a model behind an API: one sentence each, and no retry of what cannot succeed."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
import time
import traceback
import warnings
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.errors import BrokenOff, ModelError
from lmql_lite.models.base import CompletionRequest, ServerUsage
from lmql_lite.models.openai import client as openai_client
from lmql_lite.models.openai.address import Address
from lmql_lite.models.openai.client import PROBE_TIMEOUT, TIMEOUT, Client
from lmql_lite.models.openai.model import OpenAIModel
from tests.models.api import KEY, SPOKEN, TEXT, ask, choice, failing, model, pieces_of, run, sse, text
from tests.servers.answering import NOT_FOUND, Reply, answering
from tests.servers.kinds import LLAMA_CPP, OPENAI_CHAT, VLLM, Config
from tests.servers.stub import Fault, serving
from tests.tables import cases

pytestmark = pytest.mark.usefixtures("quick_and_alone")
END = choice(text="", finish_reason="stop")
WHOLE = {"Content-Type": "application/json"}
IN_LINES = json.dumps(choice(text="a"), indent=1)


def ending(word: str, tokens: int) -> str:
    """An answer of so many tokens that ends with this word."""
    return sse(choice(text="Hi", finish_reason=word) | {"usage": {"completion_tokens": tokens}}, "[DONE]")


# Retries and faults ---------------------------------------------------------------------------------------------------


@cases("models/openai_faults", "what goes wrong is one sentence", globals())
def test_what_goes_wrong_is_one_sentence(fault: Fault, tries: int, broken: str, sentence: str) -> None:
    """The error says by its class whether an answer had begun; then the rest may be asked for."""
    with serving(VLLM, SPOKEN, *[fault] * 9) as server:
        error = failing(server)
        assert sentence in error.message and "\n" not in error.message and server.requests == tries
        assert isinstance(error, BrokenOff) is (broken == "broken")


@cases("models/openai_faults", "odd streams are read", globals())
def test_odd_streams_are_read(body: str, said: str, finish: str) -> None:
    with serving(VLLM, "", Fault(plain=body)) as server:
        pieces = ask(server)
        assert (text(pieces), pieces[-1].finish) == (said, finish)


@cases("models/openai_faults", "what may pass is tried again", globals())
def test_what_may_pass_is_tried_again(faults: list[Fault]) -> None:
    with serving(VLLM, "Hi", *faults) as server:
        pieces = ask(server)
        assert text(pieces) == "Hi" and server.requests == len(faults) + 1
        assert pieces[-1].spent == ServerUsage(1, 0, 3, requests=len(faults) + 1)


def test_a_connection_that_was_closed_meanwhile_cost_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """As servers do with one that was idle for long."""
    paused = []
    monkeypatch.setattr(openai_client, "pause_before", lambda tries, headers: paused.append(tries))
    for resets, pauses in ((1, []), (3, [2, 3])):
        with serving(VLLM, SPOKEN, *[Fault(reset=True)] * resets) as server:
            assert text(ask(server)) == SPOKEN
            assert (server.requests, paused) == (resets + 1, pauses)


@pytest.mark.parametrize(("config", "kept"), [(VLLM, 2), (LLAMA_CPP, 0)], ids=["vllm", "llama.cpp"])
def test_llama_cpp_closed_a_connection_behind_each_stream_under_the_next_request(config: Config, kept: int) -> None:
    with serving(config, SPOKEN) as server:
        asked = model(server)
        for _ in range(2):
            assert text(run(pieces_of(asked, TEXT, CompletionRequest(60)))) == SPOKEN
        assert (server.requests, server.kept) == (2, kept)


def test_an_answer_that_was_left_told_of_one_request_where_two_were_sent_S32() -> None:
    with serving(VLLM, SPOKEN, Fault(503, {"Retry-After": "0"})) as server:
        asked = model(server)

        async def first() -> ServerUsage | None:
            async with aclosing(asked.stream(TEXT, CompletionRequest(60))) as pieces:
                return (await anext(pieces)).spent

        usage = run(first())
        assert usage is not None and usage.requests == 2
        assert asked.requests == server.requests == 2


def test_a_server_that_says_nothing() -> None:
    with serving(VLLM, SPOKEN, Fault(hang=True), Fault(hang=True, after=3)) as server:
        silent = failing(server, timeout=0.5)
        assert "sent nothing for 0.5 s" in silent.message and not isinstance(silent, BrokenOff) and silent.hint
        assert server.requests == 1
        stuck = failing(server, timeout=0.5)
        assert "sent nothing for 0.5 s in the middle" in stuck.message and isinstance(stuck, BrokenOff)


def test_slow_bytes_are_no_fault() -> None:
    with serving(VLLM, SPOKEN, Fault(bytewise=True)) as server:
        assert text(ask(server)) == SPOKEN


def test_an_event_without_an_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_client, "_MAX_EVENT", 1 << 16)
    with serving(VLLM, "", Fault(plain="data: " + "x" * (1 << 20))) as server:
        assert "sends an answer without an end" in failing(server).message


@cases("models/openai_faults", "an error has a class of its own", globals())
def test_an_error_has_a_class_of_its_own(config: Config, fault: Fault | None, kind: type[ModelError]) -> None:
    with serving(config, SPOKEN, fault) as server, pytest.raises(ModelError) as caught:
        lq.run_sync('"Say:[X]"', model=model(server), session=lq.Session())
    assert type(caught.value) is kind and KEY not in str(caught.value) and caught.value.hint
    if isinstance(caught.value, lq.RateLimitError):
        assert caught.value.retry_after == 3600.0 and caught.value.span is not None


# Bad input ------------------------------------------------------------------------------------------------------------


@cases("models/openai_faults", "options that make no sense are a sentence", globals())
def test_options_that_make_no_sense_are_a_sentence(options: dict[str, Any], sentence: str, hint: str) -> None:
    with pytest.raises(ModelError) as caught:
        lq.model("openai/gpt", **{"base_url": "http://localhost:1/v1"} | options)
    assert sentence in caught.value.message and hint in (caught.value.hint or "") and "abc" not in caught.value.report()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("HTTP://Host:80/v1/", "http://host/v1"),
        ("https://user:pass@host:443/v1", "https://host/v1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
    ],
)
def test_addresses_are_written_one_way(url: str, shown: str) -> None:
    address = Address.of(url, None)
    assert address.shown == shown and "pass" not in repr(address)


def test_openai_itself_wants_a_key() -> None:
    named = lq.model("openai/gpt-4o-mini")  # a replay needs none
    with pytest.raises(ModelError, match="needs an API key, and none is set") as caught:
        lq.run_sync('"Hi[X]"', model=named)
    assert "OPENAI_API_KEY" in (caught.value.hint or "")


@pytest.mark.parametrize("key", [KEY, "a-key-of-no-known-form"])
def test_the_key_is_shown_nowhere(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also not where the server says it again."""
    caplog.set_level(logging.DEBUG)
    with serving(replace(VLLM, key="other"), "Hi") as server:
        asked = model(server, api_key=key)
        with pytest.raises(ModelError) as caught:
            run(asked.probe())
        shown = "".join(traceback.format_exception(caught.value)) + caught.value.report() + repr(asked) + caplog.text
        assert "rejects the API key: Incorrect API key provided: [key]" in caught.value.message
        assert "OPENAI_API_KEY" in (caught.value.hint or "")
        assert key not in shown and key in server.keys
        assert server.requests == 0  # it was a look


def meeting(url: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        run(OpenAIModel("stub", base_url=url).probe())
    assert caught.value.hint and caught.value.__cause__ is None
    return caught.value


@cases(
    "models/openai_faults", "what is no API is told so", {"Reply": Reply, "WHOLE": {"Content-Type": "application/json"}}
)
def test_what_is_no_API_is_told_so(reply: Reply, sentence: str) -> None:
    with answering(lambda request: reply) as server:
        assert sentence in meeting(server.base_url).message


def test_the_server_of_llama_cpp_python_is_refused_by_name() -> None:
    """A second request breaks off the first one, and a grammar that does not parse ends it."""
    title = Reply(200, {"info": {"title": "🦙 llama.cpp Python API"}})
    with answering(lambda request: title if request.path == "/openapi.json" else NOT_FOUND) as server:
        assert "is the server of llama-cpp-python" in meeting(server.base_url).message and not server.posts


def test_an_address_of_an_API_that_is_nearly_right_is_told() -> None:
    with serving(VLLM, "") as server:
        error = meeting(server.base_url.replace("http", "https"))
        assert "does not speak https" in error.message and server.base_url in (error.hint or "")
        assert meeting(server.base_url.removesuffix("/v1")).hint == f"did you mean base_url='{server.base_url}'?"


# Connections, loops, threads ------------------------------------------------------------------------------------------


def test_no_more_requests_at_once_than_allowed() -> None:
    with serving(replace(VLLM, seconds_per_token=0.002), "word " * 3) as server:

        async def many() -> set[str]:
            asked = model(server, concurrency=3)
            work = (pieces_of(asked, TEXT, CompletionRequest(20)) for _ in range(12))
            return {text(one) for one in await asyncio.gather(*work)}

        assert run(many()) == {"word " * 3}
        assert server.most_open == 3


def test_connections_are_used_again() -> None:
    with serving(VLLM, SPOKEN) as server:

        async def in_a_row() -> int:
            asked = model(server)
            await asked.probe()
            for _ in range(12):
                await pieces_of(asked, TEXT, CompletionRequest(20))
            return len(server.clients)

        assert run(in_a_row()) <= 6  # so many were opened to look at it


def test_one_model_in_many_loops_and_threads() -> None:
    """S28. Warnings are errors here: nothing may be left open when a loop ends."""
    with serving(VLLM, "Hi") as server:
        asked = model(server)
        answers: list[str] = []

        def work() -> None:
            answers.extend(text(run(pieces_of(asked, TEXT, CompletionRequest(9)))) for _ in range(3))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == ["Hi"] * 9
        assert not asked._sender.client._loops


def test_connections_that_the_server_had_closed_stayed_open_where_a_reader_left_meanwhile() -> None:
    """The pool closes them with the next request, one by one; warnings are errors here."""
    lines: list[asyncio.StreamWriter] = []

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(writer)
        with suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(len(b"{}"))
                data = sse("[DONE]").encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
                writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
        writer.close()

    async def left(turns: int) -> None:
        async with await asyncio.start_server(served, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            client = Client(Address.of(f"http://127.0.0.1:{port}/v1", KEY), timeout=None, concurrency=4)

            async def asked() -> None:
                async with client.ask("/completions", {}) as (_, events):
                    async for _ in events:
                        pass

            await asyncio.gather(*(asked() for _ in range(4)))
            close_all()
            request = asyncio.create_task(asked())
            for _ in range(turns):
                await asyncio.sleep(0)
            request.cancel()
            await asyncio.wait([request])
        close_all()

    def close_all() -> None:
        while lines:
            lines.pop().close()
        time.sleep(0.001)  # until the other side has heard of it

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for turns in range(20):
            asyncio.run(left(turns))
        gc.collect()
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []


# Free routes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["v1/models", "props"])
def test_one_failure_of_a_free_route_ended_the_run_or_hid_what_the_server_is(path: str) -> None:
    """R9. S17: what a server can do is known although it was still loading when it was looked at."""
    with serving(LLAMA_CPP, "Hi") as server:
        server.failing[path] = [503, 503]
        assert run(model(server).probe()).takes_languages


def test_a_free_route_is_waited_for_as_long_as_the_user_says() -> None:
    """R9."""
    address = Address.of("http://localhost:1/v1", KEY)
    quick, patient, unsaid = (Client(address, timeout=each, concurrency=1) for each in (0.5, 40.0, None))
    assert (quick.probe_timeout, patient.probe_timeout) == (0.5, 40.0)
    assert unsaid.probe_timeout == PROBE_TIMEOUT < unsaid.timeout == TIMEOUT


# Servers that become others -------------------------------------------------------------------------------------------


TWO_HOLES = '"Uncharacteristically[A]" where len(A) == 3\n"Uncharacteristically[B]" where len(B) == 3'
"""A prompt that ends in a long word is sent as it is."""


def _answered(served: str, said: str) -> Fault:
    event = choice(text=said, finish_reason="length") | {"model": served}
    return Fault(plain=sse(event, "[DONE]"))


def test_another_model_in_the_middle_of_a_run_is_a_sentence_and_nothing_is_lost_or_paid_twice() -> None:
    session = lq.Session()
    with serving(VLLM, SPOKEN, _answered("stub", " hi"), _answered("other/model", " ho")) as server:
        asked = model(server)
        with pytest.raises(ModelError, match="answers as model 'other/model', and answered as 'stub' before") as caught:
            lq.run_sync(TWO_HOLES, model=asked, session=session, speculate=False)
        assert caught.value.hint and "run it again" in caught.value.hint
        before = server.requests
        server.faults.append(_answered("stub", " ho"))
        assert lq.run_sync(TWO_HOLES, model=asked, session=session, speculate=False)["B"] == " ho"
        assert server.requests == before + 1


def test_snapshots_of_one_model_may_take_turns() -> None:
    with serving(VLLM, SPOKEN, _answered("stub-2026-01", " hi"), _answered("stub-2026-02", " ho")) as server:
        assert lq.run_sync(TWO_HOLES, model=model(server), session=lq.Session(), speculate=False)["B"] == " ho"


def test_the_answer_to_another_request_is_a_sentence_where_it_breaks_the_condition() -> None:
    other = choice(text=" and that is why the sea is salty", finish_reason="stop")
    with serving(VLLM, SPOKEN, *(Fault(plain=sse(other, "[DONE]")) for _ in range(40))) as server:
        with pytest.raises((ModelError, lq.ConstraintError)) as caught:
            lq.run_sync('"Yes or no?[X]" where X in [" yes", " no"]', model=model(server), session=lq.Session())
        assert "\n" not in caught.value.message and caught.value.hint
        assert server.requests <= 4


def test_a_chat_without_a_question_is_a_sentence() -> None:
    with serving(OPENAI_CHAT, SPOKEN) as server, pytest.raises(ModelError, match="no text before the hole") as caught:
        lq.run_sync('"[X]" where len(X) < 9', model=model(server), session=lq.Session())
    assert caught.value.hint and caught.value.span is not None
