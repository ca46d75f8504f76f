"""Rewriting of whole files: compacted, cleared, or several merged into one. The selected entries are written in few
large records that keep order, ages, and superseded places. A second compaction changes nothing.

A file is changed under its lock and by rename. No process loses entries that it appends meanwhile, and a crash leaves
the old file.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from lmql_lite.cache.columns import AGE_SECONDS
from lmql_lite.cache.file_contents import GatheredEntries, ModelEntries, chosen, read_file
from lmql_lite.cache.framing import FRAME_BYTES, LogFrame
from lmql_lite.cache.log_file import LogFile
from lmql_lite.cache.node_table import ROOT
from lmql_lite.cache.record_io import Lost, NodeIndex, payloads, record_groups
from lmql_lite.cache.redis_log import is_redis_url
from lmql_lite.errors import CacheError

DAY_SECONDS = 24 * 3600
STEPS = 10_000
"""Number of steps in the search for the oldest entries to drop."""


@dataclass(frozen=True, slots=True)
class FileSize:
    """Bytes of a file, and numbers of its contents."""

    bytes: int
    frames: int
    nodes: int
    entries: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Sizes of a file before and after. `was_damaged`: unreadable parts were dropped."""

    before: FileSize
    after: FileSize
    was_damaged: bool


Select = Callable[[dict[str, ModelEntries]], Iterable[ModelEntries]]


def compacted(
    path: str | os.PathLike[str],
    *,
    model: str | None = None,
    older_than_days: float | None = None,
    max_bytes: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Rewritten:
    """Compacts a file: few large frames, without duplicates or damage. The result depends only on the file's contents.

    Entries older than `older_than` days are dropped, then the oldest ones until the file fits into `max_bytes`. With
    `model` (see `chosen`) only entries of that model are dropped. Blocks. Raises CacheError if the file cannot be used,
    rewritten, or made that small.
    """

    def select(known: dict[str, ModelEntries]) -> Iterable[ModelEntries]:
        kept = {fingerprint: entries.distinct() for fingerprint, entries in known.items()}
        mine = [one.fingerprint for one in chosen([entries.model for entries in kept.values()], model)]
        if older_than_days is not None:
            oldest = clock() - older_than_days * DAY_SECONDS
            kept |= {each: kept[each].where(kept[each].written >= oldest) for each in mine}
        return (kept if max_bytes is None else _fitting(kept, mine, max_bytes, path)).values()

    return _rewritten(path, select, must_know_all=True)


def cleared(path: str | os.PathLike[str], *, model: str | None = None) -> Rewritten:
    """Removes all entries of a file, or those of a model (see `chosen`). Blocks; errors as in `compacted`."""

    def select(known: dict[str, ModelEntries]) -> Iterable[ModelEntries]:
        if model is None:
            return []
        gone = {one.fingerprint for one in chosen([entries.model for entries in known.values()], model)}
        return [entries.distinct() for fingerprint, entries in known.items() if fingerprint not in gone]

    return _rewritten(path, select, must_know_all=model is not None)


def _fitting(
    known: dict[str, ModelEntries], mine: Sequence[str], max_bytes: int, path: str | os.PathLike[str]
) -> dict[str, ModelEntries]:
    """Drops the oldest entries of the models `mine` until the file fits."""
    hours = [known[each].written // AGE_SECONDS for each in mine]
    order = np.argsort(np.concatenate([np.zeros(0, np.int64), *hours]), kind="stable")
    # oldest first; entries of unknown age count as the oldest
    ranks = np.split(np.argsort(order, kind="stable"), np.cumsum([len(each) for each in hours]))

    def without(oldest: int) -> dict[str, ModelEntries]:
        return known | {each: known[each].where(rank >= oldest) for each, rank in zip(mine, ranks, strict=False)}

    def size(oldest: int) -> int:
        return file_bytes(packed(without(oldest).values())[0])

    steps = range(0, len(order), max(len(order) // STEPS, 1))
    step = bisect_left(steps, True, key=lambda oldest: size(oldest) <= max_bytes)
    oldest = steps[step] if step < len(steps) else len(order)
    if (least := size(oldest)) > max_bytes:
        raise CacheError(
            f"{path} cannot be made smaller than {least:,} bytes, the size of the other models' entries",
            hint="nothing was changed; allow more bytes, or leave the model out",
        )
    return without(oldest)


def _rewritten(path: str | os.PathLike[str], select: Select, *, must_know_all: bool) -> Rewritten:
    if is_redis_url(path):
        raise CacheError(
            f"{path} is a stream on a server, which cannot be rewritten",
            hint="copy it to a file: lq cache merge URL -o x.tokens",
        )
    if read_file(path).strange_frames and must_know_all:  # opening would create a missing file
        raise CacheError(
            f"{path} holds frames of a newer lmql-lite, which would be lost", hint="update lmql-lite, and try again"
        )
    file = LogFile(Path(path), durable=True)
    file.open()
    frames, sizes, lost = list[LogFrame](), list[FileSize](), list[Lost]()

    def admit(found: Sequence[LogFrame], is_other: bool) -> bool:
        frames.extend(found)
        return True

    def write() -> Generator[bytes, None, None]:
        gathered = GatheredEntries()
        lost.extend(gathered.read(frames))
        known = gathered.by_model()
        nodes, entries = sum(len(one.tree) - 1 for one in known.values()), sum(map(len, known.values()))
        sizes.append(FileSize(os.stat(path).st_size, len(frames) - len(lost), nodes, entries))
        kept = list(select(known))
        made, nodes = packed(kept)
        sizes.append(FileSize(file_bytes(made), len(made), nodes, sum(map(len, kept))))
        yield from made

    try:
        done = file.rewrite(admit, write)
    finally:
        file.close()
    if not done:
        raise CacheError("; ".join(file.notices) or f"{path} could not be rewritten", hint="nothing was changed")
    before, after = sizes
    return Rewritten(before, after, was_damaged=bool(lost or file.notices))


def packed(known: Iterable[ModelEntries]) -> tuple[list[bytes], int]:
    """Payloads for an empty log, and their number of nodes. Models without entries are left out."""
    made: list[bytes] = []
    nodes = 0
    for one in known:
        index = NodeIndex(ROOT)
        for some, written, replaces in record_groups(one.entries, one.written, one.replaced[one.entries.nodes]):
            made += payloads(index, one.tree, one.model, some, written=written, replaces=replaces)
        nodes += index.end - 1
    return made, nodes


def file_bytes(written: Iterable[bytes]) -> int:
    """Size of a file with these payloads, in bytes."""
    return sum(FRAME_BYTES + len(payload) for payload in written)


# merging


@dataclass(frozen=True, slots=True)
class Merged:
    """Joint contents of several files. `damaged` names the partly unreadable ones."""

    payloads: tuple[bytes, ...]
    models: int
    nodes: int
    entries: int
    damaged: tuple[str, ...]


def merged(paths: Sequence[str | os.PathLike[str]], prefer: Literal["first", "last"] = "first") -> Merged:
    """Joint contents of several files, which stay unchanged. For equal questions, the file named first (or last)
    counts. Blocks. Raises CacheError if a file cannot be read."""
    gathered = GatheredEntries()
    order = paths if prefer == "first" else paths[::-1]  # the first entry read counts
    damaged = [str(path) for path in order if not read_file(path, gathered).is_sound]
    kept = [entries.distinct() for entries in gathered.by_model().values()]
    payloads, nodes = packed(kept)
    return Merged(tuple(payloads), sum(len(one) > 0 for one in kept), nodes, sum(map(len, kept)), tuple(damaged))


def write_new(path: str | os.PathLike[str], payloads: Sequence[bytes]) -> None:
    """Writes a new file, which gets its name when it is complete. Blocks. Raises CacheError if the name is taken."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # reserves the name
    except FileExistsError:
        raise CacheError(f"{path} exists, and is not overwritten", hint="name another file, or remove it") from None
    except OSError as error:
        raise CacheError(f"{path} cannot be created ({error.strerror})", hint="check that its folder exists") from None
    written, meanwhile = False, list[bytes]()

    def admit(frames: Sequence[LogFrame], is_other: bool) -> bool:
        """Keeps frames that another process appended since the file got its name."""
        meanwhile.extend(frame.payload for frame in frames if frame.payload is not None)
        return True

    def all_payloads() -> Generator[bytes, None, None]:
        yield from (*payloads, *meanwhile)

    try:
        file = LogFile(Path(path), durable=True)
        file.open()
        try:
            written = file.rewrite(admit, all_payloads)
        finally:
            file.close()
        if not written:
            raise CacheError(f"{path} could not be written", hint="check that the disk has room; no file was left")
    finally:
        if not written:
            os.unlink(path)
