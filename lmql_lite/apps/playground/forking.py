"""Workers of runs, forked from one process that has already imported and loaded everything that runs need.

The server and that process share a socket: the server sends a mark and the pipes of a new worker, and receives the
worker's process id and later its exit status. On systems that cannot fork, each worker starts by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lmql_lite.apps.playground.orphans import MARK, OWN_MARK, marked
from lmql_lite.apps.playground.process import LONGEST_LINE, Worker, command

CAN_FORK = hasattr(os, "fork") and hasattr(socket, "send_fds")
_BOOT = "from lmql_lite.apps.playground.worker import fork_workers; fork_workers()"


class ForkedProcess:
    """A forked worker, with the interface of asyncio's `Process`."""

    def __init__(
        self, pid: int, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader
    ) -> None:
        self.pid = pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.returncode: int | None = None

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)


class Forks:
    """The workers of one server. `offer` names the models of its runs."""

    def __init__(self, offer: Mapping[str, Any], folder: Path, environment: Mapping[str, str]) -> None:
        self._offer = offer
        self._folder = folder
        self._environment = environment
        self._parent: asyncio.Task[_Parent] | None = None
        self._is_closing = False

    def prepare(self) -> None:
        """Starts the process that forks, where there is none."""
        if CAN_FORK and self._parent is None and not self._is_closing:
            self._parent = asyncio.create_task(_Parent.start(self._offer, self._folder, self._environment))

    async def take(self) -> Worker:
        """A new worker. Raises OSError where there can be no process for it."""
        self.prepare()
        for _ in range(2):  # a run may have ended the process that forks: then there is a new one
            if (parent := self._parent) is None:
                break
            try:
                return await (await asyncio.shield(parent)).fork()
            except (OSError, EOFError):
                if not parent.cancelled() and parent.exception() is None:
                    await parent.result().close()
                if self._parent is parent:
                    self._parent = None
                    self.prepare()
        return await Worker.start(self._offer, self._folder, self._environment)

    async def close(self) -> None:
        self._is_closing = True
        if self._parent is not None:
            with suppress(OSError, EOFError, asyncio.CancelledError):
                await (await self._parent).close()


class _Parent:
    """The process that forks. When its socket closes, it ends, and its children with it."""

    def __init__(
        self,
        process: Process,
        control: socket.socket,
        told: asyncio.StreamReader,
        mark: str,
    ) -> None:
        self._process = process
        self._control = control
        self._mark = mark
        self._pids: asyncio.Queue[int] = asyncio.Queue()
        self._children: dict[int, ForkedProcess | None] = {}
        self._turn = asyncio.Lock()
        self._hearing = asyncio.create_task(self._hear(told))

    @staticmethod
    async def start(offer: Mapping[str, Any], folder: Path, environment: Mapping[str, str]) -> _Parent:
        """Returns when it is ready. Raises OSError or EOFError where it cannot be."""
        own = marked(environment)
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command(_BOOT),
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=folder,
                env=own,
                start_new_session=True,
            )
        told = process.stdout
        assert told is not None
        ours.sendall(json.dumps(offer).encode() + b"\n")
        if not await told.readline():
            ours.close()
            raise EOFError
        return _Parent(process, ours, told, own[MARK])

    async def fork(self) -> Worker:
        """Raises OSError or EOFError where the process is gone."""
        mark = f"{self._mark[:-OWN_MARK]}{secrets.token_hex((OWN_MARK - 1) // 2)}."
        async with self._turn:
            if self._hearing.done():
                raise EOFError
            (its_jobs, jobs), (answers, its_answers), (printed, its_printed) = os.pipe(), os.pipe(), os.pipe()
            its_own = [its_jobs, its_answers, its_printed]
            socket.send_fds(self._control, [mark[-OWN_MARK:].encode()], its_own)
            for each in its_own:
                os.close(each)
            pid = await self._pids.get()
        if not pid:
            for each in (jobs, answers, printed):
                os.close(each)
            raise EOFError
        process = ForkedProcess(pid, await _writer(jobs), await _reader(answers), await _reader(printed))
        if pid in self._children:
            self._children[pid] = process
        else:  # it has ended already
            process.returncode = -signal.SIGKILL
        return Worker(process, mark)

    async def close(self) -> None:
        self._control.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await asyncio.wait([self._hearing], timeout=1)

    async def _hear(self, told: asyncio.StreamReader) -> None:
        """Reads numbers of new workers, and how others ended."""
        while line := await told.readline():
            pid, code = json.loads(line)
            if code is None:
                self._children[pid] = None
                self._pids.put_nowait(pid)
            elif child := self._children.pop(pid, None):
                child.returncode = code
        for pid, child in self._children.items():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            if child is not None:
                child.returncode = -signal.SIGKILL
        self._pids.put_nowait(0)


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    pipe = os.fdopen(descriptor, "rb", 0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def _writer(descriptor: int) -> asyncio.StreamWriter:
    loop, pipe = asyncio.get_running_loop(), os.fdopen(descriptor, "wb", 0)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), pipe
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)
