"""What goes wrong with a model behind an API: one sentence each, and no retry of what cannot succeed."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine.session import Session
from lmql_lite.errors import BrokenOff, ModelError
from lmql_lite.models.base import CompletionRequest, PromptTurn, ServerUsage
from lmql_lite.models.openai import client as openai_client
from lmql_lite.models.openai.address import Address
from lmql_lite.models.openai.client import PROBE_TIMEOUT, TIMEOUT, Client
from lmql_lite.models.openai.model import OpenAIModel
from lmql_lite.models.openai.refusals import ServerRefusal
from lmql_lite.models.registry import load
from tests.models.api import (
    KEY,
    SPOKEN,
    TEXT,
    ask,
    choice,
    failing,
    model,
    pieces_of,
    run,
    sse,
    text,
)
from tests.servers.kinds import LLAMA_CPP, LLAMA_CPP_PYTHON, OPENAI_CHAT, VLLM, Config
from tests.servers.stub import Fault, serving

pytestmark = pytest.mark.usefixtures("quick_and_alone")


# Retries and faults ---------------------------------------------------------------------------------------------------


def test_a_connection_that_was_closed_meanwhile_cost_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """As servers do with one that was idle for long."""
    paused = []
    monkeypatch.setattr(openai_client, "pause_before", lambda tries, headers: paused.append(tries))
    for resets, pauses in ((1, []), (3, [2, 3])):
        with serving(VLLM, SPOKEN, *[Fault(reset=True)] * resets) as server:
            assert text(ask(server)) == SPOKEN
            assert (server.requests, paused) == (resets + 1, pauses)


@pytest.mark.parametrize(("config", "kept"), [(VLLM, 2), (LLAMA_CPP, 0)], ids=lambda value: getattr(value, "kind", ""))
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


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(429, {"Retry-After": "0"})],
        [Fault(429, {"Retry-After": formatdate(0, usegmt=True)})],
        [Fault(500)] * 4,
        [Fault(502, html=True), Fault(503), Fault(504)],
        [Fault(408), Fault(409), Fault(520), Fault(529)],
        [Fault(400, {"x-should-retry": "true"})],
        [Fault(reset=True)] * 2,
    ],
    ids=["429", "429 until a date", "500 four times", "502 503 504", "408 409 520 529", "asked to", "reset"],
)
def test_what_may_pass_is_tried_again(faults: list[Fault]) -> None:
    with serving(VLLM, "Hi", *faults) as server:
        pieces = ask(server)
        assert text(pieces) == "Hi"
        assert server.requests == len(faults) + 1
        assert pieces[-1].spent == ServerUsage(1, 0, 3, requests=len(faults) + 1)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 500])
def test_what_cannot_succeed_is_not_tried_again(status: int) -> None:
    headers = {"x-should-retry": "false"} if status == 500 else {}
    with serving(VLLM, "Hi", Fault(status, headers, message="out of order")) as server:
        error = failing(server)
        assert server.requests == 1 and "out of order" in error.message and not isinstance(error, BrokenOff)


@pytest.mark.parametrize(
    ("fault", "tries", "sentence"),
    [
        (Fault(500), 5, "failed 5 times: out of order"),
        (Fault(429), 5, "rejected the request 5 times because of its rate limit: out of order"),
        (Fault(429, {"Retry-After": "3600"}), 1, "rejected the request once because of its rate limit"),
        (Fault(429, code="insufficient_quota"), 1, "the quota of this key"),
        (Fault(reset=True), 5, "closes the connection without an answer, 5 times in a row"),
    ],
    ids=["500", "429", "an hour", "quota", "reset"],
)
def test_patience_ends(fault: Fault, tries: int, sentence: str) -> None:
    with serving(VLLM, "Hi", *[fault] * 9) as server:
        error = failing(server)
        assert server.requests == tries and sentence in error.message and error.hint


def test_an_answer_that_is_cut_can_be_gone_on_with() -> None:
    """What came stays; the error says by its type that the rest may be asked for."""
    with serving(VLLM, SPOKEN, Fault(cut=True, after=6)) as server:
        asked = model(server)

        async def broken() -> bytes:
            said = b""
            with pytest.raises(BrokenOff, match="closed the connection in the middle"):
                async for piece in asked.stream(TEXT, CompletionRequest(60)):
                    said += piece.data
            return said

        said = run(broken())
        assert said.decode() == SPOKEN[: len(said.decode())] and 4 < len(said) < len(SPOKEN.encode())
        assert (
            text(run(pieces_of(asked, (PromptTurn(None, said.decode()),), CompletionRequest(60))))
            == SPOKEN[len(said.decode()) :]
        )


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


END = choice(text="", finish_reason="stop")


@pytest.mark.parametrize(
    ("body", "sentence", "broken"),
    [
        (sse("{'a': 1}"), "which is not JSON", False),
        (sse("[1]"), "which is not a JSON object", False),
        ("Hello, world\n\n", "sends 'Hello, world', which is not part of an event stream", False),
        (sse(choice(text=5)), "an event that cannot be read", False),
        (sse({"choices": {"a": 1}}), "an event that cannot be read", False),
        (sse(choice(text="a"), "{oops"), "'{oops', which is not JSON, in the middle of an answer", True),
        (sse({"choices": []}, "[DONE]"), "returned no answer", False),
        (sse(choice(text="a"), {"choices": []}), "broke off in the middle", True),
        (
            sse(choice(text="a", finish_reason="length") | {"usage": {"completion_tokens": 1}}),
            "ended its answer before 60 tokens",
            True,
        ),
        (sse(choice(text="a"), {"error": {"message": "out of memory", "code": 500}}), "failed in the middle", True),
        (sse({"object": "error", "message": "bad", "code": 400}), "failed in the middle: bad", False),
        (sse(choice(text="a", finish_reason="abort")), "aborted the answer", True),
        (sse(choice(text="a", finish_reason="content_filter")), "content filter", False),
        (sse(choice(delta={"tool_calls": [{"id": "1"}]})), "answers with a tool call", False),
        (sse(choice(delta={"refusal": "I will not."})), "refuses to answer: I will not.", False),
    ],
)
def test_answers_that_are_none(body: str, sentence: str, broken: bool) -> None:
    with serving(VLLM, "", Fault(plain=body)) as server:
        error = failing(server)
        assert sentence in error.message and isinstance(error, BrokenOff) is broken and server.requests == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (": ping\r\n\r\nevent: x\r\ndata: " + json.dumps(END) + "\r\n\r\ndata: [DONE]\r\n\r\n", ""),
        (sse(choice(text="a"), choice(index=1, text="other"), END), "a"),
        (sse(choice(text="\ud83d"), END), "\ufffd"),
        (sse(choice(delta={"reasoning_content": "Well"}), choice(delta={"content": "a"}), END), "a"),
        ("\ufefffoo: bar\n" + sse(choice(text="a"), END), "a"),
        (sse(choice(text="a"), END).replace("\n", "\r"), "a"),
        (sse(json.dumps(choice(text="a"), indent=1).replace("\n", "\ndata: "), END), "a"),
        (sse(choice(text="a"), END, "[DONE]", choice(text="b")), "a"),
    ],
    ids=[
        "comments and CRLF",
        "another choice",
        "half a character",
        "thoughts",
        "a mark and an unknown field",
        "CR",
        "lines",
        "nothing after the end",
    ],
)
def test_odd_answers_that_are_some(body: str, said: str) -> None:
    with serving(VLLM, "", Fault(plain=body)) as server:
        assert text(ask(server)) == said


def test_an_event_without_an_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_client, "_MAX_EVENT", 1 << 16)
    with serving(VLLM, "", Fault(plain="data: " + "x" * (1 << 20))) as server:
        assert "sends an answer without an end" in failing(server).message


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "sentence", "hint"),
    [
        ("localhost:8000/v1", "does not begin with http", "did you mean http://localhost:8000/v1?"),
        ("ftp://host/v1", "does not begin with http", "such as http://localhost:8000/v1"),
        ("http://", "does not begin with http", "such as"),
        ("http://host:port/v1", "is not an address", "such as"),
        ("http://host/v1?key=abc", "nor a key after", "api_key="),
    ],
)
def test_addresses_that_are_none(url: str, sentence: str, hint: str) -> None:
    with pytest.raises(ModelError) as caught:
        lq.model("openai/gpt", base_url=url)
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


def test_names_come_from_the_environment_as_the_client_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(replace(VLLM, key=KEY), "Hi") as server:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        asked = load("openai/stub")
        assert isinstance(asked, OpenAIModel) and text(run(pieces_of(asked, TEXT, CompletionRequest(9)))) == "Hi"
        assert Session().model(None).name == "demo"  # what costs money must be named


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


def test_a_server_that_wants_a_key_and_gets_none() -> None:
    with serving(replace(VLLM, key=KEY), "Hi") as server:
        assert "needs an API key" in failing(server, api_key=None).message


def test_a_model_that_is_not_there() -> None:
    with serving(replace(VLLM, model="stub-large"), "Hi") as server:
        asked = OpenAIModel("stub-lagre", base_url=server.base_url)
        with pytest.raises(ModelError, match="no model called 'stub-lagre'") as caught:
            run(asked.probe())
        assert caught.value.hint == "did you mean stub-large?" and server.requests == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def speaking(words: bytes) -> Iterator[str]:
    """Something on a port that says the same to everybody, and is no HTTP server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(9999)
                    connection.sendall(words)
                    connection.shutdown(socket.SHUT_WR)
                    with suppress(OSError):  # what is left unread would reset the connection
                        connection.recv(9999)

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def meeting(url: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        run(OpenAIModel("stub", base_url=url).probe())
    return caught.value


def test_no_server_there() -> None:
    error = meeting(f"http://127.0.0.1:{free_port()}/v1")
    assert "no server answers at http://127.0.0.1:" in error.message and error.hint and error.__cause__ is None


def test_something_else_there() -> None:
    with speaking(b"220 mail.example.com ESMTP\r\n") as url:
        assert "closes the connection without an answer" in meeting(url).message
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>"
    with speaking(page) as url:
        assert "is not an OpenAI-compatible API: it lists its models as '<html></html>'" in meeting(url).message
    with speaking(b"HTTP/1.1 307 -\r\nLocation: /v1/models\r\nConnection: close\r\nContent-Length: 0\r\n\r\n") as url:
        assert "does not answer as HTTP servers do" in meeting(url).message
    with speaking(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n{x}") as url:
        assert "is not an OpenAI-compatible API" in meeting(url).message


def test_https_where_http_is_spoken() -> None:
    with serving(VLLM, "") as server:
        error = meeting(server.base_url.replace("http", "https"))
        assert "does not speak https" in error.message and server.base_url in (error.hint or "")


def test_an_address_without_v1() -> None:
    with serving(VLLM, "") as server:
        error = meeting(server.base_url.removesuffix("/v1"))
        assert f"did you mean base_url='{server.base_url}'?" == error.hint


@pytest.mark.parametrize("status", [None, 404, 405, 501], ids=["200", "404", "405", "501"])
def test_a_web_page_instead_of_an_answer(status: int | None) -> None:
    with serving(VLLM, "", Fault(status, html=True)) as server:
        error = failing(server)
        assert "is not an OpenAI-compatible API: it answers with a web page" in error.message and error.hint


@pytest.mark.parametrize(
    "fault",
    [
        Fault(404, plain="404 page not found"),
        Fault(404, message="Not Found"),
        Fault(405, plain=""),
        Fault(405, message="Method Not Allowed"),
        Fault(501, plain="no"),
    ],
    ids=["404 text", "404", "405 text", "405", "501 text"],
)
def test_a_server_of_something_else_was_said_to_lack_the_model_or_to_refuse_the_request(fault: Fault) -> None:
    with serving(VLLM, "Hi", fault) as server:
        error = failing(server)
    assert "is not an OpenAI-compatible API: it answers /" in error.message and error.hint
    assert error.message.endswith(f"/v1/completions with status {fault.status}")


def test_a_server_that_says_what_it_lacks_is_quoted() -> None:
    with serving(VLLM, "Hi", Fault(501, message="This server does not complete texts")) as server:
        assert failing(server).message.endswith("failed once: This server does not complete texts")
        assert server.requests == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"concurrency": 0}, "concurrency must be a number of requests"),
        ({"api_key": "two words"}, "contains a blank or a character that no key has"),
        ({"tokenizer": "nowhere"}, "nowhere has no tokenizer.json"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        lq.model("openai/x", **{"base_url": "http://localhost:1/v1"} | options)


def test_options_of_an_api_for_a_model_without_one() -> None:
    with pytest.raises(ModelError, match="base_url= is only for models behind an API, which 'demo' is not") as caught:
        lq.model("demo", base_url="http://localhost:1/v1")
    assert caught.value.hint and caught.value.hint.startswith("leave the option out")
    assert lq.model("demo").name == "demo"


# Connections, loops, threads ------------------------------------------------------------------------------------------


def test_no_more_requests_at_once_than_allowed() -> None:
    with serving(replace(VLLM, seconds_per_token=0.002), "word " * 3) as server:

        async def many() -> list[str]:
            asked = model(server, concurrency=3)
            return [
                text(one)
                for one in await asyncio.gather(*(pieces_of(asked, TEXT, CompletionRequest(20)) for _ in range(12)))
            ]

        assert set(run(many())) == {"word " * 3}
        assert server.most_open == 3


def test_a_server_that_does_one_thing_at_a_time_is_asked_so() -> None:
    """llama-cpp-python would break off the answer that is under way."""
    with serving(replace(LLAMA_CPP_PYTHON, seconds_per_token=0.002), "word " * 3) as server:

        async def many() -> None:
            asked = model(server)
            await asyncio.gather(*(pieces_of(asked, TEXT, CompletionRequest(20)) for _ in range(4)))

        run(many())
        assert server.most_open == 1


def test_connections_are_used_again() -> None:
    with serving(VLLM, SPOKEN) as server:

        async def in_a_row() -> int:
            asked = model(server)
            await asked.probe()
            for _ in range(12):
                await pieces_of(asked, TEXT, CompletionRequest(20))
            return len(server.clients)

        assert run(in_a_row()) <= 5  # so many were opened to look at it


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
                async with client.ask("/completions", {}) as answer:
                    async for _ in answer.events:
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


# The stub itself ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"surprise": 1}, "Unrecognized request argument supplied: surprise"),
        ({"max_tokens": "9"}, "Invalid type for 'max_tokens'"),
        ({"max_tokens": True}, "Invalid type for 'max_tokens'"),
        ({"logprobs": 99}, "less than or equal to 20"),
        ({"model": "other"}, "does not exist"),
        ({"stream": False, "stream_options": {}}, "only allowed when 'stream' is enabled"),
    ],
)
def test_the_stub_is_strict(change: dict[str, Any], told: str) -> None:
    with serving(VLLM, "Hi") as server:
        asked = model(server)

        async def raw() -> None:
            body = {"model": "stub", "prompt": "", "max_tokens": 3, "stream": True} | change
            async with asked._sender.client.ask("/completions", body) as answer:
                assert [event async for event in answer.events]

        with pytest.raises(ServerRefusal, match=told):
            run(raw())


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


# Errors of a kind of their own ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ['"Say:[X]"', '"Say:[X]" where len(X) < 4'])
def test_a_wrong_key_is_an_authentication_error(source: str) -> None:
    with serving(replace(VLLM, key="right"), SPOKEN) as server, pytest.raises(lq.AuthenticationError) as caught:
        lq.run_sync(source, model=model(server), session=lq.Session())
    assert KEY not in str(caught.value) and caught.value.hint


def test_a_rate_limit_that_stays_is_an_error_that_tells_how_long_it_asked_to_wait() -> None:
    limited = Fault(status=429, headers={"retry-after": "3600"}, message="slow down")
    with serving(VLLM, SPOKEN, limited) as server, pytest.raises(lq.RateLimitError) as caught:
        lq.run_sync('"Say:[X]"', model=model(server), session=lq.Session())
    assert caught.value.retry_after == 3600.0 and caught.value.span is not None


def test_a_quota_that_is_used_up_is_no_rate_limit() -> None:
    spent = Fault(status=429, message="You exceeded your current quota", code="insufficient_quota")
    with serving(VLLM, SPOKEN, spent) as server, pytest.raises(ModelError) as caught:
        lq.run_sync('"Say:[X]"', model=model(server), session=lq.Session())
    assert not isinstance(caught.value, lq.RateLimitError)
