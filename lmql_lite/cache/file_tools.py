"""Whole `.tokens` files changed or made: compacted, cleared, merged, converted, imported."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from lmql_lite.cache.contents import check_there, chosen, stored_rows
from lmql_lite.cache.recorded import Stored
from lmql_lite.cache.tree_file import (
    TreeFile,
    file_bytes,
    is_busy,
    is_damage,
    reason,
    remove_companions,
    stored_models,
    stored_row,
)
from lmql_lite.cache.tree_rows import ModelName, TreeRow, packed_tokens, row_length, signed, unpacked_tokens, unsigned
from lmql_lite.cache.tree_server import is_redis_url
from lmql_lite.errors import CacheError

DAY_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class FileSize:
    """Bytes of a file, and number of its entries."""

    bytes: int
    entries: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Sizes of a file before and after. `was_damaged`: unreadable parts were dropped."""

    before: FileSize
    after: FileSize
    was_damaged: bool


def compacted(
    path: str | os.PathLike[str],
    *,
    model: str | None = None,
    older_than_days: float | None = None,
    max_bytes: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Rewritten:
    """Removes damaged entries and free pages of a file.

    Entries older than `older_than_days` are dropped, then the least recently used runs until the file fits into
    `max_bytes`. With `model` (see `chosen`) only entries of that model are dropped. Blocks. Raises CacheError if the
    file cannot be used, rewritten, or made that small.
    """

    def change(database: sqlite3.Connection) -> None:
        mine = _numbers(database, model)
        if older_than_days is not None:
            oldest = clock() - older_than_days * DAY_SECONDS
            _drop(database, mine, "SELECT id FROM run WHERE written < ?", oldest)
        while max_bytes is not None and file_bytes(database) > max_bytes:
            used = database.execute(
                f"SELECT min(used) FROM run WHERE id IN (SELECT run FROM entry WHERE model IN ({mine}))"
            ).fetchone()[0]
            if used is None:
                left = database.execute("SELECT count(*) FROM entry").fetchone()[0]
                if left:
                    raise CacheError(
                        f"{path} cannot be made smaller than {file_bytes(database):,} bytes, the size of the other "
                        "models' entries",
                        hint="nothing was changed; allow more bytes, or leave the model out",
                    )
                break
            _drop(database, mine, "SELECT id FROM run WHERE used = ?", used)

    return _changed(path, change)


def cleared(path: str | os.PathLike[str], *, model: str | None = None) -> Rewritten:
    """Removes all entries of a file, or those of a model (see `chosen`). Blocks; errors as in `compacted`."""

    def change(database: sqlite3.Connection) -> None:
        mine = _numbers(database, model)
        database.execute(f"DELETE FROM entry WHERE model IN ({mine})")
        database.execute(f"DELETE FROM model WHERE id IN ({mine})")

    return _changed(path, change)


def _numbers(database: sqlite3.Connection, wanted: str | None) -> str:
    """Numbers of the models that are meant (see `chosen`), as a list in SQL."""
    found = {model: number for number, model in stored_models(database).items()}
    return ", ".join(str(found[each]) for each in chosen(list(found), wanted))


def _drop(database: sqlite3.Connection, models: str, runs: str, *values: object) -> None:
    """Removes the entries of models and runs. Entries that continue them get the whole way from what is left."""
    database.execute("CREATE TEMP TABLE IF NOT EXISTS gone (id INTEGER PRIMARY KEY)")
    database.execute("DELETE FROM gone")
    database.execute(f"INSERT INTO gone SELECT id FROM entry WHERE model IN ({models}) AND run IN ({runs})", values)
    orphans = database.execute(
        """SELECT id, model, place, question, parent, tokens, value FROM entry AS one
        WHERE parent != 0 AND id NOT IN gone AND (
            SELECT min(above.id IN gone) FROM entry AS above
            WHERE above.place = one.parent AND above.model = one.model)"""
    )
    names = stored_models(database)
    for number, model, *columns in orphans.fetchall():
        row = stored_row(columns)
        if row is None:
            continue
        tokens, parent = [*unpacked_tokens(row.tokens)], row.parent
        while parent:
            above = database.execute(
                "SELECT parent, tokens, id IN gone FROM entry WHERE place = ? AND model = ? ORDER BY 3 LIMIT 1",
                (signed(parent), model),
            ).fetchone()
            if above is None or not above[2]:
                break
            parent, tokens = unsigned(above[0]), [*unpacked_tokens(above[1]), *tokens]
        row = row._replace(parent=parent, tokens=packed_tokens(tokens))
        database.execute(
            "UPDATE entry SET parent = ?, tokens = ?, checksum = ? WHERE id = ?",
            (signed(parent), row.tokens, row.checksum(names[model]), number),
        )
    database.execute("DELETE FROM entry WHERE id IN gone")


def _changed(path: str | os.PathLike[str], change: Callable[[sqlite3.Connection], None]) -> Rewritten:
    """Changes a file in one transaction, and frees what is not used. Damaged entries go."""
    if is_redis_url(path):
        raise CacheError(
            f"{path} is on a server, where files cannot be changed",
            hint="copy it to a file: lq cache merge URL -o x.tokens",
        )
    check_there(Path(path))
    before = FileSize(os.stat(path).st_size, 0)
    file = TreeFile(Path(path), durable=True)
    file.open()
    try:
        if file.notices and file.writable:
            raise CacheError(file.notices[0], hint="nothing else was changed")
        if not before.bytes:
            return Rewritten(before, before, was_damaged=False)
        kept = list(file.stored())
        was_damaged = bool(file.problems() or file.notices)
        if file.unreadable or not file.is_intact():
            was_damaged = True
            file = _rebuilt(file, Path(path), kept)
        try:
            entries = _applied(file, change)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            was_damaged = True
            file = _rebuilt(file, Path(path), kept)
            entries = _applied(file, change)
        before = FileSize(before.bytes, entries.before)
        return Rewritten(before, FileSize(os.stat(path).st_size, entries.after), was_damaged)
    except (sqlite3.Error, OSError) as error:
        raise CacheError(f"{path} could not be changed ({reason(error)})", hint="nothing was changed") from error
    except CacheError as error:
        if error.hint is None:
            raise CacheError(error.message, hint="nothing was changed") from error
        raise
    finally:
        file.close()


class _Entries(NamedTuple):
    """Numbers of entries."""

    before: int
    after: int


def _applied(file: TreeFile, change: Callable[[sqlite3.Connection], None]) -> _Entries:
    with file.transaction() as database:
        database.executemany("DELETE FROM entry WHERE id = ?", [(number,) for number in file.damaged])
        before = database.execute("SELECT count(*) FROM entry").fetchone()[0]
        change(database)
        database.execute("DELETE FROM run WHERE id NOT IN (SELECT run FROM entry)")
        database.execute("UPDATE state SET version = version + 1")
        after = database.execute("SELECT count(*) FROM entry").fetchone()[0]
    database.execute("VACUUM")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return _Entries(before, after)


def _rebuilt(file: TreeFile, path: Path, rows: Iterable[Stored]) -> TreeFile:
    """The file, with these rows only, opened again."""
    file.close()
    _rebuild(path, rows)
    file = TreeFile(path, durable=True)
    file.open()
    return file


def _rebuild(path: Path, rows: Iterable[Stored]) -> None:
    """Replaces a file of which some pages cannot be read by one with the rows that can. Raises CacheError while another
    process has it open."""
    beside = path.with_name(f".{path.name}.rebuilt")
    with suppress(FileNotFoundError):
        beside.unlink()
    write_new(beside, rows)
    try:
        old = sqlite3.connect(path, timeout=1.0, isolation_level=None)
        try:
            old.execute("PRAGMA journal_mode = DELETE").fetchone()
        finally:
            old.close()  # Windows replaces no open file
        os.replace(beside, path)
    except (sqlite3.Error, OSError) as error:
        if is_busy(error) or isinstance(error, PermissionError):
            raise CacheError(
                f"{path} is damaged, and another process has it open", hint="try again when no run uses it"
            ) from error
        raise CacheError(
            f"{path} is damaged, and cannot be replaced ({reason(error)})",
            hint=f"write what can be read to a new file: lq cache merge {path} -o new.tokens",
        ) from error
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()


# new files


@dataclass(frozen=True, slots=True)
class Merged:
    """Joint rows of several files. `damaged` names the partly unreadable ones."""

    rows: list[Stored]
    damaged: tuple[str, ...]

    @property
    def models(self) -> int:
        return len({model.fingerprint for model, *_ in self.rows})


def merged(paths: Sequence[str | os.PathLike[str]], prefer: Literal["first", "last"] = "first") -> Merged:
    """Joint rows of several files, which stay unchanged. For equal questions, the file named first (or last) counts.
    Blocks. Raises CacheError if a file cannot be read."""
    found: dict[tuple[str, int, bytes], Stored] = {}
    damaged: list[str] = []
    for path in paths if prefer == "first" else paths[::-1]:
        rows, _, damage = stored_rows(path)
        if damage:
            damaged.append(str(path))
        for model, written, row in rows:
            found.setdefault((model.fingerprint, row.place, row.question), (model, written, row))
    return Merged(list(found.values()), tuple(damaged))


def write_new(path: str | os.PathLike[str], rows: Iterable[Stored]) -> None:
    """Writes a new file. Blocks. Raises CacheError if the name is taken."""
    place = Path(path)
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        raise CacheError(f"{path} exists, and is not overwritten", hint="name another file, or remove it") from None
    except OSError as error:
        raise CacheError(f"{path} cannot be created ({error.strerror})", hint="check that its folder exists") from None
    file, is_written = TreeFile(place, durable=True), False
    try:
        file.open()
        groups: dict[tuple[ModelName, int], list[TreeRow]] = {}
        for model, written, row in rows:
            groups.setdefault((model, written), []).append(row)
        with file.transaction() as database:
            for (model, written), group in sorted(groups.items(), key=lambda each: each[0][1]):
                file.add(database, model, group, written, max(map(row_length, group)))
        is_written = True
    except (sqlite3.Error, OSError) as error:
        raise CacheError(f"{path} could not be written ({reason(error)})", hint="no file was left") from error
    finally:
        file.close()
        if not is_written:
            remove_companions(place)
            with suppress(FileNotFoundError):
                place.unlink()
