"""What `lq cache` does to one file: facts are selected, and the file is replaced by a fresh one of the same name.

Under the file's lock and by rename: no process loses what it appends meanwhile, and a crash leaves the old file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmql_lite.cache.contents import chosen, contents_of
from lmql_lite.cache.facts import Facts, gathered
from lmql_lite.cache.frame_file import FrameFile
from lmql_lite.cache.frames import Batch, Entry
from lmql_lite.cache.log import Lost, News, Renumbered
from lmql_lite.cache.packing import AGE_SECONDS, by_age, file_bytes, packed
from lmql_lite.errors import CacheError

DAY_SECONDS = 24 * 3600
TRIES = 24
"""So often it is tried how many facts fit into a number of bytes; each one packs them all."""
CLOSE = 0.98
"""A file of this share of the bytes that it may have is full enough."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of a file: what stands in it."""

    bytes: int
    frames: int
    nodes: int
    facts: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A file before and after. `was_damaged`: what could not be read was left out."""

    before: Size
    after: Size
    was_damaged: bool


def compacted(
    path: str | os.PathLike[str],
    *,
    model: str | None = None,
    older_than_days: float | None = None,
    max_bytes: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Rewritten:
    """Few large frames, nothing twice, nothing damaged. The same file gives the same entries, and those again the same.

    Facts that are older than so many days are dropped, then the oldest ones until the file fits into `max_bytes`; with
    `model` (see `chosen`) only facts of that model are. Blocking. CacheError where the file cannot be used or
    rewritten, or cannot be made that small.
    """

    def select(known: dict[str, Facts]) -> list[Facts]:
        kept = {fingerprint: facts.distinct() for fingerprint, facts in known.items()}
        mine = {one.fingerprint for one in chosen([facts.model for facts in kept.values()], model)}
        if older_than_days is not None:
            oldest = clock() - older_than_days * DAY_SECONDS
            kept |= {each: kept[each].where(kept[each].written >= oldest) for each in mine}
        if max_bytes is not None:
            kept |= _fitting(kept, mine, max_bytes, path)
        return list(kept.values())

    return _rewritten(path, select, must_know_all=True)


def cleared(path: str | os.PathLike[str], *, model: str | None = None) -> Rewritten:
    """Without any facts, or without those of a model (see `chosen`). Blocking; errors as in `compacted`."""

    def select(known: dict[str, Facts]) -> list[Facts]:
        if model is None:
            return []
        gone = {one.fingerprint for one in chosen([facts.model for facts in known.values()], model)}
        return [facts.distinct() for fingerprint, facts in known.items() if fingerprint not in gone]

    return _rewritten(path, select, must_know_all=model is not None)


def _fitting(known: dict[str, Facts], mine: set[str], max_bytes: int, path: str | os.PathLike[str]) -> dict[str, Facts]:
    """`known`, where of the facts of `mine` so many of the oldest are gone that the rest fits."""
    droppable = sorted(mine)
    ranks = {each: by_age(known[each]) for each in droppable}
    hours = [known[each].written[ranks[each]] // AGE_SECONDS for each in droppable]
    owners = np.repeat(np.arange(len(droppable)), [len(each) for each in hours])
    owners = owners[np.argsort(np.concatenate([np.zeros(0, np.int64), *hours]), kind="stable")]

    def without(oldest: int) -> dict[str, Facts]:
        dropped = np.bincount(owners[:oldest], minlength=len(droppable)).tolist()
        rest = dict(known)
        for each, many in zip(droppable, dropped, strict=True):
            keep = np.ones(len(known[each]), np.bool_)
            keep[ranks[each][:many]] = False
            rest[each] = known[each].where(keep)
        return rest

    def size(oldest: int) -> int:
        return file_bytes(packed(without(oldest).values()))

    too_few, enough = 0, len(owners)
    most, least = size(too_few), size(enough)
    if most <= max_bytes:
        return known
    if least > max_bytes:
        raise CacheError(
            f"{path} cannot be made smaller than {least:,} bytes: so much is "
            + ("the head of any file" if len(mine) == len(known) else "known of other models"),
            hint="nothing was changed",
        )
    for turn in range(TRIES):
        if enough - too_few <= 1 or least >= CLOSE * max_bytes:
            break
        share = 0.5 if turn % 2 else (most - max_bytes) / (most - least)  # facts are of about the same length
        middle = min(max(too_few + round(share * (enough - too_few)), too_few + 1), enough - 1)
        found = size(middle)
        if found > max_bytes:
            too_few, most = middle, found
        else:
            enough, least = middle, found
    return without(enough)


def _rewritten(
    path: str | os.PathLike[str], select: Callable[[dict[str, Facts]], list[Facts]], *, must_know_all: bool
) -> Rewritten:
    if contents_of(path).strange_frames and must_know_all:  # opening would make a file that is missing
        raise CacheError(
            f"{path} holds frames of a newer lmql-lite, which would be lost", hint="update lmql-lite and try again"
        )
    file = FrameFile(Path(path), durable=True)
    file.open()
    sizes: list[Size] = []
    damage: list[Lost] = []

    def number(news: list[News]) -> list[Entry]:
        damage.extend(one for one in news if isinstance(one, Lost))
        entries = packed(select(gathered([news])))
        sizes.append(_size(os.stat(path).st_size, news))
        sizes.append(_size(file_bytes(entries), entries))
        return entries

    try:
        kept = file.rewrite(number)
    finally:
        file.close()
    if not kept:
        raise CacheError("; ".join(file.notices) or f"{path} could not be rewritten", hint="nothing was changed")
    before, after = sizes
    return Rewritten(before, after, was_damaged=bool(damage or file.notices))


def _size(bytes_of_file: int, entries: Sequence[News]) -> Size:
    batches = [entry for entry in entries if isinstance(entry, Batch)]
    facts = (len(part.nodes) for batch in batches for part in (batch.heads, batch.verdicts, batch.draws))
    frames = sum(not isinstance(entry, Lost | Renumbered) for entry in entries)
    return Size(bytes_of_file, frames, sum(len(batch.tokens) for batch in batches), sum(facts))
