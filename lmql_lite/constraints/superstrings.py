"""The least text that has several phrases in it, behind a text that may have begun one of them.

Phrases that overlap each other are ordered by a table over their subsets (Held, Karp 1962); groups of them that do not
overlap stand one after the other. Where a group is too large for a table, overlaps inside it are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import NEVER
from lmql_lite.constraints.counters import FLAGS_IN_LANE
from lmql_lite.constraints.phrases import overlap

IntArray = NDArray[np.intp]

LARGEST_GROUP = 14
"""Phrases of which each overlaps another: the table has 2**14 rows of 14."""


class Superstrings:
    """`phrases` are numbered; a set of them is a number with their bits. `texts` are those that may stand before.

    Sizes are those of the phrases in bytes, or in characters.
    """

    def __init__(self, phrases: Sequence[bytes], texts: Sequence[bytes], *, characters: bool = False) -> None:
        self._texts = texts
        self._groups: list[Group] = []
        self.is_exact = True
        for members in _groups(phrases):
            if len(members) > LARGEST_GROUP:
                self.is_exact = False
            for some in [members] if len(members) <= LARGEST_GROUP else [[each] for each in members]:
                self._groups.append(Group(some, [phrases[at] for at in some], characters))
        self._least: dict[tuple[int, int], tuple[int, int]] = {}

    def least(self, text: int, wanted: int) -> tuple[int, int]:
        """Size of the least text with all that is wanted, and how much of that a text before it has said already."""
        known = self._least.get((text, wanted))
        if known is None:
            total, gained = 0, 0
            for group in self._groups:
                here = group.subset(wanted)
                if here:
                    alone = int(group.alone[here])
                    total += alone
                    gained = max(gained, alone - int(group.behind(self._texts[text])[here]))
            known = self._least[text, wanted] = total, gained
        return known

    def least_of_all(self, texts: IntArray, wanted: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
        """The same for many: `wanted` holds their bits, as `Counts.flag_lanes` has them."""
        total = np.zeros(texts.size, dtype=np.intp)
        gained = np.zeros(texts.size, dtype=np.intp)
        distinct = np.flatnonzero(np.bincount(texts, minlength=len(self._texts))).tolist()
        numbers = np.zeros(len(self._texts), dtype=np.intp)
        numbers[distinct] = np.arange(len(distinct))
        rows = numbers[texts]
        for group in self._groups:
            here = group.subsets(wanted)
            alone = group.alone[here]
            total += alone
            behind = np.stack([group.behind(self._texts[text]) for text in distinct])
            np.maximum(gained, alone - behind[rows, here], out=gained)
        return total, gained


class Group:
    """Phrases that overlap each other, and no phrase of another group."""

    def __init__(self, members: list[int], phrases: list[bytes], characters: bool) -> None:
        self.members = members
        self._phrases = phrases
        self._characters = characters
        self._behind: dict[bytes, IntArray] = {}

    def _size(self, text: bytes) -> int:
        return len(text.decode("utf-8", "ignore")) if self._characters else len(text)

    def subset(self, wanted: int) -> int:
        return sum((wanted >> member & 1) << at for at, member in enumerate(self.members))

    def subsets(self, wanted: Sequence[IntArray]) -> IntArray:
        found = np.zeros(wanted[0].size, dtype=np.intp)
        for at, member in enumerate(self.members):
            found |= (wanted[member // FLAGS_IN_LANE] >> member % FLAGS_IN_LANE & 1) << at
        return found

    @cached_property
    def _kept(self) -> IntArray:
        """Every subset without the phrases that are part of another one of it."""
        kept = np.arange(1 << len(self._phrases))
        for at, phrase in enumerate(self._phrases):
            for other, longer in enumerate(self._phrases):
                if at != other and phrase in longer and (phrase != longer or at > other):
                    kept = np.where(kept >> other & 1, kept & ~(1 << at), kept)
        return kept

    @cached_property
    def _after(self) -> IntArray:
        """For every subset and phrase the least that has to be said behind that phrase. Shape (subsets, phrases)."""
        many = len(self._phrases)
        subsets = np.arange(1 << many)
        sizes = np.bitwise_count(subsets)
        more = np.array([[self._size(to[overlap(of, to) :]) for to in self._phrases] for of in self._phrases])
        after = np.full((1 << many, many), NEVER, dtype=np.intp)
        after[0] = 0
        for size in range(1, many + 1):
            those = subsets[sizes == size]
            for at in range(many):
                having = those[(those >> at & 1).astype(np.bool_)]
                after[having] = np.minimum(after[having], more[:, at] + after[having ^ (1 << at), at][:, None])
        return after

    @cached_property
    def alone(self) -> IntArray:
        """The least text that has every subset in it."""
        return self.behind(b"")

    def behind(self, text: bytes) -> IntArray:
        """For every subset the least that has to be said behind a text."""
        known = self._behind.get(text)
        if known is None:
            first = [self._size(phrase[overlap(text, phrase) :]) for phrase in self._phrases]
            known = np.zeros(1 << len(self._phrases), dtype=np.intp)
            subsets = np.arange(known.size)
            best = np.full(known.size, NEVER, dtype=np.intp)
            for at, size in enumerate(first):
                having = subsets[(subsets >> at & 1).astype(np.bool_)]
                best[having] = np.minimum(best[having], size + self._after[having ^ (1 << at), at])
            best[0] = 0
            known = self._behind[text] = best[self._kept]
        return known


def _groups(phrases: Sequence[bytes]) -> list[list[int]]:
    """Phrases that overlap, or are part of each other, directly or through others."""
    left = dict.fromkeys(range(len(phrases)))
    groups: list[list[int]] = []
    while left:
        waiting = [next(iter(left))]
        del left[waiting[0]]
        group = []
        while waiting:
            here = waiting.pop()
            group.append(here)
            for other in [other for other in left if meet(phrases[here], phrases[other])]:
                del left[other]
                waiting.append(other)
        groups.append(sorted(group))
    return groups


def meet(one: bytes, other: bytes) -> bool:
    """Whether two phrases can share a byte of a text."""
    return bool(overlap(one, other) or overlap(other, one) or one in other or other in one)
