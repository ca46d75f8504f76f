"""Units in which lengths are counted: their meaning in Python, and the machines that find where each part begins.

A new unit needs a name in `NamedUnit`, a machine in `parts` and a case in `measured`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal, Protocol, assert_never, get_args

from lmql_lite.constraints.atoms import NEVER, Moves, Need, starts_character
from lmql_lite.constraints.charset import DONE, charset, joined

NamedUnit = Literal["characters", "words", "sentences", "lines", "tokens"]
"""Characters are code points. Words are the parts that `str.split()` returns. A sentence ends where white space follows
`.`, `!` or `?`. A line ends with a line feed, which the last line may lack. Tokens are those that were chosen for the
hole, including tokens that a stop cuts off (S15)."""
UNITS: tuple[NamedUnit, ...] = get_args(NamedUnit)
COUNTED_ALONE: tuple[NamedUnit, ...] = ("characters", "tokens")
"""Units that are counted without a machine."""


@dataclass(frozen=True, slots=True, order=True)
class Occurrences:
    """Non-overlapping occurrences of a phrase, counted as `str.count` does."""

    phrase: bytes

    def __str__(self) -> str:
        return f"times {self.phrase.decode()!r}"


Unit = NamedUnit | Occurrences
MARKS = b".!?"
SPACES = tuple(filter(str.isspace, map(chr, range(0x3001))))
"""All white space characters of Unicode."""
BETWEEN, INSIDE, AFTER = range(3)
"""Modes: before a word, sentence or line; inside one; in a sentence, directly after a mark."""


def measured(text: str, unit: Unit) -> int:
    """Number of parts in a text. For tokens, which the text alone does not determine, the number of characters."""
    match unit:
        case Occurrences(phrase):
            return text.count(phrase.decode())
        case "characters" | "tokens":
            return len(text)
        case "words":
            return len(text.split())
        case "sentences":
            return len(re.split(r"(?<=[.!?])\s+", text.strip())) if text.strip() else 0
        case "lines":
            return text.count("\n") + (not text.endswith("\n") and text != "")
    assert_never(unit)


class Parts(Protocol):
    """A machine that counts the parts of a text. From the third missing part on, each costs the same in every state."""

    num_states: int
    has_filler: bool
    """True if every text can be continued without adding a part."""

    def moves(self, state: int) -> Moves: ...

    def is_inside(self, state: int) -> bool:
        """True if the text ends inside a character that may begin or end a part."""
        ...

    def adds_one(self, before: int, after: int) -> bool:
        """True if the transition from one state to the next counts one more part."""
        ...

    def missing(self, state: int, how_many: int) -> Need:
        """Fewest bytes and characters that add `how_many` parts, at least one."""
        ...

    def most_missing(self, how_many: int) -> Need:
        """Maximum of `missing` over all states."""
        ...


@cache
def parts(unit: NamedUnit) -> Parts:
    match unit:
        case "words":
            return WordMachine(marks=b"")
        case "sentences":
            return WordMachine(marks=MARKS)
        case "lines":
            return LineMachine()
        case "characters" | "tokens":
            raise ValueError(f"{unit} are counted without a machine")
    assert_never(unit)


class WordMachine:
    """Finds where words begin. With `marks`, which end sentences, it finds where sentences begin.

    A state combines a mode with the progress through a character that may turn out to be white space.
    """

    has_filler = True

    def __init__(self, marks: bytes) -> None:
        self._marks = marks
        self._spaces = charset(joined((ord(space), ord(space)) for space in SPACES))
        self.width = len(self._spaces.nodes)
        """Number of states of each mode. States below it are outside words and sentences."""
        self.num_states = 3 * self.width
        self._moves: list[Moves] = [self._expand(state) for state in range(self.num_states)]
        self._next = [self._distances(character_only) for character_only in (False, True)]
        """Distances from each state to the next two beginnings: a list in bytes, and one in characters."""
        self._again = [min(each[INSIDE * self.width][0], each[AFTER * self.width][0]) for each in self._next]
        """Distance between consecutive beginnings, in bytes and in characters."""
        self._farthest = [(max(one for one, _ in each), max(two for _, two in each)) for each in self._next]

    def moves(self, state: int) -> Moves:
        return self._moves[state]

    def is_inside(self, state: int) -> bool:
        return bool(state % self.width)

    def adds_one(self, before: int, after: int) -> bool:
        return before < self.width <= after

    def missing(self, state: int, how_many: int) -> Need:
        return self._need([each[state] for each in self._next], how_many)

    def most_missing(self, how_many: int) -> Need:
        return self._need(self._farthest, how_many)

    def _need(self, nearest: list[tuple[int, int]], how_many: int) -> Need:
        (num_bytes, two_bytes), (num_characters, two_characters) = nearest
        if how_many == 1:
            return Need(num_bytes, num_characters)
        more = how_many - 2
        return Need(two_bytes + more * self._again[0], two_characters + more * self._again[1])

    def _expand(self, state: int) -> Moves:
        mode, place = divmod(state, self.width)
        special: dict[int, int] = {}
        for low, high, after in self._spaces.nodes[self._spaces.root - place]:
            at_end = BETWEEN if mode == AFTER or not self._marks else mode
            then = at_end * self.width if after == DONE else mode * self.width + self._spaces.root - after
            special.update(dict.fromkeys(range(low, high + 1), then))
        special.update(dict.fromkeys(self._marks, AFTER * self.width))
        return Moves(special, INSIDE * self.width)

    def _distances(self, character_only: bool) -> list[tuple[int, int]]:
        """Distances from each state to the next two beginnings (Bellman, Ford), in bytes or in characters."""
        steps = [
            [(starts or not character_only, self.adds_one(state, after), after) for starts, after in self._steps(state)]
            for state in range(self.num_states)
        ]
        one, two = [NEVER] * self.num_states, [NEVER] * self.num_states
        while True:
            ones = [min(cost + (0 if begins else one[after]) for cost, begins, after in each) for each in steps]
            twos = [min(cost + (one if begins else two)[after] for cost, begins, after in each) for each in steps]
            if (ones, twos) == (one, two):
                return list(zip(one, two, strict=True))
            one, two = ones, twos

    def _steps(self, state: int) -> set[tuple[bool, int]]:
        """Next states by a byte of well-formed text, each with whether that byte starts a character."""
        moves = self._moves[state]
        every = [*moves.special.items(), (ord("a"), moves.other), (0x80, moves.other)]
        steps = {(starts_character(byte), after) for byte, after in every}
        return {step for step in steps if step[0] != self.is_inside(state)}


class LineMachine:
    """Finds where lines begin. The state is INSIDE a line, or BETWEEN two of them."""

    has_filler = False
    num_states = 2

    def moves(self, state: int) -> Moves:
        return Moves({ord("\n"): BETWEEN}, INSIDE)

    def adds_one(self, before: int, after: int) -> bool:
        return before == BETWEEN

    def is_inside(self, state: int) -> bool:
        return False

    def missing(self, state: int, how_many: int) -> Need:
        """One character per line, and inside a line one more that ends it."""
        return Need(how_many + state, how_many + state)

    def most_missing(self, how_many: int) -> Need:
        return self.missing(INSIDE, how_many)
