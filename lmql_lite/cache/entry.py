"""Nodes of a token tree, their entries, and the entries that no file holds yet."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import NamedTuple

from lmql_lite.cache.scores import Scores
from lmql_lite.cache.top_k import TopK


class Node(int):
    """A place in a token tree: the path of tokens from the root. Never part of a key, a seed or a file.

    The node stays in the tree as long as this object or a copy of it lives. Arithmetic gives a plain `int`, which does
    not keep the node and which no method of the tree accepts.
    """

    __slots__ = ()

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, _: object) -> Node:
        return self

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


class ScoreEntry(NamedTuple):
    """Scores of a model, whole or their top k, and the run that asked for them first.

    Runs count from 1; 0 stands for an entry from a file.
    """

    scores: Scores | TopK
    run: int


class Answer(NamedTuple):
    """Token that answers a question which a top-k entry does not decide, greedy or sampled (S1).

    `logprob` is the model's raw natural log-probability of the token; `run` is that of `ScoreEntry`.
    """

    token: int
    logprob: float
    run: int


Question = bytes | tuple[bytes, int, int]
"""Key of an answer: for a greedy one a digest of 16 bytes, for a sampled one (digest, seed, index)."""


@dataclass(slots=True)
class DirtyEntries:
    """Entries that were added to a tree and that no file holds yet, each kind in the order of arrival.

    At the `replaced` nodes these entries supersede all others. The nodes stay in the tree while this object lives.
    """

    scores: dict[Node, ScoreEntry] = field(default_factory=dict)
    answers: dict[tuple[Node, Question], Answer] = field(default_factory=dict)
    replaced: set[Node] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.scores or self.answers)

    @property
    def nodes(self) -> list[Node]:
        """The node of each entry: of scores, then of answers."""
        return [*self.scores, *(node for node, _ in self.answers)]

    def drop(self, nodes: Set[int]) -> None:
        """Removes the entries of these nodes, which are superseded."""
        self.scores = {node: entry for node, entry in self.scores.items() if node not in nodes}
        self.answers = {asked: answer for asked, answer in self.answers.items() if asked[0] not in nodes}
