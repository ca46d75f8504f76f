"""Character-level view of a hole's byte automaton, with all of its counts or with some left out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import inf
from typing import NamedTuple

from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.charset import SIZES
from lmql_lite.constraints.simplify import TRUE, simplify
from lmql_lite.constraints.step_table import NOWHERE
from lmql_lite.constraints.terms import And, Length, Or, Stop, StopPattern, Term
from lmql_lite.constraints.units import Unit

FIRST_BYTES = ((0x00, 0x80), (0xC0, 0xE0), (0xE0, 0xF0), (0xF0, 0xF5))
"""Half-open ranges of the first bytes of characters of one, two, three and four bytes."""

Range = tuple[int, int]
"""Lowest and highest code point, both included."""
Tail = tuple[int, int, int, int]
"""Ends of characters: next state, increment of the counts, lowest and highest code point within their block."""


class CharacterStep(NamedTuple):
    """Characters with the same next state and the same increment of the counts.

    `size` is their length in bytes if the automaton may cut a value back, else 0.
    """

    after: int
    added: int
    size: int
    ranges: list[Range]


class Begin(NamedTuple):
    """First bytes with the same step: next state, increment of the counts, bytes to come, and range of code points."""

    after: int
    added: int
    more: int
    low: int
    high: int


class CharacterJudgement(NamedTuple):
    """Status of a hole after a character.

    `cut` is the number of bytes that a stop cuts off, None if no stop fires. The hole may end here if `holds`, and must
    if `bound`.
    """

    cut: int | None
    holds: bool
    bound: bool


class ByCharacter:
    """Steps of an automaton from character to character.

    `exact` is false if a bound or a count was left out. Then a hole that is closed or has no stops may end wherever it
    holds (`bounded_anywhere`). If its stops are not `certain`, the hole may also continue after one.
    """

    def __init__(self, automaton: Automaton, *, exact: bool = True, certain: bool = True) -> None:
        self.automaton = automaton
        self.exact = exact
        self.certain = certain
        self.bounded_anywhere = not exact and (automaton.closed or not automaton.has_stops)
        self._sum = automaton.counts.sum
        self._term = simplify(automaton.term)
        self._widths = dict(zip(automaton.counts.units, automaton.counts.most, strict=True))
        self._begins: dict[int, list[Begin]] = {}
        self._tails: dict[tuple[int, int], list[Tail]] = {}
        self._judged: dict[tuple[int, int], CharacterJudgement | None] = {}
        self._steps: dict[int, list[CharacterStep]] = {}

    @property
    def width(self) -> float:
        """Largest number that a count is compared with; infinite for tokens, which servers do not count; 0 if none."""
        return max(map(self._width, self._widths), default=0)

    def _width(self, unit: Unit) -> float:
        return inf if unit == "tokens" else self._widths[unit]

    @property
    def states_read(self) -> int:
        """Number of automaton states read so far."""
        return len(self._begins) + len(self._tails)

    def loosened(self) -> ByCharacter:
        """Relaxed copy, which accepts more texts.

        It lacks the upper bounds on the unit with the largest `width`, or that unit if it has no upper bound.
        """
        unit = max(self._widths, key=self._width)
        term = simplify(_uncapped(self._term, unit))
        # text over a bound of the whole term is invalid whether or not a stop fires, unless another stop cuts off more
        certain = self.certain and not (self.automaton.cuts_back and _count_stops(term) > 1)
        if term == self._term:
            term, certain = simplify(_uncounted(term, unit)), False
        return ByCharacter(Automaton(term), exact=False, certain=certain)

    def judged(self, state: int, counts: int) -> CharacterJudgement | None:
        """Status of the hole after a character; None if no valid end is reachable."""
        if (state, counts) not in self._judged:
            automaton, judged = self.automaton, None
            if automaton.lives(state, counts):
                holds = automaton.holds(state, counts)
                bound = holds and not automaton.goes_on(state, counts)
                judged = CharacterJudgement(automaton.cut(state, counts), holds, bound)
            self._judged[state, counts] = judged
        return self._judged[state, counts]

    def begins(self, state: int) -> list[Begin]:
        """First bytes that may follow a state between two characters, including those that lead to NOWHERE."""
        begins = self._begins.get(state)
        if begins is None:
            begins = self._begins[state] = []
            steps = self.automaton.steps(state)
            for more, ((first, end), (lowest, highest)) in enumerate(zip(FIRST_BYTES, SIZES, strict=True)):
                size = 64**more
                for code, many, (after, added) in _runs(steps[first:end]):
                    low, high = max(code * size, lowest), min((code + many) * size - 1, highest)
                    if low <= high:
                        begins.append(Begin(after, added, more, low, high))
        return begins

    def steps(self, state: int) -> list[CharacterStep]:
        """Characters that may follow a state between two characters."""
        steps = self._steps.get(state)
        if steps is None:
            found: dict[tuple[int, int, int], CharacterStep] = {}
            for first, added, more, low, high in self.begins(state):
                size = 64**more
                for after, spent, begin, end in self._spread(first, more, low // size, high // size - low // size + 1):
                    key = (after, self._sum(added, spent), (more + 1) * self.automaton.cuts_back)
                    _append(found.setdefault(key, CharacterStep(*key, [])).ranges, (begin, end))
            steps = self._steps[state] = list(found.values())
        return steps

    def _spread(self, state: int, more: int, code: int, many: int) -> Iterator[Tail]:
        """Code points that `more` bytes complete after any of `many` consecutive bytes, the first with value `code`."""
        size = 64**more
        tails = self._tail(state, more)
        if [(begin, end) for _, _, begin, end in tails] == [(0, size - 1)]:
            [(after, added, _, _)] = tails
            yield after, added, code * size, (code + many) * size - 1
        else:
            for shift in range(code * size, (code + many) * size, size):
                for after, added, begin, end in tails:
                    yield after, added, shift + begin, shift + end

    def _tail(self, state: int, more: int) -> list[Tail]:
        """Code points, relative to their block, that `more` bytes can complete after a state inside a character."""
        if state == NOWHERE or not more:
            return [(state, 0, 0, 0)] if state != NOWHERE else []
        tails = self._tails.get((state, more))
        if tails is None:
            tails = self._tails[state, more] = []
            for code, many, (after, added) in _runs(self.automaton.steps(state)[0x80:0xC0]):
                for last, spent, begin, end in self._spread(after, more - 1, code, many):
                    spent = self._sum(spent, added)
                    if tails and tails[-1][:2] == (last, spent) and tails[-1][3] == begin - 1:
                        begin = tails.pop()[2]
                    tails.append((last, spent, begin, end))
        return tails


def _runs(steps: list[tuple[int, int]]) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Runs of equal steps: index of the first one, their number, and the step."""
    at = 0
    for step, equal in groupby(steps):
        many = len(list(equal))
        yield at, many, step
        at += many


def _append(ranges: list[Range], new: Range) -> None:
    if ranges and ranges[-1][1] == new[0] - 1:
        ranges[-1] = (ranges[-1][0], new[1])
    else:
        ranges.append(new)


def _uncapped(term: Term, unit: Unit) -> Term:
    """The term without upper bounds on the unit of the whole text."""
    match term:
        case And(terms):
            return And(tuple(_uncapped(part, unit) for part in terms))
        case Length(at_least, _, counted) if counted == unit:
            return Length(at_least, None, unit)
    return term


def _uncounted(term: Term, unit: Unit) -> Term:
    match term:
        case And(terms):
            return And(tuple(_uncounted(part, unit) for part in terms))
        case Or(terms):
            return Or(tuple(_uncounted(part, unit) for part in terms))
        case Length(unit=counted) if counted == unit:
            return TRUE
    return term


def _count_stops(term: Term) -> int:
    match term:
        case And(terms) | Or(terms):
            return sum(map(_count_stops, terms))
    return isinstance(term, Stop | StopPattern)
