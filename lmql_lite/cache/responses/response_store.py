"""Files of a response cache: the log that it writes, the logs beside it, and the index of all of them.

Blocking, and safe for threads. A forked process opens its own store.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmql_lite.cache.responses.model_folder import ModelFolder
from lmql_lite.cache.responses.request import rejection
from lmql_lite.cache.responses.response_index import (
    IndexDamaged,
    IndexForeign,
    ResponseIndex,
    Row,
    checksum,
    copy_index,
    index_place,
    remove_index,
)
from lmql_lite.cache.responses.value_codec import decoded
from lmql_lite.errors import CacheError
from lmql_lite.store.database import set_aside
from lmql_lite.store.log import (
    SCHEMA,
    SUFFIX,
    ForeignFile,
    GroupCommit,
    LogWriter,
    identity,
    opening,
    read_lines,
    refuse_foreign,
    rewrite,
)

ROWS_PER_TRANSACTION = 16_384
BYTES_PER_TRANSACTION = 8 << 20
WRITERS = 64
"""Maximum number of processes of one rank that write at the same time, each to its own log."""
ROOM = 0.75
"""Share of `max_bytes` that a log has after it is made smaller."""


Write = tuple[bytes, Row | None]
"""One line for the log, and the row for the index if the answer may be served."""


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """Files of a store. The default `index` is beside the log. `root` is a folder with all logs of the model, which are
    read too; a second process of one rank then writes its own log."""

    log: Path
    index: Path | None
    fingerprint: str
    model_hash: str
    root: Path | None
    is_writable: bool
    max_bytes: int | None


def row_of(record: dict[str, Any], model_hash: str) -> Row | None:
    """The row of a record; None unless it is a servable answer of the model."""
    if record.get("kind") != "response" or record.get("model_hash") != model_hash or not record.get("deterministic"):
        return None
    try:
        row = Row(record["cache_key"], record["request_type"], record["task_name"], _compact(record["doc_id"]),
                  record["idx"], record["gen_kwargs"], record["response"], float(record["created_at"]),
                  checksum(record["cache_key"], record["response"]), model_hash,
                  bool(record.get("replaces")))  # fmt: skip
        if not row.cache_key or "rejected" in record:
            return None
        return row if rejection(row.request_type, decoded(row.response), minus_infinity=True) is None else None
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


class ResponseStore:
    """Answers by key. `warn` gets one sentence per failure; a broken disk never raises.

    Raises CacheError for files of a newer schema, and if another process writes the only log that `place` allows.
    """

    def __init__(self, place: StoreFiles, warn: Callable[[str], None]) -> None:
        self.pid = os.getpid()
        self._place, self._warn = place, warn
        self._lock = threading.RLock()
        self._recent: dict[str, Row] = {}
        self._recent_bytes = 0
        self.flushes = 0
        """Number of times that recent rows were moved into the index."""
        self._marks: dict[str, str] = {}
        self._sizes: dict[Path, tuple[int, int]] = {}
        self._folder = ModelFolder(place.root) if place.root is not None else None
        self._log = self._open_log()
        self._covered = 0
        """Offset in this store's log up to which the index and the recent rows are complete."""
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
            self._look_at(place.log)
            return None
        try:
            place.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            self._warn(f"{place.log.parent} cannot be created ({error.strerror}): no answers are kept")
            return None
        for path in self._candidates():
            first_line = opening(place.fingerprint, place.model_hash)
            try:
                return LogWriter(path, first_line)
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

    def _look_at(self, log: Path) -> None:
        """Warns of a log that is only read and is not a log."""
        try:
            refuse_foreign(log)
        except ForeignFile as error:
            self._warn(f"{error.message}: it has no answers for this cache")
        except (CacheError, OSError):  # found again when the log is read
            return

    def _candidates(self) -> Iterator[Path]:
        path = self._place.log
        yield path
        if self._folder is not None:
            yield from (path.with_name(f"{path.stem}-{number}{SUFFIX}") for number in range(2, WRITERS + 1))

    def _open_index(self) -> ResponseIndex:
        """The index of this store's log; in memory if there is no log, or no file can be created."""
        place, path = self._place, None
        if self._log is not None:
            log = self._log.path
            if place.index is not None and log == place.log:
                path = place.index if index_place(place.index.parent) == place.index.parent else None
            if path is None and (folder := index_place(log.parent)) is not None:
                path = folder / f"{log.stem}.db"
        if path is not None and self._folder is not None:
            copy_index(self._folder.merged_log.with_suffix(".db"), path)
        return self._index_at(path)

    def _index_at(self, path: Path | None) -> ResponseIndex:
        place = self._place
        if path is not None:
            for _ in range(2):
                try:
                    return ResponseIndex(path, place.fingerprint, place.model_hash, SCHEMA)
                except IndexDamaged as error:
                    if not self._set_aside(path, str(error)):
                        break
                except IndexForeign as error:
                    self._warn(f"{error}, and is left as it is: the index is kept in memory")
                    break
                except (OSError, sqlite3.OperationalError) as error:
                    self._warn(f"{path} cannot be written ({error}): the index is kept in memory")
                    break
        return ResponseIndex(None, place.fingerprint, place.model_hash, SCHEMA)

    def _set_aside(self, path: Path, reason: str) -> bool:
        """Renames an index that cannot be used. True if its name is free then."""
        aside = set_aside(path)
        where = f"renamed to {aside.name}, and made anew" if aside is not None else "kept in memory, and made"
        self._warn(f"{path} is damaged ({reason}): the index is {where} from the logs")
        return aside is not None

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
            self._rebuild(str(error))
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
        if known and known != first:
            raise IndexDamaged(f"{path} is another file than before")
        start = int(offset) if offset.isdecimal() else 0
        if start > os.stat(path).st_size:
            raise IndexDamaged(f"{path} is shorter than before")
        rows: list[Row] = []
        size = 0
        try:
            for line in read_lines(path, start):
                record = line.record
                if record is not None and (row := row_of(record, str(record.get("model_hash")))) is not None:
                    rows.append(row)
                    size += len(row.response)
                if len(rows) >= ROWS_PER_TRANSACTION or size >= BYTES_PER_TRANSACTION:
                    self._add(rows, {name: f"{first}:{start}"})
                    rows, size = [], 0
                start = line.end
        except CacheError as error:
            if is_own:
                raise
            self._warn(f"{error.message}; its answers are not used")
            return
        if first:
            self._marks[name] = f"{first}:{start}"
            self._add(rows, {name: self._marks[name]})

    def _add(self, rows: Iterable[Row], marks: dict[str, str]) -> None:
        try:
            self._index.add(rows, marks)
        except sqlite3.OperationalError as error:  # a full disk
            if self._index.path is None:
                raise
            self._warn(f"{self._index.path} cannot be written ({error}): the index is kept in memory")
            self._index.close()
            self._index = self._index_at(None)
            raise IndexDamaged(str(error)) from error
        except sqlite3.Error as error:
            raise IndexDamaged(str(error)) from error

    def _rebuild(self, damage: str) -> None:
        """Rebuilds the index from the logs, in memory if the file cannot be written. A damaged file is set aside."""
        path, is_in_place = self._index.path, self._index.is_in_place()
        self._index.close()
        if path is not None and is_in_place:
            if not damage:
                remove_index(path)
            elif not self._set_aside(path, damage):
                path = None
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

    def find(self, keys: Sequence[str], *, since: int | None = None) -> dict[str, tuple[str, float]]:
        """Answer as JSON text and its time, by known key.

        `since` is the value of `flushes` at an earlier miss of the same keys, so that only newer rows are searched.
        """
        with self._lock:
            if since is not None and since == self.flushes:
                return self._find_recent(keys)
            found = self._find(keys)
            if len(found) < len(keys) and self._folder is not None and self._follow_or_rebuild():
                found = self._find(keys)
            return found

    def _find(self, keys: Sequence[str]) -> dict[str, tuple[str, float]]:
        found = self._find_recent(keys)
        if found:
            keys = [key for key in keys if key not in found]
        try:
            known = self._index.find(keys)
        except IndexDamaged as error:
            self._rebuild(str(error))
            known = self._index.find(keys)
        return known | found if found else known

    def _find_recent(self, keys: Sequence[str]) -> dict[str, tuple[str, float]]:
        recent = self._recent
        rows = [row for key in keys if (row := recent.get(key)) is not None] if recent else ()
        return {row.cache_key: (row.response, row.created_at) for row in rows}

    def count(self) -> int:
        """Number of servable answers."""
        with self._lock:
            self._flush()
            try:
                return self._index.count()
            except IndexDamaged as error:
                self._rebuild(str(error))
                return self._index.count()

    # -- writing

    def commit(self, writes: list[Write]) -> Future[None]:
        """Queues writes. The future ends when the disk has them, or with an OSError if they cannot be kept."""
        return self._commits.add(writes)

    def _commit(self, group: list[Write]) -> None:
        if self._log is None:
            raise OSError(f"{self._place.log} is not open for writing")
        self._log.append([line for line, _ in group])
        with self._lock:
            for _, row in group:
                if row is not None and (row.replaces or row.cache_key not in self._recent):
                    self._recent[row.cache_key] = row
                    self._recent_bytes += len(row.response)
            self._covered = self._log.end
            if len(self._recent) >= ROWS_PER_TRANSACTION or self._recent_bytes >= BYTES_PER_TRANSACTION:
                self._flush()
            if self._place.max_bytes is not None and self._log.end > self._place.max_bytes:
                self._shrink(int(self._place.max_bytes * ROOM))

    def _flush(self) -> None:
        """Moves recent rows into the index. If that fails, the index is rebuilt from the log, which has them."""
        if not self._recent or self._log is None:
            return
        self.flushes += 1
        name = self._name(self._log.path)
        first = self._marks.get(name, "").partition(":")[0] or identity(self._log.path)
        marks = {name: f"{first}:{self._covered}"}
        try:
            self._add(self._recent.values(), marks)
            self._marks |= marks
        except IndexDamaged as error:
            self._rebuild(str(error))
        self._recent, self._recent_bytes = {}, 0

    def _shrink(self, max_bytes: int) -> None:
        """Drops the oldest lines of this store's log until it has at most `max_bytes`."""
        assert self._log is not None
        path = self._log.path
        first_line = opening(self._place.fingerprint, self._place.model_hash)
        try:
            excess = self._log.end + len(first_line) - max_bytes
            lines = (line.data + b"\n" for line in read_lines(path) if line.end > excess and line.record is not None)
            rewrite(path, (each for part in ((first_line,), lines) for each in part))
            self._log.close()
            self._log, self._recent, self._recent_bytes = None, {}, 0
            self.flushes += 1
            self._log = self._open_log()
        except (OSError, CacheError) as error:
            self._warn(f"{path} cannot be made smaller ({error})")
            return
        self._rebuild("")

    def close(self) -> None:
        """Completes the index, and closes the files. A forked child does not touch the parent's index."""
        log = self._log
        if self.pid == os.getpid():
            self._commits.close()
            with self._lock:
                with suppress(CacheError, IndexDamaged):
                    self._flush()
                self._index.close()
        self._log = None
        if log is not None:
            log.close()
