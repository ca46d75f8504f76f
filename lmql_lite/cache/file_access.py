"""How a file of ours is opened: what stands there may be missing, somebody else's, or no file at all."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from io import FileIO
from pathlib import Path

from lmql_lite.errors import CacheError

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


def open_file(path: Path, given: Path) -> tuple[FileIO | None, bool]:
    """The file, made where it is missing, and whether it may be written; None where it is missing and cannot be made.

    `given` is how its user calls it. CacheError for what is no file, and where it may not even be read.
    """
    if not path.parent.is_dir():
        raise CacheError(f"{given}: its folder does not exist", hint=f"make it: mkdir -p {path.parent}")
    if given.is_symlink() and not path.exists():
        raise CacheError(f"{given} is a link that leads nowhere", hint="remove it, or name another file")
    exists = path.exists()
    if path.is_dir():
        raise CacheError(f"{given} is a directory", hint=f"name a file in it: {given / 'cache.tokens'}")
    if exists and not path.is_file():
        raise CacheError(f"{given} is a device, pipe or socket", hint="name a file")
    try:
        return _regular(os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666), "r+", given), True
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise CacheError(f"{given} cannot be opened ({reason(error)})") from error
    if not exists:
        return None, False
    try:
        return _regular(os.open(path, os.O_RDONLY | _FLAGS), "r", given), False
    except OSError as error:
        raise CacheError(f"{given} may not be read", hint="ask its owner, or name another file") from error


def _regular(descriptor: int, mode: str, given: Path) -> FileIO:
    file = FileIO(descriptor, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise CacheError(f"{given} is no file any more")
    return file


def reason(error: Exception) -> str:
    """As the end of a sentence."""
    if isinstance(error, CacheError):
        return error.message
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def sync_folder(path: Path) -> None:
    """Makes a file's name as durable as its content, where folders can be synced."""
    with suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
