"""Sets of characters as ranges of code points."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cache, lru_cache

Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint ranges of code points, both ends included, without surrogates."""

SURROGATES = (0xD800, 0xDFFF)


def contains(ranges: Ranges, character: str) -> bool:
    at = bisect_right(ranges, (ord(character), 0x10FFFF)) - 1
    return at >= 0 and ord(character) <= ranges[at][1]


@cache
def every_character() -> str:
    return "".join(map(chr, [*range(SURROGATES[0]), *range(SURROGATES[1] + 1, 0x110000)]))


@lru_cache(maxsize=1024)
def matched(pattern: str, flags: int) -> Ranges:
    """Characters that a pattern of one character matches. Python tests every character, in one scan."""
    runs = [found.span() for found in re.compile(f"(?:{pattern})+", flags).finditer(every_character())]
    return _code_points(runs)


@cache
def accepted(test: Callable[[str], bool]) -> Ranges:
    """Characters that pass a test, such as `str.isalpha`."""
    return joined((ord(character), ord(character)) for character in every_character() if test(character))


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Union of the ranges: sorted, merged, and without surrogates."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    first, last = SURROGATES
    pieces = (
        (low, min(high, first - 1)) if half else (max(low, last + 1), high) for low, high in merged for half in (1, 0)
    )
    return tuple((low, high) for low, high in pieces if low <= high)


def others(ranges: Ranges) -> Ranges:
    """Complement of the set, without surrogates."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), 0x10FFFF]
    return joined((low, high) for low, high in zip(starts, ends, strict=True) if low <= high)


def _code_points(runs: list[tuple[int, int]]) -> Ranges:
    """Ranges of code points from half-open ranges of positions in `every_character()`."""
    first, last = SURROGATES
    gap = last - first + 1
    found: list[tuple[int, int]] = []
    for start, end in runs:
        if start < first:
            found.append((start, min(end, first) - 1))
        if end > first:
            found.append((max(start, first) + gap, end - 1 + gap))
    return tuple(found)


def class_text(ranges: Ranges) -> str:
    """The set as a character class of a regular expression."""
    return "[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges) + "]"
