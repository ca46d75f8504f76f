"""Destinations of tokens as pairs of an end state and the increments on the way there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lmql_lite.constraints.counters import FLAGS_IN_LANE, Counts
from lmql_lite.constraints.step_table import NOWHERE
from lmql_lite.constraints.vocabulary import IntArray, TokenTrie

FEW_KEYS = 4
"""Distinct values are counted in a table if the largest is at most about this many times the number of values."""
FEW_VALUES = 1000
"""Number of values up to which sorting is faster than a hash table."""
HASH = np.uint64(0x9E3779B97F4A7C15)
"""Multiplier of Fibonacci hashing (Knuth), which spreads numbers over the upper bits."""


class Pairs(NamedTuple):
    """End states, and the increments on the way there: `added` has shape (pairs, counts), `flags` (lanes, pairs)."""

    states: IntArray
    added: IntArray
    flags: IntArray

    def some(self, which: IntArray) -> Pairs:
        return Pairs(self.states[which], self.added[which], self.flags[:, which])

    def and_others(self, others: Pairs) -> Pairs:
        added, flags = np.vstack([self.added, others.added]), np.hstack([self.flags, others.flags])
        return Pairs(np.append(self.states, others.states), added, flags)

    @classmethod
    def of(cls, configurations: list[tuple[int, int]], packing: Counts) -> Pairs:
        """Pairs from states with packed counts."""
        states = np.array([state for state, _ in configurations], dtype=np.intp)
        added = np.array([packing.unpack(added) for _, added in configurations], dtype=np.intp)
        flags = np.array([packing.flag_lanes(packing.flags(added)) for _, added in configurations], dtype=np.intp)
        return cls(states, added.reshape(states.size, -1), flags.reshape(states.size, -1).T)

    def configurations(self, packing: Counts) -> list[tuple[int, int]]:
        """Each pair as a state and a packed count."""
        flags = [0] * self.states.size
        for lane, bits in enumerate(self.flags.tolist()):
            flags = [before | more << FLAGS_IN_LANE * lane for before, more in zip(flags, bits, strict=True)]
        added = zip(self.added.tolist(), flags, strict=True)
        return [
            (state, packing.pack(tuple(each), bits))
            for state, (each, bits) in zip(self.states.tolist(), added, strict=True)
        ]


class Ranges(NamedTuple):
    """Ranges `first .. end` of texts. All texts of a range pass the pair with index `pair` at a node of the trie."""

    first: IntArray
    end: IntArray
    node: IntArray
    pair: IntArray
    pairs: Pairs

    def but(self, changed: IntArray, others: Ranges) -> Ranges:
        """The ranges at nodes that are not in `changed`, which is in ascending order, joined with `others`."""
        if not self.first.size or not changed.size:
            return others if others.first.size else self
        kept = changed.take(changed.searchsorted(self.node), mode="clip") != self.node
        if not others.first.size and kept.all():
            return self
        columns = zip(self[:3], others[:3], strict=True)
        first, end, node = [np.append(column[kept], more) for column, more in columns]
        pair = np.append(self.pair[kept], others.pair + self.pairs.states.size)
        return Ranges(first, end, node, pair, self.pairs.and_others(others.pairs))

    def shifted(self, shifts: Shifts, trie: TokenTrie) -> Ranges:
        if not self.first.size:
            return self
        pairs, pair = shifts.of(self.pairs, self.pair, shifts.which[trie.first[self.node]])
        return self._replace(pair=pair, pairs=pairs)


class Shifts(NamedTuple):
    """Differences of the counts between two walks: `which` maps each text to its row of `added`, shape (rows, counts).

    It is -1 where more than the counts differs.
    """

    added: IntArray
    which: IntArray

    def of(self, pairs: Pairs, pair: IntArray, which: IntArray) -> tuple[Pairs, IntArray]:
        """Distinct pairs after the shift, and the index of each place's pair; `which` has the row of each place."""
        size = pairs.states.size
        used, place = distinct_of(np.maximum(which, 0) * size + pair)
        row = np.searchsorted(np.arange(1, len(self.added)) * size, used, side="right")
        some = pairs.some(used - row * size)
        goes_on = (some.states != NOWHERE)[:, None]
        return some._replace(added=some.added + self.added[row] * goes_on), place


def distinct_of(values: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct values in some order, and the index of each value among them. No value is below 0."""
    most = int(values.max(initial=0))
    if most > FEW_KEYS * (values.size + 64):
        return np.unique(values, return_inverse=True) if values.size < FEW_VALUES else _by_hash(values)
    distinct = np.flatnonzero(np.bincount(values))
    numbers = np.empty(most + 1, dtype=np.intp)
    numbers[distinct] = np.arange(distinct.size)
    return distinct, numbers.take(values, mode="clip")


def _by_hash(values: IntArray) -> tuple[IntArray, IntArray]:
    """`distinct_of` by a hash table: only values that lost their slot to another value are sorted."""
    bits = values.size.bit_length()
    slots = (values.astype(np.uint64) * HASH >> np.uint64(64 - bits)).astype(np.intp)
    owners = np.full(1 << bits, -1, dtype=np.intp)
    owners[slots] = values
    lost = (owners.take(slots) != values).nonzero()[0]
    used = (owners >= 0).nonzero()[0]
    others, which_other = np.unique(values[lost], return_inverse=True)
    distinct = np.append(owners[used], others)
    owners[used] = np.arange(used.size)
    which = owners.take(slots)
    which[lost] = used.size + which_other
    return distinct, which
