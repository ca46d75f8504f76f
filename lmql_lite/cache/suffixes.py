"""Guesses from the tree itself: what stood elsewhere after the same last tokens. A guess only saves time: what comes of
it is checked against the model's own scores.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.nodes import ROOT, Nodes
from lmql_lite.cache.tree import Node

LENGTH = 3
"""So many tokens have to be the same."""
SKIPPED = 4
"""So many tokens after them may differ, before the text goes on as it did there."""

_WAYS = 4
"""Places of the table where a suffix may stand. One that finds all of them taken is not found again: no harm."""
_FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_LOW_BITS = 11
_FEW = 48
"""So many new nodes are entered quicker one by one."""


class Suffixes:
    """For the last `LENGTH` tokens of any path the first node that they led to: 4 to 5 bytes per node.

    The first and not the newest, so that what is proposed is text that somebody went on with, and not a guess that was
    not taken. Nodes that took the numbers of others are entered when there are many of them: whose suffix is another
    now is not found. The owner of `nodes` sees to it that one thread at a time is here.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._table = np.zeros(1024, dtype=np.int32)
        self._entered = ROOT + 1
        self._reused = 0

    @property
    def nbytes(self) -> int:
        return self._table.nbytes

    def guess(self, node: Node, most: int, skip: bool) -> tuple[int, ...]:
        """At most `most` tokens that may follow `node`; () where its last tokens stood nowhere else.

        With `skip` also where only tokens a little further up did: a text that differs in one place and then goes on
        as the other did.
        """
        self._follow()
        above = node
        for skipped in range(1 + skip * SKIPPED):
            twin = self._find(above)
            if twin and twin != above:
                guessed = self._after(twin, skipped + most)[skipped:]
                if guessed:
                    return guessed
            above = self._nodes.parent(above)
            if above <= ROOT:
                break
        return ()

    def _after(self, node: Node, most: int) -> tuple[int, ...]:
        """The way down along the youngest children."""
        tokens: list[int] = []
        while len(tokens) < most:
            token, node = next(self._nodes.children(node), (0, ROOT))
            if node == ROOT:
                break
            tokens.append(token)
        return tuple(tokens)

    def _suffix(self, node: Node) -> tuple[int, int, int]:
        """The last tokens, newest first; -1 above the root."""
        nodes = self._nodes
        above = max(nodes.parent(node), ROOT)
        return nodes.token(node), nodes.token(above), nodes.token(max(nodes.parent(above), ROOT))

    def _find(self, node: Node) -> Node:
        suffix = self._suffix(node)
        slot = _slot(suffix, len(self._table))
        for place in range(slot, slot - _WAYS, -1):  # from the first place on to the last one
            found = int(self._table[place])
            if not found or self._suffix(found) == suffix:
                return found
        return ROOT

    # Entering ----------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Enters the nodes that are new."""
        end = self._nodes.end
        size = len(self._table)
        while end > size:
            size += size // 4
        if size > len(self._table) or self._nodes.reused - self._reused > end // 4:
            self._table = np.zeros(size, dtype=np.int32)
            self._entered, self._reused = ROOT + 1, self._nodes.reused
        if end - self._entered > _FEW:
            new = np.arange(self._entered, end, dtype=np.int32)
            self._enter_many(new[self._nodes.columns(new)[0] >= ROOT])
        else:
            for node in filter(self._nodes.is_there, range(self._entered, end)):
                self._enter(node)
        self._entered = end

    def _enter(self, node: Node) -> None:
        suffix = self._suffix(node)
        slot = _slot(suffix, len(self._table))
        for place in range(slot, slot - _WAYS, -1):
            found = int(self._table[place])
            if not found:
                self._table[place] = node
            if not found or self._suffix(found) == suffix:
                return

    def _enter_many(self, new: NDArray[np.int32]) -> None:
        suffixes = self._suffixes(new)
        slots = np.zeros(len(new), dtype=np.int64)
        for column, factor in zip(suffixes, _FACTORS, strict=True):
            slots += column.astype(np.int64) * factor
        slots = (slots >> _LOW_BITS) % len(self._table)
        for _ in range(_WAYS):
            free = self._table[slots] == 0
            # of several that want one place the first is written last
            self._table[slots[free][::-1]] = new[free][::-1]
            there = self._suffixes(self._table[slots])
            left = np.zeros(len(new), dtype=np.bool_)
            for mine, other in zip(suffixes, there, strict=True):
                left |= mine != other
            if not left.any():
                break
            new, slots = new[left], slots[left] - 1
            suffixes = tuple(column[left] for column in suffixes)

    def _suffixes(self, nodes: NDArray[np.int32]) -> tuple[NDArray[np.int32], ...]:
        columns = []
        for _ in range(LENGTH):
            parents, tokens = self._nodes.columns(nodes)
            columns.append(tokens)
            nodes = np.maximum(parents, ROOT)
        return tuple(columns)


def _slot(suffix: tuple[int, int, int], size: int) -> int:
    newest, middle, oldest = suffix
    first, second, third = _FACTORS
    return (newest * first + middle * second + oldest * third >> _LOW_BITS) % size
