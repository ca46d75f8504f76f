"""A run that never asks its model: which part of it a `.tokens` file knows, and why the next part is not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lmql_lite.apps.terminal import counted
from lmql_lite.apps.unasked import Unasked, UnaskedSession
from lmql_lite.cache.explain import Difference, difference
from lmql_lite.cache.file_contents import ModelEntries, fingerprint_shown, model_shown, read_file
from lmql_lite.cache.nodes import ROOT
from lmql_lite.cache.spelling import Vocabulary, size_shown
from lmql_lite.cache.texts import TURNS
from lmql_lite.errors import ModelError
from lmql_lite.models.base import Model
from lmql_lite.runtime import events
from lmql_lite.verbs import Query


@dataclass(slots=True)
class Filled:
    """A hole as far as it was filled: tokens that the file knows and tokens that conditions force.

    `oldest`, `newest`: unix seconds at which the entries that were used were written; 0 is not known. `is_whole` says
    whether the hole got its value.
    """

    name: str
    line: int
    known: int = 0
    forced: int = 0
    oldest: int = 0
    newest: int = 0
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Miss:
    """What the file does not know, and why. `difference` is where the path leaves what it does know.

    `model`: it knows nothing of this model. `prefix`: another text came before. `question`: the place is known, and was
    asked otherwise.
    """

    reason: Literal["model", "prefix", "question"]
    difference: Difference
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """`miss` is None where the file knows all that the run asks."""

    model: str
    fingerprint: str
    seed: int
    is_sampled: bool
    holes: tuple[Filled, ...]
    miss: Miss | None
    vocabulary: Vocabulary


async def explained(
    query: Query, inputs: Mapping[str, Any], file: str, *, model: str | Model | None, seed: int | None
) -> Explanation:
    """Runs the query until the file does not know on. Raises what a run raises, and CacheError as `read_file`."""
    known = read_file(file).by_model
    session, walk = UnaskedSession(), _Walk(known)
    stream = query.stream(inputs, model=model, cache=file, cache_mode="ro", seed=seed, speculate=False, session=session)
    try:
        async for event in stream:
            walk.see(event, session.unasked)
    except ModelError:
        if session.unasked is None or session.unasked.path is None:
            raise
    unasked, started = session.unasked, walk.started
    assert unasked is not None and started is not None, "a run begins with Started"
    miss = None if unasked.path is None else _miss(known, unasked, unasked.path, started, file)
    return Explanation(
        model=unasked.name,
        fingerprint=unasked.fingerprint,
        seed=started.seed,
        is_sampled=started.decoder == "sample",
        holes=tuple(walk.holes),
        miss=miss,
        vocabulary=unasked.vocabulary,
    )


class _Walk:
    """Follows a run by its events, in the tree of the file: the run's own nodes are numbered otherwise."""

    def __init__(self, known: Mapping[str, ModelEntries]) -> None:
        self.started: events.Started | None = None
        self.holes: list[Filled] = []
        self._known = known
        self._entries: ModelEntries | None = None
        self._written: NDArray[np.int64] = np.zeros(0, np.int64)
        self._nodes: dict[int, int] = {}
        self._last = ROOT

    def see(self, event: events.Event, unasked: Unasked | None) -> None:
        match event:
            case events.Started() if unasked is not None:
                self.started = event
                self._entries = self._known.get(unasked.fingerprint)
                self._written = np.zeros(0, np.int64) if self._entries is None else _written(self._entries)
            case events.HoleOpened(name, span):
                self.holes.append(Filled(name, span.line))
            case events.HoleClosed(name):
                for hole in self._of(name):
                    hole.is_whole = True
            case events.TokenMoved(token, node, parent) if token.fate == "kept" and unasked is not None:
                place = self._place(parent, unasked)
                self._nodes[node] = self._last = self._step(place, unasked.ids(token))
                for hole in self._of(token.hole):
                    hole.forced += token.source == "forced"
                    if token.source == "cache":
                        self._use(hole, place)

    def _place(self, parent: int, unasked: Unasked) -> int:
        """A node of the run in the tree of the file. What no token led to is where a text or an answer begins."""
        if parent not in self._nodes:
            begins = unasked.start if not self._nodes else (TURNS["assistant"],)
            self._nodes[parent] = self._step(self._last, begins)
        return self._nodes[parent]

    def _of(self, name: str | None) -> list[Filled]:
        """The last hole of that name, if there is one."""
        return [hole for hole in self.holes if hole.name == name][-1:]

    def _step(self, place: int, tokens: tuple[int, ...]) -> int:
        """-1 where the file has no such node."""
        if place < ROOT or self._entries is None:
            return -1
        node, many = self._entries.tree.walk(place, tokens)
        return node if many == len(tokens) else -1

    def _use(self, hole: Filled, place: int) -> None:
        hole.known += 1
        written = int(self._written[place]) if place >= ROOT else 0
        hole.newest = max(hole.newest, written)
        hole.oldest = written if hole.known == 1 else min(hole.oldest, written)


def _written(known: ModelEntries) -> NDArray[np.int64]:
    """Shape (nodes,): when the oldest entry of each node was written; 0 is not known, or there is none."""
    latest = np.iinfo(np.int64).max
    written = np.full(len(known.tree), latest)
    np.minimum.at(written, known.entries.nodes, known.written)
    return np.where(written == latest, 0, written)


def _miss(
    known: Mapping[str, ModelEntries], unasked: Unasked, path: tuple[int, ...], started: events.Started, file: str
) -> Miss:
    mine, vocabulary = known.get(unasked.fingerprint), unasked.vocabulary
    if mine is None or not len(mine):
        return Miss("model", Difference((), path[0] if path else None, ()), tuple(_other_models(known, unasked, file)))
    found = difference(mine.tree.children, path)
    node, entries = mine.tree.walk(ROOT, path)[0], mine.entries
    if found.asked is not None or not (entries.nodes == node).any():
        return Miss("prefix", found, (found.told(vocabulary, unasked.unit),))
    greedy, sampled = entries.greedy.nodes == node, entries.sampled.nodes == node
    sizes = entries.topks.sizes[entries.topks.nodes == node].tolist()
    seeds = sorted(set(entries.sampled.seeds[sampled].tolist()))
    free = "what is said without conditions"
    stored = [f"the scores of its {many} best tokens" if unasked.unit == "token" else free for many in sizes[:1]]
    if greedy.any():
        stored.append(f"{counted(int(greedy.sum()), 'answer')} under other conditions")
    if sampled.any():
        stored.append(f"answers sampled under seed {', '.join(map(str, seeds[:5]))}{' and others' * (len(seeds) > 5)}")
    wanted = f"the conditions and seed {started.seed}" if started.decoder == "sample" else "the conditions"
    place = found.place(vocabulary, unasked.unit)
    sentence = f"{place}: stored {' and '.join(stored)}, and that does not decide {wanted} of this hole"
    return Miss("question", found, (sentence,))


def _other_models(known: Mapping[str, ModelEntries], unasked: Unasked, file: str) -> list[str]:
    size = "bytes" if unasked.unit == "byte" else f"{len(unasked.vocabulary):,} tokens"
    asked = f"{unasked.name} ({fingerprint_shown(unasked.fingerprint)}, {size})"
    others = [one.model for one in known.values() if len(one)]
    if not others:
        return [f"{file} holds nothing yet"]
    sentences = [f"{file} holds nothing of {asked}"]
    for model in others:
        also = ": the name is the same, weights or tokenizer are not" if model.name == unasked.name else ""
        sentences.append(f"it knows {model_shown(model)}, {size_shown(model.vocabulary_size)}{also}")
    return sentences
