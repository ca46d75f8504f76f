"""Several `.tokens` files into a new one: what one of them knows, the new one knows."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.columns import Entries, Model, rows
from lmql_lite.cache.compaction import packed
from lmql_lite.cache.file_contents import Gathering, ModelEntries, read_file
from lmql_lite.cache.framing import Frame
from lmql_lite.cache.log_file import LogFile
from lmql_lite.errors import CacheError

Prefer = Literal["first", "last"]
Kind = Literal["top-k entry", "greedy answer", "sampled answer"]


@dataclass(frozen=True, slots=True)
class FileAnswer:
    """Answer of one file: the best token of a top-k entry, None where there is none."""

    source: int
    token: int | None
    logprob: float


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two files answer the same question of one model differently; `path` are the tokens before the answer."""

    model: Model
    kind: Kind
    path: tuple[int, ...]
    first: FileAnswer
    other: FileAnswer


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

    payloads: tuple[bytes, ...]
    models: int
    nodes: int
    entries: int
    shared: int
    """Entries that more than one file has, and has alike."""
    conflicts: Conflicts
    damaged: tuple[str, ...]
    """Files of which some cannot be read; the rest of them is there."""


def merged(paths: Sequence[str | os.PathLike[str]], prefer: Prefer = "first", *, listed: int = 10) -> Merged:
    """Reads all files, changes none. Blocking. CacheError where one cannot be read."""
    order = list(range(len(paths)))[:: -1 if prefer == "last" else 1]  # what is read first counts
    gathering = Gathering()
    is_sound = {source: read_file(paths[source], gathering).is_sound for source in order}
    kept, shared, conflicts = list[ModelEntries](), 0, list[Conflicts]()
    for entries in gathering.by_model().values():
        alike, unlike = _compared(entries)
        shared += len(np.unique(entries.firsts()[alike]))
        conflicts.append(_conflicts(entries, unlike, order, listed))
        kept.append(entries.distinct())
    payloads, nodes = packed(kept)
    return Merged(
        tuple(payloads),
        sum(len(entries) > 0 for entries in kept),
        nodes,
        sum(map(len, kept)),
        shared,
        Conflicts(
            sum(one.count for one in conflicts),
            sum(one.other_token for one in conflicts),
            max((one.apart for one in conflicts), default=0.0),
            tuple(conflict for one in conflicts for conflict in one.some)[:listed],
        ),
        tuple(str(path) for source, path in enumerate(paths) if not is_sound[source]),
    )


def write_new(path: str | os.PathLike[str], payloads: Sequence[bytes]) -> None:
    """A new file, which appears under its name when it is complete. Blocking. CacheError where the name is taken."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # so that nobody else takes it
    except FileExistsError:
        raise CacheError(f"{path} exists, and is never overwritten", hint="name another file, or remove it") from None
    except OSError as error:
        raise CacheError(f"{path} cannot be made ({error.strerror})", hint="does its folder exist?") from None
    written, meanwhile = False, list[bytes]()

    def admit(frames: Sequence[Frame], is_other: bool) -> bool:
        """A process may have appended to the file since it got its name: records of anywhere go behind any others."""
        meanwhile.extend(frame.payload for frame in frames if frame.payload is not None)
        return True

    def both() -> Generator[bytes, None, None]:
        yield from (*payloads, *meanwhile)

    try:
        file = LogFile(Path(path), durable=True)
        file.open()
        try:
            written = file.rewrite(admit, both)
        finally:
            file.close()
        if not written:
            raise CacheError(f"{path} could not be written", hint="is the disk full? nothing was left behind")
    finally:
        if not written:
            os.unlink(path)


def _compared(known: ModelEntries) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of the entries that answer what another file answered first: those that say the same, and the others."""
    first = known.firsts()
    later = np.flatnonzero(known.source != known.source[first])
    # of several in one file only the first is ever read
    _, own = np.unique(first[later] * (int(known.source.max(initial=0)) + 1) + known.source[later], return_index=True)
    later = later[np.sort(own)]
    alike = _alike(known.entries, first[later], later)
    return later[alike], later[~alike]


def _alike(entries: Entries, left: NDArray[np.int64], right: NDArray[np.intp]) -> NDArray[np.bool_]:
    """True, pair by pair, where entries of the same kind are equal."""
    tokens, logprobs = _answers(entries)
    alike: NDArray[np.bool_] = (tokens[left] == tokens[right]) & (logprobs[left] == logprobs[right])
    are_topks = np.flatnonzero(alike & (right < len(entries.topks.nodes)))
    one, other = rows(entries.topks, left[are_topks]), rows(entries.topks, right[are_topks])
    alike[are_topks] = (one.sizes == other.sizes) & (one.rest == other.rest)
    are_topks = are_topks[alike[are_topks]]
    one, other = rows(entries.topks, left[are_topks]), rows(entries.topks, right[are_topks])
    if are_topks.size:
        same = (one.ids == other.ids) & (one.logprobs == other.logprobs)
        alike[are_topks] = np.logical_and.reduceat(same, np.cumsum(one.sizes) - one.sizes)
    return alike


def _answers(entries: Entries) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Token and log-probability of each entry, of a top-k entry those of its best token; -1 is none."""
    topks, greedy, sampled = entries.topks, entries.greedy, entries.sampled
    begins = np.cumsum(topks.sizes) - topks.sizes
    return (
        np.concatenate([topks.ids[begins], greedy.tokens, sampled.tokens]),
        np.concatenate([topks.logprobs[begins], greedy.logprobs, sampled.logprobs]),
    )


def _conflicts(known: ModelEntries, unlike: NDArray[np.intp], order: Sequence[int], listed: int) -> Conflicts:
    """`unlike`: places of entries that contradict the first of their kind."""
    first = known.firsts()[unlike]
    _, once = np.unique(first, return_index=True)  # three files may contradict each other at one place
    unlike, first = unlike[np.sort(once)], first[np.sort(once)]
    tokens, logprobs = _answers(known.entries)
    other_token = tokens[unlike] != tokens[first]
    with np.errstate(invalid="ignore"):  # twice minus infinity
        apart = np.abs(logprobs[unlike] - logprobs[first])[~other_token]
    nodes, topks, greedy = known.entries.nodes, len(known.entries.topks.nodes), len(known.entries.greedy.nodes)

    def answer(place: int) -> FileAnswer:
        token = int(tokens[place])
        return FileAnswer(order[known.source[place]], None if token < 0 else token, float(logprobs[place]))

    def kind(place: int) -> Kind:
        return "top-k entry" if place < topks else "greedy answer" if place < topks + greedy else "sampled answer"

    # what differs most tells most
    shown = np.argsort(~other_token, kind="stable")[:listed]
    some = (
        Conflict(known.model, kind(place), known.tree.path(int(nodes[place])), answer(earlier), answer(place))
        for earlier, place in zip(first[shown].tolist(), unlike[shown].tolist(), strict=True)
    )
    return Conflicts(len(unlike), int(other_token.sum()), float(np.nanmax(apart, initial=0.0)), tuple(some))
