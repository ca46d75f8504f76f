"""A term as an automaton over bytes, built as far as it is walked: content in states, lengths in counts.

A configuration is (state, count): the state holds every machine that reads content, and UTF-8 validity; the count is
what the term's lengths compare (`counters.Counts`). Whether a configuration can still end well, and in how few bytes,
is exact (S19): a mask built on it never walks into a dead end.
"""

from __future__ import annotations

from threading import RLock

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import DEAD, NEVER, Utf8, starts_character
from lmql_lite.constraints.places import Atoms, Edge, Past, Place
from lmql_lite.constraints.search import Ways, Witness
from lmql_lite.constraints.simplify import simplify
from lmql_lite.constraints.terms import Begins, Choice, Ends, Matches, Term, is_closed
from lmql_lite.constraints.watch import AnyStop, Watch
from lmql_lite.constraints.ways import Bounds, Way, is_within
from lmql_lite.errors import ConstraintError

STATE_BUDGET = 100_000

UTF8 = Utf8()
MEMBERS = [[(after, np.array(members)) for after, members in groups] for groups in UTF8.groups]
NOWHERE = 0
"""The state of a text that no continuation makes valid. The others are numbered from 1."""
UNKNOWN = -1
"""Stands in the table where a state was not expanded yet."""
TABLE_ROWS = 64


class Automaton:
    """One term, for any vocabulary. Lazily grown, shared by every hole with an equal term; never forgets a state.

    Threads may share it: what is known is read without a lock and only ever added to, what is new is built under one.
    """

    def __init__(self, term: Term) -> None:
        self.term = term
        simple = simplify(term)
        self.closed = is_closed(simple)
        self._watch = Watch(simple)
        self._machines = self._watch.machines
        self.cuts_back = bool(self._watch.cutting)
        """Whether a stop may cut off more than was said since it was reached."""
        self.counts_parts = self._watch.counts_parts
        """Whether words or sentences are counted: then what a byte adds to the counts depends on the state."""
        self.counts = self._watch.counts
        self.regions = self._watch.regions
        self.token = self.counts.one("tokens")
        """What a token adds to the counts."""
        self._ways = Ways(self, self.counts, isinstance(simple, Choice | Matches | Begins | Ends), self._too_large)
        self._lock = RLock()
        self._places: list[Place] = []
        self._numbers: dict[Place, int] = {}
        self._expanded = np.zeros(TABLE_ROWS, dtype=np.bool_)
        self._entered: dict[tuple[Atoms, int], int] = {}
        """The state of some machines and UTF-8, where no value is cut back: then nothing else makes a place."""
        self._table: NDArray[np.intp] = np.full((TABLE_ROWS, 256), UNKNOWN, dtype=np.intp)
        """For each state and byte the next state times 256: so that another byte is added, and not more."""
        self._edges: dict[int, tuple[Edge, ...]] = {}
        self._added: NDArray[np.intp] = np.zeros((TABLE_ROWS, 256), dtype=np.intp)
        self._reached: list[bool] = []
        self._ahead: list[tuple[Way, ...]] = []
        self._behind: list[tuple[Bounds, ...]] = []
        self._held: dict[tuple[int, tuple[int, ...]], bool] = {}
        """Whether a value may end in a state: the same for all counts of a region, known by its least."""
        start = Place((0,) * len(self._machines), 0, ())
        self._add(start._replace(utf8=1))  # in the place of NOWHERE: no text ends or goes on there
        self._ahead[NOWHERE] = ()
        self._table[NOWHERE] = NOWHERE
        self._expanded[NOWHERE] = True
        self.start = self._number(start)

    # Building ----------------------------------------------------------------------------------------------------

    def _number(self, place: Place) -> int:
        number = self._numbers.get(place)
        if number is None:
            number = len(self._places)
            if number >= STATE_BUDGET:
                raise self._too_large()
            self._add(place)
            self._numbers[place] = number
        return number

    def _add(self, place: Place) -> None:
        self._places.append(place)
        self._reached.append(bool(self._watch.reached(place.atoms)))
        self._ahead.append(self._watch.ways(place.atoms))
        self._behind.append(self._ways_back(place))

    def _too_large(self) -> ConstraintError:
        return ConstraintError(
            f"this condition needs more than {STATE_BUDGET:,} states",
            span=self.term.span,
            hint="fewer or shorter options and phrases, or two holes, make it smaller",
        )

    def _expand(self, state: int) -> None:
        """All successors of a state. Bytes that no machine tells apart are stepped together."""
        place = self._places[state]
        atoms, utf8, _ = place
        row = np.full(256, NOWHERE, dtype=np.intp)
        moves = [machine.moves(atom) for machine, atom in zip(self._machines, atoms, strict=True)]
        special = sorted(set[int]().union(*(move.special for move in moves)))
        other = tuple(move.other for move in moves)
        entered: dict[tuple[Atoms, int], int] = {} if self.cuts_back else self._entered
        if self.cuts_back or self._watch.ways(other):
            for after, members in MEMBERS[utf8]:
                if (other, after) not in entered:
                    entered[other, after] = self._enter(place, other, after)
                row[members] = entered[other, after]
        # one column of successors for each byte: all machines have been asked for all bytes at once
        columns = zip(*([move.special.get(byte, move.other) for byte in special] for move in moves), strict=True)
        after_utf8 = UTF8.table[utf8]
        keys = list(zip(columns, [after_utf8[byte] for byte in special], strict=bool(moves)))
        for key in keys:
            if key not in entered:
                entered[key] = NOWHERE if key[1] == DEAD else self._enter(place, *key)
        row[special] = [entered[key] for key in keys]
        if len(self._places) > len(self._table):
            size = 2 * len(self._places)
            more = np.full((size - len(self._table), 256), UNKNOWN, dtype=np.intp)
            self._table = np.vstack([self._table, more])
            self._added = np.vstack([self._added, np.zeros_like(more)])
            self._expanded = np.append(self._expanded, np.zeros(size - self._expanded.size, dtype=np.bool_))
        self._table[state] = row << 8
        if self.counts_parts:
            small = {edge.state: self.counts.small(edge.added) for edge in self._find_edges(state)}
            self._added[state] = [small.get(number, 0) for number in row.tolist()]
        self._expanded[state] = True  # last: whoever sees it may read the row

    def _find_edges(self, state: int) -> tuple[Edge, ...]:
        place = self._places[state]
        numbers, first, how_many = np.unique(self._table[state] >> 8, return_index=True, return_counts=True)
        edges = [
            self._edge(place, number, byte, many)
            for number, byte, many in zip(numbers.tolist(), first.tolist(), how_many.tolist(), strict=True)
            if number != NOWHERE
        ]
        return tuple(sorted(edges, key=lambda edge: -edge.how_many))  # what most bytes do is likely to be asked first

    def _edge(self, place: Place, number: int, byte: int, how_many: int) -> Edge:
        added = self._watch.added(place.atoms, self._places[number].atoms, place.utf8 == 0)
        return Edge(number, added, added + self.token, byte, how_many)

    def _enter(self, place: Place, after: Atoms, utf8: int) -> int:
        """The state after one byte, NOWHERE where no continuation can meet the term."""
        matched = max((machine.under_way(after[slot]) for slot, machine in self._watch.cutting), default=0)
        # under a phrase that may cut the value the text itself may be past hope: what stands before is judged
        past = Past(self._watch.judged(place.atoms), min(place.utf8, 1))
        before = (*place.before, past)[-matched:] if matched else ()
        if self._watch.ways(after) or any(self._watch.may_hold(past.atoms) for past in before):
            return self._number(Place(after, utf8, before))
        return NOWHERE

    def _ways_back(self, place: Place) -> tuple[Bounds, ...]:
        """The counts here with which a stop may still cut the value back to one that meets the term."""
        found: dict[Bounds, None] = {}
        packed, after = 0, place.atoms
        for past in reversed(place.before):
            if self.counts.units:
                packed += self._watch.added(past.atoms, after, past.utf8 == 0)
            after = past.atoms
            if past.utf8:
                continue  # no phrase begins inside a character
            since = self.counts.unpack(packed)
            for way in self._watch.ways(past.atoms):
                if way.num_bytes == 0:
                    # the tokens of the phrase count as well, and some of them are still to come
                    bounds = tuple(
                        (0 if unit == "tokens" else low + more, high + more)
                        for unit, more, (low, high) in zip(self.counts.units, since, way.bounds, strict=True)
                    )
                    found[bounds] = None
        return tuple(found)

    def _added_since(self, place: Place, back: int) -> int:
        """What the last bytes have added to the counts. Tokens stay as they are: the hole has been charged for them."""
        pasts = place.before[-back:]
        following = (*(past.atoms for past in pasts[1:]), place.atoms)
        return sum(
            self._watch.added(past.atoms, after, past.utf8 == 0) for past, after in zip(pasts, following, strict=True)
        )

    # Walking -----------------------------------------------------------------------------------------------------

    def follow(self, places: NDArray[np.intp], out: NDArray[np.intp] | None = None) -> NDArray[np.intp]:
        """The next states of many, each times 256, for places that are a state times 256 and a byte."""
        after = self._table.ravel().take(places, mode="clip", out=out)
        if after.size and after.min() < 0:
            for state in np.bincount(places >> 8).nonzero()[0].tolist():
                self._reach(state)
            after = self._table.ravel().take(places, mode="clip", out=out)
        return after

    def row(self, state: int) -> NDArray[np.intp]:
        """The next state for each of the 256 bytes."""
        self._reach(state)
        row: NDArray[np.intp] = self._table[state] >> 8
        return row

    def edges(self, state: int) -> tuple[Edge, ...]:
        edges = self._edges.get(state)
        if edges is None:
            self._reach(state)
            edges = self._edges[state] = self._find_edges(state)
        return edges

    def _reach(self, state: int) -> None:
        if not self._expanded[state]:
            with self._lock:
                if not self._expanded[state]:
                    self._expand(state)

    def step(self, state: int, count: int, byte: int) -> tuple[int, int]:
        """The configuration after one byte, no token counted."""
        self._reach(state)
        after = int(self._table[state, byte]) >> 8
        if after == NOWHERE or not self.counts.units:
            return after, count
        added = self._watch.added(self._places[state].atoms, self._places[after].atoms, starts_character(byte))
        return after, self.counts.add(count, added)

    @property
    def added(self) -> NDArray[np.intp]:
        """For every place of `follow` what it adds to the counts, as `Counts.small` packs it; no token counted."""
        return self._added.ravel()

    def undecided(self, state: int) -> int:
        """How many of the last bytes may turn out to be a phrase before which the value is cut."""
        return len(self._places[state].before)

    @property
    def has_stops(self) -> bool:
        return bool(self._watch.stops)

    @property
    def stop_states(self) -> NDArray[np.bool_]:
        """For every state whether some stop phrase ends exactly there: only then can `cut` be other than None."""
        return np.array(self._reached, dtype=np.bool_)

    # Judging -----------------------------------------------------------------------------------------------------

    def holds(self, state: int, count: int) -> bool:
        """Whether the hole may end here by the model's own decision."""
        region = self.regions.find(self.counts.unpack(count))
        known = self._held.get((state, region.low))
        if known is None:
            place = self._places[state]
            known = self._held[state, region.low] = not place.utf8 and self._watch.holds(place.atoms, count)
        return known

    def may_hold(self, state: int) -> bool:
        """Whether `holds` is true for some count."""
        place = self._places[state]
        return not place.utf8 and self._watch.may_hold(place.atoms)

    def cut(self, state: int, count: int) -> int | None:
        """How many bytes before this place a stop ends the value, None where none fires.

        Where several phrases end at once, the first one in the term whose guard holds decides.
        """
        if not self._reached[state]:
            return None
        place = self._places[state]
        for stop, back in self._watch.reached(place.atoms):
            if self._fires(place, count, stop, back):
                return 0 if stop.inclusive else back
        return None

    def stops(self, state: int, count: int) -> bool:
        """Whether a stop ends the hole here."""
        return self.cut(state, count) is not None

    def _fires(self, place: Place, count: int, stop: AnyStop, back: int) -> bool:
        if stop.inclusive:
            return self._watch.fires(place.atoms, count, stop)
        return self._watch.fires(place.before[-back].atoms, count - self._added_since(place, back), stop)

    # Ends --------------------------------------------------------------------------------------------------------

    def distance(self, state: int, count: int) -> int:
        """The least number of bytes after which the hole can end well, each of them a token; NEVER where it cannot."""
        return self._ways.distance(state, count)

    def lives(self, state: int, count: int) -> bool:
        return self._ways.distance(state, count) < NEVER

    def way(self, state: int, count: int) -> Witness | None:
        """Some way to an end, not always the shortest."""
        return self._ways.way(state, count)

    def goes_on(self, state: int, count: int) -> bool:
        """Whether there is a text that goes on from here."""
        return any(self.lives(edge.state, self.counts.add(count, edge.spent)) for edge in self.edges(state))

    def only_edge(self, state: int, count: int) -> Edge | None:
        """The single byte with which a text can go on from here, None where there are several, or none."""
        only: Edge | None = None
        for edge in self.edges(state):
            if self.lives(edge.state, self.counts.add(count, edge.added)):
                if only is not None or edge.how_many > 1:
                    return None
                only = edge
        return only

    def ends(self, state: int, count: int) -> bool:
        """Whether the hole may end here, by a stop or by the model's own decision."""
        return self.holds(state, count) or self.stops(state, count)

    def at_least(self, state: int, count: int) -> int:
        """A number of bytes below which the hole cannot end well. Cheap."""
        if self._behind[state]:
            values = self.counts.unpack(count)
            if any(is_within(values, bounds) for bounds in self._behind[state]):
                return 0
        return self._watch.at_least(self._ahead[state], self._places[state].atoms, count)

    def most_counts(self, state: int) -> tuple[int, ...]:
        """The most of each count with which the hole can end from here, NEVER where nothing limits it."""
        bounds = [way.bounds for way in self._ahead[state]] + list(self._behind[state])
        return tuple(max((bound[at][1] for bound in bounds), default=-1) for at in range(len(self.counts.units)))
