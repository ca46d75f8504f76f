"""Whole files written anew: entries are selected, and few large records keep what a log must: order, ages, and where
something was superseded. Compacting again changes nothing.

Under the file's lock and by rename: no process loses what it appends meanwhile, and a crash leaves the old file.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.columns import AGE_SECONDS, MAX_TOKENS
from lmql_lite.cache.file_contents import Gathering, ModelEntries, chosen, read_file
from lmql_lite.cache.framing import FRAME_BYTES, Frame
from lmql_lite.cache.log_file import LogFile
from lmql_lite.cache.node_index import NodeIndex
from lmql_lite.cache.nodes import ROOT
from lmql_lite.cache.record_reader import Lost
from lmql_lite.cache.record_writer import ENTRIES_PER_RECORD, payloads
from lmql_lite.errors import CacheError

DAY_SECONDS = 24 * 3600
STEPS = 10_000
"""Amounts of entries, the oldest first, that may be dropped to make a file small."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of a file: what stands in it."""

    bytes: int
    frames: int
    nodes: int
    entries: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A file before and after. `was_damaged`: what could not be read was left out."""

    before: Size
    after: Size
    was_damaged: bool


Select = Callable[[dict[str, ModelEntries]], list[ModelEntries]]


def compacted(
    path: str | os.PathLike[str],
    *,
    model: str | None = None,
    older_than_days: float | None = None,
    max_bytes: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Rewritten:
    """Few large frames, nothing twice, nothing damaged. The same file gives the same records, and those again the same.

    Entries that are older than so many days are dropped, then the oldest ones until the file fits into `max_bytes`;
    with `model` (see `chosen`) only entries of that model are. Blocking. CacheError where the file cannot be used or
    rewritten, or cannot be made that small.
    """

    def select(known: dict[str, ModelEntries]) -> list[ModelEntries]:
        kept = {fingerprint: entries.distinct() for fingerprint, entries in known.items()}
        mine = {one.fingerprint for one in chosen([entries.model for entries in kept.values()], model)}
        if older_than_days is not None:
            oldest = clock() - older_than_days * DAY_SECONDS
            kept |= {each: kept[each].where(kept[each].written >= oldest) for each in mine}
        if max_bytes is not None:
            kept |= _fitting(kept, mine, max_bytes, path)
        return list(kept.values())

    return _rewritten(path, select, must_know_all=True)


def cleared(path: str | os.PathLike[str], *, model: str | None = None) -> Rewritten:
    """Without any entries, or without those of a model (see `chosen`). Blocking; errors as in `compacted`."""

    def select(known: dict[str, ModelEntries]) -> list[ModelEntries]:
        if model is None:
            return []
        gone = {one.fingerprint for one in chosen([entries.model for entries in known.values()], model)}
        return [entries.distinct() for fingerprint, entries in known.items() if fingerprint not in gone]

    return _rewritten(path, select, must_know_all=model is not None)


def _fitting(
    known: dict[str, ModelEntries], mine: set[str], max_bytes: int, path: str | os.PathLike[str]
) -> dict[str, ModelEntries]:
    """`known`, where of the entries of `mine` so many of the oldest are gone that the rest fits."""
    droppable = sorted(mine)
    # the oldest first; those of unknown age are the oldest
    ranks = {each: np.lexsort((known[each].batch, known[each].written // AGE_SECONDS)) for each in droppable}
    hours = [known[each].written[ranks[each]] // AGE_SECONDS for each in droppable]
    owners = np.repeat(np.arange(len(droppable)), [len(each) for each in hours])
    owners = owners[np.argsort(np.concatenate([np.zeros(0, np.int64), *hours]), kind="stable")]

    def without(oldest: int) -> dict[str, ModelEntries]:
        dropped = np.bincount(owners[:oldest], minlength=len(droppable)).tolist()
        rest = dict(known)
        for each, many in zip(droppable, dropped, strict=True):
            keep = np.ones(len(known[each]), np.bool_)
            keep[ranks[each][:many]] = False
            rest[each] = known[each].where(keep)
        return rest

    def size(oldest: int) -> int:
        return file_bytes(packed(without(oldest).values())[0])

    steps = range(0, len(owners), max(len(owners) // STEPS, 1))
    step = bisect_left(steps, True, key=lambda oldest: size(oldest) <= max_bytes)
    found = without(steps[step] if step < len(steps) else len(owners))
    least = file_bytes(packed(found.values())[0])
    if least > max_bytes:
        raise CacheError(
            f"{path} cannot be made smaller than {least:,} bytes: so much is known of other models",
            hint="nothing was changed",
        )
    return found


def _rewritten(path: str | os.PathLike[str], select: Select, *, must_know_all: bool) -> Rewritten:
    if read_file(path).strange_frames and must_know_all:  # opening would make a file that is missing
        raise CacheError(
            f"{path} holds frames of a newer lmql-lite, which would be lost", hint="update lmql-lite and try again"
        )
    file = LogFile(Path(path), durable=True)
    file.open()
    frames, sizes, lost = list[Frame](), list[Size](), list[Lost]()

    def admit(found: Sequence[Frame], is_other: bool) -> bool:
        frames.extend(found)
        return True

    def write() -> Generator[bytes, None, None]:
        gathering = Gathering()
        lost.extend(gathering.read(frames))
        known = gathering.by_model()
        nodes = sum(len(one.tree) - 1 for one in known.values())
        entries = sum(map(len, known.values()))
        sizes.append(Size(os.stat(path).st_size, len(frames) - len(lost), nodes, entries))
        kept = select(known)
        payloads_of_kept, nodes = packed(kept)
        sizes.append(Size(file_bytes(payloads_of_kept), len(payloads_of_kept), nodes, sum(map(len, kept))))
        yield from payloads_of_kept

    try:
        done = file.rewrite(admit, write)
    finally:
        file.close()
    if not done:
        raise CacheError("; ".join(file.notices) or f"{path} could not be rewritten", hint="nothing was changed")
    before, after = sizes
    return Rewritten(before, after, was_damaged=bool(lost or file.notices))


def packed(known: Iterable[ModelEntries]) -> tuple[list[bytes], int]:
    """Payloads for an empty log, and how many nodes they have. A model without entries is left out."""
    made: list[bytes] = []
    nodes = 0
    for one in known:
        index = NodeIndex(ROOT)
        for places, written, replaces in _grouped(one):
            some = one.entries.pick(places)
            made += payloads(index, one.tree, one.model, some, written=written, replaces=replaces)
        nodes += index.end - 1
    return made, nodes


def file_bytes(written: Iterable[bytes]) -> int:
    """Length of a file of these payloads."""
    return sum(FRAME_BYTES + len(payload) for payload in written)


def _grouped(one: ModelEntries) -> Iterator[tuple[NDArray[np.intp], int, bool]]:
    """Places of entries that one record can hold, when they were written, and whether it replaces; the oldest first.

    Two groups for every hour: the first one replaces, the second one (an odd number) does not. Of a node where
    something was superseded, the first entry of all is in one that does: all others come later, and none is superseded.
    """
    groups = 2 * (one.written // AGE_SECONDS) + 1
    nodes, order = one.entries.nodes, np.argsort(groups, kind="stable")
    _, first = np.unique(nodes[order], return_index=True)
    first = order[first]
    groups[first[one.replaced[nodes[first]]]] -= 1
    order = np.argsort(groups, kind="stable")
    groups = groups[order]
    within = np.arange(len(order)) - np.searchsorted(groups, groups)  # place among the entries of the group
    most = min(ENTRIES_PER_RECORD, MAX_TOKENS // int(one.entries.topks.sizes.max(initial=1)))
    begins = np.flatnonzero(within % most == 0).tolist()
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=False):
        places = np.sort(order[begin:end])
        yield places, int(one.written[places].min()), bool(groups[begin] % 2 == 0)
