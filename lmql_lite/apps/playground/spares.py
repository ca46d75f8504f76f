"""Workers that wait for a run: they have read what every run needs, so that the next one begins at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from lmql_lite.apps.playground.process import Worker

READY = 2
"""One for the next run, and one for whoever runs again before another has made itself ready: that takes a second of one
core, and some 65 MB for as long as it waits."""


class Spares:
    """`start` starts a worker, which says so when it is ready. They make themselves ready one after the other: beside a
    run that is under way they take one core at most."""

    def __init__(self, start: Callable[[], Awaitable[Worker]]) -> None:
        self._start = start
        self._waiting: list[asyncio.Task[Worker]] = []
        self._is_closing = False

    def prepare(self) -> None:
        while len(self._waiting) < READY and not self._is_closing:
            before = self._waiting[-1] if self._waiting else None
            self._waiting.append(asyncio.create_task(self._ready(before)))

    async def take(self) -> Worker:
        """The one that has waited longest. Raises OSError where there can be no process for it."""
        while self._waiting:
            with suppress(OSError):  # there may be room for one by now
                worker = await self._waiting.pop(0)
                if not worker.has_ended:
                    return worker
        return await self._start()

    async def close(self) -> None:
        self._is_closing = True
        for task in self._waiting:
            task.cancel()
        for found in await asyncio.gather(*self._waiting, return_exceptions=True):
            if isinstance(found, Worker):
                await found.kill()

    async def _ready(self, before: asyncio.Task[Worker] | None) -> Worker:
        if before is not None:
            await asyncio.wait([before])
        worker = await self._start()
        try:
            await worker.answer()
        except BaseException:
            await worker.kill()
            raise
        return worker
