"""All tokens of a vocabulary from one state of an automaton: level by level of the trie, one numpy step a byte."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lmql_lite.constraints.automaton import NOWHERE, Automaton
from lmql_lite.constraints.counters import Counts
from lmql_lite.constraints.simplify import characters
from lmql_lite.constraints.vocabulary import IntArray, Vocabulary

Pairs = tuple[tuple[int, int], ...]
SPARSE = 4
"""Where less than one in so many nodes is alive, or differs, only those are followed."""
SETTLED = 4
"""Bytes behind which a walk stays with all nodes."""


class Ranges(NamedTuple):
    """Texts `first .. end`, and which of `pairs` they pass on their way: a state and what was added to the counts."""

    first: IntArray
    end: IntArray
    pair: IntArray
    pairs: Pairs


class Walk(NamedTuple):
    """Where all tokens lead from one state.

    `place` is which of `pairs` a token leads to, an end state and what was added to the counts: of every token of the
    vocabulary, or where few lead somewhere, of `tokens`. A stop is reached inside or at the end of the texts in
    `stops`: those are free to run on past it, also where their own end is not alive (S14). The texts in `passing`
    have a value inside them that may be complete, and go on with what follows the hole (S16). `states` are those of
    all nodes of the trie, where they were all walked to, times 256.
    """

    tokens: IntArray | None
    place: IntArray
    pairs: Pairs
    stops: Ranges
    passing: Ranges
    states: IntArray | None


def walk(
    vocabulary: Vocabulary, automaton: Automaton, start: int, held: bytes, following: bytes, similar: Walk | None
) -> Walk:
    """All tokens from one state.

    With `held` only those that begin with it and go on: from the state on, what is held is behind them. Tokens of a
    closed hole may go on with the text that is `following` it. `similar` is the walk from another state: most tokens
    lead to the same places from both.
    """
    walker = Walker(vocabulary, automaton, characters(held), following)
    if not held:
        return walker.all_tokens(start, similar)
    root = vocabulary.node(held)
    none = np.empty(0, dtype=np.intp)
    if root is None:
        return walker.some_tokens(none, none, none)
    front = np.array([root]), np.array([start << 8]), np.zeros(1, dtype=np.intp)
    if following and automaton.may_hold(start):
        walker.pass_on(*front)
    return walker.some_tokens(*front)


class Walker:
    """States stand here times 256, as `Automaton.follow` takes them."""

    def __init__(self, vocabulary: Vocabulary, automaton: Automaton, behind: int, following: bytes) -> None:
        self._vocabulary = vocabulary
        self._trie = vocabulary.trie
        self._automaton = automaton
        self._behind = behind
        self._following = following
        self._counts_more = automaton.counts_parts
        # characters come first where several counts are packed
        self._counts_characters = "characters" in automaton.counts.units and not self._counts_more
        self._stops = _Ranges([], [], [], [])
        self._passing = _Ranges([], [], [], [])

    def all_tokens(self, start: int, similar: Walk | None) -> Walk:
        """While many nodes are alive all of a level are stepped, dead ones too; where few are, only those."""
        trie = self._trie
        if similar is not None and similar.states is not None and not self._counts_more:
            states = similar.states.copy()
            if self._change(states, start):
                return self._result(states, np.zeros(1, dtype=np.intp))
        root = np.zeros(1, dtype=np.intp), np.array([start << 8]), np.zeros(1, dtype=np.intp)
        if self._are_few(*root):
            return self.some_tokens(*root)
        states = np.zeros(trie.first.size, dtype=np.intp)
        added = np.zeros(trie.first.size if self._counts_more else 1, dtype=np.intp)
        states[0] = start << 8
        for low, high in pairwise(trie.levels[1:]):
            parents = trie.parent[low:high]
            places = states.take(parents, mode="clip")
            places += trie.byte[low:high]
            above = self._automaton.follow(places, out=states[low:high])
            if self._counts_more:
                here = added.take(parents, mode="clip", out=added[low:high])
                here += self._automaton.added.take(places, mode="clip")
            if not above.any():
                break
        return self._result(states, added)

    def _are_few(self, nodes: IntArray, states: IntArray, added: IntArray) -> bool:
        """Whether after two bytes most nodes are dead."""
        levels = self._trie.levels
        for _ in range(2):
            nodes, states, added = self._step(nodes, states, added)
        return len(levels) < 4 or nodes.size * SPARSE < levels[3] - levels[2]

    def _change(self, states: IntArray, start: int) -> bool:
        """Turns the states of another walk into those from `start`, unless too many of them differ."""
        trie = self._trie
        nodes, now = np.zeros(1, dtype=np.intp), np.array([start << 8])
        changed: list[tuple[IntArray, IntArray]] = []
        while nodes.size:
            nodes, parents = self._children(nodes)
            now = self._automaton.follow(now[parents] + trie.byte[nodes])
            differs = (now != states[nodes]).nonzero()[0]
            if differs.size * SPARSE > trie.first.size:
                return False
            nodes, now = nodes[differs], now[differs]
            changed.append((nodes, now))
        for nodes, now in changed:
            states[nodes] = now
        return True

    def _result(self, states: IntArray, added: IntArray) -> Walk:
        """From the states of all nodes."""
        states[0] = NOWHERE  # for tokens without bytes
        counts = self._automaton.counts
        self._collect_borders(None, states, added)
        ends = states.take(self._vocabulary.nodes, mode="clip") >> 8
        if self._counts_characters:
            more = self._vocabulary.characters
        else:
            more = self._added_at(self._vocabulary.nodes, self._at(added, self._vocabulary.nodes))
        pairs, place = _pairs(ends, more, counts)
        return Walk(None, place, pairs, self._stops.ranges(counts), self._passing.ranges(counts), states)

    def some_tokens(self, nodes: IntArray, states: IntArray, added: IntArray) -> Walk:
        """Only the nodes that are alive, and their children."""
        texts, ends, counts = [], [], []
        while nodes.size:
            nodes, states, added = self._step(nodes, states, added)
            at_end = self._trie.ends[nodes].nonzero()[0]
            texts.append(self._trie.first[nodes[at_end]])
            ends.append(states[at_end] >> 8)
            counts.append(self._added_at(nodes[at_end], self._at(added, at_end)))
            self._collect_borders(nodes, states, added)
        packing = self._automaton.counts
        pairs, place = _pairs(_join(ends), _join(counts), packing)
        found = _join(texts)
        tokens, which = self._vocabulary.tokens_within(found, found + 1)
        return Walk(tokens, place[which], pairs, self._stops.ranges(packing), self._passing.ranges(packing), None)

    def _step(self, nodes: IntArray, states: IntArray, added: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The children that are alive."""
        children, parents = self._children(nodes)
        places = states[parents] + self._trie.byte[children]
        after = self._automaton.follow(places)
        alive = after.nonzero()[0]
        if self._counts_more:
            added = (added[parents] + self._automaton.added[places])[alive]
        return children[alive], after[alive], added

    def _children(self, nodes: IntArray) -> tuple[IntArray, IntArray]:
        """The children of some nodes, and for each which of these is its parent."""
        first = self._trie.children[nodes]
        sizes = self._trie.children[nodes + 1] - first
        parents = np.repeat(np.arange(sizes.size), sizes)
        return np.arange(parents.size) + (first - np.cumsum(sizes) + sizes)[parents], parents

    def _at(self, added: IntArray, at: IntArray) -> IntArray:
        return added[at] if self._counts_more else added

    def _collect_borders(self, nodes: IntArray | None, states: IntArray, added: IntArray) -> None:
        """Nodes at which a stop is reached, or a value may be complete that another text follows. None for all."""
        if self._automaton.has_stops:
            at = self._automaton.stop_states.take(states >> 8, mode="clip").nonzero()[0]
            there = at if nodes is None else nodes[at]
            more = self._added_at(there, self._at(added, at))
            self._stops.add(self._trie.first[there], self._trie.end[there], states[at] >> 8, more)
        if self._following:
            present = np.bincount(states >> 8).nonzero()[0].tolist()
            at = np.isin(states >> 8, [state for state in present if self._automaton.may_hold(state)]).nonzero()[0]
            there = at if nodes is None else nodes[at]
            self.pass_on(there, states[at], self._at(added, at))

    def _added_at(self, nodes: IntArray, added: IntArray) -> IntArray:
        if self._counts_more:
            return added
        if self._counts_characters:
            return self._trie.characters[nodes] - self._behind
        return np.zeros(nodes.size, dtype=np.intp)

    def pass_on(self, nodes: IntArray, states: IntArray, added: IntArray) -> None:
        """Finds the texts that go on from these nodes with the beginning of what follows, or with all of it."""
        trie = self._trie
        states, added = states >> 8, self._added_at(nodes, added)
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


def _distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct values, none below 0, and for each value which of them it is."""
    if values.size == 0 or int(values.max()) > 64 * values.size + 4096:
        distinct, which = np.unique(values, return_inverse=True)
        return distinct, which
    distinct = np.flatnonzero(np.bincount(values))
    numbers = np.empty(int(values.max()) + 1, dtype=np.intp)
    numbers[distinct] = np.arange(distinct.size)
    return distinct, numbers.take(values, mode="clip")


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
