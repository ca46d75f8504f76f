"""Byte machines of the single atoms: small integers as states, one step per byte."""

from __future__ import annotations

from typing import ClassVar

DEAD = -1


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

    def step(self, state: int, byte: int) -> int:
        if state == self.size:
            if self._sticky:
                return state
            state = self._borders[state]
        while state and self.phrase[state] != byte:
            state = self._borders[state]
        return state + (self.size > 0 and self.phrase[state] == byte)

    def holds(self, state: int) -> bool:
        return state == self.size

    def bytes_of_interest(self) -> set[int]:
        return set(self.phrase)


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

    def step(self, state: int, byte: int) -> int:
        return DEAD if state == DEAD else self._children[state].get(byte, DEAD)

    def holds(self, state: int) -> bool:
        return state in self._complete

    def bytes_of_interest(self) -> set[int]:
        return {byte for children in self._children for byte in children}


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

    def step(self, state: int, byte: int) -> int:
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

    CLASSES = (range(0x80), range(0x80, 0x90), range(0x90, 0xA0), range(0xA0, 0xC0), range(0xC0, 0xC2),
               range(0xC2, 0xE0), range(0xE0, 0xE1), range(0xE1, 0xED), range(0xED, 0xEE), range(0xEE, 0xF0),
               range(0xF0, 0xF1), range(0xF1, 0xF4), range(0xF4, 0xF5), range(0xF5, 0x100))  # fmt: skip
    """Bytes within one of these behave alike in every state."""


def starts_character(byte: int) -> bool:
    """Whether a byte is the first one of a character: counting these counts code points."""
    return byte & 0xC0 != 0x80
