"""A model's vocabulary as a trie of bytes, laid out in levels, so that all tokens are walked at once (numpy)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import DEAD, starts_character
from lmql_lite.constraints.automaton import Automaton

IntArray = NDArray[np.intp]


class Level(NamedTuple):
    """The trie's nodes at one depth. `parent` counts within the level above; `token` is -1 where none ends here."""

    parent: IntArray
    byte: IntArray
    token: IntArray


class Walk(NamedTuple):
    """Where every token leads from one state.

    `tokens` that lead somewhere, the state they end in and the characters they add; and the `events`: places inside
    a token (or at its end) where a stop phrase ends: token, state, characters until there.
    """

    tokens: IntArray
    ends: IntArray
    characters: IntArray
    events: tuple[tuple[int, int, int], ...]


class Vocabulary:
    """Built once per tokenizer. Tokens without bytes (special, unused) are in none of its answers but `eos`."""

    def __init__(self, tokens: tuple[bytes | None, ...], eos: frozenset[int]) -> None:
        self.tokens = tokens
        self.size = len(tokens)
        self.eos = np.array(sorted(eos), dtype=np.intp)
        real = [(data, token) for token, data in enumerate(tokens) if data]
        self.longest = max((len(data) for data, _ in real), default=0)
        self.characters = np.zeros(self.size, dtype=np.intp)
        self.first_byte = np.full(self.size, -1, dtype=np.intp)
        for data, token in real:
            self.characters[token] = sum(map(starts_character, data))
            self.first_byte[token] = data[0]
        self._twins: dict[int, int] = {}
        """Tokens with the same bytes as an earlier one: the trie has one place for both."""
        self._levels = self._lay_out(real)
        self._sorted = sorted(real)

    def _lay_out(self, real: list[tuple[bytes, int]]) -> list[Level]:
        ending: dict[bytes, int] = {}
        for data, token in real:
            if ending.setdefault(data, token) != token:
                self._twins[token] = ending[data]
        prefixes: set[bytes] = set()
        for data in ending:
            prefixes.update(data[:length] for length in range(1, len(data) + 1))
        levels: list[Level] = []
        above = {b"": 0}
        by_depth: dict[int, list[bytes]] = {}
        for prefix in sorted(prefixes):
            by_depth.setdefault(len(prefix), []).append(prefix)
        for depth in sorted(by_depth):
            here = by_depth[depth]
            levels.append(
                Level(
                    np.array([above[prefix[:-1]] for prefix in here], dtype=np.intp),
                    np.array([prefix[-1] for prefix in here], dtype=np.intp),
                    np.array([ending.get(prefix, -1) for prefix in here], dtype=np.intp),
                )
            )
            above = {prefix: index for index, prefix in enumerate(here)}
        return levels

    def walk(self, automaton: Automaton, start: int) -> Walk:
        """All tokens from one state, one numpy step per byte of the longest token that is still alive."""
        tokens: list[IntArray] = []
        ends: list[IntArray] = []
        events: list[tuple[int, int, int]] = []
        states = np.array([start], dtype=np.intp)
        passed: dict[int, tuple[tuple[int, int], ...]] = {}
        """Node of the level above -> the stops passed on the way to it, as (state, characters)."""
        counted = np.zeros(1, dtype=np.intp)
        for level in self._levels:
            before = states[level.parent]
            states = np.full(level.byte.size, DEAD, dtype=np.intp)
            alive = np.flatnonzero(before != DEAD)
            if alive.size == 0 and not passed:
                break
            for state in np.unique(before[alive]).tolist():
                chosen = alive[before[alive] == state]
                states[chosen] = automaton.row(state)[level.byte[chosen]]
            counted = counted[level.parent] + (level.byte & 0xC0 != 0x80)
            passed = self._pass_stops(automaton, level, states, counted, passed)
            for node, places in passed.items():
                if level.token[node] >= 0:
                    events.extend((int(level.token[node]), *place) for place in places)
            here = np.flatnonzero((states != DEAD) & (level.token >= 0))
            tokens.append(level.token[here])
            ends.append(states[here])
        return self._finish(tokens, ends, events)

    @staticmethod
    def _pass_stops(
        automaton: Automaton,
        level: Level,
        states: IntArray,
        counted: IntArray,
        above: dict[int, tuple[tuple[int, int], ...]],
    ) -> dict[int, tuple[tuple[int, int], ...]]:
        """The stops on the way to each node of this level: those of its parent and perhaps one of its own.

        Kept although the state itself may be dead: a token is free to run on past a stop (S14).
        """
        passed: dict[int, tuple[tuple[int, int], ...]] = {}
        if above:
            for node in np.flatnonzero(np.isin(level.parent, list(above))).tolist():
                passed[node] = above[int(level.parent[node])]
        for state in np.unique(states).tolist():
            if state != DEAD and automaton.reaches_stop(state):
                for node in np.flatnonzero(states == state).tolist():
                    passed[node] = (*passed.get(node, ()), (state, int(counted[node])))
        return passed

    def _finish(self, tokens: list[IntArray], ends: list[IntArray], events: list[tuple[int, int, int]]) -> Walk:
        found = np.concatenate(tokens) if tokens else np.empty(0, dtype=np.intp)
        states = np.concatenate(ends) if ends else np.empty(0, dtype=np.intp)
        if self._twins:
            where = {token: index for index, token in enumerate(found.tolist())}
            twins = [(twin, where[first]) for twin, first in self._twins.items() if first in where]
            found = np.concatenate([found, np.array([twin for twin, _ in twins], dtype=np.intp)])
            states = np.concatenate([states, states[[index for _, index in twins]]])
            firsts = {first: twin for twin, first in self._twins.items()}
            events += [(firsts[token], state, count) for token, state, count in events if token in firsts]
        return Walk(found, states, self.characters[found], tuple(events))

    def beginning_with(self, prefix: bytes) -> list[tuple[bytes, int]]:
        """(bytes, token) of all tokens that begin with `prefix`, itself included."""
        return self._sorted[self._bisect(prefix) : self._bisect(prefix, after=True)]

    def _bisect(self, prefix: bytes, *, after: bool = False) -> int:
        low, high = 0, len(self._sorted)
        while low < high:
            middle = (low + high) // 2
            data = self._sorted[middle][0]
            if data < prefix or (after and data.startswith(prefix)):
                low = middle + 1
            else:
                high = middle
        return low

    def within(self, text: bytes) -> list[int]:
        """All tokens that are a beginning of `text`, itself left out."""
        return [token for length in range(1, len(text)) for token in self._exactly(text[:length])]

    def _exactly(self, data: bytes) -> list[int]:
        found = []
        for index in range(self._bisect(data), len(self._sorted)):
            if self._sorted[index][0] != data:
                break
            found.append(self._sorted[index][1])
        return found

    def extends(self, text: bytes) -> bool:
        """Whether some token begins with `text` and goes on: then text that ends so may be tokenised otherwise."""
        index = self._bisect(text)
        while index < len(self._sorted) and self._sorted[index][0] == text:
            index += 1
        return index < len(self._sorted) and self._sorted[index][0].startswith(text)
