"""Group commit: items that arrive while one group is written form the next group. There is no timer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Generic, TypeVar

Item = TypeVar("Item")
IDLE_SECONDS = 0.05
"""Time that a thread waits for the next group, since a new thread takes longer to start."""

Soon = Callable[[Callable[[], None]], object]


class WriteGroup(Generic[Item]):
    """Items of several callers that are written together. `future` ends after the write, with its error, if any."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.future: Future[None] = Future()
        self._events: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}

    async def ended(self) -> None:
        """Waits until the group is written. All tasks of a loop are woken at once."""
        loop = asyncio.get_running_loop()
        event = self._events.get(loop)
        if event is None:
            event = self._events[loop] = asyncio.Event()
            self.future.add_done_callback(lambda _: _wake(loop, event))
        await event.wait()


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed, so nobody waits any more
        loop.call_soon_threadsafe(event.set)


class GroupCommit(Generic[Item]):
    """Collects items of many threads, and writes all waiting items as one group, one group at a time.

    `write` takes the items of a group; its exception is the error of the group.
    """

    def __init__(self, write: Callable[[list[Item]], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)
        self._is_idle = False
        """True while a thread waits for the next group."""
        self._next = WriteGroup[Item]()
        self._current: WriteGroup[Item] | None = None
        """The group that is being written."""

    def submit(self, items: list[Item], soon: Soon | None = None) -> WriteGroup[Item]:
        """Adds items to the next group. A thread writes while items wait.

        `soon` starts that thread a little later, like `call_soon` of an event loop, so that items which other tasks of
        the loop add until then are in the same group.
        """
        group = self._join(items)
        if soon is None:
            self._start()
        else:
            soon(self._start)
        return group

    def run(self, items: list[Item]) -> WriteGroup[Item]:
        """Like `submit`, but returns after the write, by this thread unless another group is being written."""
        group = self._join(items)
        if (mine := self._begin()) is not None:
            try:
                self._finish(mine)
            finally:
                self._start()
        wait([group.future])
        return group

    def finish(self) -> None:
        """Waits until all added items are written."""
        while True:
            if (mine := self._begin()) is not None:
                self._finish(mine)
            elif (current := self._current) is not None:
                wait([current.future])
            else:
                return

    def _join(self, items: list[Item]) -> WriteGroup[Item]:
        with self._lock:
            self._next.items += items
            return self._next

    def _begin(self) -> WriteGroup[Item] | None:
        """The next group if no thread is writing. The caller must then `_finish` it."""
        with self._lock:
            if self._current is not None or not self._next.items:
                return None
            self._current, self._next = self._next, WriteGroup[Item]()
            return self._current

    def _finish(self, group: WriteGroup[Item]) -> None:
        """Writes a group. An interrupt of this thread, such as Ctrl-C, is raised after the write."""
        error, interrupt = self._error_of_write(group), None
        if error is not None and not isinstance(error, Exception):
            error, interrupt = self._error_of_write(group), error
        with self._lock:
            self._current = None
        if error is None:
            group.future.set_result(None)
        else:
            group.future.set_exception(error)
        if interrupt is not None:
            raise interrupt

    def _error_of_write(self, group: WriteGroup[Item]) -> BaseException | None:
        try:
            self._write(group.items)
        except BaseException as raised:
            return raised
        return None

    def _start(self) -> None:
        with self._lock:
            if self._is_idle:
                self._more.notify()
                return
        if (group := self._begin()) is None:
            return
        try:
            threading.Thread(target=self._drain, args=(group,), name="lmql-lite-commit").start()
        except RuntimeError:  # no thread can start, because the interpreter is shutting down
            self._drain(group)

    def _drain(self, group: WriteGroup[Item] | None) -> None:
        while group is not None:
            self._finish(group)
            group = self._begin()
            if group is None:
                with self._lock:
                    self._is_idle = True
                    self._more.wait_for(lambda: bool(self._next.items), IDLE_SECONDS)
                    self._is_idle = False
                group = self._begin()
