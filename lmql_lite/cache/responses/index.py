"""SQLite index of response logs: answers by key. It may be lost at any time, since the logs have all data."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from lmql_lite.cache.responses.canonical import compact
from lmql_lite.cache.responses.request import rejection
from lmql_lite.cache.responses.values import decoded
from lmql_lite.errors import CacheError
from lmql_lite.store.log import RESPONSE, SCHEMA

KEYS_PER_QUERY = 256
CACHE_KIB = 16 * 1024
CHECKPOINT_PAGES = 4000
APPLICATION = int.from_bytes(b"lmql")
"""Application id in the header of an index, by which its file is recognised even if the rest is damaged."""

_COLUMNS = ("cache_key", "request_type", "task_name", "doc_id", "idx", "gen_kwargs", "response", "created_at",
            "checksum", "model_hash")  # fmt: skip
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS responses (
    cache_key TEXT, request_type TEXT, task_name TEXT, doc_id TEXT, idx INTEGER DEFAULT 0,
    gen_kwargs TEXT, response TEXT, created_at REAL, checksum INTEGER, model_hash TEXT,
    PRIMARY KEY (cache_key, model_hash));
CREATE INDEX IF NOT EXISTS by_document ON responses (task_name, doc_id);
"""
_ADD = (
    "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (cache_key, model_hash) DO UPDATE SET "
    "response = excluded.response, created_at = excluded.created_at, checksum = excluded.checksum "
    "WHERE ? AND excluded.created_at > responses.created_at"
)
_FIND = "SELECT cache_key, response, created_at, checksum FROM responses WHERE model_hash = ? AND cache_key"


class IndexDamaged(Exception):
    """The index cannot be used, and must be rebuilt from the logs."""


class IndexStale(IndexDamaged):
    """The index has answers of a log that was replaced."""


class IndexForeign(Exception):
    """The file at the place of the index is not an index, and must not be touched."""


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
    model_hash: str
    replaces: bool


def row_of(record: dict[str, Any], model_hash: str) -> Row | None:
    """The row of a record; None unless it is a servable answer of the model."""
    if record.get("kind") != RESPONSE or record.get("model_hash") != model_hash or not record.get("deterministic"):
        return None
    try:
        row = Row(record["cache_key"], record["request_type"], record["task_name"], compact(record["doc_id"]),
                  record["idx"], record["gen_kwargs"], record["response"], float(record["created_at"]),
                  checksum(record["cache_key"], record["response"]), model_hash,
                  bool(record.get("replaces")))  # fmt: skip
        if not row.cache_key or "rejected" in record:
            return None
        return row if rejection(row.request_type, decoded(row.response), minus_infinity=True) is None else None
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def checksum(key: str, response: str) -> int:
    """Checksum of a row, since SQLite does not detect a flipped bit in a text."""
    return crc32((key + response).encode())


class ResponseIndex:
    """Answers by key, and the offset up to which each log was read. One process opens it; its threads take turns.

    It has the answers of all models in its logs, and finds those of one. `path` is None for an index in memory. Raises
    IndexDamaged, IndexForeign for a file of another program, CacheError for a file of a newer schema, and
    sqlite3.OperationalError for a file that cannot be written.
    """

    def __init__(self, path: Path | None, fingerprint: str, model_hash: str) -> None:
        self.path, self._model_hash = path, model_hash
        if path is not None and is_foreign(path):
            raise IndexForeign(f"{path} is not an index of a response cache")
        try:
            self._database = sqlite3.connect(path or ":memory:", timeout=30, check_same_thread=False)
            try:
                self._open(fingerprint, model_hash)
            except BaseException:
                self._database.close()
                raise
        except sqlite3.OperationalError:
            raise
        except sqlite3.Error as error:
            raise IndexDamaged(str(error)) from error
        self._file = os.stat(path) if path is not None else None

    def _open(self, fingerprint: str, model_hash: str) -> None:
        tables = {row[0] for row in self._database.execute("SELECT name FROM sqlite_master")}
        if tables and "meta" not in tables:
            raise IndexDamaged("it has another schema")
        if tables:
            found = dict(self._database.execute("SELECT key, value FROM meta WHERE key = 'schema_version'"))
            version = found.get("schema_version", "")
            if version.isdecimal() and int(version) > SCHEMA:
                raise CacheError(f"{self.path} was written by a newer version of lmql_lite", hint="update lmql_lite")
            columns = tuple(row[1] for row in self._database.execute("PRAGMA table_info(responses)"))
            if version != str(SCHEMA) or columns != _COLUMNS:
                raise IndexDamaged("it has another schema")
        self._database.execute(f"PRAGMA application_id={APPLICATION}")  # before WAL, so that the file itself has it
        self._database.execute("PRAGMA journal_mode=WAL")
        for setting in ("synchronous=NORMAL", f"cache_size=-{CACHE_KIB}", f"wal_autocheckpoint={CHECKPOINT_PAGES}"):
            self._database.execute(f"PRAGMA {setting}")
        if self.path is not None:
            os.chmod(self.path, 0o600)
        if not tables:
            with self._database:
                self._database.executescript(_TABLES)
                meta = {"model_fingerprint": fingerprint, "model_fingerprint_hash": model_hash,
                        "schema_version": str(SCHEMA)}  # fmt: skip
                self._database.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())

    def find(self, keys: Sequence[str]) -> dict[str, tuple[str, float]]:
        """Answer as JSON text and its time, by key."""
        found: dict[str, tuple[str, float]] = {}
        try:
            for start in range(0, len(keys), KEYS_PER_QUERY):
                some = keys[start : start + KEYS_PER_QUERY]
                query = f"{_FIND} IN ({','.join('?' * len(some))})"
                for key, response, created_at, expected in self._database.execute(query, [self._model_hash, *some]):
                    if checksum(key, response) != expected:
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

    def is_in_place(self) -> bool:
        """True if the path still names the file that was opened."""
        try:
            return self.path is not None and self._file is not None and os.path.samestat(os.stat(self.path), self._file)
        except OSError:
            return False

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._database.close()


def is_foreign(path: Path) -> bool:
    """True for anything but an index, an empty file, or a name that is free."""
    try:
        with open(path, "rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return bool(head) and head[68:72] != APPLICATION.to_bytes(4)


def copy_index(source: Path, target: Path) -> None:
    """Creates an index from that of other logs, which then need not be read. After a failure there is no new index."""
    if target.exists() or not source.exists() or is_foreign(source):
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


def remove_index(index: Path) -> None:
    """Removes an index; the next cache that opens its log creates it again. A file of another program stays."""
    if not is_foreign(index):
        for companion in ("", "-wal", "-shm"):
            with suppress(OSError):
                index.with_name(index.name + companion).unlink()
