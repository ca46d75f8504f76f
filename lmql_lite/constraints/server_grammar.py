"""Rules over characters for a segment, to which a server can constrain its model (S17).

Servers know only rules, so a place of a hole's automaton, a state with its counts, becomes one rule. If there are too
many, a count is left out. Then the rules allow more than the segment does, and the reply is checked anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import NamedTuple

from lmql_lite.constraints.automaton import NOWHERE, Automaton, Place
from lmql_lite.constraints.counts import Values
from lmql_lite.constraints.language import Language, Rule, smallest
from lmql_lite.constraints.simplify import TRUE, simplify
from lmql_lite.constraints.terms import And, Length, Term, Unit, conjuncts, mapped
from lmql_lite.constraints.vocabulary import open_range
from lmql_lite.errors import ConstraintError

Range = tuple[int, int]
"""Lowest and highest code point, both included."""
RULES = 2000
"""Default maximum number of rules. llama.cpp takes thousands without trouble. xgrammar takes about 30 ms for each rule
that nearly all characters fit, with a vocabulary of 128,000 tokens: give it a hundred."""
SLACK = 2
"""Factor by which the places explored may exceed the budget, because equal ones become one rule later."""
EDGES = 16_000
"""Most edges of all rules together, for any budget of rules. A Unicode class has hundreds of ranges, each of which
costs a server far less than a rule. xgrammar takes a second for so many."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """Language of a segment; `exact` if it has the texts of the segment and no others.

    Otherwise it has more texts. It may lack only those in which a hole with stops reaches its bound without a stop, if
    that bound was left out. To allow the following text anywhere would be worse than to lose a text of that length.
    """

    language: Language
    exact: bool


def pushed(parts: Sequence[Automaton | bytes], budget: int = RULES) -> Pushed | None:
    """Language of a segment: its holes, and the literal texts before, between and after them.

    A hole inside the segment ends as its matcher does without end-of-text: at a stop, at its bound, or where a byte
    cannot continue it (S13, S18). The last hole may also end wherever its condition holds, and may include the phrase
    before which STOPS_BEFORE cuts it, unless its bound comes first (S14, S15). Tokens are not counted. None if there
    are more than `budget` rules even with nothing counted, or if there is no text at all.
    """
    holes = [GrammarHole(part) if isinstance(part, Automaton) else part.decode() for part in parts]
    while True:
        counting = [hole for hole in holes if isinstance(hole, GrammarHole) and hole.width]
        widest = max(counting, key=lambda hole: hole.width, default=None)
        if widest is None or widest.width <= SLACK * budget:
            try:
                language = _explored(_Segment(holes), budget)
            except ConstraintError:  # more states or counts than an automaton may have
                language = None
            if language is not None and language.is_empty:
                return None
            if language is not None:
                return Pushed(language, all(isinstance(hole, str) or hole.exact for hole in holes))
        if widest is None:
            return None
        loosened = widest.loosened()
        holes = [loosened if hole is widest else hole for hole in holes]


def _explored(segment: _Segment, budget: int) -> Language | None:
    """Minimal rules for the places of a segment; None if there are too many."""
    start = segment.begin(0)
    numbers, met, rules = {start: 0}, [start], list[Rule]()
    many = 0
    for places in met:  # grows during the loop
        edges = []
        for low, high, after in segment.moves(places):
            number = numbers.setdefault(after, len(met))
            if number == len(met):
                met.append(after)
            edges.append((low, high, number))
        many += len(edges)
        if len(met) > SLACK * budget or many > EDGES:
            return None
        rules.append(Rule(tuple(edges), segment.accepts(places)))
    language = smallest(rules)
    return language if len(language.rules) <= budget else None


# Holes ---------------------------------------------------------------------------------------------------------------


class GrammarHole:
    """Places of a hole, from character to character.

    `exact` is false if a bound or a count was left out. Then a hole that is closed or has no stops may end wherever it
    holds (`bounded_anywhere`). If its stops are not `certain`, the hole may also continue after one.
    """

    def __init__(self, automaton: Automaton, *, exact: bool = True, certain: bool = True) -> None:
        self.automaton = automaton
        self.exact = exact
        self.certain = certain
        self.bounded_anywhere = not exact and (automaton.closed or not automaton.stops)
        self._term = simplify(automaton.term)
        self._widths = dict(zip(automaton.counts.units, automaton.counts.sizes, strict=True))
        wanted = automaton.classes.single()
        self._ranges = [automaton.classes.ranges(flags) for flags in wanted]
        """Code points of each class of characters."""
        self._steps: dict[int, list[tuple[int, list[Range]]]] = {}

    @property
    def width(self) -> float:
        """Largest number of a count that is told apart; infinite for tokens, which servers do not count; 0 if none."""
        return max(map(self._width, self._widths), default=0)

    def _width(self, unit: Unit) -> float:
        return inf if unit == "tokens" else self._widths[unit]

    def loosened(self) -> GrammarHole:
        """Relaxed copy, which accepts more texts.

        It lacks the upper bounds on the unit with the largest `width`, or that unit if it has no upper bound.
        """
        unit = max(self._widths, key=self._width)
        term = simplify(_uncapped(self._term, unit))
        # text over a bound of the whole term is invalid whether or not a stop fires, unless another stop cuts off more
        certain = self.certain and not (self.automaton.cuts_back and len(self.automaton.stops) > 1)
        if term == self._term:
            term, certain = simplify(_uncounted(term, unit)), False
        return GrammarHole(Automaton(term), exact=False, certain=certain)

    def steps(self, state: int) -> list[tuple[int, list[Range]]]:
        """Characters that may follow a state, by what they do: one of their classes, and their code points."""
        steps = self._steps.get(state)
        if steps is None:
            found: dict[tuple[int, Values], tuple[int, list[Range]]] = {}
            for kind, step in enumerate(self.automaton.row(state)):
                if step[0] != NOWHERE:
                    found.setdefault(step, (kind, []))[1].extend(self._ranges[kind])
            steps = self._steps[state] = [(kind, sorted(ranges)) for kind, ranges in found.values()]
        return steps

    def closing(self, place: Place) -> list[Range]:
        """Characters whose first byte cannot continue the text."""
        goes_on = self.automaton.first_bytes(place)
        opened = [open_range(bytes([byte])) for byte in range(256) if not goes_on[byte]]
        return [(each[0], each[1]) for each in opened if each is not None]


def _uncapped(term: Term, unit: Unit) -> Term:
    """The term without upper bounds on the unit of the whole text."""
    parts = conjuncts(term)
    return And(
        tuple(replace(part, at_most=None) if isinstance(part, Length) and part.unit == unit else part for part in parts)
    )


def _uncounted(term: Term, unit: Unit) -> Term:
    def change(part: Term) -> Term:
        return TRUE if isinstance(part, Length) and part.unit == unit else part

    return mapped(term, change)


# Segments ------------------------------------------------------------------------------------------------------------


class GrammarState(NamedTuple):
    """Position in a part: in a literal text after `said` characters, or at a place of a hole. The end comes after the
    last part.

    `since` has pairs (age, places): where the following text would be by now if the value had ended `age` characters
    ago. If STOPS_BEFORE cuts the value there, these places are next.
    """

    part: int
    said: int = 0
    place: Place | None = None
    since: tuple[tuple[int, Places], ...] = ()


Places = frozenset[GrammarState]
"""All places in which a text may be: one, as long as everything is counted."""
Moves = list[tuple[int, int, Places]]
"""Triples (lowest code point, highest code point, next places), sorted and disjoint."""


class _Segment:
    def __init__(self, parts: Sequence[GrammarHole | str]) -> None:
        self._parts = [part for part in parts if part != ""]
        self._moves: dict[GrammarState, Moves] = {}
        self._begun: dict[int, Places] = {}

    def begin(self, part: int) -> Places:
        """Places at the beginning of a part, after the text before it."""
        begun = self._begun.get(part)
        if begun is None:
            if part < len(self._parts) and isinstance(hole := self._parts[part], GrammarHole):
                start = hole.automaton.origin
                state = GrammarState(part, place=start)
                begun = self._arrive(hole, state, start, None) if hole.automaton.lives(start) else frozenset()
            else:
                begun = frozenset([GrammarState(part)])
            self._begun[part] = begun
        return begun

    def accepts(self, places: Places) -> bool:
        """True if the text may end."""
        return any(map(self._ends, places))

    def _ends(self, state: GrammarState) -> bool:
        if state.part == len(self._parts) or state.place is None:
            return state.part == len(self._parts)
        hole = self._parts[state.part]
        return isinstance(hole, GrammarHole) and self._is_last(state.part) and hole.automaton.holds(state.place)

    def _is_last(self, part: int) -> bool:
        return part + 1 == len(self._parts)

    def moves(self, places: Places) -> Moves:
        return _united([self._moves_of(place) for place in places])

    def _moves_of(self, state: GrammarState) -> Moves:
        moves = self._moves.get(state)
        if moves is None:
            part = self._parts[state.part] if state.part < len(self._parts) else ""
            moves = self._along(part, state) if isinstance(part, str) else self._through(part, state)
            self._moves[state] = moves
        return moves

    def _along(self, text: str, state: GrammarState) -> Moves:
        if not text:
            return []
        said = state.said + 1
        code = ord(text[state.said])
        after = frozenset([state._replace(said=said)]) if said < len(text) else self.begin(state.part + 1)
        return [(code, code, after)]

    def _through(self, hole: GrammarHole, state: GrammarState) -> Moves:
        automaton, last, place = hole.automaton, self._is_last(state.part), state.place
        assert place is not None
        moves: Moves = []
        if automaton.closed and not last and hole.automaton.holds(place):
            # a byte that cannot continue the hole begins the following text
            following = self.moves(self.begin(state.part + 1))
            for low, high in hole.closing(place):
                moves += _within(following, low, high)
        for kind, ranges in hole.steps(place.state):
            reached = automaton.step(place, kind)
            cut = automaton.fired(reached, place)
            if cut is None and not hole.automaton.lives(reached):
                continue
            after = GrammarState(state.part, place=reached)
            if last or (not automaton.undecided(reached.state) and not cut):
                places = self._arrive(hole, after, reached, cut)
                moves += [(low, high, places) for low, high in ranges]
            else:
                moves += self._undecided(hole, state, after, cut, ranges)
        return sorted(moves, key=lambda move: move[0])

    def _undecided(
        self, hole: GrammarHole, before: GrammarState, state: GrammarState, cut: int | None, ranges: list[Range]
    ) -> Moves:
        """Moves for characters that may belong to a phrase that is cut off: the next part reads them too."""
        assert state.place is not None
        back = max(hole.automaton.undecided(state.place.state), cut or 0)
        since = [(1, self.begin(state.part + 1)), *((age + 1, places) for age, places in before.since)]
        since = [(age, places) for age, places in since if age <= back]
        said: Moves = [(low, high, frozenset([state])) for low, high in ranges]
        moves = []
        known: dict[tuple[tuple[int, Places], ...], Places] = {}
        for low, high, (here, *following) in _overlaid([said, *(self.moves(places) for _, places in since)]):
            if here:
                ages = zip((age for age, _ in since), following, strict=True)
                key = tuple((age, places) for age, places in ages if places)
                if key not in known:
                    known[key] = self._arrive(hole, state._replace(since=key), state.place, cut)
                moves.append((low, high, known[key]))
        return moves

    def _arrive(self, hole: GrammarHole, state: GrammarState, place: Place, cut: int | None) -> Places:
        """Places after a character of a hole: in the hole, or in the following text if the hole has ended.

        `cut` is the number of characters that a stop cuts off here, None if no stop fires.
        """
        following = self.begin(state.part + 1)
        staying = frozenset([state]) if hole.automaton.lives(place) else frozenset[GrammarState]()
        if hole.automaton.must_end(place):
            staying = following
        elif hole.bounded_anywhere and not self._is_last(state.part) and hole.automaton.holds(place):
            staying |= following
        if cut is None:
            return staying
        if not hole.certain:
            return staying.union(following, *(places for _, places in state.since))
        if cut == 0 or self._is_last(state.part):
            return following
        return dict(state.since).get(cut, frozenset())


def _within(moves: Moves, lowest: int, highest: int) -> Moves:
    return [
        (max(low, lowest), min(high, highest), places)
        for low, high, places in moves
        if low <= highest and high >= lowest
    ]


def _united(layers: Sequence[Moves]) -> Moves:
    if len(layers) == 1:
        return layers[0]
    return [(low, high, frozenset[GrammarState]().union(*each)) for low, high, each in _overlaid(layers)]


def _overlaid(layers: Sequence[Moves]) -> list[tuple[int, int, list[Places]]]:
    """Ranges that some layer has, cut where a range of any layer begins or ends, with the places of each layer."""
    cuts = sorted({cut for moves in layers for low, high, _ in moves for cut in (low, high + 1)})
    index = {cut: at for at, cut in enumerate(cuts)}
    covering: list[list[Places]] = [[frozenset()] * len(layers) for _ in cuts]
    for layer, moves in enumerate(layers):
        for low, high, places in moves:
            for at in range(index[low], index[high + 1]):
                covering[at][layer] = places
    pairs = zip(pairwise(cuts), covering, strict=False)  # no range begins at the last cut
    return [(low, end - 1, each) for (low, end), each in pairs if any(each)]
