"""A worker (worker.py) seen from outside: started, given jobs, and ended with all that it has started."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

LONGEST_LINE = 2**26
MARK = "LMQL_LITE_WORKER"
"""A variable that all descendants of a worker inherit: some leave its process group."""
BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop());"
    "from lmql_lite.apps.playground.worker import main; main()"
)
"""The child finds modules where this process does; -P keeps those in its folder from being taken for them."""


class Worker:
    def __init__(self, process: Process, mark: str) -> None:
        self._process = process
        self._mark = mark

    @staticmethod
    async def start(offer: Mapping[str, Any], folder: Path, environment: Mapping[str, str]) -> Worker:
        mark = secrets.token_hex(8)
        paths = json.dumps([os.path.abspath(path) for path in sys.path])
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", BOOT, paths),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=folder,
            env={**environment, MARK: mark},
            limit=LONGEST_LINE,
            start_new_session=True,
        )
        worker = Worker(process, mark)
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
        """The next one; None where there will be no more. What is no answer is passed over."""
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # longer than all that we read
                return None
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

    def kill_at_once(self) -> None:
        """It alone."""
        if not self.has_ended:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def kill(self, *, patience: float = 0) -> int:
        """Ends it and all that it has started. Gives how it ended, as `subprocess` says it: -N is signal N.

        One that is about to end by itself has so many seconds to do so."""
        if patience:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), patience)
        self.kill_at_once()
        code = await self._process.wait()
        await asyncio.to_thread(_kill_rest, self._process.pid, f"{MARK}={self._mark}".encode())
        return code


def _kill_rest(group: int, mark: bytes) -> None:
    """Who forks while we look is found the next time."""
    if sys.platform == "win32":
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    for _ in range(20):
        rest = [process for process in _processes() if _bears(process, mark)]
        if not rest:
            return
        for process in rest:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)


def _processes() -> list[int]:
    """Of this machine, where they can be listed."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _bears(process: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
