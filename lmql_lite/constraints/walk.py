"""Walks from one state of an automaton over all tokens of a vocabulary: one numpy step per level of their trie."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.counters import COUNTS_IN_LANE, LANE_BITS
from lmql_lite.constraints.pairs import Pairs, Ranges, Shifts, distinct_of
from lmql_lite.constraints.simplify import characters
from lmql_lite.constraints.step_table import NOWHERE
from lmql_lite.constraints.vocabulary import IntArray, Vocabulary

Lanes = tuple[IntArray, ...]
"""Increments from the start to nodes of the trie, one array for each of `Counts.lanes`."""
NONE = np.empty(0, dtype=np.intp)
DEAD_END = NOWHERE << 8
LARGEST_KEY = 2**62
SPARSE = 4
"""If fewer than one in so many nodes are alive, or differ, only those are followed."""


class Walk(NamedTuple):
    """Destinations of all tokens from one state.

    `place` has the index in `pairs` of each destination: for every token of the vocabulary, or for those in `tokens`.
    In the second case the others lead nowhere or, with `is_like`, to where the similar walk leads them.

    The texts in `stops` reach a stop, inside them or at their end. They may run past it, even if their own end is dead
    (S14). The texts in `passing` contain the end of a value that may be complete, and go on with the text that follows
    the hole (S16). `nodes` has the states of all nodes of the trie, times 256, and the increments on the way to them;
    None if not all nodes were walked.
    """

    tokens: IntArray | None
    place: IntArray
    pairs: Pairs
    stops: Ranges
    passing: Ranges
    nodes: tuple[IntArray, Lanes] | None = None
    is_like: bool = False


def walk(
    vocabulary: Vocabulary, automaton: Automaton, start: int, held: bytes, following: bytes, similar: Walk | None
) -> Walk:
    """Walks over all tokens from one state.

    With `held`, only tokens that begin with it and go on are walked; the walk begins after `held`. Tokens of a closed
    hole may go on with the text that is `following` it. `similar` is the walk from another state, from which most
    tokens lead to the same places.
    """
    walker = Walker(vocabulary, automaton, characters(held), following)
    if not held:
        return walker.all_tokens(start, similar)
    root = vocabulary.node(held)
    front = walker.front(root, start)
    if root is not None and following and automaton.may_hold(start):
        walker.pass_on(*front)
    return walker.some_tokens(*front)


class Walker:
    """One walk. Its states are multiplied by 256, as `Automaton.follow` expects."""

    def __init__(self, vocabulary: Vocabulary, automaton: Automaton, behind: int, following: bytes) -> None:
        self._vocabulary = vocabulary
        self._trie = vocabulary.trie
        self._automaton = automaton
        self._behind = behind
        self._following = following
        self._count_lanes = automaton.counts.count_lanes
        self._num_lanes = automaton.counts.num_lanes
        self._stops = _Ranges()
        self._passing = _Ranges()

    def front(self, root: int | None, start: int) -> tuple[IntArray, IntArray, Lanes]:
        """Nodes, states and increments of a walk that begins at one node, or at none."""
        size = int(root is not None)
        nodes, states = np.full(size, root or 0, dtype=np.intp), np.full(size, start << 8, dtype=np.intp)
        return nodes, states, (np.zeros(size, dtype=np.intp),) * self._num_lanes

    def all_tokens(self, start: int, similar: Walk | None) -> Walk:
        """Walks from the root: over whole levels, dead nodes included, or over live nodes only if they are few."""
        trie = self._trie
        if similar is not None and similar.nodes is not None:
            found = self._shifted(similar, start) if self._count_lanes else self._like(similar, start)
            if found is not None:
                return found
        root = self.front(0, start)
        if self._are_few(*root):
            return self.some_tokens(*root)
        states = np.full(trie.first.size, DEAD_END, dtype=np.intp)
        lanes = tuple(np.zeros(trie.first.size, dtype=np.intp) for _ in range(self._num_lanes))
        states[0] = start << 8
        for depth, (low, high) in enumerate(pairwise(trie.levels[1:])):
            parents = trie.parent[low:high]
            places = states.take(parents, mode="clip")
            places += trie.byte[low:high]
            above = self._automaton.follow(places, out=states[low:high])
            for lane, added in enumerate(lanes):
                here = added.take(parents, mode="clip", out=added[low:high])
                self._add(lane, here, places)
            if depth % 8 == 7 and above.max() == DEAD_END:
                break
        return self._result(states, lanes)

    def _add(self, lane: int, here: IntArray, places: IntArray) -> None:
        """Adds the increments of the transitions at `places` to a lane, in place."""
        more = self._automaton.added(lane).take(places, mode="clip")
        if lane < self._count_lanes:
            here += more
        else:
            here |= more

    def _are_few(self, nodes: IntArray, states: IntArray, lanes: Lanes) -> bool:
        """True if most nodes are dead after two bytes."""
        levels = self._trie.levels
        for _ in range(2):
            nodes, states, lanes = self._step(nodes, states, lanes)
        return len(levels) < 4 or nodes.size * SPARSE < levels[3] - levels[2]

    def _changed(self, states: IntArray, lanes: Lanes, start: int) -> tuple[IntArray, IntArray, Lanes] | None:
        """Nodes at which a walk from `start` differs from another, with its states and increments; None if too many."""
        trie = self._trie
        nodes, now, more = self.front(0, start)
        changed = [(nodes[:0], now[:0], *(lane[:0] for lane in more))]
        left = trie.first.size // SPARSE
        while nodes.size:
            nodes, parents = self._children(nodes)
            places = now.take(parents) + trie.byte.take(nodes)
            now = self._automaton.follow(places)
            more = tuple(each.take(parents) for each in more)
            differs = now != states.take(nodes)
            for lane, here in enumerate(more):
                self._add(lane, here, places)
                differs |= (here != lanes[lane].take(nodes)) & (now != DEAD_END)
            at = differs.nonzero()[0]
            left -= at.size
            if left < 0:
                return None
            nodes, now, more = nodes[at], now[at], tuple(each[at] for each in more)
            changed.append((nodes, now, *more))
        nodes, now, *more_lanes = map(np.concatenate, zip(*changed, strict=True))
        return nodes, now, tuple(more_lanes)

    def _shifted(self, similar: Walk, start: int) -> Walk | None:
        """Another walk with other counts: after a few bytes, both are in the same state and count alike from there.

        None if this fails for many nodes.
        """
        trie, vocabulary = self._trie, self._vocabulary
        assert similar.nodes is not None
        then, counts = similar.nodes
        nodes, now, more = self.front(0, start)
        others = [(nodes[:0], now[:0], *(lane[:0] for lane in more))]
        same = [(nodes[:0], np.zeros((0, len(self._automaton.counts.units)), dtype=np.intp))]
        left = trie.first.size // SPARSE
        while nodes.size and left > 0:
            nodes, parents = self._children(nodes)
            places = now.take(parents) + trie.byte.take(nodes)
            now, more = self._automaton.follow(places), tuple(each.take(parents) for each in more)
            before = tuple(lane.take(nodes) for lane in counts)
            agrees = now == then.take(nodes)
            for lane, here in enumerate(more):
                self._add(lane, here, places)
                if lane >= self._count_lanes:
                    agrees &= (here == before[lane]) | (now == DEAD_END)
            at, rest = agrees.nonzero()[0], (~agrees).nonzero()[0]
            added = self._values(more) - self._values(before)
            same.append((nodes[at], (added * (now != DEAD_END)[:, None])[at]))
            nodes, now, more = nodes[rest], now[rest], tuple(lane[rest] for lane in more)
            others.append((nodes, now, *more))
            left -= rest.size
        roots, added = map(np.concatenate, zip(*same, strict=True))
        if left <= 0 or not roots.size:
            return None
        rows, row = np.unique(added, axis=0, return_inverse=True)
        marks = np.zeros(len(vocabulary.texts) + 1, dtype=np.intp)
        np.add.at(marks, trie.first[roots], row + 1)
        np.subtract.at(marks, trie.end[roots], row + 1)
        shifts = Shifts(rows, marks.cumsum() - 1)
        nodes, now, *lanes = map(np.concatenate, zip(*others, strict=True))
        self._collect_borders(nodes, now, tuple(lanes))
        tokens, own, pairs = self._ends(nodes, now, tuple(lanes))
        shifted, place = shifts.of(similar.pairs, similar.place, shifts.which[vocabulary.text_of])
        place[tokens] = own + shifted.states.size
        stops = similar.stops.shifted(shifts, trie).but(nodes, self._ranges(self._stops))
        passing = similar.passing.shifted(shifts, trie).but(nodes, self._ranges(self._passing))
        return Walk(None, place, shifted.and_others(pairs), stops, passing)

    def _values(self, lanes: Lanes) -> IntArray:
        """Amounts added to each count, shape (places, counts)."""
        counts = self._automaton.counts
        values = np.zeros((lanes[0].size, len(counts.units)), dtype=np.intp)
        for at, unit in enumerate(counts.walked):
            lane, place = divmod(at, COUNTS_IN_LANE)
            values[:, unit] = lanes[lane] >> LANE_BITS * place & (1 << LANE_BITS) - 1
        return values

    def _like(self, similar: Walk, start: int) -> Walk | None:
        """Another walk, except for some nodes. None if there are too many."""
        assert similar.nodes is not None
        changed = self._changed(*similar.nodes, start)
        if changed is None:
            return None
        nodes, states, lanes = changed
        self._collect_borders(nodes, states, lanes)
        ends = self._ends(nodes, states, lanes)
        stops = similar.stops.but(nodes, self._ranges(self._stops))
        return Walk(*ends, stops, similar.passing.but(nodes, self._ranges(self._passing)), is_like=True)

    def _result(self, states: IntArray, lanes: Lanes) -> Walk:
        """Walk from the states of all nodes, and the increments on the way to them."""
        states[0] = DEAD_END  # for tokens without bytes
        self._collect_borders(None, states, lanes)
        nodes = self._vocabulary.nodes
        ends = states.take(nodes, mode="clip") >> 8
        pairs, place = self._pairs(ends, nodes, tuple(lane.take(nodes, mode="clip") for lane in lanes))
        stops, passing = self._ranges(self._stops), self._ranges(self._passing)
        return Walk(None, place, pairs, stops, passing, (states, lanes))

    def some_tokens(self, nodes: IntArray, states: IntArray, lanes: Lanes) -> Walk:
        """Walks from some nodes, following only live ones."""
        levels = [(nodes[:0], states[:0], *(lane[:0] for lane in lanes))]
        while nodes.size:
            nodes, states, lanes = self._step(nodes, states, lanes)
            levels.append((nodes, states, *lanes))
        nodes, states, *all_lanes = map(np.concatenate, zip(*levels, strict=True))
        self._collect_borders(nodes, states, tuple(all_lanes))
        ends = self._ends(nodes, states, tuple(all_lanes))
        return Walk(*ends, self._ranges(self._stops), self._ranges(self._passing))

    def _ends(self, nodes: IntArray, states: IntArray, lanes: Lanes) -> tuple[IntArray, IntArray, Pairs]:
        """Tokens that end at some nodes, index of the pair to which each leads, and the distinct pairs."""
        at = self._trie.ends[nodes].nonzero()[0]
        first = self._trie.first[nodes[at]]
        tokens, which = self._vocabulary.tokens_within(first, first + 1)
        pairs, pair = self._pairs(states[at] >> 8, nodes[at], tuple(lane[at] for lane in lanes))
        return tokens, pair[which], pairs

    def _step(self, nodes: IntArray, states: IntArray, lanes: Lanes) -> tuple[IntArray, IntArray, Lanes]:
        """Live children of some nodes, with their states and increments."""
        children, parents = self._children(nodes)
        places = states[parents] + self._trie.byte[children]
        after = self._automaton.follow(places)
        alive = (after != DEAD_END).nonzero()[0]
        if lanes:
            lanes = tuple(lane[parents] for lane in lanes)
            for lane, here in enumerate(lanes):
                self._add(lane, here, places)
            lanes = tuple(lane[alive] for lane in lanes)
        return children[alive], after[alive], lanes

    def _children(self, nodes: IntArray) -> tuple[IntArray, IntArray]:
        """Children of some nodes, and for each the index of its parent in `nodes`."""
        first = self._trie.children.take(nodes)
        sizes = self._trie.children.take(nodes + 1) - first
        parents = np.arange(sizes.size).repeat(sizes)
        return np.arange(parents.size) + (first - sizes.cumsum() + sizes).take(parents), parents

    def _collect_borders(self, nodes: IntArray | None, states: IntArray, lanes: Lanes) -> None:
        """Collects texts that pass a stop, or a value that may be complete. `nodes` is None for the whole trie."""
        if self._automaton.has_stops:
            at = self._automaton.stop_states.take(states >> 8, mode="clip").nonzero()[0]
            there = at if nodes is None else nodes[at]
            first, end = self._trie.first[there], self._trie.end[there]
            self._stops.add(first, end, there, states[at] >> 8, tuple(lane[at] for lane in lanes))
        if self._following:
            present = np.bincount(states >> 8).nonzero()[0].tolist()
            at = np.isin(states >> 8, [state for state in present if self._automaton.may_hold(state)]).nonzero()[0]
            there = at if nodes is None else nodes[at]
            self.pass_on(there, states[at], tuple(lane[at] for lane in lanes))

    def pass_on(self, nodes: IntArray, states: IntArray, lanes: Lanes) -> None:
        """Collects the texts that go on from these nodes with a prefix of the following text, or with all of it."""
        trie = self._trie
        states, values = states >> 8, nodes
        for at, byte in enumerate(self._following, start=1):
            wanted = nodes * 256 + byte
            children = np.minimum(np.searchsorted(trie.key, wanted), trie.key.size - 1)
            found = trie.key[children] == wanted
            nodes, values, states = children[found], values[found], states[found]
            lanes = tuple(lane[found] for lane in lanes)
            first = trie.first[nodes]
            if at == len(self._following):
                self._passing.add(first, trie.end[nodes], values, states, lanes)
            else:
                exact = trie.ends[nodes]
                here = first[exact], first[exact] + 1, values[exact], states[exact]
                self._passing.add(*here, tuple(lane[exact] for lane in lanes))

    def _ranges(self, collected: _Ranges) -> Ranges:
        if not collected.levels:
            counts = self._automaton.counts
            nothing = np.zeros((0, len(counts.units)), dtype=np.intp)
            flags = np.zeros((self._num_lanes - self._count_lanes, 0), dtype=np.intp)
            return Ranges(NONE, NONE, NONE, NONE, Pairs(NONE, nothing, flags))
        columns = [np.concatenate(column) for column in zip(*collected.levels, strict=True)]
        first, end, values, states, *lanes = columns
        pairs, pair = self._pairs(states, values, tuple(lanes))
        return Ranges(first, end, values, pair, pairs)

    def _pairs(self, states: IntArray, nodes: IntArray, lanes: Lanes) -> tuple[Pairs, IntArray]:
        """Distinct pairs, and the index of each place's pair. `nodes` are the nodes at which the values end."""
        counts = self._automaton.counts
        characters = counts.units[:1] == ("characters",)
        if lanes:  # increments do not matter in dead states
            lanes = tuple(np.where(states == NOWHERE, 0, lane) for lane in lanes)
        parts = [*([self._characters(nodes)] if characters else []), *lanes]
        key, size = states, int(states.max(initial=0)) + 1
        for part in parts:
            values, most = part, int(part.max(initial=0)) + 1
            if size * most > LARGEST_KEY:
                distinct, key = distinct_of(key)
                distinct_values, values = distinct_of(part)
                size, most = distinct.size, distinct_values.size
            key, size = key * most + values, size * most
        distinct, pair = distinct_of(key)
        if not parts:
            nothing = np.zeros((distinct.size, len(counts.units) + 1), dtype=np.intp)
            return Pairs(distinct, nothing[:, 1:], nothing[:, :0].T), pair
        some = np.zeros(distinct.size, dtype=np.intp)
        some[pair] = np.arange(pair.size)  # one place for each pair
        added = (
            self._values(tuple(lane[some] for lane in lanes))
            if lanes
            else np.zeros((some.size, len(counts.units)), dtype=np.intp)
        )
        if characters:
            added[:, 0] = parts[0][some]
        flags = [lane[some] for lane in lanes[self._count_lanes :]]
        return Pairs(states[some], added, np.array(flags, dtype=np.intp).reshape(len(flags), some.size)), pair

    def _characters(self, nodes: IntArray) -> IntArray:
        if nodes is self._vocabulary.nodes:
            return self._vocabulary.characters
        return self._trie.characters[nodes] - self._behind


class _Ranges:
    """Collects `Ranges` level by level: the texts, the nodes at which a value ends, and states and increments there."""

    def __init__(self) -> None:
        self.levels: list[tuple[IntArray, IntArray, IntArray, IntArray, *Lanes]] = []

    def add(self, first: IntArray, end: IntArray, values: IntArray, states: IntArray, lanes: Lanes) -> None:
        if first.size:
            self.levels.append((first, end, values, states, *lanes))
