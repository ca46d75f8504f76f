"""Whether the places that a walk has reached can still end well: for one count, and for all that are judged alike.

Every question is a state and what was added to the counts on the way to it. A way to an end that was found for one
count answers all counts from which it leads to where every comparison comes out the same; only what no way settles is
searched for. So the answers are exact, and most of them are a comparison of small arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import NEVER
from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.counters import Region
from lmql_lite.constraints.walk import Pairs

IntArray = NDArray[np.intp]
Flags = NDArray[np.bool_]
Values = tuple[int, ...]


class Box(NamedTuple):
    """Counts, each one on its own between two values, that are judged alike."""

    low: IntArray
    high: IntArray

    def within(self, low: IntArray, high: IntArray) -> Box:
        return Box(np.maximum(self.low, low), np.minimum(self.high, high))


class Borders:
    """Places where a stop is reached or a value may be complete: that depends on the comparisons alone."""

    def __init__(self, automaton: Automaton, pairs: Pairs, test: Callable[[int, int], bool]) -> None:
        self.pairs = pairs
        self._automaton = automaton
        self._test = test
        self._added = _matrix(automaton, pairs)
        self._states = np.array([state for state, _ in pairs], dtype=np.intp)
        self._known: dict[tuple[int, int], bool] = {}

    def ask(self, values: Values) -> tuple[Flags, Box | None]:
        """The answer for each place, and the counts for which it is the same; None where only these."""
        automaton, counts = self._automaton, self._automaton.counts
        here = np.array(values, dtype=np.intp)
        at = self._added + here
        numbers, low, high = automaton.regions.find_all(at)
        if automaton.cuts_back and low.any():
            # a value that is cut may lie in an earlier region than the text
            answers = [self._test(state, counts.add(counts.pack(values), added)) for state, added in self.pairs]
            return np.array(answers, dtype=np.bool_), None
        answers = []
        for index, key in enumerate(zip(self._states.tolist(), numbers.tolist(), strict=True)):
            answer = self._known.get(key)
            if answer is None:
                state, added = self.pairs[index]
                answer = self._known[key] = self._test(state, counts.add(counts.pack(values), added))
            answers.append(answer)
        same = Box(here + (low - at).max(axis=0, initial=-NEVER), here + (high - at).min(axis=0, initial=NEVER))
        return np.array(answers, dtype=np.bool_), same


class Answers(NamedTuple):
    lives: Flags
    far: int
    """More bytes than any of what lives needs to its end: from so many tokens on a limit makes no difference."""
    box: Box


class Ways(NamedTuple):
    """For each group of questions about one state: a way to an end, and where it may lead to.

    What is added on the way, the region in which it has to end, and the most of each count with which anything can
    end. All in shape (questions, counts).
    """

    known: Flags
    spent: IntArray
    low: IntArray
    high: IntArray
    most: IntArray
    length: int


class Questions:
    """About the `places` of one walk, sorted by state, and some more."""

    def __init__(self, automaton: Automaton, places: Pairs, more: Pairs) -> None:
        self._automaton = automaton
        self._pairs = pairs = places + more
        self._added = _matrix(automaton, pairs)
        self._ways: dict[Region, Ways] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def ask(self, values: Values, region: Region) -> Answers:
        """For these counts, in this region."""
        automaton, counts = self._automaton, self._automaton.counts
        here = np.array(values, dtype=np.intp)
        box = Box(np.array(region.low, dtype=np.intp), np.array(region.high, dtype=np.intp))
        if not counts.units:
            distances = [automaton.distance(state, 0) for state, _ in self._pairs]
            lives = np.array([each < NEVER for each in distances], dtype=np.bool_)
            return Answers(lives, 1 + max((each for each in distances if each < NEVER), default=0), box)
        ways = self._ways.get(region)
        if ways is None:
            ways = self._ways[region] = self._find_ways(values)
        at = self._added + here
        end = at + ways.spent
        sure = ways.known & (end >= ways.low).all(axis=1) & (end <= ways.high).all(axis=1)
        excess = (at - ways.most).max(axis=1)
        dead = (excess > 0) & ~sure
        far = ways.length
        if sure.any():
            box = box.within(
                here + (ways.low[sure] - end[sure]).max(axis=0), here + (ways.high[sure] - end[sure]).min(axis=0)
            )
        if dead.any():
            box = box.within(here + 1 - excess[dead].min(), box.high)
        unsure = np.flatnonzero(~(sure | dead))
        if unsure.size:
            box = Box(here, here)
            largest = np.array(counts.most, dtype=np.intp)
            for index in unsure.tolist():
                count = counts.pack(tuple(np.minimum(at[index], largest).tolist()))
                distance = automaton.distance(self._pairs[index][0], count)
                sure[index] = distance < NEVER
                far = max(far, distance if distance < NEVER else 0)
        return Answers(sure, 1 + far, box)

    def _find_ways(self, values: Values) -> Ways:
        """One for each state, from the least that was added on the way to it."""
        automaton, counts = self._automaton, self._automaton.counts
        shape = self._added.shape
        ways = Ways(
            np.zeros(shape[0], dtype=np.bool_),
            np.zeros(shape, dtype=np.intp),
            np.zeros(shape, dtype=np.intp),
            np.zeros(shape, dtype=np.intp),
            np.full(shape, NEVER, dtype=np.intp),
            0,
        )
        here = counts.pack(values)
        first, length = 0, 0
        while first < shape[0]:
            state, added = self._pairs[first]
            after = first
            while after < shape[0] and self._pairs[after][0] == state:
                after += 1
            ways.most[first:after] = automaton.most_counts(state)
            way = automaton.way(state, counts.add(here, added))
            if way is not None:
                region = automaton.regions.find(counts.unpack(counts.add(counts.add(here, added), way.spent)))
                # where a stop cuts back, the value may lie in an earlier region than the text
                if not (automaton.cuts_back and any(region.low)):
                    ways.known[first:after] = True
                    ways.spent[first:after] = counts.unpack(way.spent)
                    ways.low[first:after] = region.low
                    ways.high[first:after] = region.high
                    length = max(length, way.length)
            first = after
        return ways._replace(length=length)


def _matrix(automaton: Automaton, pairs: Pairs) -> IntArray:
    """What was added on the way to each, shape (pairs, counts)."""
    added = np.array([automaton.counts.unpack(added) for _, added in pairs], dtype=np.intp)
    return added.reshape(len(pairs), len(automaton.counts.units))
