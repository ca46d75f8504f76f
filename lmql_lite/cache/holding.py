"""Who has a node in hand: its number is given to no other node meanwhile, and so a number never means two things.

A run has its nodes in many places (the steps of its path, crossroads, questions under way, guesses, books). All of
them keep the very object that the tree gave, and so nobody has to say that a node is not needed any more.
"""

from __future__ import annotations

import sys
from collections import deque

from lmql_lite.cache.tree import Node

WAITING = 1000
"""So many nodes that were let go of are counted at once."""


class Holds:
    """The nodes of one tree that are in somebody's hands. The owner sees to it that one thread at a time is here."""

    def __init__(self) -> None:
        self._counts: dict[Node, int] = {}
        self._let_go: deque[int] = deque()
        self._held = _held(self._let_go)

    @property
    def nbytes(self) -> int:
        return sys.getsizeof(self._counts) + sys.getsizeof(self._let_go)

    def hold(self, node: Node) -> Node:
        """The number of a node, equal to the plain one. While this object lives, the node stays.

        A copy of it, and what comes of reckoning with it, is a plain number and holds nothing.
        """
        counts = self._counts
        counts[node] = counts.get(node, 0) + 1
        if len(self._let_go) > WAITING:
            self._settle()
        return self._held(node)

    def has(self, node: Node) -> bool:
        if self._let_go:
            self._settle()
        return node in self._counts

    def _settle(self) -> None:
        while self._let_go:
            node = self._let_go.popleft()
            count = self._counts[node] - 1
            if count:
                self._counts[node] = count
            else:
                del self._counts[node]


def _held(let_go: deque[int]) -> type[int]:
    """A class for each tree, so that an object is a number and nothing else: every token of every run is one."""

    class Held(int):
        __slots__ = ()

        def __del__(self) -> None:
            let_go.append(int(self))  # on any thread and at any moment, so that no lock may be waited for

        def __reduce__(self) -> tuple[type[int], tuple[int]]:
            return int, (int(self),)

    return Held
