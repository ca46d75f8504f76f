"""All tokens of a vocabulary from one state of an automaton: level by level of the trie, one numpy step a byte."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lmql_lite.constraints.automaton import NOWHERE, Automaton
from lmql_lite.constraints.counters import Counts
from lmql_lite.constraints.simplify import characters
from lmql_lite.constraints.vocabulary import IntArray, Trie, Vocabulary

Pairs = tuple[tuple[int, int], ...]
SPARSE = 4
"""Where less than one in so many nodes is alive, only those are followed."""


class Ranges(NamedTuple):
    """Texts `first .. end`, and which of `pairs` they pass on their way: a state and what was added to the counts."""

    first: IntArray
    end: IntArray
    pair: IntArray
    pairs: Pairs


class Walk(NamedTuple):
    """Where every text leads from one state.

    `texts` that lead somewhere, and for each which of `pairs` it has reached: an end state and what was added to the
    counts. A stop is reached inside or at the end of the texts in `stops`: those are free to run on past it, also
    where their own end is not alive (S14). The texts in `passing` have a value inside them that may be complete, and
    go on with what follows the hole (S16).
    """

    texts: IntArray
    pair: IntArray
    pairs: Pairs
    stops: Ranges
    passing: Ranges


def walk(vocabulary: Vocabulary, automaton: Automaton, start: int, held: bytes, following: bytes) -> Walk:
    """All texts from one state.

    With `held` only the texts that begin with it and go on: from the state on, what is held is behind them. Texts of
    a closed hole may go on with the text that is `following` it.
    """
    walker = Walker(vocabulary.trie, automaton, characters(held), following)
    root = vocabulary.node(held)
    if root is not None:
        walker.go(root, start)
    return walker.result()


class Walker:
    """While many nodes are alive all of a level are stepped, dead ones too; where few are, only those."""

    def __init__(self, trie: Trie, automaton: Automaton, behind: int, following: bytes) -> None:
        self._trie = trie
        self._automaton = automaton
        self._behind = behind
        self._following = following
        units = automaton.counts.units
        self._counts_characters = units == ("characters",)
        self._counts_more = bool(units) and not self._counts_characters
        self._texts: list[IntArray] = []
        self._ends: list[IntArray] = []
        self._added: list[IntArray] = []
        self._stops = _Ranges([], [], [], [])
        self._passing = _Ranges([], [], [], [])

    def go(self, root: int, start: int) -> None:
        nodes, states, added = np.array([root]), np.array([start]), np.zeros(1, dtype=np.intp)
        if root == 0:
            nodes, states, added = self._go_dense(start)
        self._go_sparse(nodes, states, added)

    def result(self) -> Walk:
        counts = self._automaton.counts
        pairs, pair = _pairs(_join(self._ends), _join(self._added), counts)
        return Walk(_join(self._texts), pair, pairs, self._stops.ranges(counts), self._passing.ranges(counts))

    def _go_dense(self, start: int) -> tuple[IntArray, IntArray, IntArray]:
        """All nodes of each level, from the root; gives those of the last level, to go on from."""
        trie = self._trie
        states = np.zeros(trie.first.size, dtype=np.intp)
        added = np.zeros(trie.first.size if self._counts_more else 1, dtype=np.intp)
        states[0] = start
        present, low, high = [start], 0, 1
        seen = set[int]()
        for low, high in pairwise(trie.levels[1:]):
            parents = trie.parent[low:high]
            index = states[parents]
            index <<= 8
            index += trie.byte[low:high]
            states[low:high] = self._automaton.table(present).ravel()[index]
            if self._counts_more:
                added[low:high] = added[parents] + self._gains(present)[index]
            many = np.bincount(states[low:high])
            present = many.nonzero()[0].tolist()
            seen.update(present)
            if many[NOWHERE] * SPARSE > (high - low) * (SPARSE - 1):
                break
        alive = low + np.flatnonzero(states[low:high])
        ending = trie.ending[: np.searchsorted(trie.ending, high)]
        ending = ending[states[ending] != NOWHERE]
        self._collect_ends(ending, states[ending], added[ending] if self._counts_more else added)
        nodes = np.arange(1, high)
        self._collect_borders(nodes, states[1:high], added[1:high], seen - {NOWHERE})
        return alive, states[alive], added[alive] if self._counts_more else added

    def _go_sparse(self, nodes: IntArray, states: IntArray, added: IntArray) -> None:
        """Only the nodes that are alive, and their children."""
        trie = self._trie
        while nodes.size:
            first = trie.children[nodes]
            sizes = trie.children[nodes + 1] - first
            parents = np.repeat(np.arange(sizes.size), sizes)
            nodes = np.arange(parents.size) + (first - np.cumsum(sizes) + sizes)[parents]
            present = np.bincount(states).nonzero()[0].tolist()
            index = (states[parents] << 8) + trie.byte[nodes]
            states = self._automaton.table(present).ravel()[index]
            alive = states.nonzero()[0]
            if self._counts_more:
                added = (added[parents] + self._gains(present)[index])[alive]
            nodes, states = nodes[alive], states[alive]
            at_end = trie.ends[nodes].nonzero()[0]
            self._collect_ends(nodes[at_end], states[at_end], added[at_end] if self._counts_more else added)
            self._collect_borders(nodes, states, added, set(states.tolist()))

    def _gains(self, present: list[int]) -> IntArray:
        """What each byte adds in each of these states, flat."""
        gains = np.zeros((max(present) + 1, 256), dtype=np.intp)
        for state in present:
            if state != NOWHERE:
                gains[state] = self._automaton.added_row(state)
        return gains.ravel()

    def _collect_ends(self, nodes: IntArray, states: IntArray, added: IntArray) -> None:
        self._texts.append(self._trie.first[nodes])
        self._ends.append(states)
        self._added.append(self._added_at(nodes, added))

    def _collect_borders(self, nodes: IntArray, states: IntArray, added: IntArray, present: set[int]) -> None:
        """Nodes at which a stop is reached, or a value may be complete that another text follows."""
        if reached := [state for state in present if self._automaton.reaches_stop(state)]:
            at = _which(states, reached)
            there = nodes[at]
            more = self._added_at(there, added[at] if self._counts_more else added)
            self._stops.add(self._trie.first[there], self._trie.end[there], states[at], more)
        if self._following and (whole := [state for state in present if self._automaton.may_hold(state)]):
            at = _which(states, whole)
            more = self._added_at(nodes[at], added[at] if self._counts_more else added)
            self._pass(nodes[at], states[at], more)

    def _added_at(self, nodes: IntArray, added: IntArray) -> IntArray:
        if self._counts_more:
            return added
        if self._counts_characters:
            return self._trie.characters[nodes] - self._behind
        return np.zeros(nodes.size, dtype=np.intp)

    def _pass(self, nodes: IntArray, states: IntArray, added: IntArray) -> None:
        """Finds the texts that go on from these nodes with the beginning of what follows, or with all of it."""
        trie = self._trie
        for at, byte in enumerate(self._following, start=1):
            wanted = nodes * 256 + byte
            children = np.minimum(np.searchsorted(trie.key, wanted), trie.key.size - 1)
            found = trie.key[children] == wanted
            nodes, states, added = children[found], states[found], added[found]
            first = trie.first[nodes]
            if at == len(self._following):
                self._passing.add(first, trie.end[nodes], states, added)
            else:
                exact = trie.ends[nodes]
                self._passing.add(first[exact], first[exact] + 1, states[exact], added[exact])


class _Ranges(NamedTuple):
    """Ranges while they are collected, level by level."""

    first: list[IntArray]
    end: list[IntArray]
    states: list[IntArray]
    added: list[IntArray]

    def add(self, first: IntArray, end: IntArray, states: IntArray, added: IntArray) -> None:
        self.first.append(first)
        self.end.append(end)
        self.states.append(states)
        self.added.append(added)

    def ranges(self, packing: Counts) -> Ranges:
        pairs, pair = _pairs(_join(self.states), _join(self.added), packing)
        return Ranges(_join(self.first), _join(self.end), pair, pairs)


def _which(states: IntArray, wanted: list[int]) -> IntArray:
    """Where the states are among those wanted, none of them NOWHERE."""
    flags = np.zeros(int(states.max()) + 1, dtype=np.bool_)
    flags[wanted] = True
    return np.flatnonzero(flags[states])


def _distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct values, none below 0, and for each value which of them it is."""
    if values.size == 0 or int(values.max()) > 64 * values.size + 4096:
        distinct, which = np.unique(values, return_inverse=True)
        return distinct, which
    distinct = np.flatnonzero(np.bincount(values))
    numbers = np.empty(int(values.max()) + 1, dtype=np.intp)
    numbers[distinct] = np.arange(distinct.size)
    return distinct, numbers[values]


def _pairs(states: IntArray, added: IntArray, packing: Counts) -> tuple[Pairs, IntArray]:
    """The distinct pairs, what was added packed as in a configuration, and for each place which of them it has."""
    if not packing.units:
        distinct, pair = _distinct(states)
        return tuple((state, 0) for state in distinct.tolist()), pair
    distinct, which = _distinct(added)
    codes, pair = _distinct(states * distinct.size + which)
    widths = [packing.widen(small) for small in distinct.tolist()]
    return tuple((code // len(widths), widths[code % len(widths)]) for code in codes.tolist()), pair


def _join(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.intp)
