"""The `openai` package, which carries every request: raw events, and our own repeats, limits and closing.

No other file imports the package, and this one is imported with the first request (law 7). Events stay the dicts that
the server sent, with everything that it adds to the protocol: `client.post(cast_to=object)`.

Any number of event loops and threads may use a client: each event loop has a client of the package, made with its first
request.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar, cast
from urllib.parse import urlencode, urlsplit
from weakref import WeakKeyDictionary

import httpx2
import openai

from lmql_lite.errors import AuthenticationError, BrokenOff, ModelError
from lmql_lite.models.base import BEFORE_REQUEST
from lmql_lite.models.openai.address import NAME_A_KEY, OFFICIAL, Address
from lmql_lite.models.openai.gate import Gate, pause_before
from lmql_lite.models.openai.refusals import CERTIFICATES, Problem, ServerRefusal, unreachable

Sent = TypeVar("Sent")

OLDEST = (3, 20)
"""Oldest version of the package that is supported."""
DONE: dict[str, Any] = {"done": True}
"""Event for the end of a stream."""
_DONE = b"[DONE]"

TIMEOUT = 300.0
"""Read timeout in seconds: a long prompt on a slow machine takes minutes."""
PROBE_TIMEOUT = 20.0
"""Read timeout of a free route in seconds, unless a timeout is given."""
_CONNECT_TIMEOUT = 10.0
_MAX_TRIES = 5
_MAX_WAITING = 50
"""Maximum tries of a request while others are accepted: a crowd under a rate limit waits its turn."""
_CROWDED = {429, 503, 529}
"""Statuses that ask all requests to wait, not only the refused one."""
_MAX_KEPT = 100
"""Maximum number of idle connections."""
_MAX_EVENT = 1 << 24
"""Maximum number of bytes of an event."""
Answer = tuple[int, AsyncGenerator[dict[str, Any], None]]
"""Number of requests sent for a response, and its events: JSON objects, one without a stream."""
_FIELDS = (b"", b"data", b"event", b"id", b"retry")
"""Fields of an event stream; "" begins a comment."""
_RESOURCES = {
    "/completions": attrgetter("completions"),
    "/chat/completions": attrgetter("chat.completions"),
}
"""Resources of a client whose `create` answers these routes."""
_NAMED = {
    "model", "prompt", "messages", "stream", "stream_options", "temperature", "top_p", "seed", "stop",
    "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "response_format", "reasoning_effort",
}  # fmt: skip
"""Fields that are arguments of `create`; all others go in as `extra_body`."""


@dataclass(frozen=True, slots=True)
class _InLoop:
    """Client of the package in one event loop. It closes when the loop ends, as every async generator of a loop does.
    `turn` is that of one caller at a time."""

    sdk: openai.AsyncOpenAI
    gate: Gate
    turn: asyncio.Lock
    keeper: AsyncGenerator[openai.AsyncOpenAI, None]


class Client:
    """Client of one server.

    A client that the user has handed in, `lent`, is called by `create`, as the user's own code calls it: that is the
    method which instrumentors and wrappers replace, and so requests appear in their traces. It stays open.
    """

    def __init__(
        self, address: Address, *, timeout: float | None, concurrency: int, lent: openai.AsyncOpenAI | None = None
    ) -> None:
        self.address = address
        self.timeout, self.probe_timeout = timeout or TIMEOUT, timeout or PROBE_TIMEOUT
        self.requests = 0
        """Number of requests that may cost something, failed ones included."""
        self.headers: dict[str, str] = {}
        """Headers of all requests, beside those of the address."""
        self._concurrency, self._lent = concurrency, lent
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _InLoop] = WeakKeyDictionary()
        self._query = f"?{urlencode(address.query)}" if address.query and lent is None else ""

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Exclusive turn among the callers of this event loop."""
        async with (await self._here()).turn:
            yield

    async def fetch(self, url: str, body: Mapping[str, object] | None = None) -> Any:
        """JSON, or text, of a free route. `body`, if given, is posted. Temporary failures are retried.

        Raises ServerRefusal, and ModelError if nothing answers or the proxy or certificates cannot be used.
        """
        here = await self._here()
        options: openai.RequestOptions = {"max_retries": 0, "timeout": _timeout(self.probe_timeout)}

        async def call() -> httpx2.Response:
            if body is None:
                return await here.sdk.get(url + self._query, cast_to=httpx2.Response, options=options)
            return await here.sdk.post(url + self._query, body=body, cast_to=httpx2.Response, options=options)

        async def send() -> Any:
            found = await self._called(call)
            with suppress(ValueError, RecursionError):
                return json.loads(found.content)
            return found.content.decode("utf-8", "replace")

        return (await self._tried(here.gate, send, self.probe_timeout))[0]

    @asynccontextmanager
    async def ask(self, url: str, body: Mapping[str, object]) -> AsyncIterator[Answer]:
        """Posts a request and reads the answer; leaving the block closes it. Temporary failures are retried.

        Raises as `fetch` does, and BrokenOff if an answer ends in the middle.
        """
        here = await self._here()
        async with here.gate.place():
            answer, requests = await self._tried(
                here.gate, lambda: self._post(here.sdk, url, body), self.timeout, undo=AnswerStream.close
            )
            events = answer.events()
            try:
                yield requests, events
            finally:
                await events.aclose()
                await to_the_end(answer.close)

    def slow_down(self, status: object) -> None:
        """Makes the next requests wait if an error in the middle of an answer, with this status, asks for it."""
        if isinstance(status, int) and status in _CROWDED:
            gate = self._loops[asyncio.get_running_loop()].gate
            gate.refuse(time.monotonic(), pause_before(gate.failures + 1, {}) or 0.0)

    async def _here(self) -> _InLoop:
        loop = asyncio.get_running_loop()
        here = self._loops.get(loop)
        if here is None:
            keeper = self._kept(loop)
            made = _InLoop(await anext(keeper), Gate(self._concurrency), asyncio.Lock(), keeper)
            here = self._loops.setdefault(loop, made)
        return here

    async def _kept(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[openai.AsyncOpenAI, None]:
        sdk = _made(self.address) if self._lent is None else self._lent
        try:
            yield sdk
        finally:
            self._loops.pop(loop, None)
            if self._lent is None:
                await sdk.close()

    async def _post(self, sdk: openai.AsyncOpenAI, url: str, body: Mapping[str, object]) -> AnswerStream:
        """Answer to a request, its events unread. Counts the request, which may cost something."""
        BEFORE_REQUEST.get()()
        self.requests += 1
        timeout = _timeout(self.timeout)
        create = _RESOURCES[url](sdk).create if self._lent is not None and url in _RESOURCES else None

        async def call() -> Any:
            if create is None or not body.get("stream"):
                return await sdk.post(
                    url + self._query,
                    body=body,
                    cast_to=object,
                    stream=True,
                    stream_cls=openai.AsyncStream[object],
                    options={"max_retries": 0, "headers": self.headers, "timeout": timeout},
                )
            named = {name: value for name, value in body.items() if name in _NAMED}
            more = {name: value for name, value in body.items() if name not in _NAMED}
            return await create(**named, extra_headers=self.headers, extra_body=more or None, timeout=timeout)

        return AnswerStream(await self._called(call), self.address, self.timeout)

    async def _called(self, call: Callable[[], Awaitable[Sent]]) -> Sent:
        """Result of `call`. A user's client may keep connections of an event loop that has ended; each fails once."""
        for left in reversed(range(_MAX_KEPT)):
            try:
                return await call()
            except RuntimeError as error:
                if not left or self._lent is None or str(error) != "Event loop is closed":
                    raise
        raise AssertionError("the last call has raised")

    async def _tried(
        self,
        gate: Gate,
        send: Callable[[], Coroutine[Any, Any, Sent]],
        timeout: float,
        undo: Callable[[Sent], Awaitable[None]] | None = None,
    ) -> tuple[Sent, int]:
        """Result of `send`, repeated after temporary failures, and the number of tries."""
        tries = 0
        while True:
            tries += 1
            sent = time.monotonic()
            try:
                async with gate.turn() as sent:
                    found = await to_the_end(send, undo)
                    gate.accept()
                    return found, tries
            except openai.APIStatusError as error:
                headers, path = error.response.headers, error.request.url.path
                refused = ServerRefusal(self.address, error.status_code, headers, error.body, path)
                refused.requests = tries
                if not refused.is_temporary or tries >= (_MAX_WAITING if refused.status == 429 else _MAX_TRIES):
                    raise refused from None
                await _wait(gate, refused, sent)
            except openai.APIConnectionError as error:
                problem = _problem(error)
                if problem != "reset" or tries >= _MAX_TRIES:
                    raise unreachable(self.address, problem, timeout, tries) from None
                if tries > 1:  # the first one was an idle connection
                    await asyncio.sleep(pause_before(tries, {}) or 0.0)
            except openai.OpenAIError as error:
                raise ModelError(f"the package openai cannot send the request: {error}") from None


async def _wait(gate: Gate, refused: ServerRefusal, sent: float) -> None:
    """Waits as long as a refusal asks for; all requests do if there are too many. Raises it if that cannot help."""
    tries, is_crowded = refused.requests, refused.status in _CROWDED
    pause = pause_before(gate.failures + 1 if is_crowded else tries, refused.headers)
    if is_crowded and pause is not None:
        gate.refuse(sent, pause)
    if pause is None or (gate.failures if is_crowded else tries) >= _MAX_TRIES:
        raise refused from None
    if not is_crowded:
        await asyncio.sleep(pause)


class AnswerStream:
    """An answer as it arrives. Its events are read here, because the package does not tell `[DONE]`, signs of life,
    or what is no stream of events; only those of a stream that somebody has wrapped are read by that."""

    def __init__(self, stream: Any, address: Address, timeout: float) -> None:
        self._stream, self._address, self._timeout = stream, address, timeout
        self._response = _response_of(stream)
        self._found = 0
        """Number of events so far."""

    async def close(self) -> None:
        await self._response.aclose()

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Events, empty ones for signs of life, and `DONE` for a proper end.

        Raises BrokenOff for an answer that ends in the middle, and ModelError for one that is no stream of events.
        """
        kind = self._response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/html":
            raise self._address.no_api("answers with a web page")
        try:
            if kind == "application/json":
                yield self._event(b"".join([chunk async for chunk in self._response.aiter_bytes()]))
                yield DONE
            elif type(self._stream) is not openai.AsyncStream:
                async for event in self._stream:
                    yield event.model_dump(exclude_unset=True) if isinstance(event, openai.BaseModel) else event
            else:
                parts = self._data()
                async for data in parts:
                    if data.strip() == _DONE:
                        yield DONE
                        async for _ in parts:  # a connection that is read to its end serves again
                            pass
                        return
                    yield self._event(data) if data else {}
        except (openai.APITimeoutError, httpx2.TimeoutException):
            raise BrokenOff(
                f"{self._address.shown} sent nothing for {self._timeout:g} s in the middle of an answer"
            ) from None
        except (openai.APIConnectionError, httpx2.RequestError):
            raise self._cut() from None
        except openai.APIError as error:
            yield {"error": error.body}

    async def _data(self) -> AsyncIterator[bytes]:
        """Data of each event, and nothing for a sign of life without one. Raises ModelError for an event without an
        end."""
        data, rest = b"", b""
        async for chunk in self._response.aiter_bytes():
            lines = (rest + chunk).splitlines(keepends=True)
            rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
            is_empty = True
            for line in lines:
                data += self._value(line)
                if data and not line.strip():
                    yield data
                    data, is_empty = b"", False
            if is_empty:
                yield b""
            if len(data) + len(rest) > _MAX_EVENT:
                raise self._address.no_api("sends an answer without an end")
        data += self._value(rest)
        if data.strip() == _DONE:
            yield data
        elif data:
            raise self._cut()

    def _value(self, line: bytes) -> bytes:
        """Value of a line with data, which may be cut; nothing of others. Raises ModelError for what is no line of an
        event stream."""
        name, _, value = line.strip().partition(b":")
        if name and b"data".startswith(name):
            return value + b"\n"
        if name not in _FIELDS:
            shown = repr(self._address.clean(line.decode("utf-8", "replace")))
            raise self._address.no_api(f"sends {shown}, which is not part of an event stream")
        return b""

    def _event(self, data: bytes) -> dict[str, Any]:
        """Object of an event. Raises ModelError for anything else, or BrokenOff where asking again may help."""
        with suppress(ValueError, RecursionError):
            found = json.loads(data)
            if isinstance(found, dict):
                self._found += 1
                return found
        told = f"sends {self._address.clean(data.decode('utf-8', 'replace'))!r}, which is not a JSON object"
        is_cut = not data or data.count(b"{") > data.count(b"}")
        if self._found or is_cut:  # the server can speak the protocol: it may do so again
            raise BrokenOff(f"{self._address.shown} {told}, in the middle of an answer")
        raise self._address.no_api(told)

    def _cut(self) -> BrokenOff:
        return BrokenOff(f"{self._address.shown} closed the connection in the middle of an answer")


def _response_of(stream: Any) -> httpx2.Response:
    """Response below a stream, which may be wrapped. Raises ModelError."""
    found = stream
    while found is not None and not hasattr(found, "aiter_bytes"):
        found = getattr(found, "response", None)
    if found is None:
        raise ModelError(
            f"client= returns an object of the class {type(stream).__name__} instead of a stream",
            hint="hand in the client that is wrapped",
        )
    return cast(httpx2.Response, found)


def usable(client: object) -> openai.AsyncOpenAI:
    """The user's client, without retries of its own, which nobody could count. Raises ModelError for anything else."""
    has_all = all(hasattr(client, name) for name in ("base_url", "chat", "post", "max_retries"))
    if isinstance(client, openai.OpenAI) or not has_all:
        raise ModelError(
            f"client= takes an openai.AsyncOpenAI, not an object of the class {type(client).__name__}",
            hint="a client of httpx goes into it: openai.AsyncOpenAI(http_client=...)",
        )
    given = cast(openai.AsyncOpenAI, client)
    if given.max_retries == 0:
        return given
    is_wrapped = any("create" in vars(resource(given)) for resource in _RESOURCES.values())
    if is_wrapped or not isinstance(client, openai.AsyncOpenAI):
        raise ModelError(
            "client= is wrapped and repeats requests by itself, which no limit of a run could count",
            hint="make it with openai.AsyncOpenAI(max_retries=0) before it is wrapped",
        )
    return given.with_options(max_retries=0)


def _made(address: Address) -> openai.AsyncOpenAI:
    """Client for an address, with the proxy and the certificates of the environment; a server on this machine needs
    neither. Raises ModelError for a proxy or certificates that cannot be used."""
    found = tuple(int(part) for part in re.findall(r"\d+", openai.VERSION)[:2])
    if found < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise ModelError(
            f"the package openai is version {openai.VERSION}, and {wanted} or newer is needed",
            hint=f"pip install -U 'openai>={wanted}'",
        )
    if urlsplit(address.url).hostname == urlsplit(OFFICIAL).hostname and not address.is_authorized:
        # not an error before something is sent: a replay needs no key
        raise AuthenticationError(f"{address.shown} needs an API key, and none is set", hint=NAME_A_KEY)
    needs_some = address.url.startswith("https:") and not address.is_near
    named = {name: os.environ[name] for name in CERTIFICATES if needs_some and os.environ.get(name)}
    try:
        http = httpx2.AsyncClient(
            verify=_trusted(tuple(named.values())),
            trust_env=not address.is_near,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=_MAX_KEPT),
        )
    except OSError as error:
        problem = (
            f"no certificates can be read from {' or '.join(map(repr, named.values()))}: {error.strerror or error}"
        )
        raise ModelError(problem, hint=f"correct or unset {' and '.join(named)}") from None
    except (ImportError, ValueError, httpx2.InvalidURL):
        raise ModelError(
            "the proxy that the environment names cannot be used",
            hint="correct or unset HTTPS_PROXY, HTTP_PROXY and ALL_PROXY; one of socks5:// needs the package socksio",
        ) from None
    return openai.AsyncOpenAI(
        base_url=address.url, api_key=address.key, default_headers=address.headers, http_client=http, max_retries=0
    )


@functools.lru_cache(8)
def _trusted(named: tuple[str, ...]) -> ssl.SSLContext:
    """Trusted certificates of the environment, where it names some, else of the system. They are kept: each event loop
    would read them."""
    return httpx2.create_ssl_context(trust_env=bool(named))


def _problem(error: openai.APIConnectionError) -> Problem:
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)

    def has(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if has(ssl.SSLCertVerificationError):
        return "certificate"
    if has(ssl.SSLError):
        return "tls"
    if has(httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError, ConnectionRefusedError, socket.gaierror):
        return "unreachable"
    if isinstance(error, openai.APITimeoutError):
        return "silent"
    return "reset"


def _timeout(seconds: float) -> httpx2.Timeout:
    return httpx2.Timeout(seconds, connect=min(seconds, _CONNECT_TIMEOUT), pool=None)


async def to_the_end(
    work: Callable[[], Coroutine[Any, Any, Sent]], undo: Callable[[Sent], Awaitable[None]] | None = None
) -> Sent:
    """Result of `work`, which opens or closes connections in a task of its own and is never interrupted midway.

    The connection pool shields its clean-up from anyio's cancellation, but not from asyncio's: cancelled while the pool
    closes several expired connections, a request would leave the rest open. On cancellation this function therefore
    cancels the work as anyio does, and waits for its end. If the work returned a result anyway, `undo` gets it.
    """
    import anyio

    scope, found = anyio.CancelScope(), list[Sent]()

    async def within() -> None:
        with scope:
            found.append(await work())

    task = asyncio.create_task(within())
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        scope.cancel()
        await asyncio.wait([task])
        if found and undo is not None:
            await undo(found[0])
        raise
    return found[0]
