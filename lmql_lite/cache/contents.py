"""Contents of whole `.tokens` files, for the tools that work on files: entries with their paths, as a tree and as JSON
data."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmql_lite.cache.entry import ROOT_TOKEN, Answer, Question
from lmql_lite.cache.recorded import Stored, is_recording, read_recording
from lmql_lite.cache.token_text import visible
from lmql_lite.cache.top_k import TopK
from lmql_lite.cache.tree_file import TreeFile
from lmql_lite.cache.tree_rows import (
    ModelName,
    RowError,
    TreeRow,
    unpacked_answer,
    unpacked_question,
    unpacked_scores,
    unpacked_tokens,
)
from lmql_lite.cache.tree_server import TreeServer, is_redis_url
from lmql_lite.cache.version_2 import is_version_2, read_version_2
from lmql_lite.errors import CacheError


class StoredPlace:
    """A place in a tree of paths, with its entries."""

    __slots__ = ("below", "entries", "parent", "token")

    def __init__(self, parent: StoredPlace | None, token: int) -> None:
        self.parent = parent
        self.token = token
        self.below: dict[int, StoredPlace] = {}
        self.entries: list[StoredEntry] = []

    def extended(self, tokens: Iterable[int]) -> StoredPlace:
        """The place to which tokens lead."""
        place = self
        for token in tokens:
            below = place.below.get(token)
            place = place.below.setdefault(token, StoredPlace(place, token)) if below is None else below
        return place

    @property
    def path(self) -> tuple[int, ...]:
        tokens: list[int] = []
        place: StoredPlace | None = self
        while place is not None and place.parent is not None:
            tokens.append(place.token)
            place = place.parent
        return tuple(reversed(tokens))


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry: scores, or the answer to a question. `onward` are further tokens of the best one (S11); `written` is
    the time of writing in Unix seconds, 0 if not known."""

    place: StoredPlace = field(repr=False)
    question: Question | None
    value: TopK | Answer
    onward: tuple[int, ...]
    written: int

    @property
    def kind(self) -> str:
        if self.question is None:
            return "top-k"
        return "greedy" if isinstance(self.question, bytes) else "sampled"


@dataclass(slots=True)
class ModelEntries:
    """Entries of one model, in the order of writing, and the tree of their paths."""

    model: ModelName
    root: StoredPlace = field(default_factory=lambda: StoredPlace(None, ROOT_TOKEN))
    entries: list[StoredEntry] = field(default_factory=list)

    def add(self, path: StoredPlace, row: TreeRow, written: int) -> None:
        """Adds the entry of a row. Raises RowError."""
        if row.question:
            answer, onward = unpacked_answer(row.value)
            entry = StoredEntry(path, unpacked_question(row.question), answer, tuple(onward), written)
            first = answer.token
        else:
            scores, onward = unpacked_scores(row.value, self.model.vocabulary_size)
            entry = StoredEntry(path, None, scores, tuple(onward), written)
            first = scores.ids.item(0)
        if onward:
            path.extended((first, *onward[:-1]))
        path.entries.append(entry)
        self.entries.append(entry)


@dataclass(frozen=True, slots=True)
class FileContents:
    """Readable contents of a file, and sentences about damage."""

    bytes: int
    damage: tuple[str, ...]
    by_model: dict[str, ModelEntries]

    @property
    def is_sound(self) -> bool:
        return not self.damage

    @property
    def models(self) -> tuple[ModelName, ...]:
        return tuple(one.model for one in self.by_model.values())

    @property
    def nodes(self) -> int:
        """Number of nodes without the roots."""
        return sum(sum(1 for _ in places_below(one.root)) for one in self.by_model.values())

    def count(self, kind: str) -> int:
        """Number of entries of a kind."""
        return sum(entry.kind == kind for one in self.by_model.values() for entry in one.entries)


def places_below(root: StoredPlace) -> Iterator[StoredPlace]:
    waiting = list(root.below.values())
    while waiting:
        place = waiting.pop()
        waiting += place.below.values()
        yield place


def stored_rows(path: str | os.PathLike[str]) -> tuple[list[Stored], int, list[str]]:
    """The rows of a file, a recording, or the server of a `redis://` URL, its bytes, and sentences about damage.
    Blocks. Raises CacheError if the file cannot be read or is not a `.tokens` file."""
    if is_redis_url(path):
        server = TreeServer(str(path))
        try:
            rows = list(server.stored())
            return rows, sum(len(row.value) + len(row.tokens) for *_, row in rows), list(server.notices)
        finally:
            server.close()
    given = Path(path)
    check_there(given)
    if is_version_2(given):
        return read_version_2(given)
    if is_recording(given):
        rows, lines = read_recording(given)
        return rows, given.stat().st_size, [f"{lines:,} damaged {'line' if lines == 1 else 'lines'}"] if lines else []
    file = TreeFile(given, reads_only=True)
    file.open()
    try:
        rows = list(file.stored())
        return rows, given.stat().st_size, [*file.notices, *file.problems()]
    finally:
        file.close()


def read_file(path: str | os.PathLike[str]) -> FileContents:
    """Contents of a whole file or of the rows on a server; errors as in `stored_rows`."""
    rows, size, damage = stored_rows(path)
    found: dict[str, ModelEntries] = {}
    places: dict[tuple[str, int], StoredPlace] = {}
    waiting = rows
    while waiting:
        later: list[Stored] = []
        for stored in waiting:
            model, written, row = stored
            entries = found.setdefault(model.fingerprint, ModelEntries(model))
            above = entries.root if not row.parent else places.get((model.fingerprint, row.parent))
            if above is None:  # what it continues was written again later
                later.append(stored)
                continue
            try:
                place = above.extended(unpacked_tokens(row.tokens))
                entries.add(place, row, written)
            except RowError as error:
                damage.append(f"an entry of {model.name}: {error}")
                continue
            places[model.fingerprint, row.place] = place
        if len(later) == len(waiting):
            break
        waiting = later
    return FileContents(size, tuple(damage), found)


def check_there(path: Path) -> None:
    """Raises CacheError for a file that is missing."""
    if path.is_dir():
        raise CacheError(f"{path} is a directory", hint=f"name a file in it: {path / 'cache.tokens'}")
    try:
        is_there = path.exists()
    except (OSError, ValueError):
        is_there = False
    if not is_there:
        raise CacheError(
            f"there is no file {path}", hint=f"check the name, or create the file: lq run QUERY --cache {path}"
        )
    if not path.is_file():
        raise CacheError(f"{path} is a device, pipe or socket", hint="name a file")


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


# a summary for people


@dataclass(frozen=True, slots=True)
class Count:
    """Numbers of entries, by kind."""

    topks: int
    greedy: int
    sampled: int

    @property
    def total(self) -> int:
        return self.topks + self.greedy + self.sampled

    def plus(self, other: Count) -> Count:
        return Count(self.topks + other.topks, self.greedy + other.greedy, self.sampled + other.sampled)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens that follow each other without a branch. The first stretch begins at the root and may have no tokens.

    `parent` is the index of the stretch that it branches off from, None for the first; `depth` is the number of
    branches that lead here. `here` and `below` count entries after its tokens and in the stretches under it. `hidden`
    counts the child stretches that are left out.
    """

    parent: int | None
    depth: int
    tokens: tuple[int, ...]
    here: Count
    below: Count
    hidden: int


@dataclass(slots=True)
class _Part:
    """A stretch while the tree is surveyed."""

    above: _Part | None
    level: int
    tokens: list[int]
    here: Count = Count(0, 0, 0)
    below: Count = Count(0, 0, 0)
    parts: list[_Part] = field(default_factory=list)
    number: int = -1


def survey(known: ModelEntries, *, depth: int | None = None, limit: int | None = None) -> list[Stretch]:
    """The stretches of a tree, parents before children, and siblings by their number of entries, most first.

    At most `limit` stretches, those with most entries in and below them, and at most `depth` branches deep.
    """
    parts = [_Part(None, 0, [])]
    waiting = [(known.root, parts[0])]
    while waiting:
        place, part = waiting.pop()
        while True:
            kinds = [entry.kind for entry in place.entries]
            part.here = part.here.plus(Count(kinds.count("top-k"), kinds.count("greedy"), kinds.count("sampled")))
            if len(place.below) != 1:
                break
            (place,) = place.below.values()
            part.tokens.append(place.token)
        for below in place.below.values():
            part.parts.append(_Part(part, part.level + 1, [below.token]))
            waiting.append((below, part.parts[-1]))
        parts += part.parts
    for part in sorted(parts, key=lambda part: -part.level):
        if part.above is not None:
            part.above.below = part.above.below.plus(part.here.plus(part.below))
    for part in parts:
        part.parts.sort(key=_weight)
    shown = _shown(parts[0], depth, limit)
    found: list[Stretch] = []
    order = [parts[0]]
    while order:
        part = order.pop()
        part.number = len(found)
        inner = [each for each in part.parts if id(each) in shown]
        order += reversed(inner)
        parent = None if part.above is None else part.above.number
        hidden = len(part.parts) - len(inner)
        found.append(Stretch(parent, part.level, tuple(part.tokens), part.here, part.below, hidden))
    return found


def _weight(part: _Part) -> int:
    return -(part.here.total + part.below.total)


def _shown(first: _Part, depth: int | None, limit: int | None) -> set[int]:
    """The stretches with most entries in and below them. A parent never has fewer than its children."""
    shown: set[int] = set()
    best = [(0, 0, first)]
    count = 1
    while best and (limit is None or len(shown) < limit):
        _, _, part = heapq.heappop(best)
        shown.add(id(part))
        if depth is None or part.level < depth:
            for each in part.parts:
                heapq.heappush(best, (_weight(each), count, each))
                count += 1
    return shown
