"""Connection to a server with the OpenAI protocol: repeats, limits, and closing that is not cut short.

The package `openai` carries the requests (`sdk.py`). This module does not read the content of requests and responses,
errors excepted. Every failure on the way becomes one sentence. Keys appear in no sentence, repr or log.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from lmql_lite.errors import ModelError
from lmql_lite.models.base import BEFORE_REQUEST
from lmql_lite.models.openai.address import Address
from lmql_lite.models.openai.gate import Gate, pause_before
from lmql_lite.models.openai.refusals import ErrorResponse, NoResponse, ServerRefusal, in_band, unreachable

if TYPE_CHECKING:
    import openai

    from lmql_lite.models.openai.sdk import AnswerStream, Client

Done = TypeVar("Done")

TIMEOUT = 300.0
"""Read timeout in seconds: a long prompt on a slow machine takes minutes."""
CONCURRENCY = 32
"""Maximum number of simultaneous requests to one server."""
PROBE_TIMEOUT = 20.0
"""Read timeout of a free route in seconds, unless a timeout is given."""

_MAX_TRIES = 5
_MAX_WAITING = 50
"""Maximum tries of a request while others are accepted: a crowd under a rate limit waits its turn."""
_CROWDED = {429, 503, 529}
"""Statuses that ask all requests to wait, not only the refused one."""


@dataclass(frozen=True, slots=True)
class Response:
    """Response of a server. `requests` is the number sent for it; `events` are JSON objects, one without a stream."""

    requests: int
    events: AsyncGenerator[dict[str, Any], None]


@dataclass(frozen=True, slots=True)
class _Pool:
    """Client of one event loop. It closes when the loop ends, as every async generator of a loop does."""

    client: Client
    gate: Gate
    turn: asyncio.Lock
    keeper: AsyncGenerator[Client, None]


class Connection:
    """Connection to one server, for any number of event loops and threads."""

    def __init__(
        self,
        address: Address,
        *,
        timeout: float | None = None,
        concurrency: int = CONCURRENCY,
        lent: openai.AsyncOpenAI | None = None,
    ) -> None:
        """`lent` is a client of the user's, which is not closed."""
        self.address = address
        self.timeout = timeout or TIMEOUT
        self.probe_timeout = timeout or PROBE_TIMEOUT
        self.requests = 0
        """Number of requests that may cost something, failed ones included."""
        self.concurrency = concurrency
        self._lent = lent
        self._headers: dict[str, str] = {}
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Exclusive turn among the callers of this event loop."""
        pool = await self._pool()
        async with pool.turn:
            yield

    def lower_concurrency(self, concurrency: int) -> None:
        """Lowers the maximum number of simultaneous requests from now on."""
        self.concurrency = min(self.concurrency, concurrency)
        for pool in list(self._pools.values()):
            pool.gate.lower_concurrency(self.concurrency)

    def close_after_each(self) -> None:
        """Gives each request a connection of its own from now on, for a server that closes them unannounced."""
        self._headers["Connection"] = "close"

    async def fetch(self, url: str, body: Mapping[str, object] | None = None) -> Any:
        """JSON, or text, of a free route. `body`, if given, is posted. Temporary failures are retried.

        Raises ServerRefusal, and ModelError if nothing answers.
        """
        pool = await self._pool()

        async def send() -> Any:
            response = await pool.client.fetch(url, body, self.probe_timeout)
            is_json = "json" in response.headers.get("content-type", "")
            return _json(response.content) if is_json else response.content.decode("utf-8", "replace")

        return (await self._tried(pool.gate, send))[0]

    @asynccontextmanager
    async def ask(self, url: str, body: Mapping[str, object]) -> AsyncIterator[Response]:
        """Posts a request and reads the answer; leaving the block closes it. Temporary failures are retried.

        Raises ServerRefusal, ModelError, and BrokenOff if an answer ends in the middle.
        """
        pool = await self._pool()
        requests = 0

        async def send() -> AnswerStream:
            BEFORE_REQUEST.get()()
            self.requests += 1
            return await pool.client.post(url, body, self._headers, self.timeout)

        async with pool.gate.place():
            while True:
                answer, tries = await self._tried(pool.gate, send, undo=_close)
                requests += tries
                events = answer.events()
                try:
                    first = await anext(events, None)
                    refused = in_band(first, answer.headers, answer.path)
                    if refused is None or not refused.is_temporary or requests >= _MAX_TRIES:
                        yield Response(requests, _after(first, events))
                        return
                finally:
                    await events.aclose()
                    await to_the_end(answer.close)
                await self._wait(pool.gate, refused, requests, time.monotonic())

    def slow_down(self, status: int) -> None:
        """Makes the next requests wait if an error in the middle of an answer, with this status, asks for it."""
        if status in _CROWDED:
            gate = self._pools[asyncio.get_running_loop()].gate
            gate.refuse(time.monotonic(), pause_before(gate.failures + 1, {}) or 0.0)

    async def _tried(
        self,
        gate: Gate,
        send: Callable[[], Coroutine[Any, Any, Done]],
        undo: Callable[[Done], Awaitable[None]] | None = None,
    ) -> tuple[Done, int]:
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
            except ErrorResponse as refused:
                if not refused.is_temporary or tries >= (_MAX_WAITING if refused.status == 429 else _MAX_TRIES):
                    raise ServerRefusal(self.address, refused, tries) from None
                await self._wait(gate, refused, tries, sent)
            except NoResponse as error:
                if error.problem != "reset" or tries >= _MAX_TRIES:
                    raise unreachable(self.address, error, tries) from None
                if tries > 1:  # the first one was an idle connection
                    await asyncio.sleep(pause_before(tries, {}) or 0.0)

    async def _wait(self, gate: Gate, refused: ErrorResponse, tries: int, sent: float) -> None:
        """Waits as long as a refusal asks for; all requests do if there are too many. Raises it if that cannot help."""
        is_crowded = refused.status in _CROWDED
        pause = pause_before(gate.failures + 1 if is_crowded else tries, refused.headers)
        if is_crowded and pause is not None:
            gate.refuse(sent, pause)
        if pause is None or (gate.failures if is_crowded else tries) >= _MAX_TRIES:
            raise ServerRefusal(self.address, refused, tries) from None
        if not is_crowded:
            await asyncio.sleep(pause)

    async def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            keeper = self._client(loop)
            pool = _Pool(await anext(keeper), Gate(self.concurrency), asyncio.Lock(), keeper)
            pool = self._pools.setdefault(loop, pool)
        return pool

    async def _client(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Client, None]:
        try:
            from lmql_lite.models.openai.sdk import Client
        except ImportError as error:
            raise ModelError(
                f"the package openai is missing or too old: {error}", hint="pip install -U 'openai>=3.20,<4'"
            ) from None
        client = Client(self.address, self._lent)
        try:
            yield client
        finally:
            self._pools.pop(loop, None)
            await client.close()


async def to_the_end(
    work: Callable[[], Coroutine[Any, Any, Done]], undo: Callable[[Done], Awaitable[None]] | None = None
) -> Done:
    """Result of `work`, which opens or closes connections in a task of its own and is never interrupted midway.

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


async def _close(answer: AnswerStream) -> None:
    await answer.close()


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
