"""What is new in a token tree since it was last asked: for whoever writes it down."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import NamedTuple

from lmql_lite.cache.tree import Answer, Fact, Node

Question = bytes | tuple[bytes, int, int]
"""Of a verdict its digest, of a draw (digest, seed, index)."""


class Changes(NamedTuple):
    """The facts that have been added since the last time, each kind in the order in which it was.

    `scores`, `verdicts`: (node, ..); `draws`: (node, question, seed, index, answer). The nodes stay as long as this
    does. Scores that have been evicted since are told as their head. At the `replaced` nodes, what is told here takes
    the place of all that was known of them.
    """

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
    """Collects what is added to a tree. With `hold`, what is told of a node keeps it."""

    def __init__(self, hold: Callable[[Node], Node]) -> None:
        self._hold = hold
        self._scores: dict[Node, Fact] = {}
        self._answers: dict[tuple[Node, Question], Answer] = {}
        self.replaced: set[Node] = set()

    @property
    def has_facts(self) -> bool:
        return bool(self._scores or self._answers)

    def scores(self, node: Node, fact: Fact) -> None:
        self._scores[self._hold(node)] = fact

    def cooled(self, node: Node, fact: Fact) -> None:
        """Only this is left of scores: they are not to be kept alive for being news."""
        if node in self._scores:
            self._scores[node] = fact

    def answer(self, node: Node, question: Question, answer: Answer) -> None:
        self._answers[self._hold(node), question] = answer

    def forget(self, nodes: Set[Node]) -> None:
        """What was told of these nodes counts no more."""
        self._scores = {node: fact for node, fact in self._scores.items() if node not in nodes}
        self._answers = {asked: answer for asked, answer in self._answers.items() if asked[0] not in nodes}

    def replace(self, nodes: Set[Node]) -> None:
        """What is told of these nodes from now on takes the place of all that was known of them."""
        self.forget(nodes)
        self.replaced.update(map(self._hold, nodes))

    def changes(self) -> Changes:
        verdicts: list[tuple[Node, bytes, Answer]] = []
        draws: list[tuple[Node, bytes, int, int, Answer]] = []
        for (node, question), answer in self._answers.items():
            if isinstance(question, bytes):
                verdicts.append((node, question, answer))
            else:
                draws.append((node, *question, answer))
        return Changes(tuple(self._scores.items()), tuple(verdicts), tuple(draws), frozenset(self.replaced))
