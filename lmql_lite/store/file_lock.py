"""Exclusive advisory lock on an open file, and a lock file for resources that are not a single file."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

if sys.platform == "win32":
    import msvcrt

    _BYTE = 2**62  # far beyond the data, because a Windows lock blocks readers of the locked bytes

    def try_lock(file: IO[bytes]) -> bool:
        """Takes the lock; False if another handle has it."""
        file.seek(_BYTE)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def unlock(file: IO[bytes]) -> None:
        file.seek(_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def try_lock(file: IO[bytes]) -> bool:
        """Takes the lock; False if another handle has it. Raises OSError if the file system has no locks."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def lock_file(path: Path, seconds: float) -> Iterator[bool]:
    """Context that holds an exclusive lock on a lock file, which is created if it is missing and never removed.

    Yields True while the lock is held; False if another process or thread held it for `seconds`. Raises OSError if the
    file cannot be created, or if the file system has no locks.

        with lock_file(folder / ".lock", seconds=1.0) as held:
            if held: ...
    """
    until = time.monotonic() + seconds
    with open(path, "ab") as file:
        while not (held := try_lock(file)) and time.monotonic() < until:
            time.sleep(0.002 + 0.008 * random.random())
        try:
            yield held
        finally:
            if held:
                unlock(file)
