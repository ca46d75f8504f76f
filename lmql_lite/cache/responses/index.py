"""SQLite index of response logs, on disk or in memory: rows by key, and the offset up to which each log was read.

The logs have all data, so an index that is lost is made anew from them. Blocking, and safe for threads.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from lmql_lite.cache.responses.canonical import compact
from lmql_lite.cache.responses.request import rejection
from lmql_lite.cache.responses.values import decoded
from lmql_lite.errors import CacheError
from lmql_lite.store.files import COMPANIONS
from lmql_lite.store.log import RESPONSE, SCHEMA, SUFFIX, LogWriter, identity, read_lines

Done = TypeVar("Done")
RUNS = "runs"
KEYS_PER_QUERY = 256
BYTES_PER_TRANSACTION = 8 << 20
ROW_BYTES = 512
"""Bytes of a row in memory besides its texts."""
APPLICATION = int.from_bytes(b"lmql")
"""Application id in the header of an index, by which its file is recognised even if the rest is damaged."""

_SETTINGS = ("journal_mode=WAL", "synchronous=NORMAL", "cache_size=-16384", "wal_autocheckpoint=4000")
_COLUMNS = ("cache_key", "request_type", "task_name", "doc_id", "idx", "gen_kwargs", "response", "created_at",
            "checksum", "model_hash")  # fmt: skip
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE responses (
    cache_key TEXT, request_type TEXT, task_name TEXT, doc_id TEXT, idx INTEGER DEFAULT 0,
    gen_kwargs TEXT, response TEXT, created_at REAL, checksum INTEGER, model_hash TEXT,
    PRIMARY KEY (cache_key, model_hash));
CREATE INDEX by_document ON responses (task_name, doc_id);
"""
_ADD = (
    "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (cache_key, model_hash) DO UPDATE SET "
    "response = excluded.response, created_at = excluded.created_at, checksum = excluded.checksum "
    "WHERE ? AND excluded.created_at > responses.created_at"
)
_FIND = "SELECT cache_key, response, created_at, checksum FROM responses WHERE model_hash = ? AND cache_key"


class LogChanged(Exception):
    """A log was cut or replaced, so the index has rows of lines that are no more."""


_LOST = (sqlite3.Error, LogChanged, TypeError, UnicodeError)
"""Errors of an index that cannot be used any more; the last two are those of damaged rows."""


Row = tuple[Any, ...]
"""Columns of one answer, and True if it replaces an older one."""


def row_of(record: Mapping[str, Any]) -> Row:
    """The row of an answer's record, which must have all fields. Raises ValueError for a time that is no number."""
    key, response, idx, time = record["cache_key"], record["response"], record["idx"], record["created_at"]
    if type(time) not in (int, float) or time - time != 0:
        raise ValueError("the time of an answer is not a number")
    return (key, _column(record["request_type"]), _column(record["task_name"]), compact(record["doc_id"]),
            idx if type(idx) is int and idx.bit_length() < 64 else 0, _column(record["gen_kwargs"]), response,
            float(time), checksum(key, response), record["model_hash"], bool(record.get("replaces")))  # fmt: skip


def _column(value: Any) -> str:
    """Text that SQLite can keep. Half of a character is escaped."""
    text = value if isinstance(value, str) else compact(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def is_servable(record: Mapping[str, Any]) -> bool:
    """True for a whole record of an answer that may be served."""
    if record.get("kind") != RESPONSE or not record.get("deterministic") or "rejected" in record:
        return False
    try:
        row_of(record)
        problem = rejection(record["request_type"], decoded(record["response"]), minus_infinity=True)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return False
    return bool(record["cache_key"]) and problem is None


def checksum(key: str, response: str) -> int:
    """Checksum of a row, since SQLite does not detect a flipped bit in a text."""
    return crc32((key + response).encode())


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


def remove_index(index: Path) -> None:
    """Removes an index; the next cache that opens its log creates it again. A file of another program stays."""
    if not is_foreign(index):
        for companion in ("", *COMPANIONS):
            with suppress(OSError):
                index.with_name(index.name + companion).unlink()


def _changed(folder: Path) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


class Index:
    """Answers by key. `log` is the log of this cache, which others write only if `is_writer` is False. `root` is the
    folder of a model, whose other logs are read too. `warn` gets a sentence for each failure.

    Raises CacheError for files of a newer version.
    """

    def __init__(
        self,
        path: Path | None,
        log: Path,
        root: Path | None,
        about: tuple[str, str],
        is_writer: bool,
        warn: Callable[[str], None],
    ) -> None:
        self._log, self._root, self._is_writer, self._warn = log, root, is_writer, warn
        self._fingerprint, self._model_hash = about
        self._lock = threading.Lock()
        self._is_closed = False
        self._marks: dict[str, str] = {}
        """Identity of each log, and the offset up to which it was read."""
        self._seen: dict[Path, tuple[int, int]] = {}
        """Inode and size of each log when it was read last."""
        self._logs = [log]
        self._times: dict[Path, int] = {} if root is None else {root: -1}
        """Times of the folders whose logs are known."""
        self._path: Path | None = None
        self._database = sqlite3.connect(":memory:")
        try:
            self._open(path)
        except BaseException:
            self.close()
            raise

    def find(self, keys: Sequence[str]) -> dict[str, tuple[str, float]]:
        """Answer as JSON text and its time, by known key."""

        def look() -> dict[str, tuple[str, float]]:
            found = self._rows(keys)
            return self._rows(keys) if len(found) < len(keys) and self._follow() else found

        return self._using(look)

    def add(self, rows: Iterable[Row], log: LogWriter) -> None:
        """Adds rows whose lines are in the log."""
        first = self._marks.get(self._name(log.path), "").partition(":")[0] or identity(log.path)
        self._using(lambda: self._insert(rows, log.path, f"{first}:{log.end}"))

    def count(self) -> int:
        """Number of servable answers."""
        return self._using(lambda: int(self._database.execute("SELECT count(*) FROM responses").fetchone()[0]))

    def close(self) -> None:
        with self._lock, suppress(sqlite3.Error):
            self._is_closed = True
            self._database.close()

    # -- the file

    def _using(self, work: Callable[[], Done]) -> Done:
        """Result of work with the index, which is made anew first if it is lost, and then in memory."""
        with self._lock:
            if self._is_closed:
                raise CacheError(f"the cache of {self._log} was closed meanwhile", hint="close it after its last use")
            for place in (self._path, None):
                try:
                    return work()
                except _LOST as error:
                    self._lose(error)
                    self._open(place)
            return work()

    def _open(self, path: Path | None) -> None:
        """Opens the index at a path, or else makes it anew, or else in memory, and reads what is new in the logs."""
        for place in (path, path, None):
            if place is not None and is_foreign(place):
                self._warn(f"{place} is not an index of a response cache, and is left as it is: the index is in memory")
                continue
            self._path = place
            try:
                self._connect()
                self._follow()
            except _LOST as error:
                self._lose(error)
            else:
                return
        raise CacheError(f"no index of {self._log} can be created", hint="check that there is memory left")

    def _lose(self, error: Exception) -> None:
        with suppress(sqlite3.Error):
            self._database.close()
        if self._path is not None:
            if not isinstance(error, LogChanged):
                self._warn(f"{self._path} cannot be used ({error}): the index is made anew from the logs")
            remove_index(self._path)

    def _connect(self) -> None:
        """Opens the database, and checks its tables or creates them."""
        database = sqlite3.connect(self._path or ":memory:", timeout=30, check_same_thread=False)
        self._database = database
        is_new = not database.execute("SELECT name FROM sqlite_master").fetchall()
        if not is_new:
            version = str(dict(database.execute("SELECT key, value FROM meta")).get("schema_version"))
            if version.isdecimal() and int(version) > SCHEMA:
                raise CacheError(f"{self._path} was written by a newer version of lmql_lite", hint="update lmql_lite")
            columns = tuple(row[1] for row in database.execute("PRAGMA table_info(responses)"))
            if version != str(SCHEMA) or columns != _COLUMNS:
                raise sqlite3.DatabaseError("it has another schema")
        database.execute(f"PRAGMA application_id={APPLICATION}")  # before WAL, so that the file itself has it
        for setting in _SETTINGS:
            database.execute(f"PRAGMA {setting}")
        if self._path is not None:
            with suppress(OSError):
                os.chmod(self._path, 0o600)  # before the write-ahead log is made, which gets the same mode
        if is_new:
            about = {"model_fingerprint": self._fingerprint, "model_fingerprint_hash": self._model_hash,
                     "schema_version": str(SCHEMA)}  # fmt: skip
            with database:
                database.executescript(_TABLES)
                database.executemany("INSERT INTO meta VALUES (?, ?)", about.items())
        self._marks = dict(database.execute("SELECT substr(key, 5), value FROM meta WHERE key LIKE 'log:%'"))
        self._seen = {}

    # -- the logs

    def _found_logs(self) -> list[Path]:
        """Logs with answers of the model, this cache's first. Those of runs come before the merged one, because a merge
        moves their answers there."""
        root = self._root
        if root is not None and any(_changed(folder) != time for folder, time in self._times.items()):
            folders = [*sorted((root / RUNS).glob("*")), root]
            self._times = {folder: _changed(folder) for folder in (root / RUNS, *folders)}
            others = [log for folder in folders for log in sorted(folder.glob(f"*{SUFFIX}"))]
            self._logs = [self._log, *(log for log in others if log != self._log)]
        return self._logs

    def _follow(self) -> bool:
        """Reads new lines of the logs into the index. Returns True if there were any."""
        is_news = False
        for log in self._found_logs():
            if self._is_writer and log == self._log and log in self._seen:
                continue
            try:
                now = os.stat(log)
                if self._seen.get(log) != (now.st_ino, now.st_size):
                    self._seen[log] = now.st_ino, now.st_size
                    self._read(log, now.st_size)
                    is_news = True
            except (FileNotFoundError, IsADirectoryError):
                continue
            except OSError as error:
                self._warn(f"{log} cannot be read ({error.strerror})")
            except CacheError as error:
                if self._root is None or (self._is_writer and log == self._log):
                    raise
                self._warn(f"{error.message}; its answers are not used")
        return is_news

    def _read(self, log: Path, size: int) -> None:
        """Adds new rows of a log, from the offset of the last read on. Raises LogChanged."""
        first = identity(log)
        known, _, offset = self._marks.get(self._name(log), "").partition(":")
        end = int(offset) if offset.isdecimal() else 0
        if (known and known != first) or end > size:
            raise LogChanged
        rows: list[Row] = []
        waiting = 0
        for line in read_lines(log, end):
            end = line.end
            if line.record is not None and is_servable(line.record):
                rows.append(row_of(line.record))
                waiting += ROW_BYTES + len(line.data)
            if waiting >= BYTES_PER_TRANSACTION:
                self._insert(rows, log, f"{first}:{end}")
                rows, waiting = [], 0
        if first:
            self._insert(rows, log, f"{first}:{end}")

    def _insert(self, rows: Iterable[Row], log: Path, mark: str) -> None:
        """Adds rows of a log, and notes how far it was read, all or nothing."""
        with self._database as database:
            # sorted, so that neighbours in the tree of keys are written together
            database.executemany(_ADD, sorted(rows, key=itemgetter(0)))
            database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"log:{self._name(log)}", mark))
        self._marks[self._name(log)] = mark

    def _name(self, log: Path) -> str:
        """Name of a log in the index."""
        return log.name if self._root is None or log.parent == self._root else log.relative_to(self._root).as_posix()

    def _rows(self, keys: Sequence[str]) -> dict[str, tuple[str, float]]:
        found: dict[str, tuple[str, float]] = {}
        for start in range(0, len(keys), KEYS_PER_QUERY):
            some = keys[start : start + KEYS_PER_QUERY]
            query = f"{_FIND} IN ({','.join('?' * len(some))})"
            for key, response, created_at, expected in self._database.execute(query, [self._model_hash, *some]):
                if checksum(key, response) != expected:
                    raise sqlite3.DatabaseError(f"the row of {key} is damaged")
                found[key] = response, created_at
        return found
