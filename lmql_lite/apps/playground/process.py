"""Processes of the playground: one per run and two for checks, and how they are ended."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lmql_lite.apps.playground.cleaner import end_group
from lmql_lite.apps.playground.guard import RequestRefused

MAX_LINE_BYTES = 2**26
_BOOT = "from lmql_lite.apps.playground.worker import main; main()"
_CLEANER = "from lmql_lite.apps.playground.cleaner import main; main()"


def command(boot: str, *arguments: str) -> list[str]:
    """The command of a child that finds modules where this process does; -P keeps those in its folder from being taken
    for them."""
    paths = json.dumps([os.path.abspath(path) for path in sys.path])
    code = f"import sys, json; sys.path[:] = json.loads(sys.argv.pop()); {boot}"
    return [sys.executable, "-P", "-c", code, *arguments, paths]


class TooLong(Exception):
    """An answer of more than MAX_LINE_BYTES bytes."""


class Workers:
    """Starts the processes of one server, with the models on offer, and reports them to its cleaner."""

    def __init__(self, offer: Mapping[str, Any], environment: Mapping[str, str], own: Path) -> None:
        self._offer = offer
        self._environment = environment
        self._cleaner = subprocess.Popen(
            command(_CLEANER, str(own)),
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal is not for it
        )

    async def start(self, folder: Path) -> Worker:
        """Raises OSError where there can be no process."""
        process = await asyncio.create_subprocess_exec(
            *command(_BOOT),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=folder,
            env=self._environment,
            limit=MAX_LINE_BYTES,
            start_new_session=True,
        )
        self._report(f"+{process.pid}")
        worker = Worker(process, lambda: self._report(f"-{process.pid}"))
        await worker.send(self._offer)
        return worker

    def close(self) -> None:
        with self._cleaner:
            pass  # its stdin is closed, as it is when this process dies

    def _report(self, line: str) -> None:
        assert self._cleaner.stdin is not None
        with suppress(OSError, ValueError):
            self._cleaner.stdin.write(f"{line}\n".encode())
            self._cleaner.stdin.flush()


class Worker:
    """One process. `ended` is called when it and its group are gone."""

    def __init__(self, process: Process, ended: Callable[[], None]) -> None:
        self._process = process
        self._ended = ended

    async def ask(self, job: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Answer to a job that is not a run."""
        await self.send(job)
        return await self.answer()

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def send(self, job: Mapping[str, Any]) -> None:
        """Sends a job. A worker that is gone shows in its answers."""
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            await self._process.stdin.drain()

    async def answer(self) -> Mapping[str, Any] | None:
        """The next one; None where there will be no more. What is not an answer is passed over.

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
        """Ends it with its group, after `patience` seconds in which it may end by itself. Returns the exit code, -N for
        signal N.

        One that is about to end by itself has so many seconds to do so.
        """
        await self._exit(patience)
        if not self.has_ended:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._exit(math.inf)
        end_group(self._process.pid)
        self._ended()
        return self._process.returncode or 0

    async def _exit(self, seconds: float) -> None:
        """Waits for it, so long. `Process.wait` of some Pythons waits for others that have its pipes, too."""
        last = time.monotonic() + seconds
        while not self.has_ended and time.monotonic() < last:
            await asyncio.sleep(0.005)


class Checker:
    """Process for checks, started with the first question. A question that is not answered within `seconds` fails."""

    def __init__(self, workers: Workers, folder: Path, seconds: float) -> None:
        self._workers = workers
        self._folder = folder
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._worker: Worker | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._is_closed = False

    async def ask(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raises Refused where there is no answer."""
        async with self._turn:
            if self._is_closed:
                raise RequestRefused(503, "the playground is ending")
            if self._worker is None:
                try:
                    self._worker = await self._workers.start(self._folder)
                except OSError as error:
                    raise RequestRefused(
                        503, f"no process can be started to read it: {error.strerror or error}"
                    ) from None
                self._hearing = asyncio.create_task(_hear(self._worker))
            try:
                answer = await asyncio.wait_for(self._worker.ask(job), self._seconds)
            except BaseException as error:
                await self._end()
                if isinstance(error, TimeoutError):
                    raise RequestRefused(422, f"this query cannot be read within {self._seconds:.0f} seconds") from None
                if isinstance(error, TooLong):
                    raise RequestRefused(422, "the problems of this query are too many to be shown") from None
                raise
            if answer is None:
                await self._end()
                raise RequestRefused(
                    422, "the interpreter crashed while it read this query", "it may be nested too deeply"
                )
            return answer

    async def close(self) -> None:
        """Ends the worker; questions that are pending or come later get no answer."""
        self._is_closed = True
        await self._end()

    async def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.kill()
        if self._hearing is not None:
            self._hearing.cancel()


async def _hear(worker: Worker) -> None:
    """Reads and drops all other output."""
    async for _ in worker.printed():
        pass
