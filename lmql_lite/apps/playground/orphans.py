"""Every process that a run starts inherits a mark, by which it is found even if it leaves the process group of its run.

A process beside the server waits until the server is gone for any reason, and then ends what is left of its runs,
because a worker that executes native code cannot notice that nobody waits for it. It also removes the server's folder.
Marks can be read on Linux only.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "LMQL_LITE_RUNS"
"""A variable. The marks of all below a process begin with its own."""

OWN_MARK = 17
"""Characters of the mark that are a process's own."""

_BOOT = "from lmql_lite.apps.playground.orphans import wait_and_end; wait_and_end()"


def marked(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process whose descendants can be found."""
    return {**environment, MARK: f"{environment.get(MARK, '')}{secrets.token_hex(8)}."}


def end(mark: str) -> None:
    """Kills all processes with the mark but this one. Those that fork meanwhile are found in the next round."""
    sought = f"{MARK}={mark}".encode()
    for _ in range(20):
        rest = [process for process in _others() if _bears(process, sought)]
        if not rest:
            return
        for process in rest:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)


def count(mark: str) -> int:
    """The number of processes with the mark but this one. 0 where nobody tells."""
    sought = f"{MARK}={mark}".encode()
    return sum(_bears(process, sought) for process in _others())


def bear(mark: str) -> None:
    """Gives this forked process a mark of its own, as long as that of its parent; its children inherit it.

    What /proc tells of a process is the memory that it began with: there it is written over.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    if sys.platform == "linux" and (place := libc.getenv(MARK.encode())):
        before = ctypes.string_at(place)
        assert len(before) == len(mark), "marks are of one length"
        ctypes.memmove(place, mark.encode(), len(mark))
    os.environ[MARK] = mark


@contextmanager
def watched(mark: str, folder: str) -> Iterator[None]:
    """Context after which no process with the mark and no folder is left, even if this process is killed."""
    if sys.platform != "linux":
        yield
        return
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, mark, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        start_new_session=True,  # Ctrl-C in a terminal is not for it
    ):
        yield  # then its stdin is closed, as it is when this process dies


def wait_and_end() -> None:
    sys.stdin.buffer.read()
    end(sys.argv[1])
    shutil.rmtree(sys.argv[2], ignore_errors=True)


def _others() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    except OSError:
        return []


def _bears(process: int, sought: bytes) -> bool:
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(variable.startswith(sought) for variable in variables)
