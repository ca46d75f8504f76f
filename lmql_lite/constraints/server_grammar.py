"""Rules over characters for a segment, to which a server can hold its model (S17).

Our automata read bytes and have counts beside their states; servers read characters and know only rules. So characters
are walked byte by byte, a state and its counts become one rule, and where that makes too many a count is left out: then
the rules allow more than the segment does, and what arrives is checked anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.character_steps import ByCharacter, CharacterJudgement, Range
from lmql_lite.constraints.language import Language, Rule, smallest
from lmql_lite.constraints.step_table import NOWHERE
from lmql_lite.errors import ConstraintError

RULES = 2000
"""As many as a language may have unless told. llama.cpp does not mind thousands of them; xgrammar takes about 30 ms for
each that nearly all characters fit, and a vocabulary of 128,000 tokens: give it a hundred."""
SLACK = 2
"""So many times as many places are looked at before equal ones become one rule."""
STATES = 3000
"""Of the automata, that are read: most of them stand inside characters, of which classes of Unicode have many."""
EDGES = 16_000
"""Of all rules together, however few of them a server takes: a class of Unicode has hundreds of ranges, which cost it
far less than a rule does. xgrammar takes a second for so many."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """`exact` tells that the language has the texts of the segment and no others.

    Else it has more. Only texts in which a hole with stops goes on to its bound without one may be missing, where that
    bound was left out: to allow what follows anywhere would be worse than to cut a text that is as long as that.
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
    holes = [ByCharacter(part) if isinstance(part, Automaton) else part.decode() for part in parts]
    while True:
        counting = [hole for hole in holes if isinstance(hole, ByCharacter) and hole.width]
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
        if len(met) > SLACK * budget or many > EDGES or segment.states_read > STATES:
            return None
        rules.append(Rule(tuple(edges), segment.accepts(places)))
    language = smallest(rules)
    return language if len(language.rules) <= budget else None


# Segments ------------------------------------------------------------------------------------------------------------


class GrammarState(NamedTuple):
    """In a text after so many characters (`state`), or in a hole. Behind the last part is the end.

    `since` is where the following text would be by now if the value had ended so many bytes ago: what is told when
    STOPS_BEFORE cuts the value there.
    """

    part: int
    state: int
    counts: int = 0
    since: tuple[tuple[int, Places], ...] = ()


Places = frozenset[GrammarState]
"""All places in which a text may be: one, as long as everything is counted."""
Moves = list[tuple[int, int, Places]]
"""Characters, from the lowest to the highest, and where they lead; in order, without overlap."""


class _Segment:
    def __init__(self, parts: Sequence[ByCharacter | str]) -> None:
        self._parts = [part for part in parts if part != ""]
        self._moves: dict[GrammarState, Moves] = {}
        self._begun: dict[int, Places] = {}

    @property
    def states_read(self) -> int:
        return sum(part.states_read for part in self._parts if isinstance(part, ByCharacter))

    def begin(self, part: int) -> Places:
        """States at the beginning of a part, after the text before it."""
        begun = self._begun.get(part)
        if begun is None:
            if part < len(self._parts) and isinstance(hole := self._parts[part], ByCharacter):
                start = GrammarState(part, hole.automaton.start)
                judged = hole.judged(start.state, 0)
                # a stop is reached by saying something
                begun = self._arrive(hole, start, judged._replace(cut=None)) if judged else frozenset()
            else:
                begun = frozenset([GrammarState(part, 0)])
            self._begun[part] = begun
        return begun

    def accepts(self, places: Places) -> bool:
        """True if the text may end."""
        return any(map(self._ends, places))

    def _ends(self, place: GrammarState) -> bool:
        part, state, counts, _ = place
        if part == len(self._parts):
            return True
        hole = self._parts[part]
        return self._is_last(part) and isinstance(hole, ByCharacter) and hole.automaton.holds(state, counts)

    def _is_last(self, part: int) -> bool:
        return part + 1 == len(self._parts)

    def moves(self, places: Places) -> Moves:
        return _united([self._moves_of(place) for place in places])

    def _moves_of(self, place: GrammarState) -> Moves:
        moves = self._moves.get(place)
        if moves is None:
            part = self._parts[place.part] if place.part < len(self._parts) else ""
            moves = self._moves[place] = (
                self._through(part, place) if isinstance(part, ByCharacter) else self._along(part, place)
            )
        return moves

    def _along(self, text: str, place: GrammarState) -> Moves:
        if not text:
            return []
        said = place.state + 1
        code = ord(text[place.state])
        after = frozenset([place._replace(state=said)]) if said < len(text) else self.begin(place.part + 1)
        return [(code, code, after)]

    def _through(self, hole: ByCharacter, place: GrammarState) -> Moves:
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
            reached = GrammarState(part, after, automaton.counts.add(counts, added))
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
        self,
        hole: ByCharacter,
        before: GrammarState,
        place: GrammarState,
        judged: CharacterJudgement,
        size: int,
        ranges: list[Range],
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

    def _arrive(self, hole: ByCharacter, place: GrammarState, judged: CharacterJudgement) -> Places:
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
        if judged.cut == 0 or self._is_last(place.part):
            return following
        return dict(place.since).get(judged.cut, frozenset())


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
