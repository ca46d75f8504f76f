"""A term as an automaton over bytes, built as far as it is walked: content in states, length in a counter.

A configuration is (state, count): the state holds every atom that reads content, and UTF-8 validity; the count is the
number of characters, saturated one past the largest number that the term compares with. Whether a configuration can
still end well, and in how few bytes, is exact (S19): a mask built on it never walks into a dead end.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import DEAD, Options, Phrase, Utf8, starts_character
from lmql_lite.constraints.terms import And, Choice, Constant, Contains, Length, Not, Or, Stop, Term, is_closed
from lmql_lite.errors import ConstraintError

STATE_BUDGET = 100_000
NEVER = 2**30
"""The distance of a configuration from which the hole cannot end well."""


class Place(NamedTuple):
    """A state in parts: the atoms' states, UTF-8, and where STOPS_BEFORE is under way the atoms' states of the last
    bytes, since the value will be judged as it was before the phrase (S15)."""

    atoms: tuple[int, ...]
    utf8: int
    before: tuple[tuple[int, ...], ...]


class Edge(NamedTuple):
    """All bytes that lead from one state to the same other one."""

    state: int
    characters: int
    byte: int
    how_many: int


class Judgement(NamedTuple):
    """A term judged on a text: whether it holds, and whether a stop that was just reached ends the hole (S13).

    A stop counts as true in `holds`; `fires` asks that one of the reached stops stands in a conjunct that holds.
    """

    holds: bool
    fires: bool


class Automaton:
    """One term, for any vocabulary. Lazily grown, shared by every hole with an equal term; never forgets a state."""

    def __init__(self, term: Term) -> None:
        self.term = term
        self.closed = is_closed(term)
        self._machines: list[Phrase | Options] = []
        self._slots: dict[Term, int] = {}
        self._stops: list[tuple[Stop, int, Phrase]] = []
        constants = [0]
        self._collect(term, constants)
        self._before = [(stop, slot) for stop, slot, _ in self._stops if not stop.inclusive]
        # a value cut before a phrase is shorter than the text: leave room to count back
        room = max((_characters(stop.phrase) for stop, _ in self._before), default=0)
        self.most = max(constants) + 1 + room if len(constants) > 1 else 0
        self._utf8 = Utf8()
        self._representatives, self._classes = self._byte_classes()
        self._places: list[Place] = []
        self._numbers: dict[Place, int] = {}
        self._rows: list[NDArray[np.int32] | None] = []
        self._edges: list[tuple[Edge, ...] | None] = []
        self._reached: list[bool] = []
        self._distances: dict[tuple[int, int], int] = {}
        self._judged: dict[tuple[tuple[int, ...], int], bool] = {}
        self.extent = _extent(term) + 4
        self.start = self._number(Place((0,) * len(self._machines), 0, ()))

    # Building ----------------------------------------------------------------------------------------------------

    def _collect(self, term: Term, constants: list[int]) -> None:
        match term:
            case And(terms) | Or(terms):
                for part in terms:
                    self._collect(part, constants)
            case Not(part):
                self._collect(part, constants)
            case Length(at_least, at_most):
                constants.extend((at_least, at_most or 0, 1))
            case Choice(options):
                self._slot(term, Options(options))
            case Contains(phrase):
                self._slot(term, Phrase(phrase, sticky=True))
            case Stop(phrase):
                machine = Phrase(phrase, sticky=False)
                self._slot(term, machine)
                self._stops.append((term, self._slots[term], machine))
            case Constant():
                pass

    def _slot(self, term: Term, machine: Phrase | Options) -> None:
        if term not in self._slots:
            self._slots[term] = len(self._machines)
            self._machines.append(machine)

    def _byte_classes(self) -> tuple[list[int], NDArray[np.intp]]:
        """Bytes that no machine tells apart are stepped once."""
        interesting = set().union(*(machine.bytes_of_interest() for machine in self._machines))
        representatives: list[int] = []
        classes = np.empty(256, dtype=np.intp)
        for group in Utf8.CLASSES:
            plain = [byte for byte in group if byte not in interesting]
            for members in ([plain] if plain else []) + [[byte] for byte in group if byte in interesting]:
                classes[members] = len(representatives)
                representatives.append(members[0])
        return representatives, classes

    def _number(self, place: Place) -> int:
        number = self._numbers.get(place)
        if number is None:
            if len(self._places) >= STATE_BUDGET:
                raise ConstraintError(
                    f"this condition needs more than {STATE_BUDGET:,} states",
                    span=self.term.span,
                    hint="fewer or shorter options and phrases, or two holes, make it smaller",
                )
            number = self._numbers[place] = len(self._places)
            self._places.append(place)
            self._rows.append(None)
            self._edges.append(None)
            self._reached.append(any(machine.holds(place.atoms[slot]) for _, slot, machine in self._stops))
        return number

    def _step(self, state: int, byte: int) -> int:
        atoms, utf8, before = self._places[state]
        utf8 = self._utf8.step(utf8, byte)
        if utf8 == DEAD:
            return DEAD
        after = tuple(machine.step(atom, byte) for machine, atom in zip(self._machines, atoms, strict=True))
        matched = max((after[slot] for _, slot in self._before), default=0)
        before = (*before, atoms)[-matched:] if matched else ()
        # under a phrase that may cut the value the text itself may be past hope: only what stands before is judged
        if not matched and self._possible(self.term, after) is False:
            return DEAD
        return self._number(Place(after, utf8, before))

    def _possible(self, term: Term, atoms: tuple[int, ...]) -> bool | None:
        """Three-valued: what the term will be for every continuation; None where that is open."""
        match term:
            case Constant(holds):
                return holds
            case Choice():
                return False if atoms[self._slots[term]] == DEAD else None
            case Contains():
                return True if self._machines[slot := self._slots[term]].holds(atoms[slot]) else None
            case Not(part):
                value = self._possible(part, atoms)
                return None if value is None else not value
            case And(terms):
                values = [self._possible(part, atoms) for part in terms]
                return False if False in values else None if None in values else True
            case Or(terms):
                values = [self._possible(part, atoms) for part in terms]
                return True if True in values else None if None in values else False
        return None

    # Walking -----------------------------------------------------------------------------------------------------

    def row(self, state: int) -> NDArray[np.int32]:
        """The next state for each of the 256 bytes, DEAD where the text would be no valid one."""
        row = self._rows[state]
        if row is None:
            steps = np.array([self._step(state, byte) for byte in self._representatives], dtype=np.int32)
            row = self._rows[state] = steps[self._classes]
        return row

    def edges(self, state: int) -> tuple[Edge, ...]:
        edges = self._edges[state]
        if edges is None:
            found: dict[tuple[int, int], tuple[int, int]] = {}
            for byte, after in enumerate(self.row(state).tolist()):
                if after != DEAD:
                    key = (after, int(starts_character(byte)))
                    first, how_many = found.get(key, (byte, 0))
                    found[key] = (first, how_many + 1)
            edges = self._edges[state] = tuple(Edge(*key, *value) for key, value in found.items())
        return edges

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
        place = self._places[state]
        return place.utf8 == 0 and self._holds(place.atoms, count)

    def _holds(self, atoms: tuple[int, ...], count: int) -> bool:
        key = (atoms, count)
        known = self._judged.get(key)
        if known is None:
            known = self._judged[key] = self._judge(self.term, atoms, count, frozenset()).holds
        return known

    def cut(self, state: int, count: int) -> int | None:
        """How many bytes before this place a stop ends the value, None where none fires."""
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
                atoms = place.before[-back] if back else place.atoms
                counted = count - _characters(stop.phrase) if self.most else 0
            if self._judge(self.term, atoms, counted, frozenset({stop})).fires:
                return back
        return None

    def _judge(self, term: Term, atoms: tuple[int, ...], count: int, reached: frozenset[Stop]) -> Judgement:
        match term:
            case Constant(holds):
                return Judgement(holds, False)
            case Length(at_least, at_most):
                return Judgement(at_least <= count and (at_most is None or count <= at_most), False)
            case Choice() | Contains():
                slot = self._slots[term]
                return Judgement(self._machines[slot].holds(atoms[slot]), False)
            case Stop():
                return Judgement(True, term in reached)
            case Not(part):
                return Judgement(not self._judge(part, atoms, count, reached).holds, False)
            case And(terms):
                parts = [self._judge(part, atoms, count, reached) for part in terms]
                holds = all(part.holds for part in parts)
                return Judgement(holds, holds and any(part.fires for part in parts))
            case Or(terms):
                parts = [self._judge(part, atoms, count, reached) for part in terms]
                return Judgement(any(part.holds for part in parts), any(part.fires for part in parts))

    def distance(self, state: int, count: int) -> int:
        """The least number of bytes after which the hole can end well, NEVER where it cannot. Exact: breadth first."""
        known = self._distances.get((state, count))
        return known if known is not None else self._search((state, count))

    def _search(self, start: tuple[int, int]) -> int:
        came_from: dict[tuple[int, int], tuple[int, int] | None] = {start: None}
        depths = {start: 0}
        queue = deque([start])
        nearest, goal = NEVER, start
        while queue:
            here = queue.popleft()
            if depths[here] >= nearest:  # what was known before may be nearer than what is found now, never the reverse
                break
            known = self._distances.get(here)
            if known is None and (self.holds(*here) or self.cut(*here) is not None):
                known = 0
            if known is not None:
                if depths[here] + known < nearest:
                    nearest, goal = depths[here] + known, here
                continue
            for edge in self.edges(here[0]):
                after = (edge.state, self.count(here[1], edge.characters))
                if after not in came_from:
                    came_from[after] = here
                    depths[after] = depths[here] + 1
                    queue.append(after)
        if nearest >= NEVER:
            self._distances.update(dict.fromkeys(came_from, NEVER))
            return NEVER
        step: tuple[int, int] | None = goal
        while step is not None:  # every shortest way's places are at known distances too
            self._distances[step] = nearest - depths[step]
            step = came_from[step]
        return nearest


def _characters(text: bytes) -> int:
    return sum(starts_character(byte) for byte in text)


def _extent(term: Term) -> int:
    """No place of the automaton is farther than this from an end that it can reach at all, in bytes."""
    match term:
        case And(terms) | Or(terms):
            return sum(_extent(part) for part in terms)
        case Not(part):
            return _extent(part) + 1
        case Length(at_least, at_most):
            return 4 * max(at_least, (at_most or 0) + 1)
        case Choice(options):
            return max(map(len, options), default=0)
        case Contains(phrase) | Stop(phrase):
            return len(phrase)
        case Constant():
            return 0
