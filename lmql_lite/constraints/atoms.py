"""Byte automata of the single atoms: states are small integers, and each byte is one transition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

Atoms = tuple[int, ...]
"""The states of all machines of a term."""
DEAD = -1
NEVER = 2**30
"""Distance of a state from which no valid end can be reached."""


def starts_character(byte: int) -> bool:
    """True if a byte is the first byte of a UTF-8 character; a text has as many of these as code points."""
    return byte & 0xC0 != 0x80


EVERY_BYTE = [1] * 256
FIRST_BYTES = [int(starts_character(byte)) for byte in range(256)]
"""Cost of each byte where characters are counted; `EVERY_BYTE` is the cost where bytes are counted."""


class Moves(NamedTuple):
    """Transitions of one state: a successor for each byte in `special`, and one for all other bytes."""

    special: dict[int, int]
    other: int


class Need(NamedTuple):
    """Lower bounds on the bytes and on the characters that must follow before an atom can hold.

    A machine's `need` also takes the number of bytes that the text's last character lacks (`unfinished`).
    """

    num_bytes: int
    num_characters: int


class Trie:
    """A trie of texts with one node per prefix. A parent has a smaller number than its children."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self.children: list[dict[int, int]] = [{}]
        self.parents = [0]
        self.bytes = [0]
        """The byte that leads to each node from its parent."""
        self.complete: set[int] = set()
        """Nodes of whole texts."""
        for text in texts:
            node = 0
            for byte in text:
                child = self.children[node].get(byte)
                if child is None:
                    child = self.children[node][byte] = len(self.children)
                    self.children.append({})
                    self.parents.append(node)
                    self.bytes.append(byte)
                node = child
            self.complete.add(node)

    def node(self, text: bytes) -> int:
        """Node of a text, which must be a prefix of a text in the trie."""
        node = 0
        for byte in text:
            node = self.children[node][byte]
        return node

    def depths(self) -> list[int]:
        depths = [0] * len(self.parents)
        for node in range(1, len(depths)):
            depths[node] = depths[self.parents[node]] + 1
        return depths

    def least(self, costs: Sequence[int]) -> list[int]:
        """Least cost from each node to a whole text below it, NEVER if there is none. `costs` has one cost per byte."""
        found = [NEVER] * len(self.children)
        for node in self.complete:
            found[node] = 0
        for node in range(len(found) - 1, 0, -1):  # children have larger numbers than their parents
            cost, parent = found[node] + costs[self.bytes[node]], self.parents[node]
            if cost < found[parent]:
                found[parent] = cost
        return found


class OptionMachine:
    """Accepts any of several whole texts. The state is a node of their trie, or DEAD after the text has left it."""

    def __init__(self, options: tuple[bytes, ...]) -> None:
        self._trie = Trie(options)
        self._rest = self._trie.least(EVERY_BYTE)
        self.longest = max(self._rest)
        """Most bytes that any node lacks to the nearest end of an option."""

    def moves(self, state: int) -> Moves:
        return Moves({} if state == DEAD else self._trie.children[state], DEAD)

    def holds(self, state: int) -> bool:
        return state in self._trie.complete

    def forced(self, state: int) -> bytes:
        """Longest common continuation of all options from this state, up to the first end of an option."""
        forced = bytearray()
        while state not in self._trie.complete and len(children := self._trie.children[state]) == 1:
            ((byte, state),) = children.items()
            forced.append(byte)
        return bytes(forced)

    def need(self, state: int, unfinished: int) -> Need:
        return Need(NEVER if state == DEAD else self._rest[state], 0)


class Beginnings:
    """Accepts texts that begin with one of several phrases.

    The state is a node of their trie, DEAD after the text has left it, or the number of nodes after a phrase was found.
    """

    def __init__(self, phrases: tuple[bytes, ...]) -> None:
        self._trie = Trie(phrases)
        self._num_bytes = self._trie.least(EVERY_BYTE)
        self._num_characters = self._trie.least(FIRST_BYTES)
        self._found = len(self._trie.children)

    def moves(self, state: int) -> Moves:
        if state in (DEAD, self._found):
            return Moves({}, state)
        complete = self._trie.complete
        return Moves(
            {byte: self._found if after in complete else after for byte, after in self._trie.children[state].items()},
            DEAD,
        )

    def holds(self, state: int) -> bool:
        return state == self._found

    def need(self, state: int, unfinished: int) -> Need:
        if state == self._found:
            return Need(unfinished, 0)
        return Need(NEVER, 0) if state == DEAD else Need(self._num_bytes[state], self._num_characters[state])


class Utf8:
    """Accepts well-formed UTF-8 (Unicode 15, table 3-7). State 0 is between two characters, DEAD is an error.

    States 1 to 3 expect that many continuation bytes. States 4 to 7 expect a restricted second byte, which excludes
    overlong forms, surrogates and code points above U+10FFFF.
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


UTF8 = Utf8()
UNFINISHED = (0, 1, 2, 3, 2, 2, 3, 3)
"""Number of bytes that the current character still lacks, for each state of `UTF8`."""
AFTER_UTF8 = [sorted(set(row) - {DEAD}) for row in UTF8.table]
