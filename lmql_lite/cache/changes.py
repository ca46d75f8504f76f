"""What is new in a token tree since it was last asked: for whoever writes it down."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.nodes import Nodes
from lmql_lite.cache.tree import Answer, Fact, Node

Question = bytes | tuple[bytes, int, int]
"""Of a verdict its digest, of a draw (digest, seed, index)."""


class Changes(NamedTuple):
    """What has been added since the last time, each kind in the order in which it was.

    `nodes`, their `parents` and `tokens`: int32, shape (new nodes,); a parent stands before its children, or was told
    of earlier, or came quietly. `scores`, `verdicts`: (node, ..); `draws`: (node, question, seed, index, answer).
    Scores that have been evicted since are told as their head. At the `replaced` nodes, what is told here takes the
    place of all that was known of them.
    """

    nodes: NDArray[np.int32]
    parents: NDArray[np.int32]
    tokens: NDArray[np.int32]
    scores: tuple[tuple[Node, Fact], ...]
    verdicts: tuple[tuple[Node, bytes, Answer], ...]
    draws: tuple[tuple[Node, bytes, int, int, Answer], ...]
    replaced: frozenset[Node]

    @property
    def places(self) -> frozenset[Node]:
        """The nodes of which facts are told."""
        return frozenset(fact[0] for facts in (self.scores, self.verdicts, self.draws) for fact in facts)

    def at(self, nodes: Set[Node]) -> Changes:
        """What is told of these nodes."""
        return self._replace(
            scores=tuple(fact for fact in self.scores if fact[0] in nodes),
            verdicts=tuple(fact for fact in self.verdicts if fact[0] in nodes),
            draws=tuple(fact for fact in self.draws if fact[0] in nodes),
        )


class News:
    """Collects what is added to a tree that had `mark` nodes."""

    def __init__(self, mark: int) -> None:
        self._mark = mark
        self._quiet: list[range] = []
        self._scores: dict[Node, Fact] = {}
        self._answers: dict[tuple[Node, Question], Answer] = {}
        self.replaced: set[Node] = set()

    @property
    def has_facts(self) -> bool:
        return bool(self._scores or self._answers)

    def quiet(self, nodes: range) -> None:
        """These are no news."""
        self._quiet.append(nodes)

    def scores(self, node: Node, fact: Fact) -> None:
        self._scores[node] = fact

    def cooled(self, node: Node, fact: Fact) -> None:
        """Only this is left of scores: they are not to be kept alive for being news."""
        if node in self._scores:
            self._scores[node] = fact

    def answer(self, node: Node, question: Question, answer: Answer) -> None:
        self._answers[node, question] = answer

    def forget(self, nodes: Set[Node]) -> None:
        """What was told of these nodes counts no more."""
        self._scores = {node: fact for node, fact in self._scores.items() if node not in nodes}
        self._answers = {asked: answer for asked, answer in self._answers.items() if asked[0] not in nodes}

    def replace(self, nodes: Set[Node]) -> None:
        """What is told of these nodes from now on takes the place of all that was known of them."""
        self.forget(nodes)
        self.replaced |= nodes

    def changes(self, nodes: Nodes) -> Changes:
        added = np.ones(len(nodes) - self._mark, dtype=np.bool_)
        for span in self._quiet:
            added[span.start - self._mark : span.stop - self._mark] = False
        new = (np.flatnonzero(added) + self._mark).astype(np.int32)
        parents, tokens = nodes.columns(new)
        scores = tuple(self._scores.items())
        verdicts: list[tuple[Node, bytes, Answer]] = []
        draws: list[tuple[Node, bytes, int, int, Answer]] = []
        for (node, question), answer in self._answers.items():
            if isinstance(question, bytes):
                verdicts.append((node, question, answer))
            else:
                draws.append((node, *question, answer))
        return Changes(new, parents, tokens, scores, tuple(verdicts), tuple(draws), frozenset(self.replaced))
