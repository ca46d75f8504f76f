"""Pace of requests, learned from a server's refusals and shared by all requests, so that none is lost under a rate
limit.

Three things are learned for each server, all from how it answers:

* a time before which nothing is sent: from `Retry-After` and its like, or twice as long after each refusal in a row;
* a gap between two requests: the rate at which the server accepted requests between two refusals, a tenth less. It
  shrinks slowly as long as nothing is refused;
* a number of requests without an answer: small at first, as a burst is refused as a whole, one more for every two
  that are accepted.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from email.utils import parsedate_to_datetime

FIRST_PAUSE = 0.5
"""Seconds before the second attempt; each further pause is twice as long."""
LONGEST_PAUSE = 60.0
FIRST_WINDOW = 8
"""Requests without an answer before the first answer."""
_LEAST_SPAN = 1.0
"""Seconds that a rate limit counts in at least: a burst that was accepted is what one of them allows."""
_MARGIN = 1.1
_SPEED_UP = 0.998
_SECONDS = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")


class Pace:
    """Pace of one event loop's requests to one server."""

    def __init__(self, concurrency: int) -> None:
        self.failures = 0
        """Number of refusals in a row, those of requests that were sent together counted once."""
        self._most = concurrency
        self._places = asyncio.Semaphore(concurrency)
        self._window = float(min(FIRST_WINDOW, concurrency))
        self._unanswered = 0
        self._gate = asyncio.Lock()
        self._answered = asyncio.Event()
        self._ready = 0.0
        self._gap = 0.0
        self._since = time.monotonic()
        """Time of the last refusal, or of the first request after a while."""
        self._accepted = 0
        """Number of requests accepted since then."""

    def narrow(self, concurrency: int) -> None:
        """Lowers the maximum number of simultaneous requests from now on."""
        self._most = min(self._most, concurrency)
        self._places = asyncio.Semaphore(self._most)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """One of the simultaneous requests, with the reading of its answer."""
        async with self._places:
            yield

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[float]:
        """The time of sending, in the order of asking; the block lasts until the server accepts or refuses."""
        async with self._gate:
            while (pause := self._ready - time.monotonic()) > 0 or self._unanswered >= self._window:
                if pause > 0:
                    await asyncio.sleep(pause)
                else:
                    self._answered.clear()
                    await self._answered.wait()
            now = time.monotonic()
            if now - self._ready > _LEAST_SPAN and not self._unanswered:  # idle time says nothing about the rate
                self._since, self._accepted = now, 0
            self._ready = now + self._gap
            self._unanswered += 1
        try:
            yield now
        finally:
            self._unanswered -= 1
            self._answered.set()

    def accepted(self, headers: Mapping[str, str]) -> None:
        """Learns from a request that the server accepted."""
        self.failures = 0
        self._accepted += 1
        self._window = min(self._window + 0.5, self._most)
        self._gap *= _SPEED_UP
        if "x-ratelimit-remaining-requests" in headers:
            self._heed(headers)

    def _heed(self, headers: Mapping[str, str]) -> None:
        """Learns from `x-ratelimit-*-requests`: if few are left, they are spread over the time until more come."""
        names = [headers.get(f"x-ratelimit-{name}-requests", "") for name in ("remaining", "limit", "reset")]
        with suppress(ValueError):
            left, limit = (int(names[0]) - self._unanswered, int(names[1]))
            reset = _seconds(names[2])
            if left <= limit / 10 and reset is not None:
                wait = reset / max(limit - left, 1) if left <= 0 else reset / (left + 1)
                self._ready = max(self._ready, time.monotonic() + min(wait, LONGEST_PAUSE))

    def refused(self, sent: float, pause: float) -> None:
        """Learns from a request, sent at this time, that the server refused because there are too many: all wait."""
        now = time.monotonic()
        if sent >= self._since:  # those that were sent before the last refusal tell nothing new
            if self._accepted:
                self._gap = max(now - self._since, _LEAST_SPAN) / self._accepted * _MARGIN
            self.failures += 1
            self._window = 1.0
            self._since, self._accepted = now, 0
        self._ready = max(self._ready, now + pause)


def wanted_pause(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server wants a client to wait, by any of the headers for that; None if it names none."""
    with suppress(ValueError):
        return _finite(float(headers["retry-after-ms"]) / 1000 if "retry-after-ms" in headers else math.nan)
    wanted = headers.get("retry-after") or ""
    with suppress(ValueError):
        return _finite(float(wanted))
    with suppress(ValueError, TypeError):
        return max(parsedate_to_datetime(wanted).timestamp() - time.time(), 0.0)
    return None


def pause_before(tries: int, headers: Mapping[str, str]) -> float | None:
    """Seconds before the next attempt; None if the server asks for more than `LONGEST_PAUSE`."""
    wanted = wanted_pause(headers)
    pause = FIRST_PAUSE * 2 ** (tries - 1) if wanted is None else wanted
    return None if wanted is not None and wanted > LONGEST_PAUSE else pause * random.uniform(1.0, 1.25)


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError
    return max(number, 0.0)


def _seconds(text: str) -> float | None:
    """`1s`, `6m0s`, `20ms`, or a plain number of seconds."""
    with suppress(ValueError):
        return _finite(float(text))
    match = _SECONDS.fullmatch(text)
    if not match or not text:
        return None
    hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
