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
from contextlib import asynccontextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar, cast
from urllib.parse import urlencode, urlsplit
from weakref import WeakKeyDictionary

import httpx2
import openai

from lmql_lite.errors import AuthenticationError, BrokenOff, ModelError
from lmql_lite.models.base import BEFORE_REQUEST
from lmql_lite.models.openai.address import AUTHORIZING, NAME_A_KEY, OFFICIAL, SHOWN, Address, is_on_this_machine
from lmql_lite.models.openai.gate import Gate, pause_before
from lmql_lite.models.openai.refusals import CERTIFICATES, Problem, ServerRefusal, in_band, proxies, unreachable

Sent = TypeVar("Sent")

OLDEST = (3, 20)
"""Oldest version of the package that is supported."""
DONE: dict[str, Any] = {"done": True}
"""Event for the end of a stream, `[DONE]`."""

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
_MAX_EVENT = 1 << 26
"""Maximum number of bytes of an event."""
_TOKEN = "eyJ"
"""Beginning of a token of Entra, which Azure takes in the place of a key."""
_END = re.compile(rb"(?:^|[\r\n])data:[ \t]*\[DONE\]")
_FIELDS = (b"", b"data", b"event", b"id", b"retry")
_RESOURCES = {
    "/completions": attrgetter("completions"),
    "/chat/completions": attrgetter("chat.completions"),
    "/responses": attrgetter("responses"),
}
"""Resources of a client whose `create` answers these routes."""
_NAMED = {
    "model", "prompt", "messages", "input", "stream", "stream_options", "temperature", "top_p", "seed", "stop",
    "max_tokens", "max_completion_tokens", "max_output_tokens", "logprobs", "top_logprobs", "logit_bias", "include",
    "response_format", "reasoning_effort", "reasoning", "store", "text",
}  # fmt: skip
"""Fields that are arguments of `create`; all others go in as `extra_body`."""


@dataclass(frozen=True, slots=True)
class Response:
    """Response of a server. `requests` is the number sent for it; `events` are JSON objects, one without a stream."""

    requests: int
    events: AsyncGenerator[dict[str, Any], None]


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
            is_json = "json" in found.headers.get("content-type", "")
            return _json(found.content) if is_json else found.content.decode("utf-8", "replace")

        return (await self._tried(here.gate, send, self.probe_timeout))[0]

    @asynccontextmanager
    async def ask(self, url: str, body: Mapping[str, object]) -> AsyncIterator[Response]:
        """Posts a request and reads the answer; leaving the block closes it. Temporary failures are retried.

        Raises as `fetch` does, and BrokenOff if an answer ends in the middle.
        """
        here, requests = await self._here(), 0
        async with here.gate.place():
            while True:
                answer, tries = await self._tried(
                    here.gate, lambda: self._post(here.sdk, url, body), self.timeout, undo=AnswerStream.close
                )
                requests += tries
                events = answer.events()
                try:
                    first = await anext(events, None)
                    refused = in_band(self.address, first, answer.headers, answer.path)
                    if refused is None or not refused.is_temporary or requests >= _MAX_TRIES:
                        yield Response(requests, _after(first, events))
                        return
                finally:
                    await events.aclose()
                    await to_the_end(answer.close)
                refused.requests = requests
                await _wait(here.gate, refused, time.monotonic())

    def lower_concurrency(self, concurrency: int) -> None:
        """Lowers the maximum number of simultaneous requests from now on."""
        self._concurrency = min(self._concurrency, concurrency)
        for here in list(self._loops.values()):
            here.gate.lower_concurrency(self._concurrency)

    def slow_down(self, status: int) -> None:
        """Makes the next requests wait if an error in the middle of an answer, with this status, asks for it."""
        if status in _CROWDED:
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
            found = await create(**named, extra_headers=self.headers, extra_body=more or None, timeout=timeout)
            if type(found) is openai.AsyncStream:  # nobody else reads it: events need not become objects
                return openai.AsyncStream[object](cast_to=object, response=found.response, client=sdk)
            return found

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
                response = error.response
                refused = ServerRefusal(
                    self.address, error.status_code, response.headers, error.body, error.request.url.path
                )
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
    """An answer as it arrives.

    Its bytes are read on their way to the package, for what the package does not tell: `[DONE]`, silence, an event
    without an end.
    """

    def __init__(self, stream: Any, address: Address, timeout: float) -> None:
        self._stream, self._address, self._timeout = stream, address, timeout
        self._response = response = _response_of(stream)
        self.headers: Mapping[str, str] = response.headers
        self.path = response.request.url.path
        self._read = response.aiter_bytes
        vars(response)["aiter_bytes"] = self._bytes  # here, because whoever wraps the stream keeps the response
        self._found = 0
        """Number of events so far."""
        self._begin = self._end = b""
        """First and last bytes."""
        self._latest, self._size = time.monotonic(), 0
        """Time of the last event, and number of bytes since then."""

    async def close(self) -> None:
        await self._response.aclose()

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Events, and `DONE` for a proper end; an error in the place of an event is the last one.

        Raises BrokenOff for an answer that ends in the middle, and ModelError for one that is no stream of events.
        """
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/html":
            raise self._address.no_api("answers with a web page")
        try:
            if kind == "application/json":
                yield self._whole(b"".join([chunk async for chunk in self._bytes()]))
                yield DONE
                return
            async for event in self._stream:
                if isinstance(event, openai.BaseModel):  # a wrapper of the user's client has read it
                    event = event.model_dump(exclude_unset=True)
                if not isinstance(event, dict):
                    raise self._unreadable(json.dumps(event), "a JSON object")
                self._found += 1
                yield event
                self._latest, self._size = time.monotonic(), 0
        except (openai.APITimeoutError, httpx2.TimeoutException):
            raise BrokenOff(
                f"{self._address.shown} sent nothing for {self._timeout:g} s in the middle of an answer"
            ) from None
        except (openai.APIConnectionError, httpx2.RequestError):
            raise self._cut() from None
        except openai.APIError as error:
            yield {"error": error.body}
        except json.JSONDecodeError as error:
            raise self._unreadable(error.doc, "JSON") from None
        except UnicodeDecodeError as error:
            raise self._unreadable(error.object.decode("utf-8", "replace"), "JSON") from None
        else:
            if _END.search(self._end):
                yield DONE
            elif not self._found:
                self._explain()

    async def _bytes(self) -> AsyncIterator[bytes]:
        """The bytes. Raises ModelError for signs of life without an event, and for an event without an end."""
        mark = b"\xef\xbb\xbf"
        async for chunk in self._read():
            chunk, mark = chunk.removeprefix(mark), b""
            self._size += len(chunk)
            self._end = self._end[-16:] + chunk
            if not self._found and len(self._begin) < 16 * SHOWN:
                self._begin += chunk[: 16 * SHOWN]
            yield chunk
            if self._size > _MAX_EVENT:
                raise self._address.no_api("sends an answer without an end")
            if time.monotonic() - self._latest > self._timeout:
                raise ModelError(
                    f"{self._address.shown} sent no event for {self._timeout:g} s in an answer",
                    hint="see its own log, or raise lmql_lite.model(..., timeout=...)",
                )

    def _whole(self, body: bytes) -> dict[str, Any]:
        """Object of a body that is one. Raises BrokenOff for the beginning of one."""
        if body.lstrip().startswith(b"{") and not body.rstrip().endswith(b"}"):
            raise self._cut()
        found = json.loads(body)
        if not isinstance(found, dict):
            raise self._unreadable(body.decode("utf-8", "replace"), "a JSON object")
        return found

    def _explain(self) -> None:
        """Raises for a body without an event. Nothing but comments is left to the reader, who misses an end."""
        lines = [line for line in self._begin.splitlines() if line]
        if any(line.startswith(b"data:") for line in lines) or (lines and b"data:".startswith(lines[-1])):
            raise self._cut()
        strange = [line for line in lines if line.partition(b":")[0] not in _FIELDS]
        if strange:
            shown = repr(self._address.clean(strange[0].decode("utf-8", "replace")))
            raise self._address.no_api(f"sends {shown}, which is not part of an event stream")

    def _cut(self) -> BrokenOff:
        return BrokenOff(f"{self._address.shown} closed the connection in the middle of an answer")

    def _unreadable(self, text: str, what: str) -> ModelError:
        told = f"sends {self._address.clean(text)!r}, which is not {what}"
        if self._found:  # the server can speak the protocol: it may do so again
            return BrokenOff(f"{self._address.shown} {told}, in the middle of an answer")
        return self._address.no_api(told)


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
    if isinstance(client, openai.OpenAI):
        raise ModelError("client= is a client for code that is not async", hint="make an openai.AsyncOpenAI")
    if not all(hasattr(client, name) for name in ("base_url", "chat", "post", "max_retries")):
        hint = "hand it to the client: openai.AsyncOpenAI(http_client=...)" if hasattr(client, "send") else None
        raise ModelError(
            f"client= takes an openai.AsyncOpenAI, not an object of the class {type(client).__name__}", hint=hint
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
    """Client for an address, with the proxy and the certificates of the environment."""
    found = tuple(int(part) for part in re.findall(r"\d+", openai.VERSION)[:2])
    if found < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise ModelError(
            f"the package openai is version {openai.VERSION}, and {wanted} or newer is needed",
            hint=f"pip install -U 'openai>={wanted}'",
        )
    given = {name.lower() for name in address.headers}
    if urlsplit(address.url).hostname == urlsplit(OFFICIAL).hostname and not address.is_authorized:
        # not an error before something is sent: a replay needs no key
        raise AuthenticationError(f"{address.shown} needs an API key, and none is set", hint=NAME_A_KEY)
    if address.has_deployments and "api-version" not in dict(address.query):
        hint = "add ?api-version=2024-10-21 to base_url, or set OPENAI_API_VERSION"
        raise ModelError(f"{address.shown} is an address of Azure without a version", hint=hint)
    headers = dict(address.headers)
    if address.has_deployments and not given & AUTHORIZING and not address.key.startswith(_TOKEN):
        headers["api-key"] = address.key
    return openai.AsyncOpenAI(
        base_url=address.url,
        api_key=address.key,
        default_headers=headers,
        http_client=_carrier(address, headers),
        max_retries=0,
    )


def _carrier(address: Address, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """HTTP client, with the proxy and the certificates of the environment. A server on this machine needs neither.

    Raises ModelError for a proxy or certificates that cannot be used.
    """
    parts, given = urlsplit(address.url), {name.lower() for name in headers}
    is_near = is_on_this_machine(parts.hostname or "")

    async def adjusted(request: httpx2.Request) -> None:
        """Takes the key, and the user's own headers, from a request that was redirected to another host."""
        dropped = [*AUTHORIZING, *given] if request.url.host != parts.hostname else []
        if "api-key" in given and "authorization" not in given:
            dropped.append("authorization")
        if not address.is_official:  # they describe this machine
            dropped += [name for name in request.headers if name.startswith("x-stainless-")]
        for name in dropped:
            request.headers.pop(name, None)

    named = [os.environ.get(name) or None if parts.scheme == "https" and not is_near else None for name in CERTIFICATES]
    try:
        return httpx2.AsyncClient(
            verify=_trusted(*named),
            trust_env=bool(proxies()) and not is_near,
            follow_redirects=True,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=_MAX_KEPT),
            event_hooks={"request": [adjusted]},
        )
    except OSError as error:
        variable, value = next((name, value) for name, value in zip(CERTIFICATES, named, strict=True) if value)
        why = "holds no certificate" if isinstance(error, ssl.SSLError) else str(error.strerror).lower()
        raise ModelError(
            f"{variable} names {value!r}, from which no certificates can be read: {why}",
            hint=f"let it name trusted certificates in PEM format, or unset {variable}",
        ) from None
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        needs = "needs the package socksio, which is not installed"
        why = (
            needs if isinstance(error, ImportError) else "is not an address that can be used, such as http://host:3128"
        )
        raise ModelError(f"the proxy that {proxies()} names {why}", hint=f"correct or unset {proxies()}") from None


@functools.lru_cache(8)
def _trusted(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Trusted certificates of the environment, else of the system. They are kept: each event loop would read them."""
    return httpx2.create_ssl_context(trust_env=file is not None or folder is not None)


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
    if has(httpx2.TooManyRedirects, httpx2.DecodingError, httpx2.UnsupportedProtocol):
        return "strange"
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


async def _after(
    first: dict[str, Any] | None, events: AsyncGenerator[dict[str, Any], None]
) -> AsyncGenerator[dict[str, Any], None]:
    """The events, the one that was read already included."""
    if first is not None:
        yield first
    async for event in events:
        yield event


def _json(data: bytes) -> Any:
    """JSON value; "" if it is none."""
    try:
        return json.loads(data)
    except ValueError:
        return ""
