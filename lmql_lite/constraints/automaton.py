"""A term as an automaton over bytes, built as far as it is walked: content in states, lengths in counts.

A configuration is (state, count): the state holds every machine that reads content, and UTF-8 validity; the count is
what the term's lengths compare (`counters.Counts`). Whether a configuration can still end well, and in how few bytes,
is exact (S19): a mask built on it never walks into a dead end.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import DEAD, NEVER, Utf8
from lmql_lite.constraints.places import ONE_BYTE, Atoms, Edge, Past, Place, Reach
from lmql_lite.constraints.search import Ways, Witness, too_large
from lmql_lite.constraints.simplify import simplify
from lmql_lite.constraints.stops import AnyStop
from lmql_lite.constraints.terms import And, Begins, Choice, Ends, Matches, Term, is_closed
from lmql_lite.constraints.watch import Distances, Watch
from lmql_lite.constraints.ways import Way

IntArray = NDArray[np.intp]

STATE_BUDGET = 100_000

UTF8 = Utf8()
UNFINISHED = (0, 1, 2, 3, 2, 2, 3, 3)
"""For every state of UTF-8 the bytes that the character still needs."""
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
        self._machines, self._stops = self._watch.machines, self._watch.stops
        self.cuts_back = bool(self._stops.cutting)
        """Whether a stop may cut off more than was said since it was reached."""
        self.counts = self._watch.counts
        self.counts_parts = self._watch.counts_parts
        """Whether words, sentences or occurrences are counted: then what a byte adds depends on the state."""
        self.only_phrases = self._watch.only_phrases
        """Whether nothing but phrases and characters is compared: then what is missing is known without a search."""
        self.regions = self._watch.regions
        self.token = self.counts.one("tokens")
        """What a token adds to the counts."""
        self.is_choice = isinstance(simple, Choice) or (
            isinstance(simple, And) and any(isinstance(part, Choice) for part in simple.terms)
        )
        is_plain = self.only_phrases or isinstance(simple, Choice | Matches | Begins | Ends)
        self._ways = Ways(self, self.counts, is_plain, term)
        self._lock = RLock()
        self._places: list[Place] = []
        self._numbers: dict[Place, int] = {}
        self._expanded = np.zeros(TABLE_ROWS, dtype=np.bool_)
        self._entered: dict[tuple[Atoms, int, int], int] = {}
        """The state of some machines and UTF-8, where no value is cut back: then nothing else makes a place."""
        self._table: IntArray = np.full((TABLE_ROWS, 256), UNKNOWN, dtype=np.intp)
        """For each state and byte the next state times 256: so that another byte is added, and not more."""
        self._edges: dict[int, tuple[Edge, ...]] = {}
        self._added = [np.zeros((TABLE_ROWS, 256), dtype=np.intp) for _ in range(self.counts.num_lanes)]
        self._reached: list[bool] = []
        self._ahead: list[tuple[Way, ...]] = []
        self._behind: list[tuple[Way, ...]] = []
        self._pending: list[int] = []
        """The flags that bytes raised which may be cut off, as a part of a count."""
        self._held: dict[tuple[int, tuple[int, ...], int], bool] = {}
        """Whether a value may end in a state: the same for all counts of a region, known by its least, and flags."""
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
                raise too_large(self.term, STATE_BUDGET)
            self._add(place)
            self._numbers[place] = number
        return number

    def _add(self, place: Place) -> None:
        self._places.append(place)
        self._reached.append(bool(self._stops.reached(place.atoms)))
        self._ahead.append(self._watch.ways(place.atoms))
        self._behind.append(self._ways_back(place))
        self._pending.append(self.counts.flagged(self._raised_in(place, len(place.before))))

    def _expand(self, state: int) -> None:
        """All successors of a state. Bytes that no machine tells apart are stepped together."""
        place = self._places[state]
        atoms, utf8, _ = place
        row = np.full(256, NOWHERE, dtype=np.intp)
        moves = [machine.moves(atom) for machine, atom in zip(self._machines, atoms, strict=True)]
        raised = self._watch.raised(atoms) if self.cuts_back else {}
        special = sorted(set[int](raised).union(*(move.special for move in moves)))
        other = tuple(move.other for move in moves)
        entered: dict[tuple[Atoms, int, int], int] = {} if self.cuts_back else self._entered
        if self.cuts_back or self._watch.ways(other):
            for after, members in MEMBERS[utf8]:
                if (other, after, 0) not in entered:
                    entered[other, after, 0] = self._enter(place, other, after, 0)
                row[members] = entered[other, after, 0]
        # one column of successors for each byte: all machines have been asked for all bytes at once
        columns = zip(*([move.special.get(byte, move.other) for byte in special] for move in moves), strict=True)
        after_utf8 = UTF8.table[utf8]
        steps = [(after_utf8[byte], raised.get(byte, 0)) for byte in special]
        keys = [(column, *step) for column, step in zip(columns, steps, strict=bool(moves))]
        for key in keys:
            if key not in entered:
                entered[key] = NOWHERE if key[1] == DEAD else self._enter(place, *key)
        row[special] = [entered[key] for key in keys]
        if len(self._places) > len(self._table):
            size = 2 * len(self._places)
            more = np.full((size - len(self._table), 256), UNKNOWN, dtype=np.intp)
            self._table = np.vstack([self._table, more])
            self._added = [np.vstack([added, np.zeros_like(more)]) for added in self._added]
            self._expanded = np.append(self._expanded, np.zeros(size - self._expanded.size, dtype=np.bool_))
        self._table[state] = row << 8
        if self._added:
            gains = self.gains(state)
            lanes = {gain: self.counts.lanes(gain) for gain in set(gains)}
            for lane, column in enumerate(self._added):
                column[state] = [lanes[gain][lane] for gain in gains]
        self._expanded[state] = True  # last: whoever sees it may read the row

    def gains(self, state: int) -> list[int]:
        """What each of the 256 bytes of an expanded state adds to the counts; 0 for those that lead nowhere."""
        row = (self._table[state] >> 8).tolist()
        raised = self._watch.raised(self._places[state].atoms)
        gains = {number: self._gain(state, number, 0) for number in set(row) if number != NOWHERE}
        return [
            self._gain(state, number, raised[byte]) if byte in raised and number else gains.get(number, 0)
            for byte, number in enumerate(row)
        ]

    def _gain(self, state: int, after: int, raised: int) -> int:
        """What a byte that raises flags adds to the counts: the flags of bytes that may be cut off come later."""
        place, then = self._places[state], self._places[after]
        added = self._watch.added(place.atoms, then.atoms, place.utf8 == 0)
        if self.cuts_back:
            settled = [past.raised for past in place.before] + [raised]
            for flags in settled[: len(settled) - len(then.before)]:
                added |= flags
            return added
        return added | raised

    def _find_edges(self, state: int) -> tuple[Edge, ...]:
        row = (self._table[state] >> 8).tolist()
        found: dict[tuple[int, int], list[int]] = {}
        for byte, key in enumerate(zip(row, self.gains(state), strict=True)):
            if key[0] != NOWHERE:
                found.setdefault(key, []).append(byte)
        edges = [
            Edge(number, added, added + self.token, members[0], len(members))
            for (number, added), members in found.items()
        ]
        return tuple(sorted(edges, key=lambda edge: -edge.how_many))  # what most bytes do is likely to be asked first

    def _enter(self, place: Place, after: Atoms, utf8: int, raised: int) -> int:
        """The state after one byte, NOWHERE where no continuation can meet the term."""
        matched = max((machine.under_way(after[slot]) for slot, machine in self._stops.cutting), default=0)
        # under a phrase that may cut the value the text itself may be past hope: what stands before is judged
        past = Past(self._watch.judged(place.atoms), min(place.utf8, 1), raised)
        before = (*place.before, past)[-matched:] if matched else ()
        if self._watch.ways(after) or any(self._watch.may_hold(past.atoms) for past in before):
            return self._number(Place(after, utf8, before))
        return NOWHERE

    def _ways_back(self, place: Place) -> tuple[Way, ...]:
        """The counts and flags here with which a stop may still cut the value back to one that meets the term."""
        found: list[Way] = []
        packed, after = 0, place.atoms
        for at in reversed(range(len(place.before))):
            past = place.before[at]
            if self.counts.units:
                packed += self._watch.added(past.atoms, after, past.utf8 == 0)
            after = past.atoms
            if past.utf8:
                continue  # no phrase begins inside a character
            since = self.counts.unpack(packed)
            flags = self._raised_in(place, at)
            for way in self._watch.ways(past.atoms):
                if way.num_bytes == 0 and not way.unwanted & flags:
                    # the tokens of the phrase count as well, and some of them are still to come
                    bounds = tuple(
                        (0 if unit == "tokens" else low + more, high + more)
                        for unit, more, (low, high) in zip(self.counts.units, since, way.bounds, strict=True)
                    )
                    found.append(way._replace(bounds=bounds, wanted=way.wanted & ~flags))
        return tuple(dict.fromkeys(found))

    def _raised_in(self, place: Place, many: int) -> int:
        """The flags that the first of the bytes raised which may be cut off."""
        return self.counts.flags(reduce(or_, (past.raised for past in place.before[:many]), 0))

    def _added_since(self, place: Place, back: int) -> int:
        """What the last bytes have added to the counts. Tokens stay as they are: the hole has been charged for them."""
        pasts = place.before[-back:]
        following = (*(past.atoms for past in pasts[1:]), place.atoms)
        return sum(
            self._watch.added(past.atoms, after, past.utf8 == 0) for past, after in zip(pasts, following, strict=True)
        )

    # Walking -----------------------------------------------------------------------------------------------------

    def follow(self, places: IntArray, out: IntArray | None = None) -> IntArray:
        """The next states of many, each times 256, for places that are a state times 256 and a byte."""
        after = self._table.ravel().take(places, mode="clip", out=out)
        if after.size and after.min() < 0:
            for state in np.bincount(places >> 8).nonzero()[0].tolist():
                self._reach(state)
            after = self._table.ravel().take(places, mode="clip", out=out)
        return after

    def row(self, state: int) -> IntArray:
        """The next state for each of the 256 bytes."""
        self._reach(state)
        row: IntArray = self._table[state] >> 8
        return row

    def steps(self, state: int) -> list[tuple[int, int]]:
        """For each of the 256 bytes the next state, and what it adds to the counts, tokens left out."""
        return list(zip(self.row(state).tolist(), self.gains(state), strict=True))

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
        if after == NOWHERE or not (self.counts.units or self.counts.num_flags):
            return after, count
        raised = self._watch.raised(self._places[state].atoms).get(byte, 0)
        return after, self.counts.add(count, self._gain(state, after, raised))

    def added(self, lane: int) -> IntArray:
        """For every place of `follow` what it adds to one of `Counts.lanes`."""
        return self._added[lane].ravel()

    def undecided(self, state: int) -> int:
        """How many of the last bytes may turn out to be a phrase before which the value is cut."""
        return len(self._places[state].before)

    @property
    def has_stops(self) -> bool:
        return bool(self._stops.all)

    @property
    def stop_states(self) -> NDArray[np.bool_]:
        """For every state whether some stop phrase ends exactly there: only then can `cut` be other than None."""
        return np.array(self._reached, dtype=np.bool_)

    # Judging -----------------------------------------------------------------------------------------------------

    def holds(self, state: int, count: int) -> bool:
        """Whether the hole may end here by the model's own decision."""
        key = state, self.regions.find(self.counts.unpack(count)).low, self.counts.flags(count)
        known = self._held.get(key)
        if known is None:
            place = self._places[state]
            known = self._held[key] = not place.utf8 and self._watch.holds(place.atoms, count | self._pending[state])
        return known

    def grounds(self, state: int, count: int) -> tuple[int, int]:
        """The flags by which the hole may end here: all of the first are raised, and none of the second."""
        place = self._places[state]
        if self.holds(state, count):
            wanted, unwanted = self._watch.grounds(place.atoms, count | self._pending[state])
            return wanted & ~self.counts.flags(self._pending[state]), unwanted
        back = self.cut(state, count)
        assert back, "the hole ends here"
        past, before = place.before[-back], self._raised_in(place, len(place.before) - back)
        count = count - self._added_since(place, back) | self.counts.flagged(before)
        wanted, unwanted = self._watch.grounds(past.atoms, count)
        return wanted & ~before, unwanted

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
        for stop, back in self._stops.reached(place.atoms):
            if self._fires(place, count, stop, back):
                return 0 if stop.inclusive else back
        return None

    def stops(self, state: int, count: int) -> bool:
        """Whether a stop ends the hole here."""
        return self.cut(state, count) is not None

    def _fires(self, place: Place, count: int, stop: AnyStop, back: int) -> bool:
        if stop.inclusive:
            return self._watch.fires(
                place.atoms, count | self.counts.flagged(self._raised_in(place, len(place.before))), stop
            )
        flags = self.counts.flagged(self._raised_in(place, len(place.before) - back))
        count = count - self._added_since(place, back) | flags
        return self._watch.fires(place.before[-back].atoms, count, stop)

    def is_whole(self, state: int) -> bool:
        """Whether the text does not end inside a character."""
        return not self._places[state].utf8

    # Ends --------------------------------------------------------------------------------------------------------

    def go(self, ways: Ways) -> None:
        """Counts the tokens that are still to come by these ways. Without them every byte may be a token (S19)."""
        self._ways = ways

    def distance(self, state: int, count: int) -> int:
        """The least number of bytes after which the hole can end well, each of them a token; NEVER where it cannot.

        Where the term counts tokens, and what they are is known, a number of tokens.
        """
        return self._ways.distance(state, count)

    def is_within(self, most: int, state: int, count: int) -> bool:
        """Whether the distance is not larger than that."""
        return self._ways.is_within(most, state, count)

    def lives(self, state: int, count: int) -> bool:
        return self._ways.distance(state, count) < NEVER

    def way(self, state: int, count: int) -> Witness | None:
        """Some way to an end, not always the shortest."""
        return self._ways.way(state, count)

    def goes_on(self, state: int, count: int) -> bool:
        """Whether there is a text that goes on from here."""
        return any(self.lives(edge.state, self.counts.add(count, edge.spent)) for edge in self._ways.edges(state))

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

    def at_least(self, state: int, count: int, reach: Reach = ONE_BYTE) -> int:
        """A number of tokens, each of which reaches so far, below which the hole cannot end well. Cheap."""
        if self._behind[state]:
            values, flags = self.counts.unpack(count), self.counts.flags(count)
            if any(way.is_gone(values, flags) for way in self._behind[state]):
                return 0
        place = self._places[state]
        least = self._watch.at_least(self._ahead[state], place.atoms, count | self._pending[state], reach)
        if self.only_phrases and place.utf8 and least < NEVER:  # no phrase goes on in this character
            least += UNFINISHED[place.utf8]
        return least

    def distances(self, states: IntArray, values: IntArray, flags: IntArray) -> Distances:
        """For many configurations, where there are `only_phrases`: a row of `values` and a column of `flags` each."""
        if not states.size:
            return Distances(states, states)
        places = [self._places[state] for state in states.tolist()]
        atoms = np.array([place.atoms for place in places], dtype=np.intp).reshape(states.size, -1)
        found = self._watch.distances(self._ahead[self.start], atoms, values, flags)
        unfinished = np.array([UNFINISHED[place.utf8] for place in places], dtype=np.intp)
        least = np.where(states == NOWHERE, NEVER, np.minimum(found.least + unfinished, NEVER))
        return found._replace(least=least)

    def most_counts(self, state: int) -> tuple[int, ...]:
        """The most of each count with which the hole can end from here, NEVER where nothing limits it."""
        bounds = [way.bounds for way in (*self._ahead[state], *self._behind[state])]
        return tuple(max((bound[at][1] for bound in bounds), default=-1) for at in range(len(self.counts.units)))
