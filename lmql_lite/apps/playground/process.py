"""A worker (worker.py) seen from outside: started, given jobs, and ended with all that it has started."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lmql_lite.apps.playground.orphans import MARK, end, marked

LONGEST_LINE = 2**26
BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop());"
    "from lmql_lite.apps.playground.worker import main; main()"
)
"""The child finds modules where this process does; -P keeps those in its folder from being taken for them."""


class TooLong(Exception):
    """An answer of more than LONGEST_LINE bytes."""


class Worker:
    def __init__(self, process: Process, mark: str) -> None:
        self._process = process
        self._mark = mark

    @staticmethod
    async def start(offer: Mapping[str, Any], folder: Path, environment: Mapping[str, str]) -> Worker:
        own = marked(environment)
        paths = json.dumps([os.path.abspath(path) for path in sys.path])
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", BOOT, paths),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=folder,
            env=own,
            limit=LONGEST_LINE,
            start_new_session=True,
        )
        worker = Worker(process, own[MARK])
        await worker.send(offer)
        return worker

    async def ask(self, job: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Its one answer to a job that is no run."""
        await self.send(job)
        return await self.answer()

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def send(self, job: Mapping[str, Any]) -> None:
        """A worker that is gone says so by its answers."""
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            await self._process.stdin.drain()

    async def answer(self) -> Mapping[str, Any] | None:
        """The next one; None where there will be no more. What is no answer is passed over.

        Raises TooLong, after which there is none."""
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:
                raise TooLong from None
            if not line.endswith(b"\n"):
                return None
            with suppress(ValueError, RecursionError):
                found = json.loads(line)
                if isinstance(found, dict):
                    return found

    async def printed(self) -> AsyncGenerator[bytes, None]:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(2**16):
            yield data

    def interrupt(self) -> None:
        """Asks it to end; it may not."""
        if not self.has_ended:
            with suppress(ProcessLookupError):
                self._process.terminate()

    async def kill(self, *, patience: float = 0) -> int:
        """Ends it and all that it has started. Gives how it ended, as `subprocess` says it: -N is signal N.

        One that is about to end by itself has so many seconds to do so."""
        await self._exit(patience)
        if not self.has_ended:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._exit(math.inf)
        await asyncio.to_thread(_end_rest, self._process.pid, self._mark)
        return self._process.returncode or 0

    async def _exit(self, seconds: float) -> None:
        """Waits for it, so long. `Process.wait` of some Pythons waits for others that have its pipes, too."""
        last = time.monotonic() + seconds
        while not self.has_ended and time.monotonic() < last:
            await asyncio.sleep(0.005)


def _end_rest(group: int, mark: str) -> None:
    if sys.platform != "win32":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        end(mark)
