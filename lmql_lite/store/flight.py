"""Single flight: work that several threads or tasks request at the same time is done once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Generic, TypeVar

Value = TypeVar("Value")


class SingleFlight(Generic[Value]):
    """Work in progress, by key. The first caller of a key works, the others wait for its value.

    If the first caller fails or is cancelled, only that caller gets the exception, and one of the others works next.
    Nothing is kept once the work is done. Threads, tasks and event loops may share one object.

        flight = SingleFlight[bytes]()
        data = flight.call("key", lambda: read_slowly("key"))
        data = await flight.acall("key", lambda: fetch("key"))

    For work on many keys at once, use `join` and `leave`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Hashable, Future[Value] | None] = {}
        """Work by key; a future is made when the first caller waits."""

    def call(self, key: Hashable, work: Callable[[], Value]) -> Value:
        """Value of `work()`, from this thread or from the caller that already works on `key`. Exceptions of `work` pass
        through.

        Must not be called on the thread of an event loop whose task works on the same key: it would wait for itself.
        """
        while (others := self.join(key)) is not None:
            wait([others])
            if not others.cancelled():
                return others.result()
        try:
            value = work()
        except BaseException:
            self.leave(key)
            raise
        self.leave(key, value)
        return value

    async def acall(self, key: Hashable, work: Callable[[], Awaitable[Value]]) -> Value:
        """Like `call`, for awaitable work. Cancelling one caller does not affect the others."""
        while (others := self.join(key)) is not None:
            await ended(others)
            if not others.cancelled():
                return others.result()
        try:
            value = await work()
        except BaseException:
            self.leave(key)
            raise
        self.leave(key, value)
        return value

    def join(self, key: Hashable) -> Future[Value] | None:
        """Future of the work on a key; None if nobody works on it. The caller must then do the work and call
        `leave`."""
        with self._lock:
            if key not in self._running:
                self._running[key] = None
                return None
            future = self._running[key]
            if future is None:
                future = self._running[key] = Future()
            return future

    def leave(self, key: Hashable, *value: Value) -> None:
        """Ends the work with its value, or without a value, so that another caller begins again."""
        with self._lock:
            future = self._running.pop(key)
        if future is None:
            return
        if value:
            future.set_result(value[0])
        else:
            future.cancel()
            future.set_running_or_notify_cancel()


async def ended(future: Future[Value]) -> None:
    """Waits for a future of any thread without ever cancelling it."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: Future[Value]) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nobody waits any more
            loop.call_soon_threadsafe(event.set)

    future.add_done_callback(wake)
    await event.wait()
