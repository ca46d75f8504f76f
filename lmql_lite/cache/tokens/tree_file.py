"""A `.tokens` file: one SQLite table with one row for each entry of token trees (docs/tokens-format.md).

A row is never changed, and of several for one question the first counts. A refresh, `lq cache clear`, compaction and
the cap of the file remove rows, and count up a version, so that other processes look again.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

from lmql_lite.cache.tokens.rows import ModelName, RowBatch, Rows, Stored, TreeRow, signed, unsigned
from lmql_lite.errors import CacheError
from lmql_lite.store.files import COMPANIONS, is_on_network, set_aside

APPLICATION = int.from_bytes(b"lqtk")
VERSION = 4
LOCK_SECONDS = 30.0
"""Seconds that a writer waits for another one before it goes on without writing."""
LOOK_SECONDS = 0.05
"""Seconds that a look-up waits for a writer where there is no write-ahead log."""
WAL_PAGES = 256
"""Pages in the write-ahead log (1 MiB) at which they move to the file."""
KEPT_SHARE = 0.9
"""Share of `max_bytes` to which a file that is too large shrinks."""
ROWS_SKIPPED = 16
"""Number of rows that are jumped over at a damaged page."""
PLACES = 200
"""Maximum number of places of one statement."""
_HEADER_BYTES = 100
_OLD_MARK = b"\x93tokens"

_ENTRY = """CREATE TABLE entry (
    id INTEGER PRIMARY KEY, model INTEGER NOT NULL, place INTEGER NOT NULL, question BLOB NOT NULL,
    parent INTEGER NOT NULL, tokens BLOB NOT NULL, run INTEGER NOT NULL, value BLOB NOT NULL,
    checksum INTEGER NOT NULL)"""
_TABLES = (
    _ENTRY,
    "CREATE UNIQUE INDEX by_place ON entry (place, model, question)",
    "CREATE TABLE model (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, name TEXT NOT NULL,"
    " vocabulary INTEGER NOT NULL, longest INTEGER NOT NULL)",
    "CREATE TABLE run (id INTEGER PRIMARY KEY AUTOINCREMENT, written INTEGER NOT NULL, used INTEGER NOT NULL,"
    " refreshes INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL)",
    "CREATE TABLE state (version INTEGER NOT NULL, refreshed INTEGER NOT NULL)",
)
_FIND = """SELECT id, place, question, parent, tokens, value, checksum, run FROM entry
    WHERE model = ? AND place IN ({})"""
_EVERY = "SELECT id, model, run, checksum, place, question, parent, tokens, value FROM entry"
_ADD = """INSERT OR IGNORE INTO entry (model, place, question, parent, tokens, run, value, checksum)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""


class NotWritable(CacheError):
    """The file cannot be written, as a notice says already."""


class TreeFile(Rows):
    """Reader and writer of one file. `follow` and `write` belong to one thread at a time; `rows` may be called on any.

    These raise a CacheError and are not changed: a file that is not a `.tokens` file or has another format; a
    directory, device, pipe or socket; a link that leads nowhere; a path whose folder is missing; a file without read
    permission. A link to a file is followed. An empty file becomes a `.tokens` file at the first write.

    These give a notice, and new entries are not kept: a file or folder without write permission (existing entries are
    read), a full disk, a lock that another process holds for `LOCK_SECONDS`. A damaged row is a miss, and is removed by
    the next write. A file of ours that SQLite cannot read is renamed, and a new one begun. A removed file is created
    again by the next write; a replaced file is opened again. After a fork, each process opens the file for itself.

    With `durable` each write is synced before it counts, so that it survives a power failure (S34). A file above
    `max_bytes` loses its least recently used runs.
    """

    def __init__(
        self, path: Path, *, durable: bool = False, reads_only: bool = False, max_bytes: int | None = None
    ) -> None:
        super().__init__()
        self.notices: list[str] = []
        self.writable = not reads_only
        self._given, self._path = path, Path(os.path.realpath(path))
        self._durable, self._reads_only, self._max_bytes = durable, reads_only, max_bytes
        self._guard = Lock()
        """Held while connections are opened and closed, and for look-ups, which share one connection."""
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._left: list[sqlite3.Connection | None] = []
        """Connections that are not closed here: of the process before a fork, and to a file that was replaced."""
        self._process = os.getpid()
        self._identity: tuple[int, int] | None = None
        self._seen: tuple[int, int] | None = None
        """Version of the file and SQLite's number of changes, in this epoch."""
        self._models: dict[str, tuple[int, ModelName, int]] = {}
        self.damaged: set[int] = set()
        """Numbers of rows with a wrong checksum."""
        self._used: set[int] = set()
        """Runs of the rows that were read since the last write."""
        self.unreadable: list[str] = []
        """Sentences about rows that `stored` could not read."""
        self._is_closed = self._is_prepared = False

    # opening

    def open(self) -> None:
        """Opens or creates the file. Does nothing if it was closed before. Raises CacheError if the file cannot be
        used."""
        with self._guard:
            if not self._is_closed:
                self._open(creates=not self._reads_only)

    def close(self) -> None:
        """Closes the file. What the write-ahead log has moves into it, unless another process has it open."""
        with self._guard:
            self._is_closed = True
            self._disconnect()

    def _open(self, *, creates: bool) -> None:
        """Connects to the file; leaves it unconnected if it is missing and not created."""
        check_path(self._path, self._given)
        if not creates and not self._path.exists():
            return
        for _ in range(2):
            try:
                self._writer = self._connected(creates=creates)
                if self._writer is not None:
                    self._check(self._writer)
                    self._reader = self._connect(self._mode)
                    self._reader.execute(f"PRAGMA busy_timeout = {int(LOOK_SECONDS * 1000)}")
                    status = os.stat(self._path)
                    self._identity = status.st_dev, status.st_ino
                return
            except sqlite3.DatabaseError as error:
                self._disconnect()
                if not self._recovered(error):
                    return
            except CacheError:
                self._disconnect()
                raise

    def _connected(self, *, creates: bool) -> sqlite3.Connection | None:
        """A connection that may write, else one that reads. None for a file that is missing and cannot be created."""
        exists = self._path.exists()
        may_write = os.access(self._path if exists else self._path.parent, os.W_OK)
        for self._mode in (
            ("mode=rwc" if creates else "mode=rw") if may_write else "mode=ro",
            "mode=ro",
            "immutable=1",
        ):
            if self._mode != "mode=rwc" and not exists:
                continue
            try:
                database = self._connect(self._mode)
                try:
                    database.execute("PRAGMA schema_version").fetchone()
                except sqlite3.Error:
                    database.close()
                    raise
            except sqlite3.OperationalError as error:
                if is_busy(error):
                    raise
                continue
            if self._mode not in ("mode=rwc", "mode=rw"):
                self._refuse("cannot be written: new entries are not kept")
            return database
        if exists and not os.access(self._path, os.R_OK):
            raise CacheError(f"{self._given} may not be read", hint="ask its owner, or name another file")
        self._refuse(f"cannot be {'opened' if exists else 'created'}: new entries are not kept")
        return None

    def _refuse(self, what: str) -> None:
        if not self._reads_only:
            self._note(what)
        self.writable = False

    def _connect(self, mode: str) -> sqlite3.Connection:
        database = sqlite3.connect(
            f"{self._path.as_uri()}?{mode}", uri=True, timeout=LOCK_SECONDS, isolation_level=None,
            check_same_thread=False,
        )  # fmt: skip
        database.text_factory = bytes  # damage may turn bytes into a text that is none
        if self._reads_only:
            database.execute("PRAGMA query_only = ON")
        return database

    def _check(self, database: sqlite3.Connection) -> None:
        """Raises CacheError for a database of another program or of a later version."""
        application, version, pages = (
            database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("application_id", "user_version", "page_count")
        )
        if not pages:
            return
        if application != APPLICATION:
            tables = dict(database.execute("SELECT name, sql FROM sqlite_master"))
            if not (application or tables):  # another process is making its tables
                return
            if tables.get(b"entry") != _ENTRY.encode():
                raise CacheError(
                    f"{self._given} is not a .tokens file, but a database of another program",
                    hint="it was not changed; name another file for the cache",
                )
        elif version > VERSION:
            raise CacheError(
                f"{self._given} was written by a newer lmql-lite", hint="update lmql-lite, or name another file"
            )
        elif version < VERSION:
            raise _of_old_format(self._given)
        database.execute("SELECT version FROM state").fetchone()

    def _recovered(self, error: sqlite3.DatabaseError) -> bool:
        """True if a damaged file was set aside, so that a new one can be made. Raises CacheError for a file that does
        not have our mark."""
        if is_busy(error):
            self._note("is locked by another process: new entries were not kept")
            return False
        check_mark(self._path, self._given)
        if self._reads_only or not self.writable:
            self._note(f"is damaged and cannot be read ({error})")
            return False
        aside = set_aside(self._path)
        if aside is None:
            self._note(f"is damaged and cannot be used ({error})")
            return False
        self._note(f"was damaged ({error}), and was renamed to {aside.name}; its entries are asked for again")
        return True

    def _disconnect(self) -> None:
        """Closes the connections, except those of another process and of a file that was replaced: SQLite would remove
        the `-wal` of the new file, which has the name of their own."""
        if self._process != os.getpid() or (self._identity is not None and not self._is_current()):
            self._left += [self._writer, self._reader]
        else:
            for database in (self._reader, self._writer):
                if database is not None:
                    database.close()
        self._writer = self._reader = self._identity = self._seen = None
        self._process, self._is_prepared = os.getpid(), False
        self._models.clear()
        self.damaged.clear()
        self._used.clear()

    def _is_current(self) -> bool:
        """True if this process has opened the file that the path names now."""
        if self._process != os.getpid():
            return False
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        return self._identity == (there.st_dev, there.st_ino)

    def _reopen(self, *, creates: bool) -> None:
        """Opens the file again where another one took its place, or this is another process."""
        if self._is_closed:
            raise ValueError("the tokens file is closed")
        if self._is_current():
            return
        is_other = self._process == os.getpid()
        with self._guard:
            self._disconnect()
            self._open(creates=creates)
        self.begin(is_void=is_other)

    def _note(self, what: str) -> None:
        sentence = f"{self._given}: {what}"
        if sentence not in self.notices:
            self.notices.append(sentence)

    # reading

    def follow(self) -> None:
        """Begins an epoch if others wrote since the last call. If that fails, adds a notice."""
        try:
            self._reopen(creates=False)
            if self._writer is not None:
                self._see(self._writer)
        except (sqlite3.Error, OSError, CacheError) as error:
            self._note(f"can no longer be read ({reason(error)})")

    def _see(self, database: sqlite3.Connection) -> None:
        changes = database.execute("PRAGMA data_version").fetchone()[0]
        if self._mode == "immutable=1":
            changes = os.stat(self._path).st_mtime_ns
        if self._seen is not None and self._seen[1] == changes:
            return
        state: Any = (0,)
        if database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:  # else another one makes them
            state = database.execute("SELECT version FROM state").fetchone()
        if state is None or not isinstance(state[0], int):
            raise sqlite3.DatabaseError("its state is damaged")
        is_void = self._seen is not None and self._seen[0] != state[0]
        self._seen = state[0], changes
        self._models.clear()
        self.begin(is_void=is_void)

    def longest(self, fingerprint: str) -> int:
        found = self._models.get(fingerprint)
        return 1 if found is None else found[2]

    def rows(self, fingerprint: str, places: Sequence[int]) -> list[TreeRow]:
        try:
            with self._guard:
                if self._reader is None or self._process != os.getpid():
                    return []
                model = self._model(self._reader, fingerprint)
                if model is None:
                    return []
                found: list[tuple[Any, ...]] = []
                for at in range(0, len(places), PLACES):
                    some = [signed(place) for place in places[at : at + PLACES]]
                    statement = _FIND.format(",".join("?" * len(some)))
                    found += self._reader.execute(statement, (model[0], *some))
        except sqlite3.Error as error:
            if is_damage(error):
                self._note_damage()
            return []
        wanted = set(places)  # a damaged index may lead to the row of another place
        rows = (self._row(model[1], each) for each in found)
        return [row for row in rows if row is not None and row.place in wanted]

    def stored(self) -> Iterator[Stored]:
        with self._guard:
            database = self._reader
            if database is None:
                return
            try:
                if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    return
                models = stored_models(database)
                written = dict(database.execute("SELECT id, written FROM run"))
                for number, model, run, checksum, *columns in self._every(database):
                    row = stored_row(columns)
                    if row is None or model not in models or row.checksum(models[model].checksum) != checksum:
                        self.damaged.add(number)
                    else:
                        yield models[model], written.get(run, 0), row
            except sqlite3.Error as error:
                raise CacheError(f"{self._given} cannot be read ({error})") from error

    def _every(self, database: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
        """The columns of all rows. Rows that cannot be read are jumped over."""
        at = 0
        while True:
            try:
                for each in database.execute(f"{_EVERY} WHERE id > ? ORDER BY id", (at,)):
                    at = each[0]
                    yield each
                return
            except sqlite3.DatabaseError as error:
                self.unreadable.append(f"entries after number {at:,} cannot be read ({error})")
                last = database.execute("SELECT max(last) FROM run").fetchone()[0] or 0
                at += ROWS_SKIPPED
                if at > last:
                    return

    def is_intact(self) -> bool:
        """True if SQLite finds all pages and indexes in order. Reads the whole file."""
        with self._guard:
            if self._reader is None:
                return True
            try:
                return bool(self._reader.execute("PRAGMA integrity_check(1)").fetchone()[0] == b"ok")
            except sqlite3.DatabaseError:
                return False

    def problems(self) -> list[str]:
        """Sentences about what is damaged; `stored` was read before."""
        found = [f"entry {number:,}: its checksum is wrong" for number in sorted(self.damaged)]
        return found + self.unreadable

    def _row(self, model: ModelName, found: tuple[Any, ...]) -> TreeRow | None:
        row = stored_row(found[1:6])
        if row is None or row.checksum(model.checksum) != found[6]:
            self.damaged.add(found[0])
            self._note_damage()
            return None
        self._used.add(found[7])
        return row._replace(vocabulary=model.vocabulary_size)

    def _model(self, database: sqlite3.Connection, fingerprint: str) -> tuple[int, ModelName, int] | None:
        known = self._models.get(fingerprint)
        if known is None:
            found = database.execute(
                "SELECT id, name, vocabulary, longest FROM model WHERE fingerprint = ?", (fingerprint,)
            ).fetchone()
            if found is None:
                return None
            number, name, vocabulary, longest = found
            shown = ModelName(fingerprint, name.decode("utf-8", "replace"), vocabulary)
            known = self._models[fingerprint] = number, shown, longest
        return known

    def _note_damage(self) -> None:
        self._note("is damaged; unreadable entries are asked for again (lq cache verify lists them)")

    # writing

    def write(self, model: ModelName, batch: Callable[[], RowBatch], *, clock: Callable[[], float] = time.time) -> bool:
        """Writes the rows of a batch, which is made once no other process can write. Returns True when the file has
        them; otherwise it is unchanged, and there is a notice."""
        try:
            with self.transaction() as database:
                rows, replaced, longest = batch()
                if rows or replaced:
                    self._put(database, model, rows, replaced, longest, int(clock()))
            return True
        except (sqlite3.Error, OSError, CacheError) as error:
            if is_busy(error):
                self._note("is locked by another process: new entries were not kept")
            elif isinstance(error, sqlite3.DatabaseError) and is_damage(error):
                with self._guard:
                    self._disconnect()
                    if self._recovered(error):
                        self._open(creates=True)
                self.begin(is_void=True)
            elif not isinstance(error, NotWritable):
                self._note(f"cannot be written, new entries are not kept ({reason(error)})")
            return False

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The connection, in a transaction of the file that the path names, with everything seen that others wrote.
        Raises CacheError if the file cannot be written."""
        while True:
            self._reopen(creates=True)
            database = self._writer
            if database is None or not self.writable:
                raise NotWritable(f"{self._given} cannot be written")
            self._prepare(database)
            database.execute("BEGIN IMMEDIATE")
            if self._is_current():
                break
            database.execute("ROLLBACK")
        try:
            self._see(database)
            yield database
            database.execute("COMMIT")
        except BaseException:
            self._models.clear()  # one that was added is gone with the transaction
            with suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            raise

    def _prepare(self, database: sqlite3.Connection) -> None:
        """Makes the tables of an empty file, as one of several processes that may do so."""
        if self._is_prepared:
            return
        wanted = "TRUNCATE" if is_on_network(self._path.parent) else "WAL"
        deadline = time.monotonic() + LOCK_SECONDS
        while not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            try:
                database.execute("PRAGMA auto_vacuum = INCREMENTAL")
                database.execute(f"PRAGMA journal_mode = {wanted}")
                database.execute("BEGIN IMMEDIATE")
                if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    for statement in _TABLES:
                        database.execute(statement)
                    database.execute("INSERT INTO state VALUES (0, 0)")
                    database.execute(f"PRAGMA application_id = {APPLICATION}")
                    database.execute(f"PRAGMA user_version = {VERSION}")
                database.execute("COMMIT")
            except sqlite3.OperationalError as error:
                with suppress(sqlite3.Error):
                    database.execute("ROLLBACK")
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.002)
        database.execute(f"PRAGMA journal_mode = {wanted}")
        database.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        database.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        self._is_prepared = True

    def _put(
        self,
        database: sqlite3.Connection,
        model: ModelName,
        rows: list[TreeRow],
        replaced: list[int],
        longest: int,
        now: int,
    ) -> None:
        if self.damaged:
            database.executemany("DELETE FROM entry WHERE id = ?", [(number,) for number in self.damaged])
            self.damaged.clear()
        if replaced:
            number, _ = self._model_number(database, model, longest)
            database.executemany(
                "DELETE FROM entry WHERE place = ? AND model = ?", [(signed(place), number) for place in replaced]
            )
        run = self.add(database, model, rows, now, longest, refreshes=bool(replaced))
        if replaced:
            database.execute("UPDATE state SET version = version + 1, refreshed = ?", (run,))
        if self._used:
            database.executemany("UPDATE run SET used = ? WHERE id = ?", [(run, each) for each in self._used])
            self._used.clear()
        if self._max_bytes is not None and file_bytes(database) > self._max_bytes:
            self.evict(database, KEPT_SHARE * self._max_bytes, run)

    def add(
        self,
        database: sqlite3.Connection,
        model: ModelName,
        rows: Sequence[TreeRow],
        written: int,
        longest: int,
        *,
        refreshes: bool = False,
    ) -> int:
        """Adds rows of a model as those of one run, in a transaction. Returns the number of the run. Rows that answer a
        question again are left out."""
        number, stored = self._model_number(database, model, longest)
        checksum = stored.checksum
        first = database.execute("SELECT ifnull(max(id), 0) + 1 FROM entry").fetchone()[0]
        run = database.execute("SELECT ifnull(max(seq), 0) + 1 FROM sqlite_sequence").fetchone()[0]
        database.execute(
            "INSERT INTO run VALUES (?, ?, ?, ?, ?, ?)", (run, written, run, refreshes, first, first + len(rows))
        )
        database.executemany(
            _ADD,
            [
                (
                    number, signed(row.place), row.question, signed(row.parent), row.tokens, run, row.value,
                    row.checksum(checksum),
                )
                for row in rows
            ],
        )  # fmt: skip
        return int(run)

    def _model_number(self, database: sqlite3.Connection, model: ModelName, longest: int) -> tuple[int, ModelName]:
        """Number of a model, which is added if it is new, and the model as it is stored."""
        known = self._model(database, model.fingerprint)
        if known is None:
            name = model.name.encode("utf-8", "replace").decode()
            database.execute(
                "INSERT INTO model (fingerprint, name, vocabulary, longest) VALUES (?, ?, ?, ?)",
                (model.fingerprint, name, model.vocabulary_size, longest),
            )
            known = self._model(database, model.fingerprint)
            assert known is not None, "the model was just added"
        if longest > known[2]:
            database.execute("UPDATE model SET longest = ? WHERE id = ?", (longest, known[0]))
            known = self._models[model.fingerprint] = known[0], known[1], longest
        return known[:2]

    def evict(self, database: sqlite3.Connection, max_bytes: float, newest: int | None = None) -> None:
        """Removes the runs that were not used for the longest time, except the newest, until the file fits."""
        order = "SELECT id, used, first, last FROM run WHERE used IS NOT ? ORDER BY used, id"
        runs = database.execute(order, (newest,))
        before = None
        for run, used, first, last in runs.fetchall():
            if used != before and file_bytes(database) <= max_bytes:
                break
            before = used
            database.execute("DELETE FROM entry WHERE id BETWEEN ? AND ? AND run = ?", (first, last, run))
            database.execute("DELETE FROM run WHERE id = ?", (run,))
        database.execute("UPDATE state SET version = version + 1")
        database.execute("PRAGMA incremental_vacuum").fetchall()
        self.begin(is_void=True)

    def checkpoint(self) -> None:
        """Moves what the write-ahead log has into the file, as far as no reader needs it."""
        if self._writer is not None and self.writable and self._process == os.getpid():
            with suppress(sqlite3.Error):
                self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def stored_models(database: sqlite3.Connection) -> dict[int, ModelName]:
    """The models of a file by their numbers."""
    found = database.execute("SELECT id, fingerprint, name, vocabulary FROM model")
    return {
        number: ModelName(fingerprint.decode("utf-8", "replace"), name.decode("utf-8", "replace"), vocabulary)
        for number, fingerprint, name, vocabulary in found
    }


def stored_row(found: Sequence[Any]) -> TreeRow | None:
    """A row of the columns place, question, parent, tokens and value; None if one of them has a wrong type."""
    place, question, parent, tokens, value = found
    if not (isinstance(place, int) and isinstance(parent, int)):
        return None
    if not (isinstance(question, bytes) and isinstance(tokens, bytes) and isinstance(value, bytes)):
        return None
    return TreeRow(unsigned(place), question, unsigned(parent), tokens, value)


def file_bytes(database: sqlite3.Connection) -> int:
    """Bytes of the pages in use."""
    size, pages, free = (
        database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
    )
    return int(size * (pages - free))


def check_path(path: Path, given: Path) -> None:
    """Raises CacheError for a path that cannot be that of a file. `given` is the user's name of the file."""
    if not os.path.isdir(path.parent):
        raise CacheError(f"{given}: its folder does not exist", hint=f"create it: mkdir -p {path.parent}")
    if os.path.isdir(path):
        raise CacheError(f"{given} is a directory", hint=f"name a file in it: {given / 'cache.tokens'}")
    if os.path.lexists(given) and not os.path.isfile(path):
        raise CacheError(f"{given} is a device, pipe or socket, or a link that leads nowhere", hint="name a file")
    try:
        with suppress(FileNotFoundError):
            os.stat(path)
    except OSError as error:
        raise CacheError(f"{given} cannot be opened ({reason(error)})") from error


def check_mark(path: Path, given: Path) -> None:
    """Raises CacheError for a file that SQLite cannot read, unless it has our mark. No connection may be open, because
    closing a file ends the locks that SQLite has on it."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEADER_BYTES)
    except OSError as error:
        raise CacheError(f"{given} cannot be read ({reason(error)})") from error
    if head[68:72] == APPLICATION.to_bytes(4):
        return
    if head.startswith(_OLD_MARK):
        raise _of_old_format(given)
    if head.startswith(b'{"kind":"'):
        raise CacheError(
            f"{given} is a recording, not a .tokens file",
            hint=f"make a cache of it: lq cache merge {given} -o new.tokens",
        )
    raise CacheError(
        f"{given} is not a .tokens file, or is damaged beyond recognition",
        hint="it was not changed; name another file for the cache, or remove this one",
    )


def _of_old_format(given: Path) -> CacheError:
    return CacheError(
        f"{given} was written by an earlier lmql-lite, in a format that is no longer read",
        hint="remove it, or name another file: a run asks the model again",
    )


def remove_companions(path: Path) -> None:
    """Removes what SQLite left beside a file that nobody has open."""
    for companion in COMPANIONS:
        with suppress(OSError):
            path.with_name(path.name + companion).unlink()


def is_busy(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_damage(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def reason(error: Exception) -> str:
    """The reason of an error, as the end of a sentence."""
    if isinstance(error, CacheError):
        return error.message
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
