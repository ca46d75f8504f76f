"""Liveness of the places that a walk has reached: true if a valid end is reachable from them.

Every question is a state and the increment on the way to it. A path to an end that was found for one count answers all
counts from which it ends in the same region of comparisons. Only questions that no path settles are searched. So the
answers are exact, and most of them are comparisons of small arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import ge
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints import search
from lmql_lite.constraints.atoms import NEVER
from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.counters import Region
from lmql_lite.constraints.matcher import Ending
from lmql_lite.constraints.missing import Margin
from lmql_lite.constraints.pairs import Pairs
from lmql_lite.constraints.step_table import NOWHERE

IntArray = NDArray[np.intp]
Flags = NDArray[np.bool_]
Values = tuple[int, ...]
ADVANCES_KEPT = 1 << 14
FEW_UNSURE = 64
"""Most open questions that are searched one by one. If there are more, new paths to an end are searched first."""
LONGEST_ADVANCE = 32
"""Most bytes of a token whose effect is remembered."""


class Box(NamedTuple):
    """A box of counts that are judged alike: each count lies between its `low` and `high`, both included."""

    low: IntArray
    high: IntArray

    def within(self, low: IntArray, high: IntArray) -> Box:
        return Box(np.maximum(self.low, low), np.minimum(self.high, high))

    def covers(self, values: Values) -> bool:
        return all(low <= value <= high for low, value, high in zip(self.low, values, self.high, strict=True))


class Borders:
    """Places at which a stop may fire or a value may be complete: only the comparisons and flags decide about it."""

    def __init__(self, automaton: Automaton, pairs: Pairs, test: Callable[[int, int], bool]) -> None:
        self.pairs = pairs
        self._automaton = automaton
        self._test = test
        self._configurations: list[tuple[int, int]] | None = None
        self._known: dict[tuple[int, int, int], bool] = {}
        self._last: tuple[int, Flags, Box] | None = None

    @property
    def configurations(self) -> list[tuple[int, int]]:
        if self._configurations is None:
            self._configurations = self.pairs.configurations(self._automaton.counts)
        return self._configurations

    def ask(self, values: Values, flags: int) -> tuple[Flags, Box | None]:
        """Answer for each place, and the counts for which it is the same; None if these are only `values`."""
        if self._last is not None and self._last[0] == flags and self._last[2].covers(values):
            return self._last[1:]
        automaton, counts = self._automaton, self._automaton.counts
        here = np.array(values, dtype=np.intp)
        if not self.pairs.states.size:
            return np.zeros(0, dtype=np.bool_), Box(here - NEVER, here + NEVER)
        at = self.pairs.added + here
        numbers, low, high = automaton.regions.find_all(at)
        now = counts.pack(values, flags)
        if automaton.cuts_back and low.any():
            # a value that a stop cuts may lie in an earlier region than the text
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
        self._last = flags, np.array(answers, dtype=np.bool_), same
        return self._last[1:]


class Answers(NamedTuple):
    lives: Flags
    far: int
    """More bytes than any live place needs to its end: a limit of so many tokens or more makes no difference."""
    box: Box


class Witnesses(NamedTuple):
    """A path to an end for each state, and the conditions under which it leads to one.

    `spent` is added on the path, `low` and `high` are the region in which it must end, and `most` are the counts above
    which nothing can end: all have shape (questions, counts). `raised` are the flags that the path raises, `wanted` and
    `unwanted` those that must and must not be raised at its end: all have shape (lanes, questions).
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
    """Questions about the liveness of `pairs`. The questions of another walk, `before`, may precede them."""

    def __init__(self, automaton: Automaton, pairs: Pairs, before: Questions | None = None) -> None:
        self._automaton = automaton
        self.pairs = pairs
        self._before = before
        self._going = pairs.states != NOWHERE
        self._columns = list(np.ascontiguousarray(pairs.added.T, dtype=np.int32))
        """Amounts added to each count, an array of shape (pairs,) for each. None exceeds the length of a token."""
        self._most_added = [int(added.max(where=self._going, initial=0)) for added in self._columns]
        self._num_going: int = int(np.count_nonzero(self._going)) + (before._num_going if before else 0)
        self._live_on = automaton.counts.num_flags > 0 and automaton.phrases_help
        self._witnesses: dict[Region, Witnesses] = {}
        self._last: tuple[int, Answers] | None = None

    @property
    def size(self) -> int:
        return self.pairs.states.size + (self._before.size if self._before else 0)

    def ask(self, values: Values, flags: int) -> Answers:
        """Answers for these counts and flags. If all live and phrases can only help, they also hold with more flags."""
        last = self._last
        if last is not None and last[1].box.covers(values):
            before, answers = last
            if before == flags or (self._live_on and not before & ~flags and self._are_all_live(answers.lives)):
                return answers
        answers = self._ask(values, flags)
        if self._before is not None:
            first = self._before.ask(values, flags)
            lives = np.append(first.lives, answers.lives)
            answers = Answers(lives, max(first.far, answers.far), answers.box.within(*first.box))
        self._last = flags, answers
        return answers

    def _are_all_live(self, lives: Flags) -> bool:
        """True if every place that is not NOWHERE lives."""
        return int(np.count_nonzero(lives)) == self._num_going

    def _ask(self, values: Values, flags: int) -> Answers:
        automaton, counts = self._automaton, self._automaton.counts
        here = np.array(values, dtype=np.intp)
        region = automaton.regions.find(values)
        box = Box(np.array(region.low, dtype=np.intp), np.array(region.high, dtype=np.intp))
        if not counts.units and not counts.num_flags:
            distances = self.distances(values, flags)
            lives = distances < NEVER
            return Answers(lives, 1 + int(distances[lives].max(initial=0)), box)
        if automaton.has_margins:
            return self._ask_for_margins(values, flags, automaton.margins(values, flags))
        at = self.pairs.added + here
        is_new = region not in self._witnesses
        while True:
            if is_new:
                self._witnesses[region] = self._find_witnesses(values, flags)
            witnesses = self._witnesses[region]
            end = at + witnesses.spent
            sure = self._sure(witnesses, end, flags)
            excess = reduce(np.maximum, (at - witnesses.most).T, np.full(len(at), -NEVER))
            dead = (excess > 0) & ~sure
            if is_new or np.count_nonzero(~(sure | dead)) <= FEW_UNSURE:
                break
            is_new = True  # less may be missing than where these paths were found
        far = witnesses.length
        if sure.any():
            low, high = (witnesses.low - end).T, (witnesses.high - end).T
            least = [column.max(where=sure, initial=-NEVER) for column in low]
            most = [column.min(where=sure, initial=NEVER) for column in high]
            box = box.within(here + np.array(least, dtype=np.intp), here + np.array(most, dtype=np.intp))
        if dead.any():
            box = box.within(here + 1 - excess[dead].min(), box.high)
        unsure = np.flatnonzero(~(sure | dead))
        if unsure.size:
            box = Box(here, here)
            distances = self.distances(values, flags, unsure)
            sure[unsure] = distances < NEVER
            far = max(far, int(distances[distances < NEVER].max(initial=0)))
        return Answers(sure, 1 + far, box)

    def _sure(self, witnesses: Witnesses, end: IntArray, flags: int) -> Flags:
        """True for each question that its path answers. `end` are the counts to which it leads."""
        sure: Flags = witnesses.known.copy()
        for inside in ((end >= witnesses.low) & (end <= witnesses.high)).T:
            sure &= inside
        if self._automaton.counts.num_flags:
            raised = self._raised(self.pairs, flags) | witnesses.raised
            sure &= ((witnesses.wanted & ~raised | witnesses.unwanted & raised) == 0).all(axis=0)
        return sure

    def distances(self, values: Values, flags: int, which: IntArray | None = None) -> IntArray:
        """Number of bytes to an end, for all pairs or those in `which`."""
        automaton, counts = self._automaton, self._automaton.counts
        if automaton.is_exact:
            return self._distances(np.array(values, dtype=np.intp), flags, which)
        pairs = self.pairs if which is None else self.pairs.some(which)
        if not counts.units and not counts.num_flags:
            return np.array([automaton.distance(state, 0) for state in pairs.states.tolist()], dtype=np.intp)
        now = counts.pack(values, flags)
        asked = pairs.configurations(counts)
        return np.array([automaton.distance(state, counts.add(now, added)) for state, added in asked], dtype=np.intp)

    def in_time(
        self, values: Values, flags: int, tokens: int, lives: Flags, in_tokens: search.DistanceSearch | None
    ) -> Flags:
        """True for each live place from which a valid end is at most `tokens` away."""
        automaton, counts = self._automaton, self._automaton.counts
        if self._before is not None:
            first, lives = lives[: self._before.size], lives[self._before.size :]
            before = self._before.in_time(values, flags, tokens, first, in_tokens)
            return np.append(before, Questions(automaton, self.pairs).in_time(values, flags, tokens, lives, in_tokens))
        if automaton.only_phrases:
            return lives & (self._distances(np.array(values, dtype=np.intp), flags) <= tokens)
        found = np.zeros(lives.size, dtype=np.bool_)
        which = np.flatnonzero(lives)
        now = counts.pack(values, flags)
        for at, (state, added) in zip(which.tolist(), self.pairs.some(which).configurations(counts), strict=True):
            here = state, counts.add(now, added)
            found[at] = automaton.is_within(tokens, *here) or (
                in_tokens is not None and in_tokens.is_within(tokens, *here)
            )
        return found

    def _distances(self, here: IntArray, flags: int, which: IntArray | None = None) -> IntArray:
        """Distances in a term of nothing but phrases or nothing but counts."""
        pairs = self.pairs if which is None else self.pairs.some(which)
        return self._automaton.distances(pairs.states, pairs.added + here, self._raised(pairs, flags))

    def _raised(self, pairs: Pairs, flags: int) -> IntArray:
        lanes = np.array(self._automaton.counts.flag_lanes(flags), dtype=np.intp)
        return pairs.flags | lanes[:, None]

    def _ask_for_margins(self, values: Values, flags: int, margins: list[Margin]) -> Answers:
        """Answers to all questions at once, without a search if distances are exact."""
        here = np.array(values, dtype=np.intp)
        far = 1 + max((margin.num_bytes for margin in margins), default=0)
        for left, unwanted, *_ in margins:
            if not unwanted and all(map(ge, left, self._most_added)):
                return Answers(self._going, far, Box(here, here + left - self._most_added))
        lives = np.zeros(self._going.size, dtype=np.bool_)
        found: list[tuple[Values, Flags]] = []
        for left, unwanted, *_ in margins:
            new = self._going & ~lives
            for added, most in zip(self._columns, left, strict=True):
                new &= added <= most
            if unwanted:
                raised = self._raised(self.pairs, flags)
                for lane, bits in zip(raised, self._automaton.counts.flag_lanes(unwanted), strict=True):
                    new &= lane & bits == 0
            lives |= new
            found.append((left, new))
        others = self._going & ~lives
        most_added = self._automaton.most_counts(self._automaton.start) - here
        for added, most in zip(self._columns, most_added.tolist(), strict=True):
            others &= added <= most
        if others.any():
            unsure = others.nonzero()[0]
            distances = self._distances(here, flags, unsure)
            if not self._automaton.is_exact and (distances == NEVER).any():
                distances[distances == NEVER] = self.distances(values, flags, unsure[distances == NEVER])
            lives[unsure] = distances < NEVER
            return Answers(lives, max(far, 1 + int(distances.max(where=lives[unsure], initial=0))), Box(here, here))
        high = here + NEVER
        for left, new in found:
            if new.any():
                high = np.minimum(high, here + left - [added.max(where=new, initial=0) for added in self._columns])
        return Answers(lives, far, Box(here, high))

    def _find_witnesses(self, values: Values, flags: int) -> Witnesses:
        """A path for each state, found from the least increment with which the state is reached."""
        automaton, counts = self._automaton, self._automaton.counts
        states = self.pairs.states
        shape, lanes = self.pairs.added.shape, (len(counts.flag_lanes(0)), states.size)
        raised, wanted, unwanted = np.zeros((3, *lanes), dtype=np.intp)
        spent, low, high = np.zeros((3, *shape), dtype=np.intp)
        most = np.full(shape, NEVER, dtype=np.intp)
        witnesses = Witnesses(np.zeros(shape[0], dtype=np.bool_), spent, low, high, most, raised, wanted, unwanted, 0)
        now = counts.pack(values, flags)
        length = 0
        order = np.lexsort((*self._columns[::-1], states))
        groups = np.split(order, np.flatnonzero(np.diff(states[order])) + 1) if states.size else []
        firsts = self.pairs.some(np.array([group[0] for group in groups], dtype=np.intp)).configurations(counts)
        for (state, added), group in zip(firsts, groups, strict=True):
            witnesses.most[group] = automaton.most_counts(state)
            here = counts.add(now, added)
            way = automaton.witness(state, here)
            if way is None:
                continue
            end = counts.add(here, way.spent)
            region = automaton.regions.find(counts.unpack(end))
            # a value that a stop cuts may lie in an earlier region than the text
            if not (automaton.cuts_back and any(region.low)):
                witnesses.known[group] = True
                witnesses.spent[group] = counts.unpack(way.spent)
                witnesses.low[group] = region.low
                witnesses.high[group] = region.high
                if counts.num_flags:
                    found = counts.flags(way.spent), *automaton.grounds(way.end, end)
                    for lane, bits in zip((raised, wanted, unwanted), found, strict=True):
                        lane[:, group] = np.array(counts.flag_lanes(bits), dtype=np.intp)[:, None]
                length = max(length, way.length)
        return witnesses._replace(length=length)


Advance = tuple[int, int, Ending | None, int]
"""State, count, how the hole ends there (None if it does not), and how many of the bytes are in the value: below 0 if
the value ends before them."""


class Advances:
    """Memo of the effect of tokens on configurations, for all automata of an engine.

    Threads may share it, since they compute the same results.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Automaton, int, int, bytes, int], Advance | None] = {}
        self._valid: dict[tuple[Automaton, int, int, bytes], int] = {}

    def after(self, automaton: Automaton, state: int, count: int, data: bytes, tokens: int) -> Advance | None:
        """Configuration after `data`, which counts as `tokens` tokens; None if `data` is not allowed."""
        key = automaton, state, count, data, tokens
        try:
            return self._known[key]
        except KeyError:
            found = _after(*key)
            if len(data) <= LONGEST_ADVANCE:
                if len(self._known) >= ADVANCES_KEPT:
                    self._known = {}
                self._known[key] = found
            return found

    def longest_valid(self, automaton: Automaton, state: int, count: int, data: bytes) -> int:
        """Number of leading bytes of `data` that are valid here."""
        key = automaton, state, count, data
        valid = self._valid.get(key)
        if valid is None:
            valid = _longest_valid(*key)
            if len(data) <= LONGEST_ADVANCE:
                if len(self._valid) >= ADVANCES_KEPT:
                    self._valid = {}
                self._valid[key] = valid
        return valid


def _after(automaton: Automaton, state: int, before: int, data: bytes, tokens: int) -> Advance | None:
    count = automaton.counts.add(before, tokens * automaton.token)
    left: Advance | None = None
    for at, byte in enumerate(data):
        place = state
        state, after = automaton.step(state, count, byte)
        if automaton.closed and left is None and automaton.holds(place, before) and not automaton.lives(state, after):
            left = place, before, "end-of-text", at  # unless the whole token can be kept
        before = count = after
        if state == NOWHERE:
            return left
        cut = automaton.cut(state, count)
        if cut is not None:
            return state, count, "stop", at + 1 - cut
    if left is not None and not automaton.lives(state, count):
        return left
    if automaton.holds(state, count) and not automaton.goes_on(state, count):
        return state, count, "forced" if automaton.closed else "bound", len(data)
    return state, count, None, len(data)


def _longest_valid(automaton: Automaton, state: int, count: int, data: bytes) -> int:
    for at, byte in enumerate(data):
        complete = automaton.closed and automaton.holds(state, count)
        state, count = automaton.step(state, count, byte)
        if automaton.stops(state, count):
            return len(data)
        if not automaton.lives(state, count):
            return len(data) if complete else at
    return len(data)
