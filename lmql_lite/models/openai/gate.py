"""Gate of one event loop's requests to one server: after a refusal all of them wait, and none is lost to a limit."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

FIRST_PAUSE = 0.5
"""Seconds before the second attempt; each further pause is twice as long."""
MAX_PAUSE = 60.0
FIRST_WINDOW = 8
"""Requests without an answer before the first answer: a burst is refused as a whole."""


class Gate:
    """Places and turns of requests."""

    def __init__(self, concurrency: int) -> None:
        self.failures = 0
        """Number of refusals in a row, those of requests that were sent together counted once."""
        self._concurrency = concurrency
        self._places = asyncio.Semaphore(concurrency)
        self._window = float(min(FIRST_WINDOW, concurrency))
        """Maximum number of requests without an answer: one more for every two that are accepted."""
        self._unanswered = 0
        self._order = asyncio.Lock()
        self._answered = asyncio.Event()
        self._opens = 0.0
        self._refused = 0.0
        """Time of the last refusal."""

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """One of the simultaneous requests, with the reading of its answer."""
        async with self._places:
            yield

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[float]:
        """The time of sending, in the order of asking; the block lasts until the server accepts or refuses."""
        async with self._order:
            while (pause := self._opens - time.monotonic()) > 0 or self._unanswered >= self._window:
                if pause > 0:
                    await asyncio.sleep(pause)
                else:
                    self._answered.clear()
                    await self._answered.wait()
            self._unanswered += 1
        try:
            yield time.monotonic()
        finally:
            self._unanswered -= 1
            self._answered.set()

    def accept(self) -> None:
        """Widens the window after a request that the server accepted."""
        self.failures = 0
        self._window = min(self._window + 0.5, self._concurrency)

    def refuse(self, sent: float, pause: float) -> None:
        """Closes the gate for `pause` seconds after a request, sent at this time, of which there were too many."""
        now = time.monotonic()
        if sent >= self._refused:  # a request that was sent before the last refusal tells nothing new
            self.failures += 1
            self._window = 1.0
            self._refused = now
        self._opens = max(self._opens, now + pause)


def wanted_pause(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server wants a client to wait, by any of the headers for that; None if it names none."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(KeyError, ValueError):
            return max(0.0, float(headers[name]) / unit)
    return None


def pause_before(tries: int, headers: Mapping[str, str]) -> float | None:
    """Seconds before the next attempt; None if the server asks for more than `MAX_PAUSE`."""
    wanted = wanted_pause(headers)
    if wanted is not None and wanted > MAX_PAUSE:
        return None
    pause = FIRST_PAUSE * 2 ** (tries - 1) if wanted is None else wanted
    return pause * random.uniform(1.0, 1.25)
