"""Rules over characters for a segment, to which a server can constrain its model (S17).

Our automata read bytes and have counts beside their states; servers read characters and know only rules. So characters
are walked byte by byte, and a state with its counts becomes one rule. If there are too many, a count is left out. Then
the rules allow more than the segment does, and the reply is checked anyway.
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
"""Default maximum number of rules. llama.cpp takes thousands without trouble. xgrammar takes about 30 ms for each rule
that nearly all characters fit, with a vocabulary of 128,000 tokens: give it a hundred."""
SLACK = 2
"""Factor by which the places explored may exceed the budget, because equal ones become one rule later."""
STATES = 3000
"""Most automaton states read. Most are inside characters, of which Unicode classes have many."""
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
    cannot continue it (S13, S18). The last hole may end wherever its condition holds, and may include the phrase before
    which STOPS_BEFORE cuts it: a stop is an observation (S14). Tokens are not counted. None if there are more than
    `budget` rules even with nothing counted, or if there is no text at all.
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
        if len(met) > SLACK * budget or many > EDGES or segment.states_read > STATES:
            return None
        rules.append(Rule(tuple(edges), segment.accepts(places)))
    language = smallest(rules)
    return language if len(language.rules) <= budget else None


# Segments ------------------------------------------------------------------------------------------------------------


class GrammarState(NamedTuple):
    """Position in a part: in a literal text after `state` characters, or in a hole. The end comes after the last part.

    `since` has pairs (age, places): where the following text would be by now if the value had ended `age` bytes ago. If
    STOPS_BEFORE cuts the value there, these places are next.
    """

    part: int
    state: int
    counts: int = 0
    since: tuple[tuple[int, Places], ...] = ()


Places = frozenset[GrammarState]
"""All places in which a text may be: one, as long as everything is counted."""
Moves = list[tuple[int, int, Places]]
"""Triples (lowest code point, highest code point, next places), sorted and disjoint."""


class _Segment:
    def __init__(self, parts: Sequence[ByCharacter | str]) -> None:
        self._parts = [part for part in parts if part != ""]
        self._moves: dict[GrammarState, Moves] = {}
        self._begun: dict[int, Places] = {}

    @property
    def states_read(self) -> int:
        return sum(part.states_read for part in self._parts if isinstance(part, ByCharacter))

    def begin(self, part: int) -> Places:
        """Places at the beginning of a part, after the text before it."""
        begun = self._begun.get(part)
        if begun is None:
            if part < len(self._parts) and isinstance(hole := self._parts[part], ByCharacter):
                start = GrammarState(part, hole.automaton.start)
                judged = hole.judged(start.state, 0)
                # a stop needs at least one character
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
            # a byte that cannot continue the hole begins the following text
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
        """Moves for characters that may belong to a phrase that is cut off: the next part reads them too."""
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
        """Places after a character of a hole: in the hole, or in the following text if the hole has ended."""
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
