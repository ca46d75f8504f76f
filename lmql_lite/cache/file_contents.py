"""Contents of whole `.tokens` files as columns, for the tools that work on files.

A `TokenTree` serves runs: it is bounded in bytes, and read one place at a time. Here all entries of a file are in a few
numpy arrays.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.columns import Entries, Model, joined
from lmql_lite.cache.framing import RECORD, LogFrame, check_format, scan
from lmql_lite.cache.node_table import ROOT, NodeTable
from lmql_lite.cache.record_io import Added, Lost, RecordReader
from lmql_lite.cache.redis_log import RedisLog, is_redis_url
from lmql_lite.cache.token_text import visible
from lmql_lite.errors import CacheError

NO_FRAME = "no frame begins here"


@dataclass(frozen=True, slots=True, eq=False)
class ModelEntries:
    """Entries of one model, at nodes of `tree`, each kind in the order of writing."""

    model: Model
    tree: NodeTable
    entries: Entries
    written: NDArray[np.int64]
    """Shape (entries,): times of writing in Unix seconds, 0 if not known."""
    replaced: NDArray[np.bool_]
    """Shape (nodes,): True where a record superseded earlier entries, which readers may still have in memory."""

    def __len__(self) -> int:
        return len(self.written)

    def where(self, keep: NDArray[np.bool_]) -> ModelEntries:
        """The entries for which `keep`, shape (entries,), is True."""
        return replace(self, entries=self.entries.pick(np.flatnonzero(keep)), written=self.written[keep])

    def distinct(self) -> ModelEntries:
        """The entries that readers see: the first of those that answer the same question."""
        topks, greedy, sampled = self.entries.topks, self.entries.greedy, self.entries.sampled
        keys = (
            topks.nodes,
            _keys(greedy.nodes, greedy.questions),
            _keys(sampled.nodes, sampled.questions, sampled.seeds, sampled.indices),
        )
        return self.where(np.concatenate([_is_first(each) for each in keys]))


def _keys(nodes: NDArray[np.int64], *columns: NDArray[np.generic]) -> NDArray[np.void]:
    """One value per row, equal for equal rows."""
    parts = [
        np.ascontiguousarray(column).view(np.uint8).reshape(len(nodes), -1)
        for column in (nodes, *columns)
        if len(nodes)
    ]
    table = np.ascontiguousarray(np.concatenate(parts, axis=1)) if parts else np.zeros((0, 1), np.uint8)
    return table.view(f"V{table.shape[1]}").reshape(-1)


def _is_first(keys: NDArray[np.generic]) -> NDArray[np.bool_]:
    """True for keys that differ from all earlier ones."""
    is_first = np.zeros(len(keys), np.bool_)
    is_first[np.unique(keys, return_index=True)[1]] = True
    return is_first


# reading


@dataclass(frozen=True, slots=True)
class Damage:
    """Unusable bytes of a file, from `start` to `end`."""

    start: int
    end: int
    what: str


@dataclass(frozen=True, eq=False)
class FileContents:
    """Readable contents of a file, and places of damage. `frames` counts the readable frames."""

    bytes: int
    frames: int
    damage: tuple[Damage, ...]
    torn_bytes: int
    """Bytes of an incomplete frame at the end: a write in progress, or one cut short. The next writer repairs it."""
    strange_frames: int
    """Number of whole frames of a kind that this version does not know; they count as damage."""
    gathered: GatheredEntries

    @cached_property
    def by_model(self) -> dict[str, ModelEntries]:
        """Entries by fingerprint, without superseded ones. Duplicate answers are included (see `distinct`)."""
        return self.gathered.by_model()

    @property
    def is_sound(self) -> bool:
        return not self.damage

    @property
    def models(self) -> tuple[Model, ...]:
        return tuple(one.model for one in self.by_model.values())

    @property
    def nodes(self) -> int:
        """Number of nodes without the roots."""
        return sum(len(one.tree) - 1 for one in self.by_model.values())

    @property
    def topks(self) -> int:
        return sum(len(one.entries.topks.nodes) for one in self.by_model.values())

    @property
    def greedy(self) -> int:
        return sum(len(one.entries.greedy.nodes) for one in self.by_model.values())

    @property
    def sampled(self) -> int:
        return sum(len(one.entries.sampled.nodes) for one in self.by_model.values())


def read_file(path: str | os.PathLike[str], gathered: GatheredEntries | None = None) -> FileContents:
    """Contents of a whole file or of the stream of a `redis://` URL, checked, read without a lock or a change. Several
    files may share one `gathered`. Blocks. Raises CacheError if the file cannot be read or is not a `.tokens` file."""
    gathered = GatheredEntries() if gathered is None else gathered
    data = _stream_of(str(path)) if is_redis_url(path) else _bytes_of(Path(path))
    check_format(io.BytesIO(data), path)
    found = scan(data, 0)
    frames = [place.frame for place in found.places]
    lost = gathered.read(frames)
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
        gathered=gathered,
    )


class GatheredEntries:
    """Entries of several logs, read in order. For equal questions the first log counts."""

    def __init__(self) -> None:
        self._models: dict[str, _Gathered] = {}

    def read(self, frames: Sequence[LogFrame]) -> list[Lost]:
        """Reads all frames of one log. Returns the unusable ones."""
        lost: list[Lost] = []
        new: dict[str, list[Added]] = {}
        for added in RecordReader(lambda model: self._of(model).tree.extend_many).read(frames):
            if isinstance(added, Lost):
                lost.append(added)
            else:
                new.setdefault(added.model.fingerprint, []).append(added)
        for fingerprint, parts in new.items():
            self._models[fingerprint].add(parts)
        return lost

    def by_model(self) -> dict[str, ModelEntries]:
        """Entries by fingerprint, in the order of the models' first records."""
        return {fingerprint: gathered.all() for fingerprint, gathered in self._models.items()}

    def _of(self, model: Model) -> _Gathered:
        gathered = self._models.setdefault(model.fingerprint, _Gathered())
        gathered.models[model] = None
        return gathered


@dataclass(slots=True)
class _Gathered:
    """Entries of one model while logs are read."""

    models: dict[Model, None] = field(default_factory=dict)
    tree: NodeTable = field(default_factory=NodeTable)
    parts: list[Entries] = field(default_factory=lambda: [Entries()])
    written: list[NDArray[np.int64]] = field(default_factory=lambda: [np.zeros(0, np.int64)])
    """Shape (entries,) for each part."""
    replaced: list[NDArray[np.int64]] = field(default_factory=list)
    """Nodes where a record superseded earlier entries."""

    def add(self, parts: Sequence[Added]) -> None:
        """Adds the entries of one log, without those that a later record of the log superseded."""
        latest = np.zeros(len(self.tree), np.int64)
        for number, part in enumerate(parts):
            if part.replaces:
                latest[part.entries.nodes] = number
                self.replaced.append(part.entries.nodes)
        for number, part in enumerate(parts):
            keep = np.flatnonzero(latest[part.entries.nodes] <= number)
            is_whole = len(keep) == len(part.written)
            self.parts.append(part.entries if is_whole else part.entries.pick(keep))
            self.written.append(part.written[keep])

    def all(self) -> ModelEntries:
        entries = Entries(
            joined([one.topks for one in self.parts]),
            joined([one.greedy for one in self.parts]),
            joined([one.sampled for one in self.parts]),
        )
        by_kind = [
            np.split(times, np.cumsum([len(part.topks.nodes), len(part.greedy.nodes)]))
            for part, times in zip(self.parts, self.written, strict=True)
        ]
        written = np.concatenate([part[kind] for kind in range(3) for part in by_kind])
        replaced = np.zeros(len(self.tree), np.bool_)
        for nodes in self.replaced:
            replaced[nodes] = True
        return ModelEntries(self._model(entries), self.tree, entries, written, replaced)

    def _model(self, entries: Entries) -> Model:
        """The model as its first record declares it. An impossible vocabulary size becomes unknown."""
        size = max(model.vocabulary_size for model in self.models)
        _, tokens = self.tree.columns(np.arange(len(self.tree), dtype=np.int32))
        fits = max(int(tokens.max()), int(entries.topks.ids.max(initial=-1))) < size
        return replace(next(iter(self.models)), vocabulary_size=size if fits else 0)


def _stream_of(url: str) -> bytes:
    log = RedisLog(url, durable=False)
    try:
        return log.read_all()
    finally:
        log.close()


def _bytes_of(path: Path) -> bytes:
    if path.is_dir():
        raise CacheError(f"{path} is a directory", hint=f"name a file in it: {path / 'cache.tokens'}")
    if path.exists() and not path.is_file():
        raise CacheError(f"{path} is a device, pipe or socket", hint="name a file")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CacheError(
            f"there is no file {path}", hint=f"check the name, or create the file: lq run QUERY --cache {path}"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: the name is not a possible file name
        raise CacheError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error


# entries one by one


def exported(known: ModelEntries) -> Iterator[dict[str, Any]]:
    """Entries as JSON data, made one by one. None stands for minus infinity, no token, and no time."""
    model = {"model": known.model.name, "fingerprint": known.model.fingerprint}
    path = _NodePaths(known.tree).of
    topks, greedy, sampled = known.entries.topks, known.entries.greedy, known.entries.sampled
    ends = np.cumsum(topks.sizes).tolist()

    def entry(kind: str, place: int, node: int) -> dict[str, Any]:
        return model | {"kind": kind, "path": path(node), "written": int(known.written[place]) or None}

    for row, node in enumerate(topks.nodes.tolist()):
        places = slice(ends[row] - int(topks.sizes[row]), ends[row])
        yield entry("top-k", row, node) | {
            "ids": topks.ids[places].tolist(),
            "logprobs": [_finite(logprob) for logprob in topks.logprobs[places].tolist()],
            "rest": _finite(float(topks.rest[row])),
        }
    place = len(topks.nodes)
    for kind, answers in (("greedy", greedy), ("sampled", sampled)):
        for row, node in enumerate(answers.nodes.tolist()):
            token = int(answers.tokens[row])
            seeded = {}
            if kind == "sampled":
                seeded = {"seed": int(sampled.seeds[row]), "index": int(sampled.indices[row])}
            yield (
                entry(kind, place + row, node)
                | seeded
                | {
                    "question": answers.questions[row].tobytes().hex(),
                    "token": None if token < 0 else token,
                    "logprob": _finite(float(answers.logprobs[row])),
                }
            )
        place += len(answers.nodes)


class _NodePaths:
    """Token ids from the root to nodes, fast if each node is the child of the one before."""

    def __init__(self, tree: NodeTable) -> None:
        self._tree = tree
        self._last = ROOT
        self._path: tuple[int, ...] = ()

    def of(self, node: int) -> tuple[int, ...]:
        follows = node != ROOT and self._tree.parent(node) == self._last
        self._path = (*self._path, self._tree.token(node)) if follows else self._tree.path(node)
        self._last = node
        return self._path


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


# models


def fingerprint_shown(fingerprint: str) -> str:
    """A short form of a fingerprint that distinguishes models: `demo:2c075f5c`."""
    kind, colon, digest = fingerprint.rpartition(":")
    return visible(kind + colon + digest[:8])


def model_shown(model: Model) -> str:
    """Name and fingerprint of a model. The name is escaped, because a file may come from anywhere."""
    return f"{visible(model.name)} ({fingerprint_shown(model.fingerprint)})"


def chosen(models: Sequence[Model], wanted: str | None) -> tuple[Model, ...]:
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
