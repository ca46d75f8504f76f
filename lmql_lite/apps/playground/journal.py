"""The lines of one run, as they are sent: numbered, scrubbed, and kept for whoever reads them later."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from lmql_lite.apps.playground.keys import Scrub
from lmql_lite.runtime.shown.wire import SCHEMA

QUIET_SECONDS = 10
"""So long nothing is said before an empty line shows that the connection stands."""

MOST_AT_ONCE = 1000
"""Lines; a long run is not held in memory once more for each of its readers."""

LULL_SECONDS = 0.04
"""At most so long the next lines wait for more, so that what comes token by token is not sent and drawn so."""

LULL_SHARE = 0.1
"""Nor longer than this part of the time since the first line: what comes first is told at once."""


class Journal:
    """Written in one place, read in any number."""

    def __init__(self, run: str, scrub: Scrub) -> None:
        self.lines: list[bytes] = []
        self.bytes = 0
        self.is_over = False
        self._run = run
        self._scrub = scrub
        self._began = 0.0
        self._news = asyncio.Event()
        self._over = asyncio.Event()

    def add(self, found: Mapping[str, Any]) -> None:
        """`found` is what the line says; which line it is, is said here alone."""
        now = time.monotonic()
        self._began = self._began or now
        envelope = {"schema": SCHEMA, "run": self._run, "seq": len(self.lines), "ms": int(1000 * (now - self._began))}
        line = self._scrub(json.dumps({**envelope, **found, **envelope}, separators=(",", ":")))
        self.lines.append(f"{line}\n".encode())
        self.bytes += len(line) + 1
        self._tell()

    def end(self, found: Mapping[str, Any]) -> None:
        """With its last line."""
        self.is_over = True
        self._over.set()
        self.add(found)

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def after(self, seq: int) -> AsyncGenerator[bytes, None]:
        """What comes after the line with this number, many lines at a time, until the last one."""
        sent, last = seq + 1, -math.inf
        while True:
            news = self._news
            if sent < len(self.lines):
                if len(self.lines) - sent < MOST_AT_ONCE:
                    await self._lull(last)
                last = time.monotonic()
                lines = self.lines[sent : sent + MOST_AT_ONCE]
                sent += len(lines)
                yield b"".join(lines)
            elif self.is_over:
                return
            else:
                try:
                    await asyncio.wait_for(news.wait(), QUIET_SECONDS)
                except TimeoutError:
                    yield b"\n"

    async def _lull(self, last: float) -> None:
        """Waits for more lines, or for the end, where others were sent just now."""
        now = time.monotonic()
        wait = last + min(LULL_SECONDS, LULL_SHARE * (now - self._began)) - now
        if wait > 0 and not self.is_over:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), wait)
