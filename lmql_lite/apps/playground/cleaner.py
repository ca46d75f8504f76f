"""A process beside the playground's server: it waits until the server is gone for any reason, ends what is left of its
workers and removes its folder. A worker that executes native code cannot notice that nobody waits for it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Reads from stdin the process groups that start (+) and end (-), until the server's end of it closes."""
    groups = set[int]()
    for line in sys.stdin:
        number = int(line[1:])
        if line[0] == "+":
            groups.add(number)
        else:
            groups.discard(number)
    for group in groups:
        end_group(group)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


def end_group(group: int) -> None:
    """Kills a process and all that it started, except what has left its group."""
    if sys.platform != "win32":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
