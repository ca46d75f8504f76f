"""Estimates of what is still missing: for a search, and to give up early. Never more than what is really missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lmql_lite.constraints.atoms import NEVER

WAYS_KEPT = 64

Bounds = tuple[tuple[int, int], ...]
"""The least and the most of each count, in the order of `Counts.units`."""


class Way(NamedTuple):
    """One way in which a term may come to hold: so much more has to be said, to reach counts within `bounds`."""

    num_bytes: int
    num_characters: int
    bounds: Bounds


def both(one: Way, other: Way) -> Way:
    return Way(
        max(one.num_bytes, other.num_bytes),
        max(one.num_characters, other.num_characters),
        tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one.bounds, other.bounds, strict=True)),
    )


def possible(ways: Iterable[Way]) -> tuple[Way, ...]:
    """Those that do not contradict themselves, each once; where they are too many, one that is easier than all."""
    found = tuple(dict.fromkeys(way for way in ways if all(low <= high for low, high in way.bounds)))
    if len(found) <= WAYS_KEPT:
        return found
    num_bytes, num_characters, bounds = zip(*found, strict=True)
    easiest = tuple((min(low for low, _ in each), max(high for _, high in each)) for each in zip(*bounds, strict=True))
    return (Way(min(num_bytes), min(num_characters), easiest),)


def is_within(values: tuple[int, ...], bounds: Bounds) -> bool:
    return all(low <= value <= high for value, (low, high) in zip(values, bounds, strict=True))


FREE = (0, NEVER)
"""Bounds that say nothing."""
