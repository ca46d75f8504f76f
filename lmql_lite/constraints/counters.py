"""What lengths are compared with, and which phrases were found: counts and flags beside the states, as one integer."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import NEVER, Moves, starts_character
from lmql_lite.constraints.charset import DONE, charset, joined
from lmql_lite.constraints.terms import UNITS, Length, Measure, Unit

IntArray = NDArray[np.intp]

MARKS = b".!?"
SPACES = tuple(filter(str.isspace, map(chr, range(0x3001))))
"""All white space there is."""
BETWEEN, INSIDE, AFTER = range(3)
"""Before the first or next word or sentence; inside one; in a sentence, directly behind a mark."""
HEADROOM = 2**16
"""More than a token adds to any count: none has so many bytes."""


FLAGS_IN_LANE = 62
COUNTS_IN_LANE = 3
LANE_BITS = 20
"""Of one count in a 64-bit integer: more than a token adds to any."""


class Counts:
    """The counts that a term compares, each saturated one past the largest number it is compared with, and flags.

    All are packed into one integer, so that a configuration is always a pair of integers. Counts are added up; a flag
    that was raised stays.
    """

    def __init__(self, most: dict[Measure, int], num_flags: int = 0) -> None:
        occurrences = [unit for unit in most if unit not in UNITS]
        self.units: tuple[Measure, ...] = (*(unit for unit in UNITS if unit in most), *occurrences)
        self.most = tuple(most[unit] for unit in self.units)
        self.num_flags = num_flags
        self._fields: list[tuple[int, int, int]] = []
        """Of each count: where it begins, its bits as a mask, and its largest value."""
        shift = 0
        for value in self.most:
            bits = (value + HEADROOM).bit_length()
            self._fields.append((shift, (1 << bits) - 1, value))
            shift += bits
        self.flags_at = shift
        """The bit at which the flags begin."""
        self._numbers = (1 << shift) - 1
        self._only = self.most[0] if len(self.most) == 1 and not num_flags else None
        self.walked = [at for at, unit in enumerate(self.units) if unit not in ("characters", "tokens")]
        """The counts that the bytes of a text add to as the machines say."""

    def add(self, count: int, added: int) -> int:
        if self._only is not None:
            total = count + added
            return total if total < self._only else self._only
        total = self.sum(count, added)
        for shift, mask, most in self._fields:
            over = ((total >> shift) & mask) - most
            if over > 0:
                total -= over << shift
        return total

    def sum(self, one: int, other: int) -> int:
        """What two stretches of text add; not saturated."""
        if not self.num_flags:
            return one + other
        numbers, at = self._numbers, self.flags_at
        return (one & numbers) + (other & numbers) | (one | other) >> at << at

    def pack(self, values: tuple[int, ...], flags: int = 0) -> int:
        """One value for each of `units`, none below 0."""
        packed = sum(value << field[0] for value, field in zip(values, self._fields, strict=True))
        return packed | flags << self.flags_at

    def unpack(self, count: int) -> tuple[int, ...]:
        """The value of each of `units`."""
        if self._only is not None:
            return (count,)
        return tuple([(count >> shift) & mask for shift, mask, _ in self._fields])

    def flags(self, count: int) -> int:
        return count >> self.flags_at

    def flagged(self, flags: int) -> int:
        """Flags as a part of a count."""
        return flags << self.flags_at

    def flag_lanes(self, flags: int) -> list[int]:
        return [flags >> at & (1 << FLAGS_IN_LANE) - 1 for at in range(0, self.num_flags, FLAGS_IN_LANE)]

    def lanes(self, added: int) -> tuple[int, ...]:
        """What a few bytes have added, without characters and tokens, as 64-bit integers: counts, then flags."""
        values = self.unpack(added)
        numbers = [
            sum(values[unit] << LANE_BITS * at for at, unit in enumerate(self.walked[first : first + COUNTS_IN_LANE]))
            for first in range(0, len(self.walked), COUNTS_IN_LANE)
        ]
        return (*numbers, *self.flag_lanes(self.flags(added)))

    @property
    def count_lanes(self) -> int:
        """Number of lanes that are added up; in the others a bit stays."""
        return -(-len(self.walked) // COUNTS_IN_LANE)

    @property
    def num_lanes(self) -> int:
        return self.count_lanes + -(-self.num_flags // FLAGS_IN_LANE)

    def one(self, unit: Measure) -> int:
        """What a single character, word, sentence or token adds; 0 where the term does not count it."""
        return 1 << self._fields[self.units.index(unit)][0] if unit in self.units else 0


class Region(NamedTuple):
    """Counts for which every comparison of a term comes out the same: each one on its own from `low` to `high`.

    `improves` tells whether a comparison that is false here can become true by saying more.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    improves: bool


class Regions:
    """The counts of a term, cut where a comparison changes."""

    def __init__(self, units: tuple[Measure, ...], lengths: list[Length]) -> None:
        self._units = units
        self._lengths = lengths
        self._borders: list[list[int]] = []
        for unit in units:
            mine = [length for length in lengths if length.unit == unit]
            ends = {length.at_most + 1 for length in mine if length.at_most is not None}
            self._borders.append([0, *sorted(({length.at_least for length in mine} | ends) - {0}), NEVER])
        self._known: dict[tuple[int, ...], Region] = {}
        self._arrays = [np.array(borders, dtype=np.intp) for borders in self._borders]

    def find_all(self, counts: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """For many counts, shape (counts, units): a number for the region of each, and its `low` and `high`."""
        numbers = np.zeros(len(counts), dtype=np.intp)
        low, high = np.empty_like(counts), np.empty_like(counts)
        for at, borders in enumerate(self._arrays):
            place = borders.searchsorted(counts[:, at], side="right")
            low[:, at], high[:, at] = borders[place - 1], borders[place] - 1
            numbers = numbers * (borders.size + 1) + place
        return numbers, low, high

    def find(self, values: tuple[int, ...]) -> Region:
        places = tuple(map(bisect_right, self._borders, values))
        return self._known.get(places) or self._make(places)

    def _make(self, places: tuple[int, ...]) -> Region:
        low = tuple(borders[at - 1] for at, borders in zip(places, self._borders, strict=True))
        high = tuple(borders[at] - 1 for at, borders in zip(places, self._borders, strict=True))
        reached = dict(zip(self._units, low, strict=True))
        improves = any(length.at_least > reached[length.unit] for length in self._lengths)
        return self._known.setdefault(places, Region(low, high, improves))


class Missing(NamedTuple):
    """The least that has to be said until the count goes up."""

    num_bytes: int
    num_characters: int


@cache
def parts(unit: Unit) -> Parts:
    return Parts(unit)


class Parts:
    """A machine that finds where words or sentences begin (`terms.Unit` says what they are).

    A state is a mode, and how far a character has been read that may turn out to be white space.
    """

    def __init__(self, unit: Unit) -> None:
        self._marks = MARKS if unit == "sentences" else b""
        self._spaces = charset(joined((ord(space), ord(space)) for space in SPACES))
        self._width = len(self._spaces.nodes)
        self._moves: list[Moves] = [self._expand(state) for state in range(3 * self._width)]
        self._next = [self._distances(character_only) for character_only in (False, True)]
        self._again = [min(each[INSIDE * self._width], each[AFTER * self._width]) for each in self._next]
        """From where a word or sentence has just begun."""

    def moves(self, state: int) -> Moves:
        return self._moves[state]

    def begins(self, before: int, after: int) -> bool:
        """Whether a word or sentence begins on the way from one state to the next."""
        return before < self._width <= after

    def missing(self, state: int, how_many: int) -> Missing:
        """The least that has to be said until so many more have begun, at least one."""
        more = how_many - 1
        return Missing(self._next[0][state] + more * self._again[0], self._next[1][state] + more * self._again[1])

    def _expand(self, state: int) -> Moves:
        mode, place = divmod(state, self._width)
        special: dict[int, int] = {}
        for low, high, after in self._spaces.nodes[self._spaces.root - place]:
            at_end = BETWEEN if mode == AFTER or not self._marks else mode
            then = at_end * self._width if after == DONE else mode * self._width + self._spaces.root - after
            special.update(dict.fromkeys(range(low, high + 1), then))
        special.update(dict.fromkeys(self._marks, AFTER * self._width))
        return Moves(special, INSIDE * self._width)

    def _distances(self, character_only: bool) -> list[int]:
        """Dijkstra from every state to the next beginning, in bytes or in characters."""
        found = []
        for start in range(3 * self._width):
            queue = [(0, start)]
            known = {start: 0}
            nearest = NEVER
            while queue and queue[0][0] < nearest:
                far, here = heappop(queue)
                moves = self._moves[here]
                for byte, after in [*moves.special.items(), (ord("a"), moves.other), (0x80, moves.other)]:
                    if starts_character(byte) == bool(here % self._width):
                        continue  # no text goes on like this
                    cost = far + (starts_character(byte) if character_only else 1)
                    if self.begins(here, after):
                        nearest = min(nearest, cost)
                    elif cost < known.get(after, NEVER):
                        known[after] = cost
                        heappush(queue, (cost, after))
            found.append(nearest)
        return found
