"""Whole `.tokens` files, for the tools that work on files: their contents; files that are compacted, cleared, merged,
and made."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lmql_lite.cache.tokens.recorded import is_recording, read_recording
from lmql_lite.cache.tokens.rows import (
    ModelName,
    RowError,
    Stored,
    TreeRow,
    kind_of,
    row_length,
    unpacked_row,
    unpacked_tokens,
)
from lmql_lite.cache.tokens.server import TreeServer, is_redis_url
from lmql_lite.cache.tokens.text import visible
from lmql_lite.cache.tokens.tree_file import (
    TreeFile,
    check_path,
    reason,
    remove_companions,
    stored_models,
)
from lmql_lite.errors import CacheError


@dataclass(frozen=True, slots=True)
class FileContents:
    """Readable rows of a file, oldest first, its bytes, and sentences about damage."""

    rows: list[Stored]
    bytes: int
    damage: list[str]

    @property
    def is_sound(self) -> bool:
        return not self.damage

    @property
    def models(self) -> tuple[ModelName, ...]:
        found: dict[str, ModelName] = {}
        for model, *_ in self.rows:
            found.setdefault(model.fingerprint, model)
        return tuple(found.values())

    def count(self, kind: str) -> int:
        """Number of entries of a kind."""
        return sum(kind_of(row) == kind for *_, row in self.rows)


def read_file(path: str | os.PathLike[str]) -> FileContents:
    """Contents of a file, a recording, or the server of a `redis://` URL. Blocks. Raises CacheError if the file cannot
    be read or is not a `.tokens` file."""
    if is_redis_url(path):
        server = TreeServer(str(path))
        try:
            rows = list(server.stored())
            return _checked(rows, sum(len(row.value) + len(row.tokens) for *_, row in rows), list(server.notices))
        finally:
            server.close()
    given = Path(path)
    check_there(given)
    if is_recording(given):
        rows, lines = read_recording(given)
        damage = [f"{lines:,} damaged {'line' if lines == 1 else 'lines'}"] if lines else []
        return _checked(rows, given.stat().st_size, damage)
    file = TreeFile(given, reads_only=True)
    file.open()
    try:
        rows = list(file.stored())
        return _checked(rows, given.stat().st_size, [*file.notices, *file.problems()])
    finally:
        file.close()


def _checked(rows: Iterable[Stored], size: int, damage: list[str]) -> FileContents:
    """The contents without rows whose bytes are not those of an entry."""
    sound: list[Stored] = []
    for stored in rows:
        model, _, row = stored
        try:
            unpacked_tokens(row.tokens)
            unpacked_row(row._replace(vocabulary=model.vocabulary_size))
            sound.append(stored)
        except RowError as error:
            damage.append(f"an entry of {model.name}: {error}")
    return FileContents(sound, size, damage)


def check_there(path: Path) -> None:
    """Raises CacheError for a file that is missing."""
    if not os.path.lexists(path):
        raise CacheError(
            f"there is no file {path}", hint=f"check the name, or create the file: lq run QUERY --cache {path}"
        )
    check_path(Path(os.path.realpath(path)), path)


# models


def fingerprint_shown(fingerprint: str) -> str:
    """A short form of a fingerprint that distinguishes models: `demo:2c075f5c`."""
    kind, colon, digest = fingerprint.rpartition(":")
    return visible(kind + colon + digest[:8])


def model_shown(model: ModelName) -> str:
    """Name and fingerprint of a model. The name is escaped, because a file may come from anywhere."""
    return f"{visible(model.name)} ({fingerprint_shown(model.fingerprint)})"


def chosen(models: Sequence[ModelName], wanted: str | None) -> tuple[ModelName, ...]:
    """The models with this name, or with a fingerprint that begins so; None means all.

    A name may belong to several models, because a changed model keeps its name. Raises CacheError if there is no such
    model, or if several fingerprints begin so.
    """
    if wanted is None:
        return tuple(models)
    named = tuple(model for model in models if model.name == wanted)
    if named:
        return named
    fitting = tuple(
        model
        for model in models
        if wanted and (model.fingerprint.startswith(wanted) or model.fingerprint.rpartition(":")[2].startswith(wanted))
    )
    if len(fitting) > 1:
        several = ", ".join(fingerprint_shown(model.fingerprint) for model in fitting)
        raise CacheError(f"{wanted!r} begins several fingerprints: {several}", hint="write more of the fingerprint")
    if not fitting:
        known = ", ".join(model_shown(model) for model in models)
        raise CacheError(
            f"the file has no entries of a model {wanted!r}", hint=f"it knows {known}" if known else "it is empty"
        )
    return fitting


# files changed: compacted, cleared


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


def compacted(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> Rewritten:
    """Removes damaged entries and free pages of a file, then the least recently used runs until the file fits into
    `max_bytes`. Blocks. Raises CacheError if the file cannot be used or rewritten."""

    def change(file: TreeFile, database: sqlite3.Connection) -> None:
        if max_bytes is not None:
            file.evict(database, max_bytes)

    return _changed(path, change)


def cleared(path: str | os.PathLike[str], *, model: str | None = None) -> Rewritten:
    """Removes all entries of a file, or those of a model (see `chosen`). Blocks; errors as in `compacted`."""

    def change(_: TreeFile, database: sqlite3.Connection) -> None:
        numbers = {each: number for number, each in stored_models(database).items()}
        for each in chosen(list(numbers), model):
            database.execute("DELETE FROM entry WHERE model = ?", (numbers[each],))
            database.execute("DELETE FROM model WHERE id = ?", (numbers[each],))

    return _changed(path, change)


def _changed(path: str | os.PathLike[str], change: Callable[[TreeFile, sqlite3.Connection], None]) -> Rewritten:
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
        for _ in file.stored():  # finds the damaged rows
            pass
        was_damaged = bool(file.problems() or file.notices)
        if file.unreadable or not file.is_intact():
            raise CacheError(
                f"{path} is damaged so that it cannot be changed",
                hint=f"write what can be read to a new file: lq cache merge {path} -o new.tokens",
            )
        with file.transaction() as database:
            database.executemany("DELETE FROM entry WHERE id = ?", [(number,) for number in file.damaged])
            count = database.execute("SELECT count(*) FROM entry").fetchone()[0]
            change(file, database)
            database.execute("DELETE FROM run WHERE id NOT IN (SELECT run FROM entry)")
            database.execute("UPDATE state SET version = version + 1")
            after = database.execute("SELECT count(*) FROM entry").fetchone()[0]
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Rewritten(FileSize(before.bytes, count), FileSize(os.stat(path).st_size, after), was_damaged)
    except (sqlite3.Error, OSError) as error:
        raise CacheError(f"{path} could not be changed ({reason(error)})", hint="nothing was changed") from error
    except CacheError as error:
        if error.hint is None:
            raise CacheError(error.message, hint="nothing was changed") from error
        raise
    finally:
        file.close()


# new files


@dataclass(frozen=True, slots=True)
class Merged:
    """Joint rows of several files. `damaged` names the partly unreadable ones."""

    rows: list[Stored]
    damaged: tuple[str, ...]

    @property
    def models(self) -> int:
        return len({model.fingerprint for model, *_ in self.rows})


def merged(paths: Sequence[str | os.PathLike[str]]) -> Merged:
    """Joint rows of several files, which stay unchanged. For equal questions, the file named first counts. Blocks.
    Raises CacheError if a file cannot be read."""
    found: dict[tuple[str, int, bytes], Stored] = {}
    damaged: list[str] = []
    for path in paths:
        contents = read_file(path)
        if not contents.is_sound:
            damaged.append(str(path))
        for model, written, row in contents.rows:
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
