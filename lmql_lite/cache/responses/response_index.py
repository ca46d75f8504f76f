"""SQLite index of response logs: answers by key. It may be lost at any time, since the logs have all data."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from lmql_lite.errors import CacheError

KEYS_PER_QUERY = 256
CACHE_KIB = 16 * 1024
CHECKPOINT_PAGES = 4000
NETWORK = frozenset(
    ("nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afs", "lustre", "ceph", "gpfs", "beegfs", "9p",
     "pvfs2", "orangefs", "glusterfs", "ocfs2", "gfs2", "virtiofs", "fuse")
)  # fmt: skip
"""File systems on which SQLite's write-ahead log may not work."""

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS responses (
    cache_key TEXT PRIMARY KEY, request_type TEXT, task_name TEXT, doc_id TEXT, idx INTEGER DEFAULT 0,
    gen_kwargs TEXT, response TEXT, created_at REAL, checksum INTEGER);
CREATE INDEX IF NOT EXISTS by_document ON responses (task_name, doc_id);
"""
_ADD = (
    "INSERT INTO responses VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9) ON CONFLICT (cache_key) DO UPDATE SET "
    "response = excluded.response, created_at = excluded.created_at, checksum = excluded.checksum "
    "WHERE ?10 AND excluded.created_at > responses.created_at"
)
_FIND = "SELECT cache_key, response, created_at, checksum FROM responses WHERE cache_key"
_FIND_ONE = f"{_FIND} = ?"


class IndexDamaged(Exception):
    """The index cannot be used, and must be rebuilt from the logs."""


class Row(NamedTuple):
    """One answer: the columns of the table, and True if it replaces an older one."""

    cache_key: str
    request_type: str
    task_name: str
    doc_id: str
    idx: int
    gen_kwargs: str
    response: str
    created_at: float
    checksum: int
    replaces: bool


def checksum(key: str, response: str) -> int:
    """Checksum of a row, since SQLite does not detect a flipped bit in a text."""
    return crc32((key + response).encode())


class ResponseIndex:
    """Answers by key, and the offset up to which each log was read. One process opens it; its threads take turns.

    `path` is None for an index in memory. Raises IndexDamaged, and CacheError for a file of a newer schema.
    """

    def __init__(self, path: Path | None, fingerprint: str, model_hash: str, schema: int) -> None:
        self.path = path
        try:
            self._database = sqlite3.connect(path or ":memory:", timeout=30, check_same_thread=False)
            try:
                self._open(fingerprint, model_hash, schema)
            except BaseException:
                self._database.close()
                raise
        except sqlite3.Error as error:
            raise IndexDamaged(str(error)) from error

    def _open(self, fingerprint: str, model_hash: str, schema: int) -> None:
        found = None
        if self._database.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            found = dict(self._database.execute("SELECT key, value FROM meta WHERE key NOT LIKE 'log:%'"))
            version = found.get("schema_version", "")
            if version.isdecimal() and int(version) > schema:
                raise CacheError(f"{self.path} was written by a newer version of lmql_lite", hint="update lmql_lite")
            if version != str(schema) or found.get("model_fingerprint_hash") != model_hash:
                raise IndexDamaged("it has another schema or model")
        self._database.execute("PRAGMA journal_mode=WAL")
        for setting in ("synchronous=NORMAL", f"cache_size=-{CACHE_KIB}", f"wal_autocheckpoint={CHECKPOINT_PAGES}"):
            self._database.execute(f"PRAGMA {setting}")
        if self.path is not None:
            os.chmod(self.path, 0o600)
        if found is not None:
            columns = [row[1] for row in self._database.execute("PRAGMA table_info(responses)")]
            if len(columns) != 9 or columns[-1] != "checksum":
                raise IndexDamaged("its table has other columns")
            return
        with self._database:
            self._database.executescript(_TABLES)
            meta = {"model_fingerprint": fingerprint, "model_fingerprint_hash": model_hash, "schema_version": schema}
            self._database.executemany("INSERT INTO meta VALUES (?, ?)", [(k, str(v)) for k, v in meta.items()])

    def find(self, keys: Sequence[str]) -> dict[str, tuple[str, float]]:
        """Answer as JSON text and its time, by key."""
        found: dict[str, tuple[str, float]] = {}
        try:
            for start in range(0, len(keys), KEYS_PER_QUERY):
                some = keys[start : start + KEYS_PER_QUERY]
                query = _FIND_ONE if len(some) == 1 else f"{_FIND} IN ({','.join('?' * len(some))})"
                for key, response, created_at, expected in self._database.execute(query, some):
                    if crc32((key + response).encode()) != expected:
                        raise IndexDamaged(f"the row of {key} is damaged")
                    found[key] = response, created_at
        except (sqlite3.Error, TypeError, UnicodeError) as error:
            raise IndexDamaged(str(error)) from error
        return found

    def add(self, rows: Iterable[Row], marks: dict[str, str]) -> None:
        """Adds rows and the offsets up to which logs were read, all or nothing. Raises sqlite3.Error."""
        with self._database:
            # sorted, so that neighbours in the tree of keys are written together
            self._database.executemany(_ADD, sorted(rows, key=itemgetter(0)))
            self._database.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)", [(f"log:{name}", mark) for name, mark in marks.items()]
            )

    def marks(self) -> dict[str, str]:
        """Offset up to which each log was read, by name."""
        try:
            return dict(self._database.execute("SELECT substr(key, 5), value FROM meta WHERE key LIKE 'log:%'"))
        except sqlite3.Error as error:
            raise IndexDamaged(str(error)) from error

    def count(self) -> int:
        try:
            return int(self._database.execute("SELECT count(*) FROM responses").fetchone()[0])
        except sqlite3.Error as error:
            raise IndexDamaged(str(error)) from error

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._database.close()


def copy_index(source: Path, target: Path) -> None:
    """Creates an index from that of other logs, which then need not be read. After a failure there is no new index."""
    if target.exists() or not source.exists():
        return
    try:
        with (
            closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as database,
            closing(sqlite3.connect(target)) as copy,
        ):
            database.backup(copy)
    except sqlite3.Error:
        with suppress(OSError):
            target.unlink()


def set_aside(path: Path) -> Path | None:
    """Renames a damaged index, so that a new one can be created. None if there is none, or the rename fails."""
    for companion in ("-wal", "-shm"):
        with suppress(OSError):
            path.with_name(path.name + companion).unlink()
    try:
        os.replace(path, aside_of(path))
    except OSError:
        return None
    return aside_of(path)


def aside_of(path: Path) -> Path:
    return path.with_name(path.name + ".damaged")


def index_place(folder: Path) -> Path | None:
    """Folder for the index of logs in `folder`: the same folder if SQLite works there, else one in the local cache."""
    if os.access(folder, os.W_OK) and not is_on_network(folder):
        return folder
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    local = base / "lmql-lite" / "responses" / f"{crc32(os.fsencode(os.path.realpath(folder))):08x}-{folder.name}"
    try:
        local.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return local if os.access(local, os.W_OK) and not is_on_network(local) else None


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
