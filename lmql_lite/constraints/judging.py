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

from lmql_lite.constraints import search
from lmql_lite.constraints.atoms import NEVER
from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.counters import Region
from lmql_lite.constraints.walk import Pairs
from lmql_lite.constraints.watch import Distances

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
    """Places where a stop is reached or a value may be complete: that depends on the comparisons and flags alone."""

    def __init__(self, automaton: Automaton, pairs: Pairs, test: Callable[[int, int], bool]) -> None:
        self.pairs = pairs
        self._automaton = automaton
        self._test = test
        self._configurations: list[tuple[int, int]] | None = None
        self._known: dict[tuple[int, int, int], bool] = {}

    @property
    def configurations(self) -> list[tuple[int, int]]:
        if self._configurations is None:
            self._configurations = self.pairs.configurations(self._automaton.counts)
        return self._configurations

    def ask(self, values: Values, flags: int) -> tuple[Flags, Box | None]:
        """The answer for each place, and the counts for which it is the same; None where only these."""
        automaton, counts = self._automaton, self._automaton.counts
        here = np.array(values, dtype=np.intp)
        at = self.pairs.added + here
        numbers, low, high = automaton.regions.find_all(at)
        now = counts.pack(values, flags)
        if automaton.cuts_back and low.any():
            # a value that is cut may lie in an earlier region than the text
            answers = [self._test(state, counts.add(now, added)) for state, added in self.configurations]
            return np.array(answers, dtype=np.bool_), None
        answers = []
        for (state, added), number in zip(self.configurations, numbers.tolist(), strict=True):
            key = state, number, counts.flags(added) | flags
            answer = self._known.get(key)
            if answer is None:
                answer = self._known[key] = self._test(state, counts.add(now, added))
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
    end, all in shape (questions, counts). In lanes, shape (lanes, questions): the flags that it raises, and those that
    have to be raised at its end, and must not be.
    """

    known: Flags
    spent: IntArray
    low: IntArray
    high: IntArray
    most: IntArray
    raised: IntArray
    wanted: IntArray
    unwanted: IntArray
    length: int


class Questions:
    """About `pairs`, sorted by state as far as they come from a walk."""

    def __init__(self, automaton: Automaton, pairs: Pairs) -> None:
        self._automaton = automaton
        self.pairs = pairs
        self._ways: dict[Region, Ways] = {}

    def ask(self, values: Values, flags: int) -> Answers:
        """For these counts and flags."""
        automaton, counts = self._automaton, self._automaton.counts
        here = np.array(values, dtype=np.intp)
        region = automaton.regions.find(values)
        box = Box(np.array(region.low, dtype=np.intp), np.array(region.high, dtype=np.intp))
        if not counts.units and not counts.num_flags:
            distances = self.distances(values, flags)
            lives = distances < NEVER
            return Answers(lives, 1 + int(distances[lives].max(initial=0)), box)
        if automaton.only_phrases:
            return self._ask_for_phrases(here, flags)
        ways = self._ways.get(region)
        if ways is None:
            ways = self._ways[region] = self._find_ways(values, flags)
        at = self.pairs.added + here
        end = at + ways.spent
        sure = ways.known & (end >= ways.low).all(axis=1) & (end <= ways.high).all(axis=1)
        if counts.num_flags:
            raised = self._raised(flags) | ways.raised
            sure &= ((ways.wanted & ~raised | ways.unwanted & raised) == 0).all(axis=0)
        excess = (at - ways.most).max(axis=1, initial=-NEVER)
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
            distances = self.distances(values, flags, unsure)
            sure[unsure] = distances < NEVER
            far = max(far, int(distances[distances < NEVER].max(initial=0)))
        return Answers(sure, 1 + far, box)

    def distances(self, values: Values, flags: int, which: IntArray | None = None) -> IntArray:
        """The bytes to an end, for all pairs or some of them."""
        automaton, counts = self._automaton, self._automaton.counts
        if automaton.only_phrases:
            return self._distances(np.array(values, dtype=np.intp), flags).least
        pairs = self.pairs if which is None else self.pairs.some(which)
        now = counts.pack(values, flags)
        asked = pairs.configurations(counts)
        return np.array([automaton.distance(state, counts.add(now, added)) for state, added in asked], dtype=np.intp)

    def in_time(self, values: Values, flags: int, tokens: int, lives: Flags, in_tokens: search.Ways | None) -> Flags:
        """Which of those that live can end well within so many tokens more."""
        automaton, counts = self._automaton, self._automaton.counts
        if automaton.only_phrases:
            return lives & (self._distances(np.array(values, dtype=np.intp), flags).least <= tokens)
        found = np.zeros(lives.size, dtype=np.bool_)
        which = np.flatnonzero(lives)
        now = counts.pack(values, flags)
        for at, (state, added) in zip(which.tolist(), self.pairs.some(which).configurations(counts), strict=True):
            here = state, counts.add(now, added)
            found[at] = automaton.is_within(tokens, *here) or (
                in_tokens is not None and in_tokens.is_within(tokens, *here)
            )
        return found

    def _distances(self, here: IntArray, flags: int) -> Distances:
        return self._automaton.distances(self.pairs.states, self.pairs.added + here, self._raised(flags))

    def _raised(self, flags: int) -> IntArray:
        lanes = np.array(self._automaton.counts.flag_lanes(flags), dtype=np.intp)
        return self.pairs.flags | lanes[:, None]

    def _ask_for_phrases(self, here: IntArray, flags: int) -> Answers:
        """All at once: nothing has to be searched for."""
        counts = self._automaton.counts
        found = self._distances(here, flags)
        lives = found.least < NEVER
        high = here.copy()
        if counts.units[:1] == ("characters",):
            high[0] += found.room[lives].min(initial=NEVER)
        return Answers(lives, 1 + int(found.least[lives].max(initial=0)), Box(here, high))

    def _find_ways(self, values: Values, flags: int) -> Ways:
        """One for each state, from the least that was added on the way to it."""
        automaton, counts = self._automaton, self._automaton.counts
        states = self.pairs.states
        shape, lanes = self.pairs.added.shape, (len(counts.flag_lanes(0)), states.size)
        raised, wanted, unwanted = np.zeros((3, *lanes), dtype=np.intp)
        spent, low, high = np.zeros((3, *shape), dtype=np.intp)
        most = np.full(shape, NEVER, dtype=np.intp)
        ways = Ways(np.zeros(shape[0], dtype=np.bool_), spent, low, high, most, raised, wanted, unwanted, 0)
        now = counts.pack(values, flags)
        length = 0
        borders = np.flatnonzero(np.diff(states, prepend=-1, append=-1)) if states.size else states
        firsts = self.pairs.some(borders[:-1]).configurations(counts)
        for (state, added), first, after in zip(firsts, borders.tolist(), borders[1:].tolist(), strict=False):
            ways.most[first:after] = automaton.most_counts(state)
            here = counts.add(now, added)
            way = automaton.way(state, here)
            if way is None:
                continue
            end = counts.add(here, way.spent)
            region = automaton.regions.find(counts.unpack(end))
            # where a stop cuts back, the value may lie in an earlier region than the text
            if not (automaton.cuts_back and any(region.low)):
                ways.known[first:after] = True
                ways.spent[first:after] = counts.unpack(way.spent)
                ways.low[first:after] = region.low
                ways.high[first:after] = region.high
                if counts.num_flags:
                    found = counts.flags(way.spent), *automaton.grounds(way.end, end)
                    for lane, bits in zip((raised, wanted, unwanted), found, strict=True):
                        lane[:, first:after] = np.array(counts.flag_lanes(bits), dtype=np.intp)[:, None]
                length = max(length, way.length)
        return ways._replace(length=length)
