"""What whole logs say of a model, as columns: for work on all of it, as compaction or a merge is.

A `Trie` is for runs: bounded in bytes, and read one place at a time. Here nothing is left out, and a million facts
are a few numpy arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.frames import DIGEST_BYTES, Batch, Draws, Heads, Model, Verdicts
from lmql_lite.cache.log import Lost, News, Renumbered
from lmql_lite.cache.nodes import ROOT, Nodes

UNKNOWN = -1
Columns = TypeVar("Columns", Heads, Verdicts, Draws)


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """Facts of one model. Rows of `heads`, `verdicts` and `draws` name nodes of `tree`.

    The columns below have one entry per fact, shape (facts,), int64: first those of heads, then of verdicts, then of
    draws, each in the order in which they were logged.
    """

    model: Model
    tree: Nodes
    heads: Heads
    verdicts: Verdicts
    draws: Draws
    written: NDArray[np.int64]
    """Unix seconds; 0 where it is not known."""
    batch: NDArray[np.int64]
    """Number of the batch, over all logs."""
    source: NDArray[np.int64]
    """Number of the log."""
    replaced: NDArray[np.bool_]
    """Shape (nodes,): where a batch took the place of what was said before. A reader may know that still."""

    def __len__(self) -> int:
        return len(self.written)

    @property
    def nodes(self) -> NDArray[np.int64]:
        """Shape (facts,): where each fact stands."""
        return np.concatenate([self.heads.nodes, self.verdicts.nodes, self.draws.nodes])

    def needed(self, rank: NDArray[np.int64]) -> NDArray[np.int64]:
        """Shape (nodes,): the lowest `rank`, shape (facts,), of the facts at or below a node; where none are, how many
        facts there are."""
        lowest = np.full(len(self.tree), len(self), np.int64)
        np.minimum.at(lowest, self.nodes, rank)
        parents, _ = self.tree.columns(np.arange(len(self.tree), dtype=np.int32))
        above, least = parents.data, lowest.data  # memoryviews give Python's integers
        for node in range(len(lowest) - 1, ROOT, -1):  # a parent has a lower number than its children
            if least[node] < least[above[node]]:
                least[above[node]] = least[node]
        return lowest

    def where(self, keep: NDArray[np.bool_]) -> Facts:
        """The facts that `keep`, shape (facts,), says."""
        h, v = len(self.heads.nodes), len(self.heads.nodes) + len(self.verdicts.nodes)
        return replace(
            self,
            heads=rows(self.heads, np.flatnonzero(keep[:h])),
            verdicts=picked(self.verdicts, np.flatnonzero(keep[h:v])),
            draws=picked(self.draws, np.flatnonzero(keep[v:])),
            written=self.written[keep],
            batch=self.batch[keep],
            source=self.source[keep],
        )

    def firsts(self) -> NDArray[np.int64]:
        """Shape (facts,): for each fact the first one that answers the same, which may be itself."""
        h, v = len(self.heads.nodes), len(self.heads.nodes) + len(self.verdicts.nodes)
        verdicts, draws = self.verdicts, self.draws
        asked = _keys(verdicts.nodes, verdicts.questions)
        drawn = _keys(draws.nodes, draws.questions, draws.seeds, draws.indices)
        return np.concatenate([_first(self.heads.nodes), h + _first(asked), v + _first(drawn)])

    def distinct(self) -> Facts:
        """Without those that readers never see, since another one was there first."""
        return self.where(self.firsts() == np.arange(len(self)))


def rows(heads: Heads, places: NDArray[np.intp]) -> Heads:
    """Some of the heads."""
    sizes = heads.sizes[places]
    begins = (np.cumsum(heads.sizes) - heads.sizes)[places]
    flat = np.arange(int(sizes.sum())) + np.repeat(begins - (np.cumsum(sizes) - sizes), sizes)
    return Heads(heads.nodes[places], sizes, heads.rest[places], heads.ids[flat], heads.logprobs[flat])


def picked(facts: Columns, places: NDArray[np.intp]) -> Columns:
    """Some of the verdicts or draws."""
    return type(facts)(*(getattr(facts, column.name)[places] for column in fields(facts)))


def _keys(nodes: NDArray[np.int64], questions: NDArray[np.uint8], *numbers: NDArray[np.generic]) -> NDArray[np.void]:
    """One value per row that is equal where the rows are."""
    bytes_of = [np.ascontiguousarray(column).view(np.uint8) for column in (nodes, *numbers)]
    parts = [column.reshape(len(nodes), column.size // max(len(nodes), 1)) for column in bytes_of]
    table = np.ascontiguousarray(np.concatenate([*parts, questions.reshape(-1, DIGEST_BYTES)], axis=1))
    return table.view(f"V{max(table.shape[1], 1)}").reshape(-1)


def _first(keys: NDArray[np.generic]) -> NDArray[np.int64]:
    """For each key the place of the first one that equals it."""
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    places: NDArray[np.int64] = first.astype(np.int64)[which.reshape(-1)]
    return places


def gathered(logs: Iterable[Sequence[News]]) -> dict[str, Facts]:
    """All that the logs say, by fingerprint, in the order in which models were declared.

    Facts that answer the same are all there (see `distinct`), but none that was replaced. What hangs on lost nodes is
    lost with them.
    """
    gatherings: dict[str, _Gathering] = {}
    for source, log in enumerate(logs):
        begin = max((place + 1 for place, news in enumerate(log) if isinstance(news, Renumbered)), default=0)
        accounts: dict[int, _Account] = {}
        for news in log[begin:]:
            match news:
                case Model(number, fingerprint):
                    gathering = gatherings.setdefault(fingerprint, _Gathering())
                    gathering.models.append(news)
                    accounts.setdefault(number, _Account(gathering, source))
                case Batch(model):
                    accounts[model].admit(news)
                case Lost(model, first, count) if model in accounts:
                    accounts[model].lose(first + count)
    return {fingerprint: gathering.facts() for fingerprint, gathering in gatherings.items()}


class _Gathering:
    """Facts of one model while logs are read."""

    def __init__(self) -> None:
        self.models: list[Model] = []
        self.tree = Nodes()
        self.heads, self.verdicts, self.draws = [Heads()], [Verdicts()], [Draws()]
        self.batches: list[tuple[int, int, int]] = []
        """Of each one: when it was written, in which log it stands, and whether it replaces what was there before."""

    def facts(self) -> Facts:
        kinds = (self.heads, self.verdicts, self.draws)
        begin = range(-1, len(self.batches))  # of each kind an empty part comes first
        batch = np.concatenate([np.repeat(begin, [len(part.nodes) for part in parts]) for parts in kinds])
        written, source, replaces = np.array(self.batches, np.int64).reshape(-1, 3)[batch].T
        heads, verdicts, draws = joined(self.heads), joined(self.verdicts), joined(self.draws)
        replaced = np.zeros(len(self.tree), np.bool_)
        facts = Facts(self._model(heads), self.tree, heads, verdicts, draws, written, batch, source, replaced)
        replaced[facts.nodes[replaces > 0]] = True
        return facts.where(~_taken_back(facts, replaces > 0)) if replaced.any() else facts

    def _model(self, heads: Heads) -> Model:
        """As the first log declares it. The size of its vocabulary is not known where it cannot be right."""
        size = max(model.vocabulary_size for model in self.models)
        _, tokens = self.tree.columns(np.arange(len(self.tree), dtype=np.int32))
        fits = max(int(tokens.max()), int(heads.ids.max(initial=-1))) < size
        return replace(self.models[0], vocabulary_size=size if fits else 0)


def _taken_back(facts: Facts, replaces: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Shape (facts,): whether a later batch of the same log took the place of what is known at the node."""
    taken_back = np.zeros(len(facts), np.bool_)
    nodes = facts.nodes
    for source in np.unique(facts.source):
        own = facts.source == source
        latest = np.full(len(facts.tree), -1)
        np.maximum.at(latest, nodes[own & replaces], facts.batch[own & replaces])
        taken_back |= own & (facts.batch < latest[nodes])
    return taken_back


class _Account:
    """The numbers of one model in one log: of each its node, UNKNOWN where that was lost."""

    def __init__(self, gathering: _Gathering, source: int) -> None:
        self._gathering = gathering
        self._source = source
        self._nodes = array("q", [ROOT])

    def lose(self, stop: int) -> None:
        """The numbers below `stop` are taken."""
        self._nodes.extend([UNKNOWN] * max(stop - len(self._nodes), 0))

    def admit(self, batch: Batch) -> None:
        self.lose(batch.first)
        self._nodes.frombytes(self._admit_nodes(batch).tobytes())
        known = np.frombuffer(self._nodes, np.int64)
        gathering, heads = self._gathering, batch.heads
        heads = replace(heads, nodes=known[heads.nodes])
        gathering.heads.append(rows(heads, np.flatnonzero(heads.nodes != UNKNOWN)))
        verdicts = replace(batch.verdicts, nodes=known[batch.verdicts.nodes])
        gathering.verdicts.append(picked(verdicts, np.flatnonzero(verdicts.nodes != UNKNOWN)))
        draws = replace(batch.draws, nodes=known[batch.draws.nodes])
        gathering.draws.append(picked(draws, np.flatnonzero(draws.nodes != UNKNOWN)))
        gathering.batches.append((batch.written, self._source, batch.replaces))

    def _admit_nodes(self, batch: Batch) -> NDArray[np.int64]:
        tree, first = self._gathering.tree, batch.first
        inside = batch.parents >= first
        before = np.frombuffer(self._nodes, np.int64)[np.where(inside, ROOT, batch.parents)]
        lost = ~inside & (before == UNKNOWN)
        if not lost.any():
            above = np.where(inside, first - 1 - batch.parents, before)
            return tree.extend_many(above, batch.tokens).astype(np.int64)
        nodes: list[int] = []
        for parent, token in zip(batch.parents.tolist(), batch.tokens.tolist(), strict=True):
            node = nodes[parent - first] if parent >= first else self._nodes[parent]
            nodes.append(UNKNOWN if node == UNKNOWN else tree.extend(node, token))
        return np.array(nodes, np.int64)


def joined(parts: Sequence[Columns]) -> Columns:
    """The rows of all parts."""
    names = [column.name for column in fields(parts[0])]
    return type(parts[0])(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
