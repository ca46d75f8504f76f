"""A server as a process of its own, which cannot outlive the tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Seen = TypeVar("Seen")

_GRACE = 5.0
_STILL = 0.1

LEAVES_WITH_ITS_PARENT = """\
import os, signal, threading

def leave_with_the_parent():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)

threading.Thread(target=leave_with_the_parent, daemon=True).start()
"""
"""The beginning of a program that ends, with all processes that it has started, when its standard input does: however
the parent dies, it is closed."""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server. `address` is `http://127.0.0.1:PORT`; clients that want `base_url` add `/v1`."""

    address: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def base_url(self) -> str:
        return f"{self.address}/v1"

    def logged(self) -> str:
        return self.log.read_text("utf-8", errors="replace")


def once(happens: Callable[[], bool], *, tries: int = 5) -> bool:
    """Whether it happens, in so many tries: a busy machine may let a server finish before it hears of its client."""
    return any(happens() for _ in range(tries))


def settled(look: Callable[[], Seen]) -> Seen:
    """What a look shows twice in a row: servers count somewhat after they have answered."""
    before, seen = None, look()
    while before != seen:
        time.sleep(_STILL)
        before, seen = seen, look()
    return seen


@contextmanager
def running(
    command: Sequence[str | Path],
    log: Path,
    answers: re.Pattern[str],
    *,
    patience: float = 60.0,
    environment: Mapping[str, str] | None = None,
) -> Iterator[ServerProcess]:
    """Run a server from now until the block is left, in a group of processes of its own. It may use its log's folder.

    It is there when its log has what `answers` matches, whose first group is the address. Of the tests' environment it
    gets to see next to nothing: servers read settings from variables such as PORT, MODEL and SEED.

    Raises RuntimeError, with the end of the log, where the server ends or does not answer.
    """
    passed = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=passed | {"PYTHONUNBUFFERED": "1"} | dict(environment or {}),
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        yield ServerProcess(_address(process, log, answers, patience), log, process)
    finally:
        _end(process)


def _address(process: subprocess.Popen[bytes], log: Path, answers: re.Pattern[str], patience: float) -> str:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        ended = process.poll()
        text = log.read_text("utf-8", errors="replace")
        if found := answers.search(text):
            return found[1]
        if ended is not None:
            raise RuntimeError(f"the server ended with status {ended} before it answered:\n{text[-3000:]}")
        time.sleep(0.02)
    raise RuntimeError(f"the server did not answer within {patience:.0f} s:\n{text[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with suppress(ProcessLookupError):  # what it has left behind
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        process.stdin.close()
