"""Sets of characters: as ranges of code points, and as a graph that reads their UTF-8 encoding byte by byte."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import NamedTuple

from lmql_lite.constraints.atoms import NEVER

Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint ranges of code points, both ends included, without surrogates."""

DONE = -1
SURROGATES = (0xD800, 0xDFFF)
SIZES = ((0x00, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF))
"""First and last code point that UTF-8 encodes in one, two, three and four bytes."""
LEADS = (0x00, 0xC0, 0xE0, 0xF0)


class ByteRange(NamedTuple):
    """Edge of the graph: the bytes `low .. high` lead to `node`, or to DONE where the character is complete."""

    low: int
    high: int
    node: int


class Charset:
    """Graph that reads one character of a set. Equal suffixes share a node: `\\w` needs a few hundred, `.` seven."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self.nodes: list[tuple[ByteRange, ...]] = []
        self._numbers: dict[tuple[ByteRange, ...], int] = {}
        self._known: dict[tuple[Ranges, int], int] = {}
        first_bytes: list[ByteRange] = []
        for more, ((low, high), lead) in enumerate(zip(SIZES, LEADS, strict=True)):
            inside = tuple(
                (max(low, first), min(high, last)) for first, last in ranges if first <= high and last >= low
            )
            first_bytes += self._branches(inside, more, lead)
        self.root = self._number(tuple(first_bytes))
        self.num_bytes: list[int] = []
        """Least number of bytes to the end of the character, for every node."""
        for branches in self.nodes:  # a node is numbered after its successors
            rests = (0 if node == DONE else self.num_bytes[node] for _, _, node in branches)
            self.num_bytes.append(1 + min(rests, default=NEVER - 1))

    def __contains__(self, character: str) -> bool:
        at = bisect_right(self.ranges, (ord(character), 0x10FFFF)) - 1
        return at >= 0 and ord(character) <= self.ranges[at][1]

    def _branches(self, ranges: Ranges, more: int, lead: int) -> list[ByteRange]:
        """Edges for a byte that `more` bytes follow. Its value selects a block of `64**more` code points."""
        size = 64**more
        blocks: dict[int, list[tuple[int, int]]] = {}
        for first, last in ranges:
            for block in range(first // size, last // size + 1):
                begin = block * size
                blocks.setdefault(block, []).append((max(first, begin) - begin, min(last, begin + size - 1) - begin))
        branches: list[ByteRange] = []
        for block in sorted(blocks):
            node = self._rest(tuple(blocks[block]), more)
            before = branches[-1] if branches else None
            if before and before.node == node and before.high == lead + block - 1:
                branches[-1] = ByteRange(before.low, lead + block, node)
            else:
                branches.append(ByteRange(lead + block, lead + block, node))
        return branches

    def _rest(self, ranges: Ranges, more: int) -> int:
        if more == 0:
            return DONE
        node = self._known.get((ranges, more))
        if node is None:
            node = self._known[ranges, more] = self._number(tuple(self._branches(ranges, more - 1, 0x80)))
        return node

    def _number(self, branches: tuple[ByteRange, ...]) -> int:
        number = self._numbers.setdefault(branches, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(branches)
        return number


@lru_cache(maxsize=1024)
def charset(ranges: Ranges) -> Charset:
    return Charset(ranges)


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
