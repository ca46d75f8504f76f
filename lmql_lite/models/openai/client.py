"""Transport to a server with the OpenAI protocol: connections, retries, timeouts.

Built on `httpx2` (D55), which is imported with the first request. This module does not read the content of requests
and responses, errors excepted. Every failure on the way becomes one sentence. Keys appear in no sentence, repr or log.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from lmql_lite.errors import BrokenOff, LmqlLiteError, ModelError
from lmql_lite.models.base import BEFORE_REQUEST
from lmql_lite.models.openai.address import Address
from lmql_lite.models.openai.event_stream import EventDecoder
from lmql_lite.models.openai.network_environment import EnvironmentProxy, trusted_certificates
from lmql_lite.models.openai.pacing import Pace, pause_before
from lmql_lite.models.openai.refusals import ErrorResponse, in_band, is_reset, refusal, unreachable

if TYPE_CHECKING:
    import httpx2

Done = TypeVar("Done")

TIMEOUT = 300.0
"""Permitted silence of a server in seconds: a long prompt on a slow machine takes minutes."""
CONCURRENCY = 32
"""Maximum number of simultaneous requests to one server."""
PROBE_TIMEOUT = 20.0
"""Permitted silence of a free route in seconds, unless a timeout is given."""

_CONNECT_TIMEOUT = 10.0
_TRIES = 5
_MOST_TRIES = 50
"""Maximum tries of a request while others are accepted: a crowd under a rate limit waits its turn."""
_DRAIN_TIMEOUT = 0.2
"""Maximum seconds to read an answer to its end after its last event, so that the connection can be reused."""
_LONGEST_ERROR = 1 << 16
_CROWDED = {429, 503, 529}
"""Statuses that ask all requests to wait, not only the refused one."""


@dataclass(frozen=True, slots=True)
class Response:
    """Response of a server. `requests` is the number sent for it; `events` are JSON objects, one without a stream."""

    requests: int
    events: AsyncGenerator[dict[str, Any], None]


@dataclass(frozen=True, slots=True)
class _Pool:
    """Connections of one event loop. They close when the loop ends, as every async generator of a loop does."""

    client: httpx2.AsyncClient
    pace: Pace
    turn: asyncio.Lock
    keeper: AsyncGenerator[httpx2.AsyncClient, None]


class Connection:
    """Connection to one server, for any number of event loops and threads."""

    def __init__(self, address: Address, *, timeout: float | None = None, concurrency: int = CONCURRENCY) -> None:
        self.address = address
        self.timeout = timeout or TIMEOUT
        self.probe_timeout = timeout or PROBE_TIMEOUT
        self.requests = 0
        """Number of requests that may cost something, failed ones included."""
        self.concurrency = concurrency
        self._headers: dict[str, str] = {}
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Exclusive turn among the callers of this event loop."""
        pool = await self._pool()
        async with pool.turn:
            yield

    def narrow(self, concurrency: int) -> None:
        """Lowers the maximum number of simultaneous requests from now on."""
        self.concurrency = min(self.concurrency, concurrency)
        for pool in list(self._pools.values()):
            pool.pace.narrow(self.concurrency)

    def keep_none_open(self) -> None:
        """Gives each request a connection of its own from now on, for a server that closes them unannounced."""
        self._headers["Connection"] = "close"

    async def fetch(self, url: str, body: Mapping[str, object] | None = None) -> Any:
        """JSON, or text, of a free route. `body`, if given, is posted. Temporary failures are retried.

        Raises ServerRefusal, and ModelError if nothing answers.
        """
        pool = await self._pool()

        async def send() -> Any:
            response = await self._send(pool, "GET" if body is None else "POST", url, body, self.probe_timeout)
            data = await response.aread()
            is_json = "json" in response.headers.get("content-type", "")
            return _json(data) if is_json else data.decode("utf-8", "replace")

        return (await self._tried(pool.pace, send, self.probe_timeout))[0]

    @asynccontextmanager
    async def ask(self, url: str, body: Mapping[str, object]) -> AsyncIterator[Response]:
        """Posts a request and reads the answer; leaving the block closes it. Temporary failures are retried.

        Raises ServerRefusal, ModelError, and BrokenOff if an answer ends in the middle.
        """
        pool = await self._pool()
        requests = 0

        async def send() -> httpx2.Response:
            BEFORE_REQUEST.get()()
            self.requests += 1
            return await self._send(pool, "POST", url, body, self.timeout)

        async with pool.pace.place():
            while True:
                response, tries = await self._tried(pool.pace, send, self.timeout, undo=_close)
                requests += tries
                events = self._events(response)
                try:
                    first = await anext(events, None)
                    refused = in_band(first, response.headers, response.request.url.path)
                    if refused is None or not refused.is_temporary or requests >= _TRIES:
                        yield Response(requests, _after(first, events))
                        return
                finally:
                    await events.aclose()
                    await to_the_end(response.aclose)
                await self._wait(pool.pace, refused, requests, time.monotonic())

    def slow_down(self, status: int) -> None:
        """Makes the next requests wait if an error in the middle of an answer, with this status, asks for it."""
        if status in _CROWDED:
            pace = self._pools[asyncio.get_running_loop()].pace
            pace.refused(time.monotonic(), pause_before(pace.failures + 1, {}) or 0.0)

    async def _send(
        self, pool: _Pool, method: str, url: str, body: Mapping[str, object] | None, timeout: float
    ) -> httpx2.Response:
        """Response with a good status, its body unread. Raises ErrorResponse for any other."""
        client = pool.client
        request = client.build_request(
            method,
            url if "://" in url else self.address.url + url,
            json=body,
            headers=self._headers,
            params=list(self.address.query) or None,
            timeout=_timeout(timeout),
        )
        response = await client.send(request, stream=True)
        if response.is_success:
            pool.pace.accepted(response.headers)
            return response
        data = b""
        try:
            async with aclosing(response.aiter_bytes()) as chunks:
                async for chunk in chunks:
                    data += chunk
                    if len(data) > _LONGEST_ERROR:
                        break
        finally:
            await response.aclose()
        found, path = _json(data), response.request.url.path
        content = found if isinstance(found, dict | list) else data.decode("utf-8", "replace")
        raise ErrorResponse(response.status_code, response.headers, content, path)

    async def _tried(
        self,
        pace: Pace,
        send: Callable[[], Coroutine[Any, Any, Done]],
        timeout: float,
        undo: Callable[[Done], Awaitable[None]] | None = None,
    ) -> tuple[Done, int]:
        """Result of `send`, repeated after temporary failures, and the number of tries."""
        tries = 0
        while True:
            tries += 1
            sent = time.monotonic()
            try:
                async with pace.turn() as sent:
                    return await to_the_end(send, undo), tries
            except ErrorResponse as refused:
                if not refused.is_temporary or tries >= (_MOST_TRIES if refused.status == 429 else _TRIES):
                    raise refusal(self.address, refused, tries) from None
                await self._wait(pace, refused, tries, sent)
            except LmqlLiteError:
                raise
            except Exception as error:  # of any kind: the transport names none for some of its failures
                if not is_reset(error) or tries >= _TRIES:
                    raise unreachable(self.address, error, timeout, tries) from None
                if tries > 1:  # the first one was an idle connection
                    await asyncio.sleep(pause_before(tries, {}) or 0.0)

    async def _wait(self, pace: Pace, refused: ErrorResponse, tries: int, sent: float) -> None:
        """Waits as long as a refusal asks for; all requests do if there are too many. Raises it if that cannot help."""
        is_crowded = refused.status in _CROWDED
        pause = pause_before(pace.failures + 1 if is_crowded else tries, refused.headers)
        if is_crowded and pause is not None:
            pace.refused(sent, pause)
        if pause is None or (pace.failures if is_crowded else tries) >= _TRIES:
            raise refusal(self.address, refused, tries) from None
        if not is_crowded:
            await asyncio.sleep(pause)

    async def _events(self, response: httpx2.Response) -> AsyncGenerator[dict[str, Any], None]:
        decoder = EventDecoder(str(response.headers.get("content-type", "")), self.address)
        async with aclosing(response.aiter_bytes()) as chunks:
            last = time.monotonic()
            while not decoder.is_over:
                try:
                    chunk = await anext(chunks, None)
                except Exception as error:  # any exception of the transport means that the answer broke off
                    is_late = "Timeout" in type(error).__name__
                    why = f"sent nothing for {self.timeout:g} s" if is_late else "closed the connection"
                    raise BrokenOff(f"{self.address.shown} {why} in the middle of an answer") from None
                for event in decoder.finish() if chunk is None else decoder.feed(chunk):
                    last = time.monotonic()
                    yield event
                if time.monotonic() - last > self.timeout:  # signs of life, and nothing else
                    raise ModelError(
                        f"{self.address.shown} sent no event for {self.timeout:g} s in an answer",
                        hint="see its own log, or raise lmql_lite.model(..., timeout=...)",
                    )
                if chunk is None:
                    return
            await to_the_end(lambda: _drained(chunks))

    async def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            keeper = self._client(loop)
            pool = _Pool(await anext(keeper), Pace(self.concurrency), asyncio.Lock(), keeper)
            pool = self._pools.setdefault(loop, pool)
        return pool

    async def _client(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[httpx2.AsyncClient, None]:
        import httpx2

        trusted, proxy = trusted_certificates(self.address.url), EnvironmentProxy.of(self.address.url)
        client = httpx2.AsyncClient(
            headers={**self.address.authorization, **self.address.headers, "Accept": "application/json"},
            verify=trusted,
            proxy=proxy.settings(trusted) if proxy else None,
            trust_env=False,
            follow_redirects=True,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
            event_hooks={"request": [self._keep_the_key]},
        )
        try:
            yield client
        finally:
            self._pools.pop(loop, None)
            await client.aclose()

    async def _keep_the_key(self, request: httpx2.Request) -> None:
        """Takes the key, and the user's own headers, from a request that was redirected to another host."""
        if request.url.host != urlsplit(self.address.url).hostname:
            for name in ("authorization", "api-key", *self.address.headers):
                request.headers.pop(name, None)


async def _drained(chunks: AsyncIterator[bytes]) -> None:
    """Reads an answer to its end after everything needed has arrived."""
    import anyio

    with suppress(Exception), anyio.move_on_after(_DRAIN_TIMEOUT):
        async for _ in chunks:
            pass


async def to_the_end(
    work: Callable[[], Coroutine[Any, Any, Done]], undo: Callable[[Done], Awaitable[None]] | None = None
) -> Done:
    """Result of `work`, which opens or closes connections in a task of its own and is never interrupted midway (D48).

    The connection pool shields its clean-up from anyio's cancellation, but not from asyncio's: cancelled while the pool
    closes several expired connections, a request would leave the rest open. On cancellation this function therefore
    cancels the work as anyio does, and waits for its end. If the work returned a result anyway, `undo` gets it.
    """
    import anyio

    scope, found = anyio.CancelScope(), list[Done]()

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


@functools.cache
def _timeout(seconds: float) -> httpx2.Timeout:
    import httpx2

    return httpx2.Timeout(seconds, connect=min(seconds, _CONNECT_TIMEOUT), pool=None)


async def _close(response: httpx2.Response) -> None:
    await response.aclose()


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
