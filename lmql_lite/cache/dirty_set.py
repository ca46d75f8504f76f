"""Entries that were added to a token tree and are not written yet."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import NamedTuple

from lmql_lite.cache.tree import Answer, Fact, Node

Question = bytes | tuple[bytes, int, int]
"""Of a greedy answer its digest, of a sampled one (digest, seed, index)."""


class Changes(NamedTuple):
    """Entries that were added since the last time, each kind in the order in which they came.

    `scores`: (node, fact); `answers`: (node, question, answer). The nodes stay as long as this does. Scores that have
    been evicted since are given as their top-k entry. At the `replaced` nodes, these entries supersede all others.
    """

    scores: tuple[tuple[Node, Fact], ...]
    answers: tuple[tuple[Node, Question, Answer], ...]
    replaced: frozenset[Node]

    @property
    def places(self) -> frozenset[Node]:
        """The nodes of the entries."""
        return frozenset(entry[0] for entries in (self.scores, self.answers) for entry in entries)

    def at(self, nodes: Set[Node]) -> Changes:
        """The entries of these nodes."""
        return self._replace(
            scores=tuple(entry for entry in self.scores if entry[0] in nodes),
            answers=tuple(entry for entry in self.answers if entry[0] in nodes),
        )


class DirtySet:
    """Collects what is added to a tree. `hold` keeps the nodes."""

    def __init__(self, hold: Callable[[Node], Node]) -> None:
        self._hold = hold
        self._scores: dict[Node, Fact] = {}
        self._answers: dict[tuple[Node, Question], Answer] = {}
        self.replaced: set[Node] = set()

    def __bool__(self) -> bool:
        return bool(self._scores or self._answers)

    def scores(self, node: Node, fact: Fact) -> None:
        self._scores[self._hold(node)] = fact

    def cooled(self, node: Node, fact: Fact) -> None:
        """Only this is left of scores: they are not to be kept alive for being new."""
        if node in self._scores:
            self._scores[node] = fact

    def answer(self, node: Node, question: Question, answer: Answer) -> None:
        self._answers[self._hold(node), question] = answer

    def forget(self, nodes: Set[Node]) -> None:
        """The entries of these nodes are superseded."""
        self._scores = {node: fact for node, fact in self._scores.items() if node not in nodes}
        self._answers = {asked: answer for asked, answer in self._answers.items() if asked[0] not in nodes}

    def replace(self, nodes: Set[Node]) -> None:
        """Lets whatever is added to these nodes from now on supersede all that was known of them."""
        self.forget(nodes)
        self.replaced.update(map(self._hold, nodes))

    def changes(self) -> Changes:
        answers = tuple((node, question, answer) for (node, question), answer in self._answers.items())
        return Changes(tuple(self._scores.items()), answers, frozenset(self.replaced))
