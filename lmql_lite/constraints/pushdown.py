"""What a segment may say, as rules over characters that a server can hold its model to (S17).

Our automata read bytes and have counts beside their states; servers read characters and know only rules. So characters
are walked byte by byte, a state and its counts become one rule, and where that makes too many a count is left out: then
the rules allow more than the segment does, and what arrives is checked anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import inf
from typing import NamedTuple

from lmql_lite.constraints.automaton import NOWHERE, Automaton
from lmql_lite.constraints.charset import SIZES
from lmql_lite.constraints.language import Language, Rule, smallest
from lmql_lite.constraints.simplify import TRUE, simplify
from lmql_lite.constraints.terms import And, Length, Or, Stop, StopPattern, Term, Unit
from lmql_lite.errors import ConstraintError

RULES = 2000
"""As many as a language may have unless told."""
SLACK = 2
"""So many times as many places are looked at before equal ones become one rule."""
EDGES = 8
"""Of a rule, on the average of all: classes of Unicode have hundreds of ranges, and each costs a server as well."""
FIRST_BYTES = ((0x00, 0x80), (0xC0, 0xE0), (0xE0, 0xF0), (0xF0, 0xF5))
"""Of characters of one, two, three and four bytes."""

Range = tuple[int, int]
"""The lowest and the highest of some code points."""
Tail = tuple[int, int, int, int]
"""Ends of characters: the state behind them, what they add to the counts, and the lowest and highest code they say."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """`exact` tells that the language has the texts of the segment and no others.

    Else it has more; only texts in which a hole with stops went on to its bound without one may be missing.
    """

    language: Language
    exact: bool


def pushed(parts: Sequence[Automaton | bytes], budget: int = RULES) -> Pushed | None:
    """The texts of a segment: its holes, and the literal texts before, between and behind them.

    A hole inside the segment ends as its matcher says where no end-of-text can be: at a stop, at its bound, or where it
    cannot go on with what follows (S13, S18). The last one may end wherever its condition holds, and a phrase before
    which STOPS_BEFORE cuts it may be said too: a stop is an observation (S14). Tokens are not counted. None where there
    would be more than `budget` rules even if nothing was counted, or where there is no text at all.
    """
    holes = [_Hole(part, simplify(part.term)) if isinstance(part, Automaton) else part.decode() for part in parts]
    while True:
        counting = [hole for hole in holes if isinstance(hole, _Hole) and hole.width]
        widest = max(counting, key=lambda hole: hole.width, default=None)
        try:
            if widest is None or widest.width <= SLACK * budget:
                language = _explored(_Segment(holes), budget)
                if language is not None and language.is_empty:
                    return None
                if language is not None:
                    return Pushed(language, all(isinstance(hole, str) or hole.exact for hole in holes))
            if widest is None:
                return None
            loosened = widest.loosened()
        except ConstraintError:  # more states than an automaton may have
            return None
        holes = [loosened if hole is widest else hole for hole in holes]


def _explored(segment: _Segment, budget: int) -> Language | None:
    """The places of a segment as rules, None where there are too many."""
    start = segment.begin(0)
    numbers, met, rules = {start: 0}, [start], list[Rule]()
    many = 0
    for places in met:  # more are met on the way
        edges = []
        for low, high, after in segment.moves(places):
            number = numbers.setdefault(after, len(met))
            if number == len(met):
                met.append(after)
            edges.append((low, high, number))
        many += len(edges)
        if len(met) > SLACK * budget or many > EDGES * budget:
            return None
        rules.append(Rule(tuple(edges), segment.accepts(places)))
    language = smallest(rules)
    return language if len(language.rules) <= budget else None


# Holes ---------------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """Characters that lead from one state to the same other one, what each adds to the counts, and its `size` in bytes
    where a value may be cut back."""

    after: int
    added: int
    size: int
    ranges: list[Range]


class Begin(NamedTuple):
    """A character's first byte: the state behind it, what it adds to the counts, and the characters that it begins."""

    after: int
    added: int
    more: int
    low: int
    high: int


class Judgement(NamedTuple):
    """Of a hole behind a character: how many bytes before a stop ends it, whether it may end, and whether it has to."""

    cut: int | None
    holds: bool
    bound: bool


class _Hole:
    """An automaton that reads characters.

    Where something is no longer counted (`exact` is false), stops may not be `certain`: the hole may go on behind one.
    """

    def __init__(self, automaton: Automaton, term: Term, *, exact: bool = True, certain: bool = True) -> None:
        self.automaton = automaton
        self.exact = exact
        self.certain = certain
        self.bounded_anywhere = not exact and (automaton.closed or not automaton.has_stops)
        self._term = term
        self._widths = dict(zip(automaton.counts.units, automaton.counts.most, strict=True))
        self._begins: dict[int, list[Begin]] = {}
        self._tails: dict[tuple[int, int], list[Tail]] = {}
        self._judged: dict[tuple[int, int], Judgement | None] = {}
        self._steps: dict[int, list[Step]] = {}

    @property
    def width(self) -> float:
        """The largest number that a count is compared with; tokens, which no server counts here, come first."""
        return max(map(self._width, self._widths), default=0)

    def _width(self, unit: Unit) -> float:
        return inf if unit == "tokens" else self._widths[unit]

    def loosened(self) -> _Hole:
        """Without the upper bounds on what is counted farthest, or without that count: it takes more texts."""
        unit = max(self._widths, key=self._width)
        term = simplify(_uncapped(self._term, unit))
        # text beyond a bound of the whole is lost, stop or not: unless another stop would have cut off more of it
        certain = self.certain and not (self.automaton.cuts_back and _count_stops(term) > 1)
        if term == self._term:
            term, certain = simplify(_uncounted(term, unit)), False
        return _Hole(Automaton(term), term, exact=False, certain=certain)

    def judged(self, state: int, counts: int) -> Judgement | None:
        """What becomes of the hole behind a character, None where nothing can."""
        if (state, counts) not in self._judged:
            automaton, judged = self.automaton, None
            if automaton.lives(state, counts):
                holds = automaton.holds(state, counts)
                bound = holds and not automaton.goes_on(state, counts)
                judged = Judgement(automaton.cut(state, counts), holds, bound)
            self._judged[state, counts] = judged
        return self._judged[state, counts]

    def begins(self, state: int) -> list[Begin]:
        """What may follow a state between two characters, by first bytes; those behind which is NOWHERE too."""
        begins = self._begins.get(state)
        if begins is None:
            begins = self._begins[state] = []
            row, added = self._row(state)
            for more, ((first, end), (lowest, highest)) in enumerate(zip(FIRST_BYTES, SIZES, strict=True)):
                size = 64**more
                for code, many, after in _runs(row[first:end]):
                    low, high = max(code * size, lowest), min((code + many) * size - 1, highest)
                    if low <= high:
                        begins.append(Begin(after, added.get(after, 0), more, low, high))
        return begins

    def steps(self, state: int) -> list[Step]:
        """The characters that may follow a state between two characters."""
        steps = self._steps.get(state)
        if steps is None:
            found: dict[tuple[int, int, int], Step] = {}
            for first, added, more, low, high in self.begins(state):
                size = 64**more
                for after, spent, begin, end in self._spread(first, more, low // size, high // size - low // size + 1):
                    key = (after, added + spent, (more + 1) * self.automaton.cuts_back)
                    _append(found.setdefault(key, Step(*key, [])).ranges, (begin, end))
            steps = self._steps[state] = list(found.values())
        return steps

    def _spread(self, state: int, more: int, code: int, many: int) -> Iterator[Tail]:
        """What `more` bytes can say behind any of so many bytes, the first of which says `code`."""
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
        """What `more` bytes can say after a state inside a character."""
        if state == NOWHERE or not more:
            return [(state, 0, 0, 0)] if state != NOWHERE else []
        tails = self._tails.get((state, more))
        if tails is None:
            tails = self._tails[state, more] = []
            row, added = self._row(state)
            for code, many, after in _runs(row[0x80:0xC0]):
                for last, spent, begin, end in self._spread(after, more - 1, code, many):
                    spent += added[after]
                    if tails and tails[-1][:2] == (last, spent) and tails[-1][3] == begin - 1:
                        begin = tails.pop()[2]
                    tails.append((last, spent, begin, end))
        return tails

    def _row(self, state: int) -> tuple[list[int], dict[int, int]]:
        """The state after each byte, and what the way there adds to the counts."""
        row: list[int] = self.automaton.row(state).tolist()
        return row, {edge.state: edge.added for edge in self.automaton.edges(state)}


def _runs(row: list[int]) -> Iterator[tuple[int, int, int]]:
    """Equal numbers in a row: the place of the first, how many, and the number."""
    at = 0
    for number, equal in groupby(row):
        many = len(list(equal))
        yield at, many, number
        at += many


def _append(ranges: list[Range], new: Range) -> None:
    if ranges and ranges[-1][1] == new[0] - 1:
        ranges[-1] = (ranges[-1][0], new[1])
    else:
        ranges.append(new)


def _uncapped(term: Term, unit: Unit) -> Term:
    """The term without the upper bound that its whole text has."""
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


# Segments ------------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """In a text after so many characters (`state`), or in a hole. Behind the last part is the end.

    `since` is where the following text would be by now if the value had ended so many bytes ago: what is told when
    STOPS_BEFORE cuts the value there.
    """

    part: int
    state: int
    counts: int = 0
    since: tuple[tuple[int, Places], ...] = ()


Places = frozenset[Place]
"""All places in which a text may be: one, as long as everything is counted."""
Moves = list[tuple[int, int, Places]]
"""Characters, from the lowest to the highest, and where they lead; in order, without overlap."""


class _Segment:
    def __init__(self, parts: Sequence[_Hole | str]) -> None:
        self._parts = [part for part in parts if part != ""]
        self._moves: dict[Place, Moves] = {}
        self._begun: dict[int, Places] = {}

    def begin(self, part: int) -> Places:
        """Where a part begins, and the text before it ends."""
        begun = self._begun.get(part)
        if begun is None:
            if part < len(self._parts) and isinstance(hole := self._parts[part], _Hole):
                start = Place(part, hole.automaton.start)
                judged = hole.judged(start.state, 0)
                # a stop is reached by saying something
                begun = self._arrive(hole, start, judged._replace(cut=None)) if judged else frozenset()
            else:
                begun = frozenset([Place(part, 0)])
            self._begun[part] = begun
        return begun

    def accepts(self, places: Places) -> bool:
        """Whether the text may end."""
        return any(map(self._ends, places))

    def _ends(self, place: Place) -> bool:
        part, state, count, _ = place
        if part == len(self._parts):
            return True
        hole = self._parts[part]
        return self._is_last(part) and isinstance(hole, _Hole) and hole.automaton.holds(state, count)

    def _is_last(self, part: int) -> bool:
        return part + 1 == len(self._parts)

    def moves(self, places: Places) -> Moves:
        return _united([self._moves_of(place) for place in places])

    def _moves_of(self, place: Place) -> Moves:
        moves = self._moves.get(place)
        if moves is None:
            part = self._parts[place.part] if place.part < len(self._parts) else ""
            moves = self._moves[place] = (
                self._through(part, place) if isinstance(part, _Hole) else self._along(part, place)
            )
        return moves

    def _along(self, text: str, place: Place) -> Moves:
        if not text:
            return []
        said = place.state + 1
        code = ord(text[place.state])
        after = frozenset([place._replace(state=said)]) if said < len(text) else self.begin(place.part + 1)
        return [(code, code, after)]

    def _through(self, hole: _Hole, place: Place) -> Moves:
        part, state, counts, _ = place
        automaton, last = hole.automaton, self._is_last(part)
        moves: Moves = []
        if automaton.closed and not last and automaton.holds(state, counts):
            # with a byte that cannot go on, the following text has begun
            following = self.moves(self.begin(part + 1))
            for after, added, _, low, high in hole.begins(state):
                if after == NOWHERE or not automaton.lives(after, automaton.counts.add(counts, added)):
                    moves += _within(following, low, high)
        for after, added, size, ranges in hole.steps(state):
            reached = Place(part, after, automaton.counts.add(counts, added))
            judged = hole.judged(after, reached.counts)
            if judged is None:
                continue
            if last or not automaton.undecided(after):
                places = self._arrive(hole, reached, judged)
                moves += [(low, high, places) for low, high in ranges]
            else:
                moves += self._undecided(hole, place, reached, judged, size, ranges)
        return sorted(moves, key=lambda move: move[0])

    def _undecided(
        self, hole: _Hole, before: Place, place: Place, judged: Judgement, size: int, ranges: list[Range]
    ) -> Moves:
        """Characters that may belong to a phrase before which the value is cut: what follows reads them as well."""
        back = hole.automaton.undecided(place.state)
        since = [(size, self.begin(place.part + 1)), *((age + size, places) for age, places in before.since)]
        since = [(age, places) for age, places in since if age <= back]
        said: Moves = [(low, high, frozenset([place])) for low, high in ranges]
        moves = []
        known: dict[tuple[tuple[int, Places], ...], Places] = {}
        for low, high, (here, *following) in _overlaid([said, *(self.moves(places) for _, places in since)]):
            if here:
                ages = zip((age for age, _ in since), following, strict=True)
                key = tuple((age, places) for age, places in ages if places)
                if key not in known:
                    known[key] = self._arrive(hole, place._replace(since=key), judged)
                moves.append((low, high, known[key]))
        return moves

    def _arrive(self, hole: _Hole, place: Place, judged: Judgement) -> Places:
        """Behind a character of a hole: there, or in what follows if the hole has ended."""
        following = self.begin(place.part + 1)
        staying = frozenset([place])
        if not self._is_last(place.part) and judged.holds:
            if judged.bound:
                staying = following
            elif hole.bounded_anywhere:
                staying |= following
        if judged.cut is None:
            return staying
        if not hole.certain:
            return staying.union(following, *(places for _, places in place.since))
        return (
            following
            if judged.cut == 0 or self._is_last(place.part)
            else dict(place.since).get(judged.cut, frozenset())
        )


def _within(moves: Moves, lowest: int, highest: int) -> Moves:
    return [
        (max(low, lowest), min(high, highest), places)
        for low, high, places in moves
        if low <= highest and high >= lowest
    ]


def _united(layers: Sequence[Moves]) -> Moves:
    if len(layers) == 1:
        return layers[0]
    return [(low, high, frozenset[Place]().union(*each)) for low, high, each in _overlaid(layers)]


def _overlaid(layers: Sequence[Moves]) -> list[tuple[int, int, list[Places]]]:
    """The characters that some layer knows, cut where one begins or ends, with the places of each layer."""
    cuts = sorted({cut for moves in layers for low, high, _ in moves for cut in (low, high + 1)})
    index = {cut: at for at, cut in enumerate(cuts)}
    covering: list[list[Places]] = [[frozenset()] * len(layers) for _ in cuts]
    for layer, moves in enumerate(layers):
        for low, high, places in moves:
            for at in range(index[low], index[high + 1]):
                covering[at][layer] = places
    pairs = zip(pairwise(cuts), covering, strict=False)  # nothing begins at the last cut
    return [(low, end - 1, each) for (low, end), each in pairs if any(each)]
