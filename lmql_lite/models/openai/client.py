"""Transport to a server with the OpenAI protocol: connections, retries, timeouts, server-sent events.

Built on the `openai` package, which is imported with the first request. This module does not read the content of
requests and answers. Every failure on the way becomes one sentence. Keys appear in no sentence, no repr and no log.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lmql_lite.errors import BrokenOff, ModelError
from lmql_lite.models.openai.address import NAME_A_KEY, NO_KEY, SHOWN, Address
from lmql_lite.models.openai.uncut import to_the_end

if TYPE_CHECKING:
    import openai

TIMEOUT = 300.0
"""Permitted silence of a server in seconds: a long prompt on a slow machine takes minutes."""
CONCURRENCY = 32
"""Maximum number of simultaneous requests to one server."""

_CONNECT_TIMEOUT = 10.0
_LOOK_TIMEOUT = 5.0
_TRIES = 5
_FIRST_PAUSE = 0.5
"""Seconds before the second attempt; each further pause is twice as long."""
_LONGEST_PAUSE = 60.0
_DRAIN_TIMEOUT = 0.2
"""Maximum seconds to read an answer to its end after its last event, so that the connection can be reused."""
_LARGEST_EVENT = 1 << 26
_PASSING = {429, 500, 502, 503, 504}
_NO_ROUTE = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}


class Refusal(ModelError):
    """Refusal by the server, with an HTTP status; nothing was paid.

    `told` is the server's message, `param` the field that it names, `requests` the number of requests sent so far.
    """

    def __init__(
        self, message: str, *, status: int, told: str, param: str | None, requests: int, hint: str | None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.told = told
        self.param = param
        self.requests = requests


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a server. `requests` is the number sent for it; `events` are JSON objects, one if it has no stream."""

    requests: int
    events: AsyncGenerator[dict[str, Any], None]


@dataclass(frozen=True, slots=True)
class _Line:
    """Connections of one event loop. They close when the loop ends, as every async generator of a loop does."""

    client: openai.AsyncOpenAI
    places: asyncio.Semaphore
    turn: asyncio.Lock
    keeper: AsyncGenerator[openai.AsyncOpenAI, None]


class Connection:
    """Connection to one server, for any number of event loops and threads."""

    def __init__(self, address: Address, *, timeout: float = TIMEOUT, concurrency: int = CONCURRENCY) -> None:
        self.address = address
        self.requests = 0
        """Number of requests that may cost something, failed ones included."""
        self._timeout = timeout
        self._concurrency = concurrency
        self._headers: dict[str, str] = {}
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Exclusive turn among the callers of this event loop."""
        line = await self._line()
        async with line.turn:
            yield

    def narrow(self, concurrency: int) -> None:
        """Lowers the maximum number of simultaneous requests from now on."""
        self._concurrency = min(self._concurrency, concurrency)
        for loop, line in list(self._lines.items()):
            self._lines[loop] = replace(line, places=asyncio.Semaphore(self._concurrency))

    def keep_none_open(self) -> None:
        """Gives each request a connection of its own from now on, for a server that closes them unannounced."""
        self._headers["Connection"] = "close"

    async def look(self, url: str, body: Mapping[str, object] | None = None) -> Any:
        """JSON, or text, of a route that costs nothing. `body`, if given, is posted.

        Raises Refusal, and ModelError if nothing answers.
        """
        import openai

        line = await self._line()
        options: openai.RequestOptions = {"timeout": _LOOK_TIMEOUT}
        try:
            if body is not None:
                return await to_the_end(lambda: line.client.post(url, cast_to=object, body=body, options=options))
            return await to_the_end(lambda: line.client.get(url, cast_to=object, options=options))
        except openai.APIStatusError as error:
            raise self._refusal(error, 1) from None
        except openai.APIConnectionError as error:
            raise self._unreachable(error, _LOOK_TIMEOUT, 1) from None
        except ValueError:  # declared as JSON, but invalid
            return ""

    @asynccontextmanager
    async def ask(self, url: str, body: Mapping[str, object]) -> AsyncIterator[Answer]:
        """Posts a request and reads the answer; leaving the block closes it. Temporary failures are retried.

        Raises Refusal, ModelError, and BrokenOff if an answer ends in the middle.
        """
        line = await self._line()
        async with line.places:
            stream, requests = await self._open(line.client, url, body)
            try:
                async with aclosing(self._events(stream.response)) as events:
                    yield Answer(requests, events)
            finally:
                await to_the_end(stream.close)

    async def _open(
        self, client: openai.AsyncOpenAI, url: str, body: Mapping[str, object]
    ) -> tuple[openai.AsyncStream[object], int]:
        import openai

        def post() -> Coroutine[Any, Any, openai.AsyncStream[object]]:
            stream_cls, options = openai.AsyncStream[object], openai.RequestOptions(headers=self._headers)
            return client.post(url, cast_to=object, body=body, options=options, stream=True, stream_cls=stream_cls)

        for tries in range(1, _TRIES + 1):
            self.requests += 1
            try:
                return await to_the_end(post, undo=openai.AsyncStream.close), tries
            except openai.APIStatusError as error:
                refusal = self._refusal(error, tries)
                pause = _pause(tries, error.response.headers)
                if refusal.status not in _PASSING or not _may_pass(error) or tries == _TRIES or pause is None:
                    raise refusal from None
            except openai.APIConnectionError as error:
                if not _is_reset(error) or tries == _TRIES:
                    raise self._unreachable(error, self._timeout, tries) from None
                pause = (_pause(tries, {}) or 0.0) if tries > 1 else 0.0  # an idle connection was reset
            await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    async def _events(self, response: Any) -> AsyncGenerator[dict[str, Any], None]:
        kind = str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()
        if kind == "text/html":
            raise self._no_api("answers with a web page")
        async with aclosing(response.aiter_bytes()) as chunks:
            if kind == "application/json":
                yield self._object(await self._whole(self._arriving(chunks)))
                return
            async with aclosing(self._payloads(self._arriving(chunks))) as payloads:
                async for payload in payloads:
                    if payload.strip() == b"[DONE]":
                        yield {"done": True}
                        break
                    yield self._object(payload)
            await to_the_end(lambda: _drained(chunks))

    async def _arriving(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in chunks:
                yield chunk
        except Exception as error:  # any exception of the transport means that the answer broke off
            is_late = "Timeout" in type(error).__name__
            why = f"said nothing for {self._timeout:g} s" if is_late else "closed the connection"
            raise BrokenOff(f"{self.address.shown} {why} in the middle of an answer") from None

    async def _whole(self, chunks: AsyncIterator[bytes]) -> bytes:
        data = bytearray()
        async for chunk in chunks:
            data += chunk
            if len(data) > _LARGEST_EVENT:
                raise self._no_api("sends an answer without an end")
        return bytes(data)

    async def _payloads(self, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Payloads of the events of a stream. An incomplete event at the end is dropped."""
        rest = b""
        data: list[bytes] = []
        async with aclosing(chunks):
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) + sum(map(len, data)) > _LARGEST_EVENT:
                    raise self._no_api("sends an event without an end")
                for line in lines:
                    line = line.rstrip(b"\r")
                    name, _, value = line.partition(b":")
                    if name == b"data":
                        data.append(value.removeprefix(b" "))
                    elif not line and data:
                        yield b"\n".join(data)
                        data = []
                    elif name not in (b"", b"event", b"id", b"retry"):
                        raise self._no_api(f"sends no stream of events but {self._quoted(line)}")
        if data and not rest:
            yield b"\n".join(data)

    def _object(self, payload: bytes) -> dict[str, Any]:
        try:
            found = json.loads(payload)
        except ValueError:
            raise self._no_api(f"sends what is not JSON: {self._quoted(payload)}") from None
        if not isinstance(found, dict):
            raise self._no_api(f"sends no JSON object but {self._quoted(payload)}")
        return found

    def _quoted(self, data: bytes) -> str:
        return repr(self.address.clean(data[:SHOWN].decode("utf-8", "replace")))

    def _no_api(self, what: str) -> ModelError:
        hint = None if self.address.url.endswith("/v1") else f"did you mean base_url='{self.address.shown}/v1'?"
        return ModelError(
            f"{self.address.shown} is no OpenAI-compatible API: it {what}",
            hint=hint or "base_url is the address that ends in /v1, not the one of a web page",
        )

    def _refusal(self, error: openai.APIStatusError, tries: int) -> Refusal:
        status, where = error.status_code, self.address.shown
        body = error.body if isinstance(error.body, dict) else {}
        told = self.address.clean(_told(error.body))
        says = f": {told}" if told else f" with status {status}"
        message, hint = f"{where} refuses the request{says}", None
        if status == 401:
            does = "wants an API key" if self.address.key == NO_KEY else "does not take the API key"
            message, hint = f"{where} {does}{says}", NAME_A_KEY
        elif status == 403:
            message, hint = f"{where} does not let this key in{says}", "name a key that may use this model"
        elif _has_no_route(error, told):
            is_page = str(error.response.headers.get("content-type", "")).startswith("text/html")
            path = self.address.clean(error.response.request.url.path)
            no_api = self._no_api("answers with a web page" if is_page else f"answers {path} with status {status}")
            message, hint, told = no_api.message, no_api.hint, ""
        elif status == 429 and not _may_pass(error):
            message, hint = f"the quota of this key at {where} is used up{says}", "raise it there, or name another key"
        elif status == 429:
            message = f"{where} takes no more requests just now, after {_times(tries)}{says}"
            hint = "wait, or ask for less at once: lmql_lite.model(..., concurrency=4)"
        elif status >= 500:
            message, hint = f"{where} failed {_times(tries)}{says}", "its own log says why"
        param = body.get("param") if isinstance(body.get("param"), str) else None
        return Refusal(message, status=status, told=told, param=param, requests=tries, hint=hint)

    def _unreachable(self, error: openai.APIConnectionError, timeout: float, tries: int) -> ModelError:
        where, cause = self.address.shown, error.__cause__
        kind, told = type(cause).__name__, str(cause)
        if "CERTIFICATE" in told:
            return ModelError(f"the certificate of {where} is not trusted", hint="SSL_CERT_FILE names trusted ones")
        if "SSL" in told or "SSL" in kind:
            plain = where.replace("https", "http", 1)
            return ModelError(f"{where} does not speak https", hint=f"did you mean {plain}?")
        if kind in ("ConnectError", "ConnectTimeout"):
            return ModelError(f"no server answers at {where}", hint="is it running, and is this its address and port?")
        if "Timeout" in kind:
            return ModelError(
                f"{where} said nothing for {timeout:g} s", hint="lmql_lite.model(..., timeout=...) waits longer"
            )
        if _is_reset(error):
            how = f", {_times(tries)} in a row" if tries > 1 else ""
            return ModelError(
                f"{where} closes the connection without an answer{how}",
                hint="its own log says why; is it an OpenAI-compatible API?",
            )
        return self._no_api("does not answer as HTTP servers do")

    async def _line(self) -> _Line:
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            keeper = self._client(loop)
            line = _Line(await anext(keeper), asyncio.Semaphore(self._concurrency), asyncio.Lock(), keeper)
            line = self._lines.setdefault(loop, line)
        return line

    async def _client(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[openai.AsyncOpenAI, None]:
        import openai

        timeout = openai.Timeout(self._timeout, connect=min(self._timeout, _CONNECT_TIMEOUT))
        client = openai.AsyncOpenAI(
            base_url=self.address.url,
            api_key=self.address.key,
            max_retries=0,
            timeout=timeout,
            http_client=openai.DefaultAsyncHttpxClient(verify=_trusted(), timeout=timeout),
        )
        try:
            yield client
        finally:
            self._lines.pop(loop, None)
            await client.close()


async def _drained(chunks: AsyncIterator[bytes]) -> None:
    """Reads an answer to its end after everything needed has arrived."""
    import anyio

    with suppress(Exception), anyio.move_on_after(_DRAIN_TIMEOUT):
        async for _ in chunks:
            pass


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Certificates that the client trusts by default, read once; it would read them again for every event loop."""
    import openai

    http = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])
    context: ssl.SSLContext = http.create_ssl_context()
    return context


def _told(body: object) -> str:
    """Server's message, from any of the forms that errors take."""
    if isinstance(body, dict):
        words = next((body[name] for name in ("message", "error", "detail", "msg") if body.get(name)), body)
        return words if isinstance(words, str) else json.dumps(words, default=str)
    text = body if isinstance(body, str) else ""
    return "" if text.lstrip().startswith("<") else text


def _has_no_route(error: openai.APIStatusError, told: str) -> bool:
    """True if the server does not know the route, False if an API reports a missing model or feature."""
    if error.status_code not in _NO_ROUTE:
        return False
    return not isinstance(error.body, dict) or told.lower() == HTTPStatus(error.status_code).phrase.lower()


def _may_pass(error: openai.APIStatusError) -> bool:
    """True if waiting may help; an exhausted quota does not return by waiting."""
    return "insufficient_quota" not in str(error.body)


def _is_reset(error: openai.APIConnectionError) -> bool:
    """True if the connection closed before the first byte of an answer, as happens after a long idle time."""
    kind = type(error.__cause__).__name__
    return kind in ("ReadError", "WriteError", "EndOfStream") or (
        kind == "RemoteProtocolError" and "disconnected" in str(error.__cause__)
    )


def _pause(tries: int, headers: Mapping[str, str]) -> float | None:
    """Seconds before the next attempt; None if the server asks for more than `_LONGEST_PAUSE`."""
    pause = _FIRST_PAUSE * 2 ** (tries - 1)
    wanted = headers.get("retry-after") or ""
    with suppress(ValueError, TypeError):
        pause = max(float(wanted), 0.0)
        wanted = ""
    if wanted:
        with suppress(ValueError, TypeError):
            pause = max(parsedate_to_datetime(wanted).timestamp() - time.time(), 0.0)
    return None if pause > _LONGEST_PAUSE else pause * random.uniform(1.0, 1.25)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
