"""Replacement of whole files: a reader sees the old file or the new one, never a part, even after a crash."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

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
