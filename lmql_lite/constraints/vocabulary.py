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
from lmql_lite.constraints.simplify import characters

IntArray = NDArray[np.intp]
Flags = NDArray[np.bool_]
Pairs = tuple[tuple[int, int], ...]


class Level(NamedTuple):
    """The trie's nodes at one depth. `parent` counts within the level above; the texts that begin with a node are
    `first .. end`; `ends` tells whether the first of them is the node itself; `characters` begin on the way to it."""

    parent: IntArray
    byte: IntArray
    first: IntArray
    end: IntArray
    ends: Flags
    characters: IntArray


class Walk(NamedTuple):
    """Where every text leads from one state.

    `texts` that lead somewhere, and for each which of `pairs` it has reached: an end state and the characters added.
    A stop phrase is said inside or at the end of the texts `stop_first .. stop_end`, at one of `stop_pairs`: those
    texts are free to run on past it, also where their own end is not alive (S14).
    """

    texts: IntArray
    pair: IntArray
    pairs: Pairs
    stop_first: IntArray
    stop_end: IntArray
    stop_pair: IntArray
    stop_pairs: Pairs

    @property
    def size_bytes(self) -> int:
        return 16 * (self.texts.size + 2 * self.stop_first.size) + 100 * (len(self.pairs) + len(self.stop_pairs))


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
            levels.append(
                Level(
                    np.searchsorted(above, first, side="right") - 1,
                    flat[starts[first] + depth - 1].astype(np.intp),
                    first,
                    end,
                    sizes[first] == depth,
                    started[starts[first] + depth] - started[starts[first]],
                )
            )
            above = first
        return levels

    # Walking -----------------------------------------------------------------------------------------------------

    def walk(self, automaton: Automaton, start: int, held: bytes = b"") -> Walk:
        """All texts from one state, one numpy step per byte of the longest that is still alive.

        With `held` only the texts that begin with it and go on: from the state on, what is held is behind them.
        """
        texts: list[IntArray] = []
        ends: list[IntArray] = []
        counts: list[IntArray] = []
        stops: list[tuple[IntArray, IntArray, IntArray, IntArray]] = []
        states = self._place(start, held)
        behind = characters(held)
        for level in self._levels[len(held) :]:
            before = states[level.parent]
            alive = np.flatnonzero(before != DEAD)
            if alive.size == 0:
                break
            distinct, which = _distinct(before[alive])
            rows = np.stack([automaton.row(state) for state in distinct.tolist()])
            after = rows[which, level.byte[alive]].astype(np.intp)
            states = np.full(level.byte.size, DEAD, dtype=np.intp)
            states[alive] = after
            lively = after != DEAD
            nodes, after = alive[lively], after[lively]
            counted = level.characters[nodes] - behind
            here = level.ends[nodes]
            texts.append(level.first[nodes[here]])
            ends.append(after[here])
            counts.append(counted[here])
            reached = [state for state in _distinct(after)[0].tolist() if automaton.reaches_stop(state)]
            if reached:
                at = np.isin(after, reached)
                stops.append((level.first[nodes[at]], level.end[nodes[at]], after[at], counted[at]))
        pairs, pair = _pairs(_join(ends), _join(counts))
        stop_pairs, stop_pair = _pairs(_join([stop[2] for stop in stops]), _join([stop[3] for stop in stops]))
        stop_first, stop_end = _join([stop[0] for stop in stops]), _join([stop[1] for stop in stops])
        return Walk(_join(texts), pair, pairs, stop_first, stop_end, stop_pair, stop_pairs)

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


def _pairs(states: IntArray, counts: IntArray) -> tuple[Pairs, IntArray]:
    width = int(counts.max(initial=0)) + 1
    codes, which = _distinct(states * width + counts)
    return tuple(divmod(code, width) for code in codes.tolist()), which


def _join(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.intp)
