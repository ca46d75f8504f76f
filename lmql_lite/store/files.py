"""Files: replaced whole, so that a reader sees the old one or the new one even after a crash; locked; and set aside if
they are damaged. Also whether a file system can hold SQLite's write-ahead log.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

TEMPORARY_PREFIX = ".tmp-"
"""First characters of the name of a file that is being written. A crash may leave such a file behind."""


def replace_file(path: Path, parts: Iterable[bytes | bytearray | memoryview], *, durable: bool = False) -> int:
    """Writes `parts` to a file beside `path`, then renames it to `path`. Returns the number of bytes written.

    `durable` waits until the disk has the content and the name. Without it a power failure, but not a killed process,
    may leave wrong content under the new name, so that readers need a checksum. Raises OSError if the file cannot be
    written; `path` is then unchanged, and no other file is left.

        replace_file(Path("x.json"), [b"{}"], durable=True)
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}")
    size = 0
    try:
        with open(temporary, "xb", buffering=0) as file:
            for part in parts:
                rest = memoryview(part).cast("B")
                size += len(rest)
                while rest:
                    rest = rest[file.write(rest) :]
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)
    return size


def sync_folder(folder: Path) -> None:
    """Waits until the disk has the names in a folder, on systems that can sync folders."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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


NETWORK = frozenset(
    ("nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afs", "lustre", "ceph", "gpfs", "beegfs", "9p",
     "pvfs2", "orangefs", "glusterfs", "ocfs2", "gfs2", "virtiofs", "fuse")
)  # fmt: skip
"""File systems on which SQLite's write-ahead log may not work."""
COMPANIONS = ("-wal", "-shm")
"""Ends of the names of the files that SQLite keeps beside one that is open."""


def is_on_network(folder: Path, mounts: Path = Path("/proc/mounts")) -> bool:
    """True if a folder is on a network file system, according to the system's table of mounts."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return False
    real = f"{os.path.realpath(folder)}/"
    kind, longest = "", 0
    for line in lines:
        fields = line.split(" ")
        if len(fields) > 2:
            point = f"{fields[1].encode('utf-8', 'surrogateescape').decode('unicode_escape').rstrip('/')}/"
            if real.startswith(point) and len(point) >= longest:
                kind, longest = fields[2], len(point)
    return kind.split(".")[0] in NETWORK


def set_aside(path: Path) -> Path | None:
    """Renames a damaged file to a name that was free, so that a new one can be created. None if that fails."""
    number = 1
    while True:
        aside = path.with_name(f"{path.name}.damaged{f'-{number}' if number > 1 else ''}")
        try:
            aside.touch(exist_ok=False)
            break
        except FileExistsError:
            number += 1
        except OSError:
            return None
    try:
        os.replace(path, aside)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        return None
    for companion in COMPANIONS:
        with suppress(OSError):
            os.replace(path.with_name(path.name + companion), aside.with_name(aside.name + companion))
    return aside
