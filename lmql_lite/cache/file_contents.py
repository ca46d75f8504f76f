"""All that stands in `.tokens` files at one moment, as columns: for work on whole files, as compaction or a merge is.

A `Trie` is for runs: bounded in bytes, and read one place at a time. Here nothing is left out, and a million entries
are a few numpy arrays.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.columns import Entries, Model, joined
from lmql_lite.cache.framing import RECORD, Frame, check_format, scan
from lmql_lite.cache.nodes import Nodes
from lmql_lite.cache.record_reader import Added, Lost, RecordReader
from lmql_lite.cache.spelling import visible
from lmql_lite.errors import CacheError

NO_FRAME = "no frame begins here"


@dataclass(frozen=True, slots=True, eq=False)
class ModelEntries:
    """Entries of one model, at nodes of `tree`.

    The columns below have one value per entry, shape (entries,), int64: first those of top-k entries, then of greedy
    answers, then of sampled answers, each in the order in which they were written.
    """

    model: Model
    tree: Nodes
    entries: Entries
    written: NDArray[np.int64]
    """Unix seconds; 0 where it is not known."""
    batch: NDArray[np.int64]
    """Number of the records that were read at once, over all files."""
    source: NDArray[np.int64]
    """Number of the file."""
    replaced: NDArray[np.bool_]
    """Shape (nodes,): where a record superseded what was known before. A reader may know that still."""

    def __len__(self) -> int:
        return len(self.written)

    def where(self, keep: NDArray[np.bool_]) -> ModelEntries:
        """Some of the entries; `keep`, shape (entries,), says which."""
        return replace(
            self,
            entries=self.entries.pick(np.flatnonzero(keep)),
            written=self.written[keep],
            batch=self.batch[keep],
            source=self.source[keep],
        )

    def firsts(self) -> NDArray[np.int64]:
        """Shape (entries,): for each entry the first one that answers the same, which may be itself."""
        topks, greedy, sampled = self.entries.topks, self.entries.greedy, self.entries.sampled
        first = len(topks.nodes)
        second = first + len(greedy.nodes)
        asked = _keys(greedy.nodes, greedy.questions)
        drawn = _keys(sampled.nodes, sampled.questions, sampled.seeds, sampled.indices)
        return np.concatenate([_first(topks.nodes), first + _first(asked), second + _first(drawn)])

    def distinct(self) -> ModelEntries:
        """Without those that readers never see, since another one was there first."""
        return self.where(self.firsts() == np.arange(len(self)))


def _keys(nodes: NDArray[np.int64], *columns: NDArray[np.generic]) -> NDArray[np.void]:
    """One value per row that is equal where the rows are."""
    parts = [
        np.ascontiguousarray(column).view(np.uint8).reshape(len(nodes), -1)
        for column in (nodes, *columns)
        if len(nodes)
    ]
    table = np.ascontiguousarray(np.concatenate(parts, axis=1)) if parts else np.zeros((0, 1), np.uint8)
    return table.view(f"V{table.shape[1]}").reshape(-1)


def _first(keys: NDArray[np.generic]) -> NDArray[np.int64]:
    """For each key the place of the first one that equals it."""
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    places: NDArray[np.int64] = first.astype(np.int64)[which.reshape(-1)]
    return places


# files


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes `start` to `end` of the file cannot be used."""

    start: int
    end: int
    what: str


@dataclass(frozen=True, eq=False)
class FileContents:
    """Readable contents of a file, and places of damage. `frames` counts those that can be read."""

    bytes: int
    frames: int
    damage: tuple[Damage, ...]
    torn_bytes: int
    """The beginning of a frame at the end: a write that is going on, or was cut short. The next writer mends it."""
    strange_frames: int
    """Whole, but of a kind that this version does not know; they count as damage."""
    gathering: Gathering

    @cached_property
    def by_model(self) -> dict[str, ModelEntries]:
        """By fingerprint. Entries that answer the same are all there (see `distinct`), but none that is superseded."""
        return self.gathering.by_model()

    @property
    def is_sound(self) -> bool:
        return not self.damage

    @property
    def models(self) -> tuple[Model, ...]:
        return tuple(one.model for one in self.by_model.values())

    @property
    def nodes(self) -> int:
        """Nodes beside the roots."""
        return sum(len(one.tree) - 1 for one in self.by_model.values())

    @property
    def topks(self) -> int:
        return self._count("topks")

    @property
    def greedy(self) -> int:
        return self._count("greedy")

    @property
    def sampled(self) -> int:
        return self._count("sampled")

    def _count(self, kind: str) -> int:
        return sum(len(getattr(one.entries, kind).nodes) for one in self.by_model.values())


def read_file(path: str | os.PathLike[str], gathering: Gathering | None = None) -> FileContents:
    """Reads and checks a whole file, without a lock and without changing it; several into one `gathering`. Blocking.
    CacheError where it cannot be read or is not a `.tokens` file."""
    gathering = Gathering() if gathering is None else gathering
    data = _bytes_of(Path(path))
    check_format(io.BytesIO(data), path)
    found = scan(data, 0)
    frames = [place.frame for place in found.places]
    lost = gathering.read(frames)
    damage = [Damage(start, end, NO_FRAME) for start, end in found.gaps]
    damage += [Damage(found.places[one.frame].start, found.places[one.frame].end, one.why) for one in lost]
    if found.end < len(data) and not found.torn:
        damage.append(Damage(found.end, len(data), NO_FRAME))
    return FileContents(
        bytes=len(data),
        frames=len(frames) - len(lost),
        damage=tuple(sorted(damage, key=lambda one: one.start)),
        torn_bytes=len(data) - found.end if found.torn else 0,
        strange_frames=sum(frame.kind != RECORD for frame in frames),
        gathering=gathering,
    )


class Gathering:
    """Collects what logs say: one source after the other."""

    def __init__(self) -> None:
        self._sources = 0
        self._models: dict[str, _Gathered] = {}

    def read(self, frames: Sequence[Frame]) -> list[Lost]:
        """All frames of one log. What cannot be used of them."""
        lost: list[Lost] = []
        for added in RecordReader(lambda model: self._of(model).tree.extend_many).read(frames):
            if isinstance(added, Lost):
                lost.append(added)
            else:
                self._of(added.model).add(added, self._sources)
        self._sources += 1
        return lost

    def by_model(self) -> dict[str, ModelEntries]:
        """By fingerprint, in the order in which models came. Of several logs the first counts."""
        return {fingerprint: gathered.all() for fingerprint, gathered in self._models.items()}

    def _of(self, model: Model) -> _Gathered:
        gathered = self._models.setdefault(model.fingerprint, _Gathered())
        gathered.models[model] = None
        return gathered


@dataclass(slots=True)
class _Gathered:
    """Entries of one model while logs are read."""

    models: dict[Model, None] = field(default_factory=dict)
    tree: Nodes = field(default_factory=Nodes)
    parts: list[Entries] = field(default_factory=lambda: [Entries()])
    written: list[NDArray[np.int64]] = field(default_factory=list)
    """Of the entries of each part, without the first one, which is empty."""
    sources: list[int] = field(default_factory=lambda: [0])
    replaces: list[bool] = field(default_factory=lambda: [False])

    def add(self, added: Added, source: int) -> None:
        self.parts.append(added.entries)
        self.written.append(added.written)
        self.sources.append(source)
        self.replaces.append(added.replaces)

    def all(self) -> ModelEntries:
        counts = np.array([[len(kind.nodes) for kind in (one.topks, one.greedy, one.sampled)] for one in self.parts])
        batch = np.concatenate([np.repeat(np.arange(len(self.parts)), column) for column in counts.T])
        in_order = np.concatenate([np.zeros(0, np.int64), *self.written])
        # from record by record to kind by kind
        kinds = np.concatenate([np.repeat(np.arange(3), row) for row in counts])
        written = in_order[np.argsort(kinds, kind="stable")]
        entries = Entries(
            joined([one.topks for one in self.parts]),
            joined([one.greedy for one in self.parts]),
            joined([one.sampled for one in self.parts]),
        )
        source, replaces = np.array(self.sources)[batch], np.array(self.replaces)[batch]
        replaced = np.zeros(len(self.tree), np.bool_)
        replaced[entries.nodes[replaces]] = True
        found = ModelEntries(self._model(entries), self.tree, entries, written, batch, source, replaced)
        return found.where(~_superseded(found, replaces)) if replaced.any() else found

    def _model(self, entries: Entries) -> Model:
        """As the first record declares it. The size of its vocabulary is not known where it cannot be right."""
        size = max(model.vocabulary_size for model in self.models)
        _, tokens = self.tree.columns(np.arange(len(self.tree), dtype=np.int32))
        fits = max(int(tokens.max()), int(entries.topks.ids.max(initial=-1))) < size
        return replace(next(iter(self.models)), vocabulary_size=size if fits else 0)


def _superseded(found: ModelEntries, replaces: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Shape (entries,): whether a later record of the same file took the place of what is known at the node."""
    superseded = np.zeros(len(found), np.bool_)
    nodes = found.entries.nodes
    for source in np.unique(found.source):
        own = found.source == source
        latest = np.full(len(found.tree), -1)
        np.maximum.at(latest, nodes[own & replaces], found.batch[own & replaces])
        superseded |= own & (found.batch < latest[nodes])
    return superseded


def _bytes_of(path: Path) -> bytes:
    if path.is_dir():
        raise CacheError(f"{path} is a directory", hint=f"name a file in it: {path / 'cache.tokens'}")
    if path.exists() and not path.is_file():
        raise CacheError(f"{path} is a device, pipe or socket", hint="name a file")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CacheError(
            f"there is no file {path}", hint=f"lq run QUERY --cache {path} makes it; is the name right?"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: the name itself cannot be one
        raise CacheError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error


# models


def fingerprint_shown(fingerprint: str) -> str:
    """Enough of it to tell models apart: `demo:2c075f5c`."""
    kind, colon, digest = fingerprint.rpartition(":")
    return visible(kind + colon + digest[:8])


def model_shown(model: Model) -> str:
    """Its name, which a file may have from anywhere, and fingerprint."""
    return f"{visible(model.name)} ({fingerprint_shown(model.fingerprint)})"


def chosen(models: Sequence[Model], wanted: str | None) -> tuple[Model, ...]:
    """The models that a user means by a name, or by the beginning of a fingerprint; None means all.

    A name may belong to several: a model that has changed keeps its name. CacheError where there is none, and where
    the beginning of a fingerprint is that of several.
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
        raise CacheError(f"{wanted!r} is the beginning of several fingerprints: {several}", hint="write more of it")
    if not fitting:
        known = ", ".join(model_shown(model) for model in models)
        raise CacheError(
            f"the file holds nothing of a model {wanted!r}", hint=f"it knows {known}" if known else "it is empty"
        )
    return fitting
