"""Drafts from the tree: tokens that followed the same last tokens elsewhere. A draft only saves time, since it is
checked against the model's own scores.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.node_table import ROOT, NodeTable

LENGTH = 3
"""Number of last tokens that must be equal."""
SKIPPED = 4
"""Maximum number of later tokens that may differ before the text continues as elsewhere."""

LONGEST_DRAFT = 16
"""Maximum number of tokens in a draft."""
LONGEST_PAUSE = 64
"""Maximum number of picks without a draft after failed ones."""
PLACES = 256
"""Number of places whose drafts are remembered."""

_WAYS = 4
"""Number of slots in which a suffix may be stored. If all are taken, it is not found again, which only costs drafts."""
_FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_LOW_BITS = 11
_FEW = 48
"""Number of new nodes below which they are entered one by one, which is faster then."""


class Suffixes:
    """Index from the last `LENGTH` tokens of a path to the first node with them: 4 to 5 bytes per node.

    The first node is used, not the newest, so that a draft is text of a run and not a rejected draft. Nodes with reused
    numbers are entered once there are many of them; a node whose suffix has changed is not found. Only one thread at a
    time may use this.
    """

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self._table = np.zeros(1024, dtype=np.int32)
        self._entered = ROOT + 1
        self._reused = 0

    @property
    def nbytes(self) -> int:
        return self._table.nbytes

    def draft(self, node: int, most: int, skip: bool) -> tuple[int, ...]:
        """At most `most` tokens that may follow `node`; () if its last tokens occurred nowhere else.

        With `skip`, earlier tokens that occurred elsewhere count too, for text that differs in one place and then
        continues alike.
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

    def _after(self, node: int, most: int) -> tuple[int, ...]:
        """Tokens of the path down along the youngest children."""
        tokens: list[int] = []
        while len(tokens) < most:
            token, node = next(self._nodes.children(node), (0, ROOT))
            if node == ROOT:
                break
            tokens.append(token)
        return tuple(tokens)

    def _find(self, node: int) -> int:
        suffix = self._nodes.suffix(node)
        slot = _slot(suffix, len(self._table))
        for place in range(slot, slot - _WAYS, -1):  # from the first place on to the last one
            found = int(self._table[place])
            if not found or self._nodes.suffix(found) == suffix:
                return found
        return ROOT

    # Entering ----------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Enters new nodes."""
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

    def _enter(self, node: int) -> None:
        suffix = self._nodes.suffix(node)
        slot = _slot(suffix, len(self._table))
        for place in range(slot, slot - _WAYS, -1):
            found = int(self._table[place])
            if not found:
                self._table[place] = node
            if not found or self._nodes.suffix(found) == suffix:
                return

    def _enter_many(self, new: NDArray[np.int32]) -> None:
        suffixes = self._suffixes(new)
        slots = np.zeros(len(new), dtype=np.int64)
        for column, factor in zip(suffixes, _FACTORS, strict=True):
            slots += column.astype(np.int64) * factor
        slots = (slots >> _LOW_BITS) % len(self._table)
        for _ in range(_WAYS):
            free = self._table[slots] == 0
            # the first of several nodes for one slot is written last
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


@dataclass(slots=True)
class DraftLength:
    """Length of the next draft at one place: about as many tokens as came true recently. After failures drafts almost
    stop.

    The length affects only which questions are batched, never their answers.
    """

    right: float = 4.0
    """Recent average of the number of draft tokens that came true."""
    _pause: int = 1
    _wait: int = 0

    def next(self) -> int:
        """Number of tokens of the next draft; 0 for a while after failed drafts."""
        if self._wait:
            self._wait -= 1
            return 0
        return min(round(2 * self.right) + 1, LONGEST_DRAFT)

    @property
    def are_lucky(self) -> bool:
        return self.right >= 1

    def learn(self, guessed: int, right: int) -> None:
        """Learns from the last draft, of which `right` tokens came true. A fully correct draft might have been
        longer."""
        self.right = (self.right + (2 * right if right == guessed else right)) / 2
        if right:
            self._pause = 1
        elif self.right < 1:
            self._wait = self._pause = min(2 * self._pause, LONGEST_PAUSE)


class DraftLengths:
    """Lengths of drafts for each hole of a program, learned from all runs on a tree.

    A new hole begins as the others did lately.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[Hashable, DraftLength] = OrderedDict()
        self._any = DraftLength()

    def of(self, place: Hashable) -> DraftLength:
        found = self._places.get(place)
        if found is None:
            found = self._places[place] = DraftLength(max(self._any.right, 1.0))
            if len(self._places) > PLACES:
                self._places.popitem(last=False)
        return found

    def learn(self, place: Hashable, guessed: int, right: int) -> None:
        for length in (self.of(place), self._any):
            length.learn(guessed, right)
