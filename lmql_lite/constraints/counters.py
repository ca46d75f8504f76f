"""Counts for lengths and flags for phrases, kept beside the states and packed into one integer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import reduce
from operator import and_
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import NEVER
from lmql_lite.constraints.terms import Length
from lmql_lite.constraints.units import COUNTED_ALONE, UNITS, Occurrences, Unit

IntArray = NDArray[np.intp]

HEADROOM = 2**16
"""Upper bound on what one token adds to a count: no token has so many bytes."""


FLAGS_IN_LANE = 62
COUNTS_IN_LANE = 3
LANE_BITS = 20
"""Bits of one count in a 64-bit lane. No token adds so much that it overflows them."""


class Counts:
    """Packs the counts that a term compares, and its flags, into one integer.

    A configuration is therefore always a pair of integers. Each count saturates at its value in `most`. A raised flag
    stays raised.
    """

    def __init__(self, most: dict[Unit, int], num_flags: int = 0) -> None:
        phrases = sorted(unit for unit in most if isinstance(unit, Occurrences))
        self.units: tuple[Unit, ...] = (*(unit for unit in UNITS if unit in most), *phrases)
        self.most = tuple(most[unit] for unit in self.units)
        self.num_flags = num_flags
        self._fields: list[tuple[int, int, int]] = []
        """For each count: the position of its lowest bit, a mask of its width, and its saturation value."""
        shift = 0
        for value in self.most:
            bits = (value + HEADROOM).bit_length()
            self._fields.append((shift, (1 << bits) - 1, value))
            shift += bits
        self.flags_at = shift
        """Position of the lowest flag."""
        self._numbers = (1 << shift) - 1
        self._only = self.most[0] if len(self.most) == 1 and not num_flags else None
        self.walked = [at for at, unit in enumerate(self.units) if unit not in COUNTED_ALONE]
        """Indices into `units` of the counts that machines increment."""
        self._lanes: dict[int, tuple[int, ...]] = {}
        """Maps the increments of single bytes to their lanes."""

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
        """Sum of the increments of two stretches of text, not saturated. Their flags are united."""
        if not self.num_flags:
            return one + other
        numbers, at = self._numbers, self.flags_at
        return (one & numbers) + (other & numbers) | (one | other) >> at << at

    def pack(self, values: tuple[int, ...], flags: int = 0) -> int:
        """Packs flags and one value for each of `units`, none below 0."""
        packed = sum(value << field[0] for value, field in zip(values, self._fields, strict=True))
        return packed | flags << self.flags_at

    def unpack(self, count: int) -> tuple[int, ...]:
        """Value of each of `units`."""
        if self._only is not None:
            return (count,)
        return tuple([(count >> shift) & mask for shift, mask, _ in self._fields])

    def flags(self, count: int) -> int:
        return count >> self.flags_at

    def flagged(self, flags: int) -> int:
        """Flags as part of a packed count."""
        return flags << self.flags_at

    def flag_lanes(self, flags: int) -> list[int]:
        return [flags >> at & (1 << FLAGS_IN_LANE) - 1 for at in range(0, self.num_flags, FLAGS_IN_LANE)]

    def lanes(self, added: int) -> tuple[int, ...]:
        """Increment of a few bytes as 64-bit lanes: counts, characters and tokens left out, and then flags."""
        known = self._lanes.get(added)
        if known is None:
            known = self._lanes[added] = self._find_lanes(added)
        return known

    def _find_lanes(self, added: int) -> tuple[int, ...]:
        values = self.unpack(added)
        numbers = [
            sum(values[unit] << LANE_BITS * at for at, unit in enumerate(self.walked[first : first + COUNTS_IN_LANE]))
            for first in range(0, len(self.walked), COUNTS_IN_LANE)
        ]
        return (*numbers, *self.flag_lanes(self.flags(added)))

    @property
    def count_lanes(self) -> int:
        """Number of lanes with counts, which are added. The other lanes hold flags, which are united."""
        return -(-len(self.walked) // COUNTS_IN_LANE)

    @property
    def num_lanes(self) -> int:
        return self.count_lanes + -(-self.num_flags // FLAGS_IN_LANE)

    def one(self, unit: Unit) -> int:
        """Increment for one more of a unit, 0 if the term does not count it."""
        return 1 << self._fields[self.units.index(unit)][0] if unit in self.units else 0


class Region(NamedTuple):
    """A box of counts in which every comparison of a term has the same result. `low` and `high` are inclusive.

    `improves` is true if more text can make a comparison true that is false here.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    improves: bool


class Regions:
    """Partition of the counts of a term into regions: a region ends where the result of a comparison changes."""

    def __init__(self, units: tuple[Unit, ...], lengths: list[Length]) -> None:
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
        """Regions of many counts, shape (counts, units): a number for each region, and its `low` and `high`."""
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


WAYS_KEPT = 64

Bounds = tuple[tuple[int, int], ...]
"""Least and greatest value of each count, in the order of `Counts.units`."""


class Goal(NamedTuple):
    """One alternative in which a term holds after more text: at least so many bytes and characters must follow.

    The counts must end within `bounds`, with all flags in `wanted` raised and none in `unwanted`. A goal that stands
    for several others is not exact.
    """

    num_bytes: int
    num_characters: int
    bounds: Bounds
    wanted: int = 0
    unwanted: int = 0
    is_exact: bool = True

    def is_gone(self, values: tuple[int, ...], flags: int) -> bool:
        """True if the counts and flags meet this goal."""
        inside = all(low <= value <= high for value, (low, high) in zip(values, self.bounds, strict=True))
        return inside and not self.wanted & ~flags and not self.unwanted & flags

    def contradicts_itself(self) -> bool:
        return bool(self.wanted & self.unwanted) or any(low > high for low, high in self.bounds)

    def is_as_easy_as(self, other: Goal) -> bool:
        """True if this goal is reachable wherever the other one is."""
        return (
            self.num_bytes <= other.num_bytes
            and self.num_characters <= other.num_characters
            and not self.wanted & ~other.wanted
            and not self.unwanted & ~other.unwanted
            and all(a[0] <= b[0] and b[1] <= a[1] for a, b in zip(self.bounds, other.bounds, strict=True))
        )


def both(one: Goal, other: Goal) -> Goal:
    return Goal(
        max(one.num_bytes, other.num_bytes),
        max(one.num_characters, other.num_characters),
        tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one.bounds, other.bounds, strict=True)),
        one.wanted | other.wanted,
        one.unwanted | other.unwanted,
        one.is_exact and other.is_exact,
    )


def possible(goals: Iterable[Goal]) -> tuple[Goal, ...]:
    """Goals that neither contradict themselves nor are harder than another one.

    If there are more than WAYS_KEPT, a single goal that is easier than all of them.
    """
    found: list[Goal] = []
    distinct = tuple(dict.fromkeys(goals))
    if len(distinct) == 1 and not distinct[0].contradicts_itself():
        return distinct
    for goal in distinct:
        if goal.contradicts_itself():
            continue
        if any(other.is_as_easy_as(goal) for other in found):
            continue
        found = [other for other in found if not goal.is_as_easy_as(other)]
        found.append(goal)
    if len(found) <= WAYS_KEPT:
        return tuple(found)
    num_bytes, num_characters, bounds, wanted, unwanted, _ = zip(*found, strict=True)
    easiest = tuple((min(low for low, _ in each), max(high for _, high in each)) for each in zip(*bounds, strict=True))
    common = reduce(and_, wanted), reduce(and_, unwanted)
    return (Goal(min(num_bytes), min(num_characters), easiest, *common, is_exact=False),)


FREE = (0, NEVER)
"""Bounds that allow every count."""
