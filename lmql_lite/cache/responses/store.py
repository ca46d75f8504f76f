"""A response log and its index: the log that a cache writes, and a SQLite index of it and of the logs beside it.

The logs have all data, so the index may be lost at any time. It has the offset up to which each log was read. Blocking,
and safe for threads. A forked process opens its own store.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from lmql_lite.cache.responses.canonical import compact
from lmql_lite.cache.responses.request import rejection
from lmql_lite.cache.responses.values import decoded
from lmql_lite.errors import CacheError
from lmql_lite.store.files import COMPANIONS, is_on_network
from lmql_lite.store.log import (
    RESPONSE,
    SCHEMA,
    SUFFIX,
    ForeignFile,
    GroupCommit,
    LogWriter,
    identity,
    opening,
    read_lines,
    refuse_foreign,
)

Done = TypeVar("Done")
KEYS_PER_QUERY = 256
ROWS_PER_TRANSACTION = 16_384
BYTES_PER_TRANSACTION = 8 << 20
WRITERS = 64
"""Maximum number of processes of one rank that write at the same time, each to its own log."""
APPLICATION = int.from_bytes(b"lmql")
"""Application id in the header of an index, by which its file is recognised even if the rest is damaged."""
RUNS = "runs"

_SETTINGS = ("journal_mode=WAL", "synchronous=NORMAL", "cache_size=-16384", "wal_autocheckpoint=4000")
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


class IndexLost(Exception):
    """The index cannot be used. Its file is removed and made anew from the logs, unless it `stays`: then the index is
    kept in memory. `warning` is empty if the user need not know."""

    def __init__(self, warning: str, *, stays: bool = False) -> None:
        super().__init__(warning)
        self.warning, self.stays = warning, stays


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


Write = tuple[bytes, Row | None]
"""One line for the log, and the row for the index if the answer may be served."""


def row_of(record: dict[str, Any]) -> Row:
    """The row of an answer's record, which must have all fields."""
    key, response, idx = record["cache_key"], record["response"], record["idx"]
    return Row(key, record["request_type"], record["task_name"], compact(record["doc_id"]),
               idx if type(idx) is int else 0, record["gen_kwargs"], response, float(record["created_at"]),
               checksum(key, response), record["model_hash"], bool(record.get("replaces")))  # fmt: skip


def servable_row(record: dict[str, Any]) -> Row | None:
    """The row of a record that was read; None unless it is an answer that may be served."""
    if record.get("kind") != RESPONSE or not record.get("deterministic") or "rejected" in record:
        return None
    try:
        row = row_of(record)
        is_kept = row.cache_key and rejection(row.request_type, decoded(row.response), minus_infinity=True) is None
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return row if is_kept else None


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


def _copy_index(source: Path, target: Path) -> None:
    """Creates an index from that of other logs, which then need not be read."""
    if target.exists() or not source.exists() or is_foreign(source):
        return
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as database,
        closing(sqlite3.connect(target)) as copy,
    ):
        database.backup(copy)


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """Files of a store. `root` is a folder with all logs of the model, which are read too; a second process of one rank
    then writes its own log."""

    log: Path
    index: Path
    fingerprint: str
    model_hash: str
    root: Path | None
    is_writable: bool


class ModelFolder:
    """Folder of one model, whose set of logs changes as others write.

    <model>/rank<R>.jsonl              logs of caches that `ResponseCache.open` opened
    <model>/cache.jsonl                answers of the runs that were finalized
    <model>/runs/<run>/rank_<R>.jsonl  logs of a run that `ResponseCache.create` made, until it is finalized
                       rank_<R>.done   this rank has finished
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.merged_log = path / f"cache{SUFFIX}"
        self._times: dict[Path, int] = {}
        self._logs: list[Path] = []

    def runs(self) -> list[Path]:
        return sorted(path for path in (self.path / RUNS).glob("*") if path.is_dir())

    def logs(self) -> list[Path]:
        """Logs with answers of the model. Those of runs come first, because a merge moves their answers to the merged
        log, which therefore is read after them."""
        if not self._times or any(_changed(path) != time for path, time in self._times.items()):
            folders = [*self.runs(), self.path]
            self._times = {path: _changed(path) for path in (self.path / RUNS, *folders)}
            self._logs = [log for folder in folders for log in sorted(folder.glob(f"*{SUFFIX}"))]
        return self._logs


def _changed(folder: Path) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


class ResponseStore:
    """Answers by key. `warn` gets one sentence per failure; a broken disk never raises.

    Raises CacheError for files of a newer schema, and if another process writes the only log that `place` allows.
    """

    def __init__(self, place: StoreFiles, warn: Callable[[str], None]) -> None:
        self.pid = os.getpid()
        self._place, self._warn = place, warn
        self._lock = threading.Lock()
        self._marks: dict[str, str] = {}
        """Identity of each log, and the offset up to which it was read."""
        self._sizes: dict[Path, tuple[int, int]] = {}
        self._folder = ModelFolder(place.root) if place.root is not None else None
        self._log = self._open_log()
        self._commits = GroupCommit(self._commit)
        self._path: Path | None = None
        self._file: os.stat_result | None = None
        self._database = sqlite3.connect(":memory:")
        try:
            self._open(self._index_path())
        except BaseException:
            self.close()
            raise

    @property
    def keeps(self) -> bool:
        """True if answers can be written."""
        return self._log is not None

    # -- the log

    def _open_log(self) -> LogWriter | None:
        place = self._place
        if not place.is_writable:
            try:
                refuse_foreign(place.log)
            except ForeignFile as error:
                self._warn(f"{error.message}: it has no answers for this cache")
            except (CacheError, OSError):  # found again when the log is read
                pass
            return None
        try:
            place.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            self._warn(f"{place.log.parent} cannot be created ({error.strerror}): no answers are kept")
            return None
        for path in self._candidates():
            try:
                return LogWriter(path, opening(place.fingerprint, place.model_hash))
            except BlockingIOError:
                continue
            except ForeignFile as error:
                if self._folder is None:
                    raise
                self._warn(f"{error.message}: this cache writes another file beside it")
            except OSError as error:
                self._warn(f"{path} cannot be written ({error.strerror}): no answers are kept")
                return None
        raise CacheError(f"another process writes {place.log}", hint="give each process a rank of its own")

    def _candidates(self) -> Iterator[Path]:
        path = self._place.log
        yield path
        if self._folder is not None:
            yield from (path.with_name(f"{path.stem}-{number}{SUFFIX}") for number in range(2, WRITERS + 1))

    def commit(self, writes: list[Write]) -> Future[None]:
        """Queues writes. The future ends when the disk has them, or with an OSError if they cannot be kept."""
        return self._commits.add(writes)

    def _commit(self, group: list[Write]) -> None:
        log = self._log
        if log is None:
            raise OSError(f"{self._place.log} is not open for writing")
        log.append([line for line, _ in group])
        rows = [row for _, row in group if row is not None]
        first = self._marks.get(self._name(log.path), "").partition(":")[0] or identity(log.path)
        self._using(lambda: self._add(rows, log.path, first, log.end))

    # -- the index

    def _index_path(self) -> Path | None:
        """Place of the index; None, for memory, without a log, on a network, and in a folder that cannot be written."""
        if self._log is None:
            return None
        path = self._place.index if self._log.path == self._place.log else self._log.path.with_suffix(".db")
        if not os.access(path.parent, os.W_OK) or is_on_network(path.parent):
            return None
        if self._folder is not None:
            _copy_index(self._folder.merged_log.with_suffix(".db"), path)
        return path

    def _open(self, path: Path | None) -> None:
        """Opens the index at a path, and reads into it what is new in the logs. A lost index is made anew, and is kept
        in memory if that fails too."""
        for is_last in (False, False, True):
            self._path, self._file = None if is_last else path, None
            try:
                self._connect()
                self._follow()
            except (IndexLost, sqlite3.Error) as error:
                path = self._discard(error)
            else:
                return
        raise CacheError(f"no index of {self._place.log} can be created", hint="check that the disk has room")

    def _connect(self) -> None:
        path = self._path
        if path is not None and is_foreign(path):
            sentence = f"{path} is not an index of a response cache, and is left as it is"
            raise IndexLost(f"{sentence}: the index is kept in memory", stays=True)
        try:
            self._database = sqlite3.connect(path or ":memory:", timeout=30, check_same_thread=False)
            self._prepare()
            if path is not None:
                self._file = os.stat(path)
        except (OSError, sqlite3.OperationalError) as error:
            raise self._unwritable(error) from error
        self._marks = dict(self._database.execute("SELECT substr(key, 5), value FROM meta WHERE key LIKE 'log:%'"))
        self._sizes = {}

    def _prepare(self) -> None:
        """Checks the tables of the index, or creates them."""
        database = self._database
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
        if tables:
            version = dict(database.execute("SELECT key, value FROM meta")) if "meta" in tables else {}
            number = version.get("schema_version", "")
            if number.isdecimal() and int(number) > SCHEMA:
                raise CacheError(f"{self._path} was written by a newer version of lmql_lite", hint="update lmql_lite")
            columns = tuple(row[1] for row in database.execute("PRAGMA table_info(responses)"))
            if number != str(SCHEMA) or columns != _COLUMNS:
                raise sqlite3.DatabaseError("it has another schema")
        database.execute(f"PRAGMA application_id={APPLICATION}")  # before WAL, so that the file itself has it
        for setting in _SETTINGS:
            database.execute(f"PRAGMA {setting}")
        if self._path is not None:
            os.chmod(self._path, 0o600)  # before the write-ahead log is made, which gets the same mode
        if not tables:
            meta = {"model_fingerprint": self._place.fingerprint, "model_fingerprint_hash": self._place.model_hash,
                    "schema_version": str(SCHEMA)}  # fmt: skip
            with database:
                database.executescript(_TABLES)
                database.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())

    def _unwritable(self, error: Exception) -> IndexLost:
        return IndexLost(f"{self._path} cannot be written ({error}): the index is kept in memory", stays=True)

    def _discard(self, error: Exception) -> Path | None:
        """Closes a lost index, and removes its file unless that stays. Returns the place of the next one."""
        if not isinstance(error, IndexLost):
            error = IndexLost(f"{self._path} is damaged ({error}): the index is made anew from the logs")
        path, file = self._path, self._file
        with suppress(sqlite3.Error):
            self._database.close()
        if path is None:
            return None
        try:
            is_in_place = file is None or os.path.samestat(os.stat(path), file)
        except OSError:
            is_in_place = False
        if is_in_place or error.stays:
            if error.warning:
                self._warn(error.warning)
            if not error.stays:
                remove_index(path)
        return None if error.stays else path

    def _using(self, work: Callable[[], Done]) -> Done:
        """Result of work with the index, which is made anew first if it is lost."""
        with self._lock:
            try:
                return work()
            except (IndexLost, sqlite3.Error, TypeError, UnicodeError) as error:
                self._open(self._discard(error))
            return work()

    def _add(self, rows: Iterable[Row], log: Path, first: str, end: int) -> None:
        """Adds rows of a log to the index, which then has the log up to `end`, all or nothing."""
        name, mark = self._name(log), f"{first}:{end}"
        try:
            with self._database as database:
                # sorted, so that neighbours in the tree of keys are written together
                database.executemany(_ADD, sorted(rows, key=itemgetter(0)))
                database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"log:{name}", mark))
        except sqlite3.OperationalError as error:  # a full disk
            raise self._unwritable(error) from error
        self._marks[name] = mark

    def _name(self, log: Path) -> str:
        """Name of a log in the index."""
        root = self._place.root
        return log.name if root is None or log.parent == root else log.relative_to(root).as_posix()

    # -- reading

    def _follow(self) -> bool:
        """Reads new lines of the logs into the index, this store's own log first. Returns True if there were any."""
        own = self._log.path if self._log is not None else self._place.log
        others = self._folder.logs() if self._folder is not None else []
        is_news = False
        for path in (own, *(path for path in others if path != own)):
            if path == own and self._log is not None and path in self._sizes:
                continue
            try:
                there = os.stat(path)
                if self._sizes.get(path) == (there.st_ino, there.st_size):
                    continue
                self._read(path, there.st_size)
                self._sizes[path] = there.st_ino, there.st_size
                is_news = True
            except (FileNotFoundError, IsADirectoryError):
                continue
            except OSError as error:
                self._warn(f"{path} cannot be read ({error.strerror})")
            except CacheError as error:
                if self._folder is None or (path == own and self._log is not None):
                    raise
                self._warn(f"{error.message}; its answers are not used")
                self._sizes[path] = there.st_ino, there.st_size
        return is_news

    def _read(self, path: Path, size: int) -> None:
        """Adds new rows of a log to the index, from the offset of the last read on."""
        first = identity(path)
        known, _, offset = self._marks.get(self._name(path), "").partition(":")
        end = int(offset) if offset.isdecimal() else 0
        if (known and known != first) or end > size:
            raise IndexLost("")  # the log was replaced, or cut
        rows: list[Row] = []
        characters = 0
        for line in read_lines(path, end):
            if line.record is not None and (row := servable_row(line.record)) is not None:
                rows.append(row)
                characters += len(row.response)
            end = line.end
            if len(rows) >= ROWS_PER_TRANSACTION or characters >= BYTES_PER_TRANSACTION:
                self._add(rows, path, first, end)
                rows, characters = [], 0
        if first:
            self._add(rows, path, first, end)

    def find(self, keys: Sequence[str]) -> dict[str, tuple[str, float]]:
        """Answer as JSON text and its time, by known key."""

        def look() -> dict[str, tuple[str, float]]:
            found = self._rows(keys)
            if len(found) < len(keys) and self._folder is not None and self._follow():
                found = self._rows(keys)
            return found

        return self._using(look)

    def _rows(self, keys: Sequence[str]) -> dict[str, tuple[str, float]]:
        found: dict[str, tuple[str, float]] = {}
        for start in range(0, len(keys), KEYS_PER_QUERY):
            some = keys[start : start + KEYS_PER_QUERY]
            query = f"{_FIND} IN ({','.join('?' * len(some))})"
            for key, response, created_at, expected in self._database.execute(query, [self._place.model_hash, *some]):
                if checksum(key, response) != expected:
                    raise sqlite3.DatabaseError(f"the row of {key} is damaged")
                found[key] = response, created_at
        return found

    def count(self) -> int:
        """Number of servable answers."""
        return self._using(lambda: int(self._database.execute("SELECT count(*) FROM responses").fetchone()[0]))

    def close(self) -> None:
        """Closes the files. A forked child does not touch the parent's index."""
        log = self._log
        if self.pid == os.getpid():
            self._commits.close()
            with self._lock, suppress(sqlite3.Error):
                self._database.close()
        self._log = None
        if log is not None:
            log.close()
