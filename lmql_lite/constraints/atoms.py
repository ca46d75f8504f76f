"""Byte machines of the single atoms: small integers as states, one step per byte."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

DEAD = -1
NEVER = 2**30
"""The distance of a place from which the end cannot be reached."""


def starts_character(byte: int) -> bool:
    """Whether a byte is the first one of a character: counting these counts code points."""
    return byte & 0xC0 != 0x80


EVERY_BYTE = [1] * 256
FIRST_BYTES = [int(starts_character(byte)) for byte in range(256)]
"""What each byte costs, where bytes are counted or characters."""
CONTINUED = {byte: 1 + (byte >= 0xE0) + (byte >= 0xF0) for byte in range(0xC2, 0xF5)}
"""For each first byte of several how many follow it."""


class Moves(NamedTuple):
    """The successors of one state: those of the bytes in `special`, and the one of all other bytes."""

    special: dict[int, int]
    other: int


class Need(NamedTuple):
    """The least that still has to be said before an atom can hold."""

    num_bytes: int
    num_characters: int


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


class Trie:
    """Texts by their beginnings: a node for each, its parent with a smaller number."""

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
        """The node of the beginning of a text that is in the trie."""
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
        """Least cost of the way from each node to a whole text, at a cost for each byte; NEVER where there is none."""
        found = [NEVER] * len(self.children)
        for node in self.complete:
            found[node] = 0
        for node in range(len(found) - 1, 0, -1):  # children have larger numbers than their parents
            cost, parent = found[node] + costs[self.bytes[node]], self.parents[node]
            if cost < found[parent]:
                found[parent] = cost
        return found


class Options:
    """A trie of whole texts: the state is a node of it, DEAD once the text has left them all."""

    def __init__(self, options: tuple[bytes, ...]) -> None:
        self._trie = Trie(options)
        self._rest = self._trie.least(EVERY_BYTE)

    def moves(self, state: int) -> Moves:
        return Moves({} if state == DEAD else self._trie.children[state], DEAD)

    def holds(self, state: int) -> bool:
        return state in self._trie.complete

    def need(self, state: int) -> Need:
        return Need(NEVER if state == DEAD else self._rest[state], 0)


class Beginnings:
    """Finds whether a text begins with one of several phrases: the state is a node of their trie, DEAD once it has left
    them all. Behind a phrase anything may come: then the state is how many bytes a character still has."""

    def __init__(self, phrases: tuple[bytes, ...]) -> None:
        self._trie = Trie(phrases)
        self._num_bytes = self._trie.least(EVERY_BYTE)
        self._num_characters = self._trie.least(FIRST_BYTES)
        self._found = len(self._trie.children)

    def moves(self, state: int) -> Moves:
        if state == DEAD:
            return Moves({}, DEAD)
        if state >= self._found:
            return _anything(self._found, state)
        complete = self._trie.complete
        return Moves(
            {byte: self._found if after in complete else after for byte, after in self._trie.children[state].items()},
            DEAD,
        )

    def holds(self, state: int) -> bool:
        return state == self._found

    def need(self, state: int) -> Need:
        """Exact in bytes, and exact in characters."""
        if state == DEAD:
            return Need(NEVER, 0)
        if state >= self._found:
            return Need(state - self._found, 0)
        return Need(self._num_bytes[state], self._num_characters[state])


class Endings:
    """Finds whether a text ends with one of several phrases (Aho, Corasick 1975): the state is the node of their trie
    with the longest text that the text ends with.

    Where that is none, and a character is not over, the state behind those of the trie is how many bytes it still has;
    `by_character` says whether that shall be known.
    """

    def __init__(self, phrases: Iterable[bytes], *, by_character: bool = True) -> None:
        self._trie = Trie(phrases)
        self._continued = CONTINUED if by_character else {}
        self._num_bytes = self._trie.least(EVERY_BYTE)
        self._num_characters = self._trie.least(FIRST_BYTES)
        self._inside = len(self._trie.children) - 1
        """The state before those that are inside a character: it has as many bytes as the state lies behind this."""
        self._shorter = self._fallbacks()
        self._moves: dict[int, Moves] = {}

    def _fallbacks(self) -> list[int]:
        """For each node the state of the longest proper end of its text."""
        children = self._trie.children
        fallbacks = [0] * len(children)
        queue = deque([0])
        while queue:  # breadth first: the ends of a text are shorter than it
            node = queue.popleft()
            for byte, child in children[node].items():
                queue.append(child)
                end = fallbacks[node]
                while 0 < end <= self._inside and byte not in children[end]:
                    end = fallbacks[end]
                if node > 0 and end <= self._inside and byte in children[end]:
                    fallbacks[child] = children[end][byte]
                else:
                    fallbacks[child] = self._outside(end, byte)
        return fallbacks

    def _outside(self, state: int, byte: int) -> int:
        """The state behind a byte with which no phrase begins, from between two characters or inside of one."""
        left = state - self._inside - 1 if state > self._inside else self._continued.get(byte, 0)
        return self._inside + left if left else 0

    def moves(self, state: int) -> Moves:
        ends = [state]
        while ends[-1] not in self._moves and 0 < ends[-1] <= self._inside:
            ends.append(self._shorter[ends[-1]])
        for end in reversed(ends):
            if end in self._moves:
                continue
            if end > self._inside:
                self._moves[end] = Moves({}, self._outside(end, 0))
            elif end:
                special, other = self._moves[self._shorter[end]]
                self._moves[end] = Moves({**special, **self._trie.children[end]}, other)
            else:
                inside = {byte: self._outside(0, byte) for byte in self._continued}
                self._moves[end] = Moves({**inside, **self._trie.children[0]}, 0)
        return self._moves[state]

    def holds(self, state: int) -> bool:
        return self.need(state).num_bytes == 0

    def need(self, state: int) -> Need:
        """Exact in bytes, and exact in characters."""
        num_bytes = num_characters = NEVER
        while 0 < state <= self._inside:
            num_bytes = min(num_bytes, self._num_bytes[state])
            num_characters = min(num_characters, self._num_characters[state])
            state = self._shorter[state]
        left = max(state - self._inside, 0)
        return Need(min(num_bytes, left + self._num_bytes[0]), min(num_characters, self._num_characters[0]))


class StopPhrases(Endings):
    """The phrases of many stops, and how much of one of them the text ends with."""

    def __init__(self, phrases: Iterable[bytes]) -> None:
        super().__init__(phrases, by_character=False)
        self._depths = self._trie.depths()
        self._found: dict[int, tuple[tuple[int, int], ...]] = {}

    def found(self, state: int) -> tuple[tuple[int, int], ...]:
        """The phrases that end here: the number of each (`number`), and its length."""
        found = self._found.get(state)
        if found is None:
            ends, end = [], state
            while end:
                ends += [end] if end in self._trie.complete else []
                end = self._shorter[end]
            found = self._found[state] = tuple((end, self._depths[end]) for end in ends)
        return found

    def holds(self, state: int) -> bool:
        return bool(self.found(state))

    def under_way(self, state: int) -> int:
        """How many of the last bytes may be part of a phrase."""
        return self._depths[state]

    def number(self, phrase: bytes) -> int:
        return self._trie.node(phrase)


def _anything(between: int, state: int) -> Moves:
    """Any text: the state is `between` two characters, or as many behind it as a character has bytes to come."""
    if state > between:
        return Moves({}, state - 1)
    return Moves({byte: between + more for byte, more in CONTINUED.items()}, between)


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
