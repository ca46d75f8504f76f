"""A model's vocabulary as a trie of bytes, laid out in levels, so that all tokens are walked at once (numpy).

Tokens with equal bytes are one text here. Texts are sorted, so that those below a node of the trie are a range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import DEAD
from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.counters import Counts
from lmql_lite.constraints.simplify import characters

IntArray = NDArray[np.intp]
Flags = NDArray[np.bool_]
Pairs = tuple[tuple[int, int], ...]


class Level(NamedTuple):
    """The trie's nodes at one depth, in the order of their texts. `parent` counts within the level above; the texts
    that begin with a node are `first .. end`; `ends` tells whether the first of them is the node itself; `characters`
    begin on the way to it. `key` is `parent * 256 + byte`, in ascending order."""

    parent: IntArray
    byte: IntArray
    key: IntArray
    first: IntArray
    end: IntArray
    ends: Flags
    characters: IntArray


class Ranges(NamedTuple):
    """Texts `first .. end`, and which of `pairs` they pass on their way: a state and what was added to the counts."""

    first: IntArray
    end: IntArray
    pair: IntArray
    pairs: Pairs

    @property
    def size_bytes(self) -> int:
        return 24 * self.first.size + 100 * len(self.pairs)

    def chosen(self, wanted: bytes, num_texts: int) -> Flags:
        """The texts of those ranges whose pair is wanted, and one more at the end, False."""
        of_these = np.frombuffer(wanted, dtype=np.bool_)[self.pair]
        steps = np.zeros(num_texts + 1, dtype=np.intp)
        np.add.at(steps, self.first[of_these], 1)
        np.subtract.at(steps, self.end[of_these], 1)
        return np.cumsum(steps) > 0


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

    @property
    def size_bytes(self) -> int:
        return 16 * self.texts.size + 100 * len(self.pairs) + self.stops.size_bytes + self.passing.size_bytes


class Vocabulary:
    """Built once per tokenizer. Tokens without bytes (special, unused) are in none of its answers but `eos`."""

    def __init__(self, tokens: tuple[bytes | None, ...], eos: frozenset[int]) -> None:
        self.tokens = tokens
        self.size = len(tokens)
        self.eos: IntArray = np.array(sorted(eos), dtype=np.intp)
        by_text = sorted((data, token) for token, data in enumerate(tokens) if data and token not in eos)
        self.texts: list[bytes] = []
        self._text_of_token: IntArray = np.full(self.size, -1, dtype=np.intp)
        for data, token in by_text:
            if not self.texts or self.texts[-1] != data:
                self.texts.append(data)
            self._text_of_token[token] = len(self.texts) - 1
        self.longest = max(map(len, self.texts), default=0)
        self.first_byte: NDArray[np.uint8] = np.array([text[0] for text in self.texts], dtype=np.uint8)
        self._levels = self._lay_out()

    def _lay_out(self) -> list[Level]:
        sizes = np.array([len(text) for text in self.texts], dtype=np.intp)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)
        flat = np.frombuffer(b"".join(self.texts), dtype=np.uint8)
        started = np.concatenate([[0], np.cumsum(flat & 0xC0 != 0x80)]).astype(np.intp)
        # how many leading bytes each text shares with the one before it
        shared = np.zeros(sizes.size, dtype=np.intp)
        alike = np.arange(1, sizes.size)
        for depth in range(self.longest):
            alike = alike[np.minimum(sizes[alike - 1], sizes[alike]) > depth]
            alike = alike[flat[starts[alike - 1] + depth] == flat[starts[alike] + depth]]
            shared[alike] = depth + 1
        levels: list[Level] = []
        above: IntArray = np.zeros(1, dtype=np.intp)
        for depth in range(1, self.longest + 1):
            borders = np.flatnonzero(shared < depth)  # where the texts of one node end and those of another begin
            ends = np.append(borders[1:], sizes.size)
            long_enough = sizes[borders] >= depth
            first, end = borders[long_enough], ends[long_enough]
            parent = np.searchsorted(above, first, side="right") - 1
            byte = flat[starts[first] + depth - 1].astype(np.intp)
            levels.append(
                Level(
                    parent,
                    byte,
                    parent * 256 + byte,
                    first,
                    end,
                    sizes[first] == depth,
                    started[starts[first] + depth] - started[starts[first]],
                )
            )
            above = first
        return levels

    # Walking -----------------------------------------------------------------------------------------------------

    def walk(self, automaton: Automaton, start: int, held: bytes = b"", following: bytes = b"") -> Walk:
        """All texts from one state, one numpy step per byte of the longest that is still alive.

        With `held` only the texts that begin with it and go on: from the state on, what is held is behind them.
        """
        texts: list[IntArray] = []
        ends: list[IntArray] = []
        counts: list[IntArray] = []
        stops = _Found([], [], [], [])
        passing = _Found([], [], [], [])
        states = self._place(start, held)
        added: IntArray = np.zeros(states.size, dtype=np.intp)
        counted = automaton.counts.units
        only_characters = counted == ("characters",)
        behind = characters(held)
        for depth, level in enumerate(self._levels[len(held) :], start=len(held)):
            before = states[level.parent]
            alive = np.flatnonzero(before != DEAD)
            if alive.size == 0:
                break
            distinct, which = _distinct(before[alive])
            rows = np.stack([automaton.row(state) for state in distinct.tolist()])
            after = rows[which, level.byte[alive]].astype(np.intp)
            lively = after != DEAD
            nodes = alive[lively]
            if only_characters:
                here = level.characters[nodes] - behind
            elif counted:
                gained = np.stack([automaton.added_row(state) for state in distinct.tolist()])
                here = added[level.parent[nodes]] + gained[which[lively], level.byte[nodes]]
                added = np.zeros(level.byte.size, dtype=np.intp)
                added[nodes] = here
            else:
                here = np.zeros(nodes.size, dtype=np.intp)
            after = after[lively]
            states = np.full(level.byte.size, DEAD, dtype=np.intp)
            states[nodes] = after
            at_end = level.ends[nodes]
            texts.append(level.first[nodes[at_end]])
            ends.append(after[at_end])
            counts.append(here[at_end])
            present = _distinct(after)[0].tolist()
            if reached := [state for state in present if automaton.reaches_stop(state)]:
                at = np.isin(after, reached)
                stops.add(level.first[nodes[at]], level.end[nodes[at]], after[at], here[at])
            if following and (whole := [state for state in present if automaton.may_hold(state)]):
                at = np.isin(after, whole)
                self._pass(depth, nodes[at], after[at], here[at], following, passing)
        pairs, pair = _pairs(_join(ends), _join(counts), automaton.counts)
        return Walk(_join(texts), pair, pairs, stops.ranges(automaton.counts), passing.ranges(automaton.counts))

    def _pass(
        self, depth: int, nodes: IntArray, states: IntArray, added: IntArray, following: bytes, passing: _Found
    ) -> None:
        """Finds the texts that go on from these nodes with the beginning of `following`, or with all of it."""
        for at, byte in enumerate(following, start=1):
            if depth + at >= len(self._levels) or nodes.size == 0:
                return
            level = self._levels[depth + at]
            wanted = nodes * 256 + byte
            children = np.minimum(np.searchsorted(level.key, wanted), level.key.size - 1)
            found = level.key[children] == wanted
            nodes, states, added = children[found], states[found], added[found]
            first = level.first[nodes]
            if at == len(following):
                passing.add(first, level.end[nodes], states, added)
            else:
                exact = level.ends[nodes]
                passing.add(first[exact], first[exact] + 1, states[exact], added[exact])

    def _place(self, start: int, held: bytes) -> IntArray:
        """The states at the depth of `held`: only the node that spells it is alive."""
        if not held:
            return np.array([start], dtype=np.intp)
        if len(held) > len(self._levels):
            return np.empty(0, dtype=np.intp)
        level = self._levels[len(held) - 1]
        states = np.full(level.byte.size, DEAD, dtype=np.intp)
        if beginning := self.beginning_with(held):
            states[np.searchsorted(level.first, beginning.start)] = start
        return states

    def allowing(self, texts: Flags) -> Flags:
        """A flag for every token from one for every text, and one more at the end, False, for tokens without bytes."""
        mask: Flags = texts[self._text_of_token]
        return mask

    # Looking up --------------------------------------------------------------------------------------------------

    def beginning_with(self, prefix: bytes) -> range:
        """All texts that begin with `prefix`, itself included."""
        return range(bisect_left(self.texts, prefix), bisect_right(self.texts, prefix + b"\xff" * self.longest))

    def within(self, text: bytes) -> list[int]:
        """All texts that are a beginning of `text`, itself left out."""
        found = []
        for length in range(1, min(len(text), self.longest + 1)):
            index = bisect_left(self.texts, text[:length])
            if index < len(self.texts) and self.texts[index] == text[:length]:
                found.append(index)
        return found

    def extends(self, text: bytes) -> bool:
        """Whether some token begins with `text` and goes on: then text that ends so may be tokenised otherwise."""
        return any(self.texts[index] != text for index in self.beginning_with(text)[:2])


def _distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """The distinct values, none below 0, and for each value which of them it is."""
    if values.size == 0 or int(values.max()) > 64 * values.size + 4096:
        distinct, which = np.unique(values, return_inverse=True)
        return distinct, which
    distinct = np.flatnonzero(np.bincount(values))
    numbers = np.empty(int(values.max()) + 1, dtype=np.intp)
    numbers[distinct] = np.arange(distinct.size)
    return distinct, numbers[values]


def _pairs(states: IntArray, counts: IntArray, packing: Counts) -> tuple[Pairs, IntArray]:
    """The distinct pairs, their counts packed as in a configuration, and for each place which of them it has."""
    distinct, which = _distinct(counts)
    codes, pair = _distinct(states * distinct.size + which)
    widths = [packing.widen(small) for small in distinct.tolist()]
    return tuple((code // len(widths), widths[code % len(widths)]) for code in codes.tolist()), pair


def _join(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.intp)


class _Found(NamedTuple):
    """Ranges while they are collected, level by level."""

    first: list[IntArray]
    end: list[IntArray]
    states: list[IntArray]
    counts: list[IntArray]

    def add(self, first: IntArray, end: IntArray, states: IntArray, counts: IntArray) -> None:
        self.first.append(first)
        self.end.append(end)
        self.states.append(states)
        self.counts.append(counts)

    def ranges(self, packing: Counts) -> Ranges:
        pairs, pair = _pairs(_join(self.states), _join(self.counts), packing)
        return Ranges(_join(self.first), _join(self.end), pair, pairs)
