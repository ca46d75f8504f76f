"""Estimates of what is still missing: for a search, and to give up early. Never more than what is really missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lmql_lite.constraints.atoms import NEVER

WAYS_KEPT = 64


class Way(NamedTuple):
    """One way in which a term may come to hold: so much more has to be said, to reach a length of `low .. high`."""

    num_bytes: int
    num_characters: int
    low: int
    high: int


ALWAYS = Way(0, 0, 0, NEVER)


def both(one: Way, other: Way) -> Way:
    return Way(
        max(one.num_bytes, other.num_bytes),
        max(one.num_characters, other.num_characters),
        max(one.low, other.low),
        min(one.high, other.high),
    )


def possible(ways: Iterable[Way]) -> tuple[Way, ...]:
    """Those that do not contradict themselves, each once; where they are too many, one that is easier than all."""
    found = tuple(dict.fromkeys(way for way in ways if way.low <= way.high))
    if len(found) <= WAYS_KEPT:
        return found
    num_bytes, num_characters, low, high = zip(*found, strict=True)
    return (Way(min(num_bytes), min(num_characters), min(low), max(high)),)
