"""The `openai` package as the carrier of all requests, and clients of it that a user hands in."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tomllib
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest
from openai.resources.chat.completions import AsyncCompletions

import lmql_lite as lq
from lmql_lite.models.openai.address import Address
from lmql_lite.models.openai.client import OLDEST, Client
from tests.models.api import KEY, choice, sse
from tests.servers.answering import NOT_FOUND, Answering, Reply, Request, answering

pytestmark = pytest.mark.usefixtures("quick_and_alone")
CHAT = '"{:user}Say it.{:assistant}[X]"'
TEXT = '"Say it:[X]" where len(X) < 40'
SAID = {"/v1/completions": {"text": "It."}, "/v1/chat/completions": {"delta": {"content": "It."}}}


def speaking(request: Request) -> Reply:
    """Text and chat, from a server without a name."""
    said = SAID.get(request.path)
    if request.method == "GET" or said is None:
        return NOT_FOUND
    return Reply(200, [choice(**said) | {"model": "m-1"}, choice(finish_reason="stop", **_none(said)), "[DONE]"])


def _none(said: dict[str, Any]) -> dict[str, Any]:
    return {"text": ""} if "text" in said else {"delta": {}}


def only_chats(request: Request) -> Reply:
    return NOT_FOUND if request.path == "/v1/completions" else speaking(request)


def own(server: Answering, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(**{"base_url": server.base_url, "api_key": KEY} | options)


async def ran(client: Any, source: str = CHAT, **options: Any) -> str:
    """The answer to a run with this client, which is closed after it."""
    result = await lq.run(source, model=lq.model("openai/m", client=client), session=lq.Session(), **options)
    await client.close()
    return str(result["X"])


# The package ----------------------------------------------------------------------------------------------------------


def test_the_oldest_version_that_is_supported_is_the_one_that_is_required() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert f"openai>={'.'.join(map(str, OLDEST))},<4" in project["dependencies"]


def test_the_raw_form_of_the_package_passes_events_as_they_came() -> None:
    """Of everything that this project needs from the package, for each version in the range that is required."""
    events = [
        {"choices": [], "token_ids": [1], "nested": {"a": None}},
        {"more": "é\ud83d"},
        {"error": {"code": 500, "message": "b"}},
    ]
    body = sse(*events).encode("utf-8", "surrogatepass")
    seen: dict[str, str] = {}

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.update(request.headers)
        return httpx2.Response(200, content=body, headers={"content-type": "text/event-stream"})

    async def read() -> list[Any]:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        async with openai.AsyncOpenAI(base_url="http://host/v1", api_key=KEY, http_client=http) as client:
            asked = Client(Address.of("http://host/v1", KEY), timeout=None, concurrency=1, lent=client)
            asked.headers["X-B"] = "c"
            async with asked.ask("/other", {"stream": True}) as (_, found):
                return [event async for event in found]

    assert asyncio.run(read()) == events
    assert seen["authorization"] == f"Bearer {KEY}" and seen["x-b"] == "c"


def test_an_older_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "VERSION", "1.99.9")
    with pytest.raises(lq.ModelError, match=r"openai is version 1\.99\.9, and 3\.20 or newer is needed") as caught:
        lq.run_sync(CHAT, model=lq.model("openai/m", base_url="http://127.0.0.1:9/v1"), session=lq.Session())
    assert "pip install -U" in (caught.value.hint or "")


def test_the_package_is_loaded_with_the_first_request() -> None:
    script = (
        "import sys, lmql_lite as lq; lq.model('openai/m', base_url='http://host/v1'); print('openai' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# Clients of the user's ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "path"), [(TEXT, "/v1/completions"), (CHAT, "/v1/chat/completions")])
def test_a_client_keeps_its_address_key_headers_and_transport(source: str, path: str) -> None:
    sent: list[httpx2.Request] = []

    async def noted(request: httpx2.Request) -> None:
        sent.append(request)

    with answering(speaking) as server:
        http = httpx2.AsyncClient(event_hooks={"request": [noted]})
        client = own(server, http_client=http, default_headers={"X-Title": "mine"}, default_query={"v": "1"})
        assert asyncio.run(ran(client, source)) == "It."
        assert server.posts[-1].path == path and len(sent) == len(server.requests)
        for request in server.requests:
            assert request.headers["authorization"] == f"Bearer {KEY}"
            assert request.headers["x-title"] == "mine" and request.query == {"v": "1"}


def test_a_client_with_other_headers_is_another_server() -> None:
    async def place(**options: Any) -> str:
        async with openai.AsyncOpenAI(base_url="http://user:pass@host/v1/", api_key=KEY, **options) as client:
            return lq.model("openai/m", client=client).place

    plain, titled, keyed = (
        asyncio.run(place(default_headers=headers)) for headers in (None, {"X-V": "1"}, {"X-Api-Key": "1"})
    )
    assert plain == keyed == "openai/m at http://host/v1" and titled.startswith(f"{plain} (headers ")


def test_a_client_over_the_older_httpx_works() -> None:
    with answering(speaking) as server:
        assert asyncio.run(ran(own(server, http_client=httpx.AsyncClient()))) == "It."
    unheard = openai.AsyncOpenAI(base_url=server.base_url, api_key=KEY, http_client=httpx.AsyncClient())
    with pytest.raises(lq.ModelError, match="no server answers at"):
        asyncio.run(ran(unheard))


def azure(request: Request) -> Reply:
    assert request.headers["authorization"] == "Bearer key-1" and request.query == {"api-version": "2024-10-21"}
    is_chat = request.path == "/openai/deployments/m/chat/completions"
    return speaking(Request("POST", "/v1/chat/completions", {}, {}, {})) if is_chat else NOT_FOUND


def test_a_client_takes_its_key_or_its_token_of_azure_from_a_function() -> None:
    async def key() -> str:
        return "key-1"

    with answering(speaking) as server:
        assert asyncio.run(ran(own(server, api_key=key))) == "It."
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer key-1"}
    with answering(azure) as server:
        options: Any = {"azure_endpoint": server.root, "api_version": "2024-10-21", "azure_ad_token_provider": key}
        assert asyncio.run(ran(openai.AsyncAzureOpenAI(**options))) == "It."


def test_one_client_serves_one_event_loop_after_another() -> None:
    """It keeps connections of loops that have ended, and Python warns of those when they are collected."""
    query = lq.compile('"Row {n}:[X]" where len(X) < 40')

    def in_turn(server: Answering) -> list[str]:
        client = own(server)
        model = lq.model("openai/m", client=client)

        async def row(number: int) -> str:
            return str((await query.run({"n": number}, model=model, session=lq.Session()))["X"])

        async def rows() -> list[str]:
            return await asyncio.gather(*map(row, range(5)))

        found = [said for _ in range(3) for said in (*asyncio.run(rows()), asyncio.run(row(9)))]
        with suppress(RuntimeError):  # the loops of its connections have ended
            asyncio.run(client.close())
        return found

    with answering(speaking) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        assert in_turn(server) == ["It."] * 18
        gc.collect()


def test_a_refused_request_is_sent_again_by_the_run_and_not_by_the_client() -> None:
    refusals = [Reply(503, {"error": {"message": "busy"}}, {"retry-after-ms": "1"})] * 3

    def answer(request: Request) -> Reply:
        return refusals.pop() if request.method == "POST" and refusals else only_chats(request)

    async def asked(client: openai.AsyncOpenAI) -> int | None:
        found = await lq.run(CHAT, model=lq.model("openai/m", client=client), session=lq.Session())
        await client.close()
        return found.usage.requests

    with answering(answer) as server:
        client = own(server)  # it would repeat each request twice
        assert asyncio.run(asked(client)) == len(server.posts)
        assert client.max_retries == 2, "the user's own setting stays"


# Clients that are traced ----------------------------------------------------------------------------------------------


class Trace:
    """The record of an instrumentor: it replaces `create`, wraps the stream, and reads its objects."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.texts: list[str] = []

    async def read(self, stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            yield chunk
        self.texts.append(text)


class Observed:
    """A stream as tracers return it: it delegates what it does not know."""

    def __init__(self, stream: Any, trace: Trace) -> None:
        self._stream = stream
        self._trace = trace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._trace.read(self._stream)


def observing(trace: Trace, create: Callable[..., Any]) -> Callable[..., Any]:
    async def traced(*arguments: Any, **named: Any) -> Any:
        trace.calls.append(named)
        return Observed(await create(*arguments, **named), trace)

    return traced


def wrap(client: openai.AsyncOpenAI, trace: Trace) -> None:
    completions = client.chat.completions
    vars(completions)["create"] = observing(trace, completions.create)


@pytest.mark.parametrize("where", ["class", "client"])
def test_calls_of_an_instrumented_client_appear_in_its_trace(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace()
    if where == "class":
        monkeypatch.setattr(AsyncCompletions, "create", observing(trace, AsyncCompletions.create))
    with answering(only_chats) as server:
        client = own(server, max_retries=2 if where == "class" else 0)
        if where == "client":
            wrap(client, trace)
        assert asyncio.run(ran(client)) == "It."
        assert len(trace.calls) == sum(post.path == "/v1/chat/completions" for post in server.posts)
    call = trace.calls[-1]
    assert (call["model"], call["messages"], call["stream"]) == ("m", [{"role": "user", "content": "Say it."}], True)
    assert trace.texts[-1] == "It."


@pytest.mark.parametrize("body", [b": ping\n\n", b"<html>", b'data: {"choices": []}'], ids=["silence", "page", "cut"])
def test_odd_answers_are_a_sentence_with_an_instrumented_client(body: bytes) -> None:
    def answer(request: Request) -> Reply:
        return Reply(200, body) if request.path == "/v1/chat/completions" else NOT_FOUND

    async def error() -> lq.ModelError:
        async with own(server, max_retries=0) as client:
            wrap(client, Trace())
            with pytest.raises(lq.ModelError) as caught:
                await lq.run(CHAT, model=lq.model("openai/m", client=client), session=lq.Session())
            return caught.value

    with answering(answer) as server:
        assert "ended an answer before it began, 3 times in a row" in asyncio.run(error()).message


# What is no client ----------------------------------------------------------------------------------------------------


class Wrapper:
    """A client inside another object."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


NO_CLIENTS: list[tuple[Callable[[], object], dict[str, Any], str, str]] = [
    (lambda: openai.OpenAI(api_key=KEY), {}, "not an object of the class OpenAI", "openai.AsyncOpenAI"),
    (httpx2.AsyncClient, {}, "not an object of the class AsyncClient", "http_client="),
    (httpx.AsyncClient, {}, "not an object of the class AsyncClient", "http_client="),
    (dict, {}, "takes an openai.AsyncOpenAI, not an object of the class dict", ""),
    (lambda: Wrapper(openai.AsyncOpenAI(api_key=KEY)), {}, "repeats requests by itself", "max_retries=0"),
    (lambda: openai.AsyncOpenAI(api_key=KEY), {"base_url": "http://x/v1"}, "has an address", "leave base_url="),
]


@pytest.mark.parametrize(("made", "options", "sentence", "hint"), NO_CLIENTS, ids=range(len(NO_CLIENTS)))
def test_what_is_no_client_is_a_sentence(
    made: Callable[[], object], options: dict[str, Any], sentence: str, hint: str
) -> None:
    client: Any = made()
    with pytest.raises(lq.ModelError) as caught:
        lq.model("openai/m", client=client, **options)
    assert sentence in caught.value.message and hint in (caught.value.hint or "")
    assert json.dumps(caught.value.message) and KEY not in caught.value.report()


def test_a_client_is_for_models_behind_an_api() -> None:
    with pytest.raises(lq.ModelError, match="client= is only for models behind an API, which 'demo' is not"):
        lq.model("demo", client=openai.AsyncOpenAI(api_key=KEY))
