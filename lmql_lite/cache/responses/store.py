"""Files of a response cache: the log that it writes, the logs beside it, and the index of all of them.

Blocking, and safe for threads. A forked process opens its own store.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from lmql_lite.cache.responses.index import (
    IndexDamaged,
    IndexForeign,
    IndexStale,
    ResponseIndex,
    Row,
    copy_index,
    remove_index,
    row_of,
)
from lmql_lite.cache.responses.runs import ModelFolder
from lmql_lite.errors import CacheError
from lmql_lite.store.files import is_on_network
from lmql_lite.store.log import (
    SUFFIX,
    ForeignFile,
    GroupCommit,
    LogWriter,
    identity,
    opening,
    read_lines,
    refuse_foreign,
)

ROWS_PER_TRANSACTION = 16_384
BYTES_PER_TRANSACTION = 8 << 20
WRITERS = 64
"""Maximum number of processes of one rank that write at the same time, each to its own log."""

Write = tuple[bytes, Row | None]
"""One line for the log, and the row for the index if the answer may be served."""


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


class ResponseStore:
    """Answers by key. `warn` gets one sentence per failure; a broken disk never raises.

    Raises CacheError for files of a newer schema, and if another process writes the only log that `place` allows.
    """

    def __init__(self, place: StoreFiles, warn: Callable[[str], None]) -> None:
        self.pid = os.getpid()
        self._place, self._warn = place, warn
        self._lock = threading.RLock()
        self._marks: dict[str, str] = {}
        self._sizes: dict[Path, tuple[int, int]] = {}
        self._folder = ModelFolder(place.root) if place.root is not None else None
        self._log = self._open_log()
        self._commits = GroupCommit(self._commit)
        try:
            self._index = self._open_index()
            self._follow_or_rebuild()
        except BaseException:
            if self._log is not None:
                self._log.close()
            raise

    @property
    def keeps(self) -> bool:
        """True if answers can be written."""
        return self._log is not None

    # -- opening

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

    def _open_index(self) -> ResponseIndex:
        """The index of this store's log; in memory without a log, on a network file system, and in a folder that
        cannot be written."""
        if self._log is None:
            return self._index_at(None)
        path = self._place.index if self._log.path == self._place.log else self._log.path.with_suffix(".db")
        if not os.access(path.parent, os.W_OK) or is_on_network(path.parent):
            return self._index_at(None)
        if self._folder is not None:
            copy_index(self._folder.merged_log.with_suffix(".db"), path)
        return self._index_at(path)

    def _index_at(self, path: Path | None) -> ResponseIndex:
        fingerprint, model_hash = self._place.fingerprint, self._place.model_hash
        for _ in range(2 if path is not None else 0):
            assert path is not None, "the index is a file"
            try:
                return ResponseIndex(path, fingerprint, model_hash)
            except IndexDamaged as error:
                self._warn(f"{path} is damaged ({error}): the index is made anew from the logs")
                remove_index(path)
            except IndexForeign as error:
                self._warn(f"{error}, and is left as it is: the index is kept in memory")
                break
            except (OSError, sqlite3.OperationalError) as error:
                self._warn(f"{path} cannot be written ({error}): the index is kept in memory")
                break
        return ResponseIndex(None, fingerprint, model_hash)

    # -- reading

    def _logs(self) -> list[Path]:
        """Logs to read, this store's own first."""
        own = self._log.path if self._log is not None else self._place.log
        others = self._folder.logs() if self._folder is not None else []
        return [own, *(path for path in others if path != own)]

    def _name(self, log: Path) -> str:
        """Name of a log in the index."""
        root = self._place.root
        return log.name if root is None or log.parent == root else log.relative_to(root).as_posix()

    def _follow_or_rebuild(self) -> bool:
        try:
            if not self._sizes:
                self._marks = self._index.marks()
            return self._follow()
        except IndexDamaged as error:
            self._rebuild(error)
            return True

    def _follow(self) -> bool:
        """Reads new lines of the logs into the index. Returns True if there were any."""
        is_news = False
        for number, path in enumerate(self._logs()):
            own = self._log is not None and number == 0
            if own and path in self._sizes:
                continue
            try:
                there = os.stat(path)
                if self._sizes.get(path) == (there.st_ino, there.st_size):
                    continue
                self._read(path, is_own=own or self._folder is None)
                self._sizes[path] = there.st_ino, there.st_size
                is_news = True
            except (FileNotFoundError, IsADirectoryError):
                continue
            except OSError as error:
                self._warn(f"{path} cannot be read ({error.strerror})")
        return is_news

    def _read(self, path: Path, *, is_own: bool) -> None:
        """Adds new rows of a log to the index, from the offset of the last read on."""
        first, name = identity(path), self._name(path)
        known, _, offset = self._marks.get(name, "").partition(":")
        start = int(offset) if offset.isdecimal() else 0
        if known and known != first:
            raise IndexStale(f"{path} is another file than before")
        if start > os.stat(path).st_size:
            raise IndexStale(f"{path} is shorter than before")
        rows: list[Row] = []
        size = 0
        try:
            for line in read_lines(path, start):
                record = line.record
                if record is not None and (row := row_of(record, str(record.get("model_hash")))) is not None:
                    rows.append(row)
                    size += len(row.response)
                start = line.end
                if len(rows) >= ROWS_PER_TRANSACTION or size >= BYTES_PER_TRANSACTION:
                    self._add(rows, name, first, start)
                    rows, size = [], 0
        except CacheError as error:
            if is_own:
                raise
            self._warn(f"{error.message}; its answers are not used")
            return
        if first:
            self._add(rows, name, first, start)

    def _add(self, rows: Iterable[Row], name: str, first: str, end: int) -> None:
        """Adds rows of a log to the index, which then has the log up to `end`. Raises IndexDamaged."""
        mark = f"{first}:{end}"
        try:
            self._index.add(rows, {name: mark})
        except sqlite3.OperationalError as error:  # a full disk
            if self._index.path is None:
                raise
            self._warn(f"{self._index.path} cannot be written ({error}): the index is kept in memory")
            self._index.close()
            self._index = self._index_at(None)
            raise IndexDamaged(str(error)) from error
        except sqlite3.Error as error:
            raise IndexDamaged(str(error)) from error
        self._marks[name] = mark

    def _rebuild(self, problem: IndexDamaged) -> None:
        """Rebuilds the index from the logs, in memory if the file cannot be written."""
        path, is_in_place = self._index.path, self._index.is_in_place()
        self._index.close()
        if path is not None and is_in_place:
            if not isinstance(problem, IndexStale):
                self._warn(f"{path} is damaged ({problem}): the index is made anew from the logs")
            remove_index(path)
        for place in (path, None):
            self._sizes = {}
            self._index = self._index_at(place)
            try:
                self._marks = self._index.marks()
                self._follow()
            except IndexDamaged:
                self._index.close()
            else:
                return
        raise CacheError(f"no index of {self._place.log} can be created", hint="check that the disk has room")

    def find(self, keys: Sequence[str]) -> dict[str, tuple[str, float]]:
        """Answer as JSON text and its time, by known key."""
        with self._lock:
            found = self._find(keys)
            if len(found) < len(keys) and self._folder is not None and self._follow_or_rebuild():
                found = self._find(keys)
            return found

    def _find(self, keys: Sequence[str]) -> dict[str, tuple[str, float]]:
        try:
            return self._index.find(keys)
        except IndexDamaged as error:
            self._rebuild(error)
            return self._index.find(keys)

    def count(self) -> int:
        """Number of servable answers."""
        with self._lock:
            try:
                return self._index.count()
            except IndexDamaged as error:
                self._rebuild(error)
                return self._index.count()

    # -- writing

    def commit(self, writes: list[Write]) -> Future[None]:
        """Queues writes. The future ends when the disk has them, or with an OSError if they cannot be kept."""
        return self._commits.add(writes)

    def _commit(self, group: list[Write]) -> None:
        if self._log is None:
            raise OSError(f"{self._place.log} is not open for writing")
        self._log.append([line for line, _ in group])
        rows = [row for _, row in group if row is not None]
        with self._lock:
            name = self._name(self._log.path)
            first = self._marks.get(name, "").partition(":")[0] or identity(self._log.path)
            try:
                self._add(rows, name, first, self._log.end)
            except IndexDamaged as error:  # the log has the rows
                self._rebuild(error)

    def close(self) -> None:
        """Closes the files. A forked child does not touch the parent's index."""
        log = self._log
        if self.pid == os.getpid():
            self._commits.close()
            with self._lock:
                self._index.close()
        self._log = None
        if log is not None:
            log.close()
