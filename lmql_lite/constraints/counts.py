"""Counts of a text beside its content: vectors of numbers that are places of a table, and the machines that count.

A count is a number of characters, words, sentences, lines, tokens, or occurrences of a phrase. It saturates where no
comparison tells larger numbers apart. A required phrase is a count that stops at one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.pattern import Ranges, joined
from lmql_lite.constraints.terms import MARKS, SPACES, Length, NamedUnit, Unit

IntArray = NDArray[np.intp]
Values = tuple[int, ...]
"""Numbers of the units of a `Counts`, in its order."""
DEAD = -1
"""State of a machine after which nothing can make it hold."""


class Counts:
    """The vectors of all units that lengths compare. The number of characters is a *level* of the table.

    The other numbers together are one *index*, in mixed radix.
    """

    def __init__(self, lengths: Iterable[Length]) -> None:
        sizes: dict[Unit, int] = {}
        for length in lengths:
            most = length.at_least if length.at_most is None else max(length.at_least, length.at_most + 1)
            sizes[length.unit] = max(sizes.get(length.unit, 0), most + 1)
        self.units: tuple[Unit, ...] = tuple(sizes)
        self.sizes = tuple(sizes.values())
        """Numbers of each unit that are told apart; the last one stands for all larger ones."""
        self.zero: Values = (0,) * len(sizes)
        self._characters = self.units.index("characters") if "characters" in sizes else None
        self._tokens = self.units.index("tokens") if "tokens" in sizes else None
        self.levels = sizes.get("characters", 1)
        self.size = 1
        """Number of indices."""
        self._strides = [0] * len(sizes)
        for at, size in enumerate(self.sizes):
            if at != self._characters:
                self._strides[at] = self.size
                self.size *= size
        self._tops: IntArray = np.array(self.sizes, dtype=np.intp) - 1

    def vector(self, units: Iterable[Unit]) -> Values:
        """One of each of these units."""
        wanted = tuple(units)
        return tuple(wanted.count(unit) for unit in self.units)

    def add(self, values: Values, added: Sequence[int]) -> Values:
        if not any(added):
            return values
        pairs = zip(values, added, self.sizes, strict=True)
        return tuple([min(value + more, size - 1) for value, more, size in pairs])

    def with_tokens_of(self, values: IntArray, other: Values) -> IntArray:
        """The vectors with the number of tokens of another: a value is charged for tokens that are cut off (S15)."""
        if self._tokens is not None:
            values = values.copy()
            values[:, self._tokens] = other[self._tokens]
        return values

    def places(self, values: IntArray) -> tuple[IntArray, IntArray]:
        """Levels and indices of many vectors, shape (vectors, units)."""
        values = np.minimum(values, self._tops)
        levels = np.zeros(len(values), dtype=np.intp) if self._characters is None else values[:, self._characters]
        return levels, values @ np.array(self._strides, dtype=np.intp)

    def place(self, values: Values) -> tuple[int, int]:
        """Level and index of one vector, which does not exceed `sizes`."""
        level = 0 if self._characters is None else values[self._characters]
        return level, sum([value * stride for value, stride in zip(values, self._strides, strict=True)])

    def of_index(self, unit: Unit) -> IntArray:
        """Number of a unit other than characters, for each index."""
        at = self.units.index(unit)
        return np.arange(self.size) // self._strides[at] % self.sizes[at]

    def shifted(self, added: Sequence[int]) -> IntArray:
        """Index that each index becomes when these numbers are added."""
        found = np.zeros(self.size, dtype=np.intp)
        for at, (unit, more) in enumerate(zip(self.units, added, strict=True)):
            if at != self._characters:
                found += np.minimum(self.of_index(unit) + more, self.sizes[at] - 1) * self._strides[at]
        return found


class PartCounter:
    """Finds where words, sentences or lines begin. The state is a mode: between two, inside one, after a mark."""

    BETWEEN, INSIDE, AFTER = range(3)
    start = BETWEEN

    def __init__(self, unit: NamedUnit) -> None:
        self._unit = unit
        self._marks = MARKS if unit == "sentences" else ""
        marks = [((ord(mark), ord(mark)),) for mark in (*self._marks, "\n")]
        self.sets: list[Ranges] = [joined((ord(space), ord(space)) for space in SPACES), *marks]

    def step(self, state: int, character: str) -> int:
        if self._unit == "lines":
            return self.BETWEEN if character == "\n" else self.INSIDE
        if character.isspace():
            return self.BETWEEN if state != self.INSIDE or not self._marks else self.INSIDE
        return self.AFTER if character in self._marks else self.INSIDE

    def adds(self, before: int, after: int) -> bool:
        """True if the transition counts one more part."""
        return before == self.BETWEEN and (after != self.BETWEEN or self._unit == "lines")


class PhraseMachine:
    """Finds phrases: the state is a node of their trie (Aho and Corasick 1975).

    Holds if the text is one of the phrases, begins or ends with one, or lacks them all. If it `counts` them, only an
    occurrence that overlaps no earlier one is found.
    """

    start = 0

    def __init__(self, phrases: Iterable[bytes], kind: Literal["is", "begins", "ends", "lacks", "counts"]) -> None:
        self._kind = kind
        self._anywhere = kind in ("ends", "lacks", "counts")
        """True if a phrase may begin at each place of the text."""
        self._children: list[dict[str, int]] = [{}]
        self._shorter = [0]
        """For each node, that of the longest other end of its text that begins a phrase."""
        self._found: set[int] = set()
        """Nodes with which a phrase ends."""
        for phrase in phrases:
            node = 0
            for character in phrase.decode():
                if character not in self._children[node]:
                    self._children[node][character] = len(self._children)
                    self._children.append({})
                    self._shorter.append(0)
                node = self._children[node][character]
            self._found.add(node)
        self.sets: list[Ranges] = [((ord(c), ord(c)),) for c in sorted({c for each in self._children for c in each})]
        waiting = [0] if self._anywhere else []
        for node in waiting:
            for character, child in self._children[node].items():
                self._shorter[child] = self._after(self._shorter[node], character) if node else 0
                if self._shorter[child] in self._found:
                    self._found.add(child)
                waiting.append(child)

    def step(self, state: int, character: str) -> int:
        """Node after a character; DEAD if nothing can make the machine hold any more."""
        if self._kind == "begins" and state in self._found:
            return state
        after = self._after(0 if self._kind == "counts" and state in self._found else state, character)
        if after not in self._found:
            return after
        match self._kind:
            case "lacks":
                return DEAD
            case "begins":  # what follows does not tell the beginnings apart
                return min(self._found)
        return after

    def _after(self, state: int, character: str) -> int:
        while state != DEAD:
            child = self._children[state].get(character)
            if child is not None:
                return child
            if state == 0 or not self._anywhere:
                return 0 if self._anywhere else DEAD
            state = self._shorter[state]
        return DEAD

    def holds(self, state: int) -> bool:
        return state != DEAD if self._kind == "lacks" else state in self._found

    def adds(self, before: int, after: int) -> bool:
        """True if a phrase ends with the transition."""
        return after in self._found
