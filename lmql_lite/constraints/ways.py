"""Estimates of what is still missing: for a search, and to give up early. Never more than what is really missing."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import and_
from typing import NamedTuple

from lmql_lite.constraints.atoms import NEVER

WAYS_KEPT = 64

Bounds = tuple[tuple[int, int], ...]
"""The least and the most of each count, in the order of `Counts.units`."""


class Way(NamedTuple):
    """One way in which a term may come to hold: so much more has to be said, to reach counts within `bounds`.

    All flags in `wanted` must be raised, and none in `unwanted`. One that stands for several is not exact.
    """

    num_bytes: int
    num_characters: int
    bounds: Bounds
    wanted: int = 0
    unwanted: int = 0
    is_exact: bool = True

    def is_gone(self, values: tuple[int, ...], flags: int) -> bool:
        """Whether nothing is missing, as far as counts and flags tell."""
        inside = all(low <= value <= high for value, (low, high) in zip(values, self.bounds, strict=True))
        return inside and not self.wanted & ~flags and not self.unwanted & flags

    def is_as_easy_as(self, other: Way) -> bool:
        """Whether this way is open wherever the other one is."""
        return (
            self.num_bytes <= other.num_bytes
            and self.num_characters <= other.num_characters
            and not self.wanted & ~other.wanted
            and not self.unwanted & ~other.unwanted
            and all(a[0] <= b[0] and b[1] <= a[1] for a, b in zip(self.bounds, other.bounds, strict=True))
        )


def both(one: Way, other: Way) -> Way:
    return Way(
        max(one.num_bytes, other.num_bytes),
        max(one.num_characters, other.num_characters),
        tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one.bounds, other.bounds, strict=True)),
        one.wanted | other.wanted,
        one.unwanted | other.unwanted,
        one.is_exact and other.is_exact,
    )


def possible(ways: Iterable[Way]) -> tuple[Way, ...]:
    """Those that do not contradict themselves and are not harder than another one; where they are too many, one that
    is easier than all."""
    found: list[Way] = []
    for way in dict.fromkeys(ways):
        if way.wanted & way.unwanted or any(low > high for low, high in way.bounds):
            continue
        if any(other.is_as_easy_as(way) for other in found):
            continue
        found = [other for other in found if not way.is_as_easy_as(other)]
        found.append(way)
    if len(found) <= WAYS_KEPT:
        return tuple(found)
    num_bytes, num_characters, bounds, wanted, unwanted, _ = zip(*found, strict=True)
    easiest = tuple((min(low for low, _ in each), max(high for _, high in each)) for each in zip(*bounds, strict=True))
    common = reduce(and_, wanted), reduce(and_, unwanted)
    return (Way(min(num_bytes), min(num_characters), easiest, *common, is_exact=False),)


FREE = (0, NEVER)
"""Bounds that say nothing."""
