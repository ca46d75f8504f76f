"""Shortest common superstrings: least size of a text that contains several phrases, one of which may have begun.

Phrases that overlap are ordered by dynamic programming over their subsets (Held, Karp 1962). Groups that do not overlap
stand one after the other. In a group that is too large for a table, overlaps are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import NEVER
from lmql_lite.constraints.counters import FLAGS_IN_LANE
from lmql_lite.constraints.phrases import FlaggedPhrases, overlap

IntArray = NDArray[np.intp]

Sizes = NDArray[np.int32]
LARGEST_GROUP = 17
"""Most phrases in a group that has a table: 2**17 rows of 17."""


class Superstrings:
    """Least sizes that complete sets of `phrases` after one of `texts`, in bytes or in characters.

    A set of phrases is a bit mask of their indices. `crowd` has the phrases of a group that is too large for a table;
    sizes are upper bounds if there is one.
    """

    def __init__(self, phrases: Sequence[bytes], texts: Sequence[bytes], *, characters: bool = False) -> None:
        self._texts = texts
        self._groups: list[OverlapGroup] = []
        self.crowd: tuple[bytes, ...] = ()
        for members in _groups(phrases):
            if len(members) > LARGEST_GROUP:
                self.crowd = tuple(phrases[at] for at in members)
            for some in [members] if len(members) <= LARGEST_GROUP else [[each] for each in members]:
                self._groups.append(OverlapGroup(some, [phrases[at] for at in some], characters))
        self._alone = [group for group in self._groups if len(group.members) == 1]
        self._least: dict[tuple[int, int], int] = {}

    @cached_property
    def _begun(self) -> list[tuple[IntArray, IntArray]]:
        """Prefixes of phrases that overlap no other, with which texts end: index of the phrase, and size of the prefix.

        Both arrays have shape (texts,). A text that ends with prefixes of several phrases needs a pair for each.
        """
        columns: list[tuple[IntArray, IntArray]] = []
        for text, said in enumerate(self._texts):
            saved = [(group.members[0], group.begun(said)) for group in self._alone]
            for column, (member, gain) in enumerate((member, gain) for member, gain in saved if gain):
                if column == len(columns):
                    columns.append((np.zeros(len(self._texts), np.intp), np.zeros(len(self._texts), np.intp)))
                members, gains = columns[column]
                members[text], gains[text] = member, gain
        return columns

    @cached_property
    def _of_size(self) -> list[tuple[int, IntArray]]:
        """Distinct sizes of the phrases that overlap no other, each with the set of phrases of that size, in lanes."""
        found: dict[int, list[int]] = {}
        for group in self._alone:
            found.setdefault(int(group.alone[1]), []).append(group.members[0])
        lanes = range(0, max((group.members[0] for group in self._alone), default=-1) + 1, FLAGS_IN_LANE)
        return [
            (size, np.array([sum(1 << at - lane for at in some if 0 <= at - lane < FLAGS_IN_LANE) for lane in lanes]))
            for size, some in found.items()
        ]

    def least(self, text: int, wanted: int) -> int:
        """Least size to append to a text, given by its index, to complete all phrases in the set `wanted`.

        Only one group can continue the end of the text, so the largest saving counts.
        """
        known = self._least.get((text, wanted))
        if known is None:
            total, gained = 0, 0
            for group in self._groups:
                here = group.subset(wanted)
                if here:
                    alone = int(group.alone[here])
                    total += alone
                    gained = max(gained, alone - int(group.behind(self._texts[text])[here]))
            known = self._least[text, wanted] = total - gained
        return known

    def least_of_all(self, texts: IntArray, wanted: Sequence[IntArray]) -> IntArray:
        """`least` for many texts. `wanted` has an array of the same shape for each of `Counts.flag_lanes`."""
        total = np.zeros(texts.size, dtype=np.intp)
        gained = np.zeros(texts.size, dtype=np.intp)
        for size, lanes in self._of_size:
            for some, lane in zip(lanes.tolist(), wanted, strict=False):
                total += np.bitwise_count(lane & some).astype(np.intp) * size
        for members, gains in self._begun:
            begun = members[texts]
            lane = wanted[0] if len(wanted) == 1 else np.stack(wanted)[begun // FLAGS_IN_LANE, np.arange(begun.size)]
            np.maximum(gained, (lane >> begun % FLAGS_IN_LANE & 1) * gains[texts], out=gained)
        if len(self._alone) == len(self._groups):
            return total - gained
        distinct = np.flatnonzero(np.bincount(texts, minlength=len(self._texts))).tolist()
        numbers = np.zeros(len(self._texts), dtype=np.intp)
        numbers[distinct] = np.arange(len(distinct))
        rows = numbers[texts]
        for group in self._groups:
            if group in self._alone:
                continue
            here = group.subsets(wanted)
            alone = group.alone[here]
            total += alone
            behind = np.stack([group.behind(self._texts[text]) for text in distinct])
            np.maximum(gained, alone - behind[rows, here], out=gained)
        return total - gained


class OverlapGroup:
    """Phrases that overlap each other, directly or through others, and no phrase of another group."""

    def __init__(self, members: list[int], phrases: list[bytes], characters: bool) -> None:
        self.members = members
        self._phrases = phrases
        self._characters = characters
        self._behind: dict[bytes, Sizes] = {}

    def _size(self, text: bytes) -> int:
        return len(text.decode("utf-8", "ignore")) if self._characters else len(text)

    def begun(self, text: bytes) -> int:
        """Size of the longest proper prefix of the first phrase with which a text ends."""
        return self._size(self._phrases[0][: overlap(text, self._phrases[0])])

    def subset(self, wanted: int) -> int:
        return sum((wanted >> member & 1) << at for at, member in enumerate(self.members))

    def subsets(self, wanted: Sequence[IntArray]) -> IntArray:
        found = np.zeros(wanted[0].size, dtype=np.intp)
        for at, member in enumerate(self.members):
            found |= (wanted[member // FLAGS_IN_LANE] >> member % FLAGS_IN_LANE & 1) << at
        return found

    @cached_property
    def _kept(self) -> IntArray:
        """Maps each subset to itself without the phrases that occur inside another of its phrases."""
        kept = np.arange(1 << len(self._phrases))
        for at, phrase in enumerate(self._phrases):
            for other, longer in enumerate(self._phrases):
                if at != other and phrase in longer and (phrase != longer or at > other):
                    kept = np.where(kept >> other & 1, kept & ~(1 << at), kept)
        return kept

    @cached_property
    def _after(self) -> Sizes:
        """Least size to append after each phrase to complete each subset. Shape (subsets, phrases)."""
        many = len(self._phrases)
        subsets = np.arange(1 << many)
        sizes = np.bitwise_count(subsets)
        rests = [[self._size(to[overlap(of, to) :]) for to in self._phrases] for of in self._phrases]
        more = np.array(rests, dtype=np.int32)
        after = np.full((1 << many, many), NEVER, dtype=np.int32)
        after[0] = 0
        for size in range(1, many + 1):
            those = subsets[sizes == size]
            for at in range(many):
                having = those[(those >> at & 1).astype(np.bool_)]
                after[having] = np.minimum(after[having], more[:, at] + after[having ^ (1 << at), at][:, None])
        return after

    @cached_property
    def alone(self) -> Sizes:
        """Least size of a text that contains each subset. Shape (subsets,)."""
        return self.behind(b"")

    def behind(self, text: bytes) -> Sizes:
        """Least size to append to a text to complete each subset. Shape (subsets,)."""
        known = self._behind.get(text)
        if known is None:
            first = [self._size(phrase[overlap(text, phrase) :]) for phrase in self._phrases]
            subsets = np.arange(1 << len(self._phrases))
            best = np.full(subsets.size, NEVER, dtype=np.int32)
            for at, size in enumerate(first):
                having = subsets[(subsets >> at & 1).astype(np.bool_)]
                best[having] = np.minimum(best[having], size + self._after[having ^ (1 << at), at])
            best[0] = 0
            known = self._behind[text] = best[self._kept]
        return known


def _groups(phrases: Sequence[bytes]) -> list[list[int]]:
    """Indices of the phrases in groups: phrases that can `meet`, directly or through others, are in one group."""
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
    """True if two phrases can share a byte of a text."""
    return bool(overlap(one, other) or overlap(other, one) or one in other or other in one)


FEW = 4
"""Most wanted phrases for `Avoiding`, whose table has a row for each subset of them."""


class Avoiding:
    """Least sizes that complete wanted phrases without an unwanted one, in ASCII text.

    `wanted` and `unwanted` are flags of the finder.
    """

    def __init__(self, finder: FlaggedPhrases, wanted: int, unwanted: int, flags_at: int) -> None:
        self._bits = [at for at in range(wanted.bit_length()) if wanted >> at & 1]
        many = len(finder.texts)
        steps: list[tuple[int, int, int]] = []
        for node in range(many):
            found = finder.found[node]
            special = finder.moves(node).special
            steps.append((node, 0, 0))  # a byte that is in no phrase
            for byte in {*special, *found}:
                raised = found.get(byte, 0) >> flags_at
                if byte < 0x80 and not raised & unwanted:
                    steps.append((node, special.get(byte, 0), self._subset(raised)))
        source, target, raised = np.array(steps, dtype=np.intp).T
        self.least: IntArray = np.full((1 << len(self._bits), many), NEVER, dtype=np.intp)
        """Least size to append, NEVER if there is none. Shape (subsets of the wanted phrases, states of the finder)."""
        self.least[0] = 0
        for subset in range(1, len(self.least)):
            left = subset & ~raised
            here = self.least[subset]
            while True:
                before = here.copy()
                np.minimum.at(here, source, np.minimum(self.least[left, target] + 1, NEVER))
                if (here == before).all():
                    break

    def _subset(self, flags: int) -> int:
        return sum((flags >> bit & 1) << at for at, bit in enumerate(self._bits))

    def missing(self, text: int, wanted: int) -> int:
        return int(self.least[self._subset(wanted), text])

    def most(self, wanted: int) -> int:
        """Maximum of `missing` over all states of the finder."""
        return int(self.least[self._subset(wanted)].max())

    def missing_of_all(self, texts: IntArray, wanted: list[IntArray], lane: int) -> IntArray:
        """`missing` for many texts. `wanted` is split into lanes of `lane` flags each."""
        subsets = np.zeros(texts.size, dtype=np.intp)
        for at, bit in enumerate(self._bits):
            subsets |= (wanted[bit // lane] >> bit % lane & 1) << at
        return self.least[subsets, texts]
