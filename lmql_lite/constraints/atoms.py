"""Byte machines of the single atoms: small integers as states, one step per byte."""

from __future__ import annotations

from collections import deque
from typing import ClassVar, NamedTuple

DEAD = -1
NEVER = 2**30
"""The distance of a place from which the end cannot be reached."""


class Moves(NamedTuple):
    """The successors of one state: those of the bytes in `special`, and the one of all other bytes."""

    special: dict[int, int]
    other: int


class Need(NamedTuple):
    """The least that still has to be said before an atom can hold."""

    num_bytes: int
    num_characters: int


class Phrase:
    """Finds a phrase (Knuth, Morris, Pratt 1977): the state is how much of it the text ends with.

    With `sticky` the state stays once the phrase was found: "contains". Without, it goes on: "ends with".
    """

    def __init__(self, phrase: bytes, *, sticky: bool) -> None:
        self.phrase = phrase
        self.size = len(phrase)
        self._sticky = sticky
        borders = [0] * (self.size + 1)
        border = 0
        for end in range(2, self.size + 1):
            while border and phrase[end - 1] != phrase[border]:
                border = borders[border]
            border += phrase[end - 1] == phrase[border]
            borders[end] = border
        self._borders = borders
        self._moves: list[Moves | None] = [None] * (self.size + 1)

    def step(self, state: int, byte: int) -> int:
        if state == self.size:
            if self._sticky:
                return state
            state = self._borders[state]
        while state and self.phrase[state] != byte:
            state = self._borders[state]
        return state + (self.phrase[state] == byte)

    def moves(self, state: int) -> Moves:
        moves = self._moves[state]
        if moves is None:
            if state == self.size and self._sticky:
                moves = Moves({}, state)
            else:
                moves = Moves({byte: after for byte in set(self.phrase) if (after := self.step(state, byte))}, 0)
            self._moves[state] = moves
        return moves

    def holds(self, state: int) -> bool:
        return state == self.size

    def back(self, state: int) -> int:
        """The length of the phrase that ends here."""
        return self.size

    def under_way(self, state: int) -> int:
        """How many of the last bytes may be part of the phrase."""
        return state

    def need(self, state: int) -> Need:
        rest = self.phrase[state:]
        return Need(len(rest), sum(map(starts_character, rest)))


class Forbidden:
    """Finds any of several phrases (Aho, Corasick 1975): the state is a node of their trie, DEAD once one was found."""

    def __init__(self, phrases: tuple[bytes, ...]) -> None:
        self._children: list[dict[int, int]] = [{}]
        found: set[int] = set()
        for phrase in phrases:
            node = 0
            for byte in phrase:
                child = self._children[node].setdefault(byte, len(self._children))
                if child == len(self._children):
                    self._children.append({})
                node = child
            found.add(node)
        self._moves: list[dict[int, int]] = [{}] * len(self._children)
        queue = deque([(0, -1)])
        while queue:  # breadth first: the longest proper end of a node's text that is a node comes before it
            node, end = queue.popleft()
            fallback = self._moves[end] if end >= 0 else {}
            moves = dict(fallback)
            for byte, child in self._children[node].items():
                shorter = fallback.get(byte, 0)
                moves[byte] = DEAD if child in found or shorter == DEAD else child
                if moves[byte] == child:
                    queue.append((child, shorter))
            self._moves[node] = moves

    def moves(self, state: int) -> Moves:
        return Moves({}, DEAD) if state == DEAD else Moves(self._moves[state], 0)

    def holds(self, state: int) -> bool:
        return state != DEAD

    def need(self, state: int) -> Need:
        return Need(NEVER if state == DEAD else 0, 0)


class Options:
    """A trie of whole texts: the state is a node of it, DEAD once the text has left them all."""

    def __init__(self, options: tuple[bytes, ...]) -> None:
        self._children: list[dict[int, int]] = [{}]
        self._complete: set[int] = set()
        for option in options:
            node = 0
            for byte in option:
                child = self._children[node].get(byte)
                if child is None:
                    child = self._children[node][byte] = len(self._children)
                    self._children.append({})
                node = child
            self._complete.add(node)
        self._rest = [0] * len(self._children)
        """The least number of bytes from each node to a complete text."""
        for node in reversed(range(len(self._children))):  # children have larger numbers than their parents
            if node not in self._complete:
                self._rest[node] = 1 + min(
                    (self._rest[child] for child in self._children[node].values()), default=NEVER - 1
                )

    def moves(self, state: int) -> Moves:
        return Moves({} if state == DEAD else self._children[state], DEAD)

    def holds(self, state: int) -> bool:
        return state in self._complete

    def need(self, state: int) -> Need:
        return Need(NEVER if state == DEAD else self._rest[state], 0)


class Utf8:
    """Well-formed UTF-8 (Unicode 15, table 3-7). State 0 is between two characters, DEAD is an error.

    The others say what may follow: 1 to 3 any continuation bytes, and the four restricted second bytes, which keep
    out overlong forms, surrogates and everything past U+10FFFF.
    """

    _SECOND: ClassVar = {
        0xE0: (4, 0xA0, 0xBF, 1),
        0xED: (5, 0x80, 0x9F, 1),
        0xF0: (6, 0x90, 0xBF, 2),
        0xF4: (7, 0x80, 0x8F, 2),
    }
    _RESTRICTED: ClassVar = {state: (low, high, after) for state, low, high, after in _SECOND.values()}

    def __init__(self) -> None:
        self.table = [[self._step(state, byte) for byte in range(256)] for state in range(8)]
        self.groups: list[list[tuple[int, tuple[int, ...]]]] = []
        """For every state its successors, each with the bytes that lead there."""
        for row in self.table:
            successors = sorted(set(row) - {DEAD})
            self.groups.append(
                [(after, tuple(byte for byte in range(256) if row[byte] == after)) for after in successors]
            )

    def _step(self, state: int, byte: int) -> int:
        if state == 0:
            return self._first(byte)
        low, high, after = self._RESTRICTED.get(state, (0x80, 0xBF, state - 1))
        return after if low <= byte <= high else DEAD

    def _first(self, byte: int) -> int:
        if byte < 0x80:
            return 0
        if byte in self._SECOND:
            return self._SECOND[byte][0]
        if 0xC2 <= byte <= 0xDF:
            return 1
        if 0xE1 <= byte <= 0xEF:
            return 2
        return 3 if 0xF1 <= byte <= 0xF3 else DEAD


def starts_character(byte: int) -> bool:
    """Whether a byte is the first one of a character: counting these counts code points."""
    return byte & 0xC0 != 0x80
