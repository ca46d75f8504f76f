"""Where a path leaves what is stored, and the words for it: the first difference explains a miss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lmql_lite.cache.nodes import ROOT
from lmql_lite.cache.spelling import Vocabulary, spelled
from lmql_lite.cache.tree import Node

NAMED = 3
"""So many tokens are named, of those by which what is stored goes on."""
SHOWN = 60
"""Characters of a text that are shown."""


Children = Callable[[Node], Iterable[tuple[int, Node]]]
"""Token and node of each child that is stored."""


@dataclass(frozen=True, slots=True)
class Difference:
    """`before`: the tokens of the path that are stored. `asked`: the one that follows, None where all of it is stored.

    `stored`: the tokens by which what is stored goes on from there, by the numbers of their nodes.
    """

    before: tuple[int, ...]
    asked: int | None
    stored: tuple[int, ...]

    def __str__(self) -> str:
        return self.told(None)

    def told(self, vocabulary: Vocabulary | None, unit: str = "token") -> str:
        """One clause: `at token 37, after "Q: Why did": stored " the", asked " a"`. In a tree of text the unit is a
        byte."""
        place = self.place(vocabulary, unit)
        named = ", ".join(spelled([token], vocabulary) for token in self.stored[:NAMED])
        if len(self.stored) > NAMED:
            named += f" and {len(self.stored) - NAMED} others"
        if self.asked is not None:
            return f"{place}: stored {named or 'nothing'}, asked {spelled([self.asked], vocabulary)}"
        if named:
            return f"{place}: stored is that text went on with {named}, not what the model says there"
        return f"{place}: nothing is stored"

    def place(self, vocabulary: Vocabulary | None, unit: str = "token") -> str:
        """`at token 37, after "Q: Why did"`."""
        before = spelled(self.before, vocabulary)
        if len(before) > SHOWN:
            before = f"…{before[-SHOWN:]}"
        return f"at {unit} {len(self.before) + 1}, {f'after {before}' if self.before else 'the first'}"


def difference(stored: Children, path: Sequence[int]) -> Difference:
    """The first difference between a path of tokens and what is stored."""
    node = ROOT
    for depth, token in enumerate(path):
        children = dict(stored(node))
        if token not in children:
            return Difference(tuple(path[:depth]), token, _by_number(children))
        node = children[token]
    return Difference(tuple(path), None, _by_number(dict(stored(node))))


def _by_number(children: dict[int, Node]) -> tuple[int, ...]:
    return tuple(sorted(children, key=children.__getitem__))
