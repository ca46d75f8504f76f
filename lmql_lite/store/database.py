"""SQLite files: whether a folder's file system can hold a write-ahead log, and setting a damaged file aside."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

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
