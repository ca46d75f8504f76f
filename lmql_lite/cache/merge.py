"""Several `.tokens` files into a new one: what one of them knows, the new one knows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.contents import contents_of
from lmql_lite.cache.facts import Facts, gathered, rows
from lmql_lite.cache.frame_file import FrameFile
from lmql_lite.cache.frames import Batch, Entry, Model
from lmql_lite.cache.log import News
from lmql_lite.cache.packing import packed
from lmql_lite.errors import CacheError

Prefer = Literal["first", "last"]


@dataclass(frozen=True, slots=True)
class Said:
    """An answer of one file: for a head its best token, None where none is."""

    source: int
    token: int | None
    logprob: float


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two files answer the same question of one model otherwise; `path` are the tokens before the answer."""

    model: Model
    kind: Literal["head", "verdict", "draw"]
    path: tuple[int, ...]
    first: Said
    other: Said


@dataclass(frozen=True, slots=True)
class Conflicts:
    """All of them by count, the first ones one by one.

    `other_token`: how many differ in more than scores. `apart`: by how much the log-probability of the same token
    differs, at most: a little where one model computed on different hardware.
    """

    count: int
    other_token: int
    apart: float
    some: tuple[Conflict, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """What several files say together. `conflicts` are settled as it was preferred, or else in favour of the first."""

    entries: tuple[Entry, ...]
    models: int
    nodes: int
    facts: int
    shared: int
    """Facts that more than one file has, and has alike."""
    conflicts: Conflicts
    damaged: tuple[str, ...]
    """Files of which some cannot be read; the rest of them is there."""


def merged(paths: Sequence[str | os.PathLike[str]], prefer: Prefer = "first", *, listed: int = 10) -> Merged:
    """Reads all files, changes none. Blocking. CacheError where one cannot be read."""
    logs = [contents_of(path) for path in paths]
    order = list(range(len(logs)))[:: -1 if prefer == "last" else 1]  # what is read first counts
    together = gathered([logs[source].entries for source in order])
    kept, shared, conflicts = list[Facts](), 0, list[Conflicts]()
    for facts in together.values():
        alike, unlike = _compared(facts)
        shared += len(np.unique(facts.firsts()[alike]))
        conflicts.append(_conflicts(facts, unlike, order, listed))
        kept.append(facts.distinct())
    entries = packed(kept)
    return Merged(
        tuple(entries),
        sum(isinstance(entry, Model) for entry in entries),
        sum(len(entry.tokens) for entry in entries if isinstance(entry, Batch)),
        sum(map(len, kept)),
        shared,
        Conflicts(
            sum(one.count for one in conflicts),
            sum(one.other_token for one in conflicts),
            max((one.apart for one in conflicts), default=0.0),
            tuple(conflict for one in conflicts for conflict in one.some)[:listed],
        ),
        tuple(str(path) for path, log in zip(paths, logs, strict=True) if log.damage),
    )


def write_new(path: str | os.PathLike[str], entries: Sequence[Entry]) -> None:
    """A new file, which appears under its name when it is complete. Blocking. CacheError where the name is taken."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # so that nobody else takes it
    except FileExistsError:
        raise CacheError(f"{path} exists, and is never overwritten", hint="name another file, or remove it") from None
    except OSError as error:
        raise CacheError(f"{path} cannot be made ({error.strerror})", hint="does its folder exist?") from None
    written = False
    try:
        file = FrameFile(Path(path), durable=True)
        file.open()
        try:
            written = file.rewrite(lambda news: _with_news(entries, news))
        finally:
            file.close()
        if not written:
            raise CacheError(f"{path} could not be written", hint="is the disk full? nothing was left behind")
    finally:
        if not written:
            os.unlink(path)


def _with_news(entries: Sequence[Entry], news: list[News]) -> Sequence[Entry]:
    """A process may have appended to the file since it got its name."""
    if not any(isinstance(one, Batch) for one in news):
        return entries
    return packed(facts.distinct() for facts in gathered([list(entries), news]).values())


def _compared(facts: Facts) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of the facts that answer what another log answered first: those that say the same, and the others."""
    first = facts.firsts()
    later = np.flatnonzero(facts.source != facts.source[first])
    # of several in one log only the first is ever read
    _, own = np.unique(first[later] * (int(facts.source.max(initial=0)) + 1) + facts.source[later], return_index=True)
    later = later[np.sort(own)]
    alike = _alike(facts, first[later], later)
    return later[alike], later[~alike]


def _alike(facts: Facts, left: NDArray[np.int64], right: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether facts of the same kind say the same, pair by pair."""
    tokens, logprobs = _answers(facts)
    alike: NDArray[np.bool_] = (tokens[left] == tokens[right]) & (logprobs[left] == logprobs[right])
    are_heads = np.flatnonzero(alike & (right < len(facts.heads.nodes)))
    one, other = rows(facts.heads, left[are_heads]), rows(facts.heads, right[are_heads])
    alike[are_heads] = (one.sizes == other.sizes) & (one.rest == other.rest)
    are_heads = are_heads[alike[are_heads]]
    one, other = rows(facts.heads, left[are_heads]), rows(facts.heads, right[are_heads])
    if are_heads.size:
        same = (one.ids == other.ids) & (one.logprobs == other.logprobs)
        alike[are_heads] = np.logical_and.reduceat(same, np.cumsum(one.sizes) - one.sizes)
    return alike


def _answers(facts: Facts) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Token and log-probability of each fact, of a head those of its best token; -1 is none."""
    heads, begins = facts.heads, np.cumsum(facts.heads.sizes) - facts.heads.sizes
    return (
        np.concatenate([heads.ids[begins], facts.verdicts.tokens, facts.draws.tokens]),
        np.concatenate([heads.logprobs[begins], facts.verdicts.logprobs, facts.draws.logprobs]),
    )


def _conflicts(facts: Facts, unlike: NDArray[np.intp], order: Sequence[int], listed: int) -> Conflicts:
    """`unlike`: places of facts that contradict the first of their kind."""
    first = facts.firsts()[unlike]
    _, once = np.unique(first, return_index=True)  # three files may contradict each other at one place
    unlike, first = unlike[np.sort(once)], first[np.sort(once)]
    tokens, logprobs = _answers(facts)
    other_token = tokens[unlike] != tokens[first]
    with np.errstate(invalid="ignore"):  # twice minus infinity
        apart = np.abs(logprobs[unlike] - logprobs[first])[~other_token]
    nodes, heads = facts.nodes, len(facts.heads.nodes)

    def said(place: int) -> Said:
        token = int(tokens[place])
        return Said(order[facts.source[place]], None if token < 0 else token, float(logprobs[place]))

    def kind(place: int) -> Literal["head", "verdict", "draw"]:
        return "head" if place < heads else "verdict" if place < heads + len(facts.verdicts.nodes) else "draw"

    # what differs most tells most
    shown = np.argsort(~other_token, kind="stable")[:listed]
    some = (
        Conflict(facts.model, kind(place), facts.tree.path(int(nodes[place])), said(earlier), said(place))
        for earlier, place in zip(first[shown].tolist(), unlike[shown].tolist(), strict=True)
    )
    return Conflicts(len(unlike), int(other_token.sum()), float(np.nanmax(apart, initial=0.0)), tuple(some))
