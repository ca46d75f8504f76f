"""A term as an automaton over bytes, built as far as it is walked: content in states, length in a counter.

A configuration is (state, count): the state holds every atom that reads content, and UTF-8 validity; the count is the
number of characters, saturated one past the largest number that the term compares with. Whether a configuration can
still end well, and in how few bytes, is exact (S19): a mask built on it never walks into a dead end.
"""

from __future__ import annotations

from heapq import heappop, heappush
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import DEAD, NEVER, Forbidden, Moves, Options, Phrase, Utf8
from lmql_lite.constraints.places import Edge, Judgement, Place
from lmql_lite.constraints.regex import Regex
from lmql_lite.constraints.simplify import characters, simplify
from lmql_lite.constraints.terms import (
    And,
    Choice,
    Constant,
    Contains,
    Lacks,
    Length,
    Matches,
    Not,
    Or,
    Stop,
    Term,
    is_closed,
)
from lmql_lite.constraints.ways import ALWAYS, Way, both, possible
from lmql_lite.errors import ConstraintError

STATE_BUDGET = 100_000
SEARCH_BUDGET = 300_000
"""Configurations that one search for an end may look at."""
MEMO_KEPT = 1_000_000
"""Configurations whose distance is remembered, about 200 bytes each."""

UTF8 = Utf8()
Machine = Phrase | Options | Forbidden | Regex


class Automaton:
    """One term, for any vocabulary. Lazily grown, shared by every hole with an equal term; never forgets a state.

    Threads may share it: what is known is read without a lock and only ever added to, what is new is built under one.
    """

    def __init__(self, term: Term) -> None:
        self.term = term
        self._term = simplify(term)
        self.closed = is_closed(self._term)
        self._machines: list[Machine] = []
        self._slots: dict[int, int] = {}
        """Identity of an atom within the term -> its place in a state: an atom with many options is slow to hash."""
        self._stops: list[tuple[Stop, int, Phrase]] = []
        constants = [0]
        self._collect(self._term, constants, {})
        self._before = [(stop, slot) for stop, slot, _ in self._stops if not stop.inclusive]
        # a value cut before a phrase is shorter than the text: leave room to count back
        room = max((characters(stop.phrase) for stop, _ in self._before), default=0)
        self.most = max(constants) + 1 + room if len(constants) > 1 else 0
        self._lock = RLock()
        self._places: list[Place] = []
        self._numbers: dict[Place, int] = {}
        self._rows: list[NDArray[np.int32] | None] = []
        self._edges: list[tuple[Edge, ...]] = []
        self._reached: list[bool] = []
        self._ways: dict[tuple[int, ...], tuple[Way, ...]] = {}
        self._ahead: list[tuple[Way, ...]] = []
        self._behind: list[tuple[tuple[int, int], ...]] = []
        self._judged: dict[tuple[tuple[int, ...], int], bool] = {}
        self._distances: dict[tuple[int, int], int] = {}
        self._bounds: dict[tuple[int, int], int] = {}
        self.start = self._number(Place((0,) * len(self._machines), 0, ()))

    # Building ----------------------------------------------------------------------------------------------------

    def _collect(self, term: Term, constants: list[int], known: dict[Term, int]) -> None:
        match term:
            case And(terms) | Or(terms):
                for part in terms:
                    self._collect(part, constants, known)
            case Not(part):
                self._collect(part, constants, known)
            case Length(at_least, at_most):
                constants.extend((at_least, at_most or 0))
            case Choice() | Matches() | Contains() | Lacks() | Stop():
                slot = known.setdefault(term, len(self._machines))  # equal atoms share a machine
                if slot == len(self._machines):
                    self._machines.append(self._machine(term, slot))
                self._slots[id(term)] = slot
            case Constant():
                pass

    def _machine(self, atom: Choice | Matches | Contains | Lacks | Stop, slot: int) -> Machine:
        if isinstance(atom, Choice):
            return Options(atom.options)
        if isinstance(atom, Matches):
            return Regex(atom.pattern, atom.flags, atom.span)
        if isinstance(atom, Lacks):
            return Forbidden(atom.phrases)
        machine = Phrase(atom.phrase, sticky=isinstance(atom, Contains))
        if isinstance(atom, Stop):
            self._stops.append((atom, slot, machine))
        return machine

    def _number(self, place: Place) -> int:
        number = self._numbers.get(place)
        if number is None:
            number = len(self._places)
            if number >= STATE_BUDGET:
                raise self._too_large()
            self._places.append(place)
            self._edges.append(())
            self._reached.append(any(machine.holds(place.atoms[slot]) for _, slot, machine in self._stops))
            self._ahead.append(self._ways_from(place.atoms))
            self._behind.append(self._ways_back(place))
            self._rows.append(None)
            self._numbers[place] = number
        return number

    def _too_large(self) -> ConstraintError:
        return ConstraintError(
            f"this condition needs more than {STATE_BUDGET:,} states",
            span=self.term.span,
            hint="fewer or shorter options and phrases, or two holes, make it smaller",
        )

    def _expand(self, state: int) -> NDArray[np.int32]:
        """All successors of a state. Bytes that no atom tells apart are stepped together."""
        atoms, utf8, before = self._places[state]
        row = [DEAD] * 256
        ways: dict[int, tuple[int, int]] = {}
        moves = [machine.moves(atom) for machine, atom in zip(self._machines, atoms, strict=True)]
        special: set[int] = set().union(*(move.special for move in moves))
        other = self._enter(tuple(move.other for move in moves), atoms, before)
        if other is not None:
            for after, members in UTF8.groups[utf8]:
                plain = [byte for byte in members if byte not in special] if special else members
                if plain:
                    number = self._number(Place(other[0], after, other[1]))
                    for byte in plain:
                        row[byte] = number
                    ways[number] = (plain[0], len(plain))
        numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        for byte in sorted(special):
            after = UTF8.table[utf8][byte]
            if after == DEAD:
                continue
            alike = (after, _step(moves, byte))
            if alike not in numbers:
                entered = self._enter(alike[1], atoms, before)
                numbers[alike] = DEAD if entered is None else self._number(Place(entered[0], after, entered[1]))
            number = numbers[alike]
            if number != DEAD:
                row[byte] = number
                first, how_many = ways.get(number, (byte, 0))
                ways[number] = (first, how_many + 1)
        starts = int(utf8 == 0)
        self._edges[state] = tuple(Edge(number, starts, *bytes_there) for number, bytes_there in ways.items())
        successors = np.array(row, dtype=np.int32)
        self._rows[state] = successors  # last: whoever sees the row may read the edges
        return successors

    def _enter(
        self, after: tuple[int, ...], atoms: tuple[int, ...], before: tuple[tuple[int, ...], ...]
    ) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]] | None:
        """The new atoms and history after one byte, None where no continuation can meet the term."""
        matched = max((after[slot] for _, slot in self._before), default=0)
        # under a phrase that may cut the value the text itself may be past hope: what stands before is judged
        before = (*before, atoms)[-matched:] if matched else ()
        if self._ways_from(after) or any(way.num_bytes == 0 for past in before for way in self._ways_from(past)):
            return after, before
        return None

    def _ways_from(self, atoms: tuple[int, ...]) -> tuple[Way, ...]:
        """How the term may come to hold in a continuation. A superset: never less than what is possible."""
        ways = self._ways.get(atoms)
        if ways is None:
            ways = self._ways[atoms] = self._ways_of(self._term, atoms)
        return ways

    def _ways_of(self, term: Term, atoms: tuple[int, ...]) -> tuple[Way, ...]:
        match term:
            case Constant(False):
                return ()
            case Length(at_least, at_most):
                return (Way(0, 0, at_least, NEVER if at_most is None else at_most),)
            case Choice() | Matches() | Contains() | Lacks():
                slot = self._slots[id(term)]
                need = self._machines[slot].need(atoms[slot])
                return (Way(*need, 0, NEVER),) if need.num_bytes < NEVER else ()
            case And(terms):
                ways: tuple[Way, ...] = (ALWAYS,)
                for part in terms:
                    ways = possible(both(a, b) for a in ways for b in self._ways_of(part, atoms))
                return ways
            case Or(terms):
                return possible(way for part in terms for way in self._ways_of(part, atoms))
        return (ALWAYS,)

    def _ways_back(self, place: Place) -> tuple[tuple[int, int], ...]:
        """The counts here with which a stop may still cut the value back to one that meets the term."""
        if not place.before:
            return ()
        under_way = max(self._before, key=lambda stop_and_slot: place.atoms[stop_and_slot[1]])
        phrase = under_way[0].phrase[: len(place.before)]
        back = [characters(phrase[index:]) for index in range(len(phrase))]
        return tuple(
            (way.low + counted, way.high + counted)
            for atoms, counted in zip(place.before, back, strict=True)
            for way in self._ways_from(atoms)
            if way.num_bytes == 0
        )

    # Walking -----------------------------------------------------------------------------------------------------

    def row(self, state: int) -> NDArray[np.int32]:
        """The next state for each of the 256 bytes, DEAD where the text would be no valid one."""
        row = self._rows[state]
        if row is None:
            with self._lock:
                row = self._rows[state]
                return self._expand(state) if row is None else row
        return row

    def edges(self, state: int) -> tuple[Edge, ...]:
        self.row(state)
        return self._edges[state]

    def count(self, count: int, characters: int) -> int:
        return min(count + characters, self.most)

    def undecided(self, state: int) -> int:
        """How many of the last bytes may turn out to be a phrase before which the value is cut."""
        return len(self._places[state].before)

    def reaches_stop(self, state: int) -> bool:
        """Whether some stop phrase ends exactly here: only then can `cut` be other than None."""
        return self._reached[state]

    # Judging -----------------------------------------------------------------------------------------------------

    def holds(self, state: int, count: int) -> bool:
        """Whether the hole may end here by the model's own decision."""
        atoms, utf8, _ = self._places[state]
        if utf8:
            return False
        known = self._judged.get((atoms, count))
        if known is None:
            known = self._judged[atoms, count] = self._judge(self._term, atoms, count, None).holds
        return known

    def cut(self, state: int, count: int) -> int | None:
        """How many bytes before this place a stop ends the value, None where none fires.

        Where several phrases end at once, the first one in the term whose guard holds decides.
        """
        if not self._reached[state]:
            return None
        place = self._places[state]
        for stop, slot, machine in self._stops:
            if not machine.holds(place.atoms[slot]):
                continue
            if stop.inclusive:
                back, atoms, counted = 0, place.atoms, count
            else:
                back = len(stop.phrase)
                atoms = place.before[-back]
                counted = count - characters(stop.phrase) if self.most else 0
            if self._judge(self._term, atoms, counted, stop).fires:
                return back
        return None

    def _judge(self, term: Term, atoms: tuple[int, ...], count: int, reached: Stop | None) -> Judgement:
        match term:
            case Constant(holds):
                return Judgement(holds, False)
            case Length(at_least, at_most):
                return Judgement(at_least <= count and (at_most is None or count <= at_most), False)
            case Choice() | Matches() | Contains() | Lacks():
                slot = self._slots[id(term)]
                return Judgement(self._machines[slot].holds(atoms[slot]), False)
            case Stop():
                return Judgement(True, term == reached)
            case Not(part):
                return Judgement(not self._judge(part, atoms, count, reached).holds, False)
            case And(terms):
                parts = [self._judge(part, atoms, count, reached) for part in terms]
                holds = all(part.holds for part in parts)
                return Judgement(holds, holds and any(part.fires for part in parts))
            case Or(terms):
                parts = [self._judge(part, atoms, count, reached) for part in terms]
                return Judgement(any(part.holds for part in parts), any(part.fires for part in parts))

    # Ends --------------------------------------------------------------------------------------------------------

    def distance(self, state: int, count: int) -> int:
        """The least number of bytes after which the hole can end well, NEVER where it cannot. Exact."""
        known = self._distances.get((state, count))
        if known is not None:
            return known
        with self._lock:
            if len(self._distances) + len(self._bounds) + len(self._judged) > MEMO_KEPT:
                self._distances, self._bounds, self._judged = {}, {}, {}
            return self._search(state, count)

    def at_least(self, state: int, count: int) -> int:
        """A number of bytes below which the hole cannot end well. Cheap."""
        if any(low <= count <= high for low, high in self._behind[state]):
            return 0
        return min(
            (
                max(way.num_bytes, way.low - count)
                for way in self._ahead[state]
                if count + way.num_characters <= way.high
            ),
            default=NEVER,
        )

    def _search(self, state: int, count: int) -> int:
        """A* (Hart, Nilsson, Raphael 1968); what a search has learned is a better estimate for the next one."""
        start = (state, count)
        if self._ends(state, count):
            self._distances[start] = 0
            return 0
        if isinstance(self._term, Choice | Matches):  # what is needed is exact
            return self._distances.setdefault(start, self.at_least(state, count))
        came_from: dict[tuple[int, int], tuple[int, int] | None] = {start: None}
        depths = {start: 0}
        queue = [(0, 0, start)]
        while queue:
            _, height, here = heappop(queue)
            depth = -height
            if depth > depths[here]:
                continue  # a shorter way was found since
            known = self._distances.get(here)
            if known is None and self._ends(*here):
                known = 0
            if known is not None:
                return self._remember(here, depth + known, came_from, depths)
            for edge in self.edges(here[0]):
                after = (edge.state, min(here[1] + edge.characters, self.most))
                if depths.get(after, NEVER) <= depth + 1:
                    continue
                known = self._distances.get(after)
                estimate = max(self.at_least(*after), self._bounds.get(after, 0)) if known is None else known
                if estimate < NEVER:
                    depths[after] = depth + 1
                    came_from[after] = here
                    heappush(queue, (depth + 1 + estimate, -depth - 1, after))
            if len(depths) > SEARCH_BUDGET:
                raise self._too_large()
        self._distances.update(dict.fromkeys(depths, NEVER))
        return NEVER

    def _ends(self, state: int, count: int) -> bool:
        return self.holds(state, count) or self.cut(state, count) is not None

    def _remember(
        self,
        goal: tuple[int, int],
        nearest: int,
        came_from: dict[tuple[int, int], tuple[int, int] | None],
        depths: dict[tuple[int, int], int],
    ) -> int:
        """Every place of the shortest way is at a known distance too, every other one at no less than a known one."""
        for place, depth in depths.items():
            if nearest - depth > self._bounds.get(place, 1):
                self._bounds[place] = nearest - depth
        step: tuple[int, int] | None = goal
        while step is not None:
            self._distances[step] = nearest - depths[step]
            step = came_from[step]
        return nearest


def _step(moves: list[Moves], byte: int) -> tuple[int, ...]:
    return tuple(move.special.get(byte, move.other) for move in moves)
