"""A term as an automaton over bytes, built lazily: content is in states, lengths are in counts.

A configuration is (state, count). The state combines the machines that read content with UTF-8 validity; the count has
what the term's lengths compare, and flags (`counters.Counts`). Liveness of a configuration is exact (S19), so a mask
built on it never leads into a dead end.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from itertools import groupby
from operator import or_
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import DEAD, NEVER, UNFINISHED, UTF8, Atoms, OptionMachine
from lmql_lite.constraints.counters import Goal
from lmql_lite.constraints.missing import Margin
from lmql_lite.constraints.phrases import AnyStop, Past, TermState
from lmql_lite.constraints.search import ONE_BYTE, DistanceSearch, Edge, Reach, Witness, too_large
from lmql_lite.constraints.simplify import simplify
from lmql_lite.constraints.step_table import NO_STEP, NOWHERE, UNKNOWN, Expanded, Step, StepTable, Successor
from lmql_lite.constraints.term_machine import TermMachine
from lmql_lite.constraints.terms import And, Begins, Choice, Ends, Matches, Term, is_closed

IntArray = NDArray[np.intp]

STATE_BUDGET = 100_000

KINDS = np.array(UTF8.table, dtype=np.int16)
ALL_BYTES = slice(256)


class Automaton:
    """Automaton of one term, for any vocabulary, shared by all holes with an equal term.

    It grows lazily and never drops a state. Threads may share it: what is known is only added to, and is read without a
    lock; new parts are built under one.
    """

    def __init__(self, term: Term) -> None:
        self.term = term
        simple = simplify(term)
        self.closed = is_closed(simple)
        self._machine = TermMachine(simple)
        self._machines, self._stops = self._machine.machines, self._machine.stops
        self._missing = self._machine.missing
        self.has_stops = bool(self._stops.all)
        self.cuts_back = bool(self._stops.cutting)
        """True if the term has STOPS_BEFORE, which cuts the value before the place where the stop is reached."""
        self.counts = self._machine.counts
        self.only_phrases = self._machine.only_phrases
        """True if only phrases, characters and words are compared, and what is missing is known without a search."""
        self.phrases_help = self._machine.phrases_help
        self.has_margins = self._machine.only_phrases or self._machine.only_counts
        self.regions, self.crowd = self._machine.regions, self._missing.crowd
        self.token = self.counts.one("tokens")
        """Increment of the counts for one token."""
        self.is_choice = isinstance(simple, Choice) or (
            isinstance(simple, And) and any(isinstance(part, Choice) for part in simple.terms)
        )
        is_plain = self.only_phrases or isinstance(simple, Choice | Matches | Begins | Ends)
        self.is_exact = self.has_margins and self._missing.are_apart
        """True if `distances` need no search to confirm them; otherwise they are upper bounds."""
        self._search = DistanceSearch(self, self.counts, is_plain, self._machine.only_counts and self.is_exact, term)
        self._options = self._machines[0] if isinstance(simple, Choice) else None
        self.forces_nothing = bool(self.token) or (self._machine.only_counts and not self.counts.walked)
        self._lock = RLock()
        self.is_full = False
        self._places: list[TermState] = []
        self._numbers: dict[TermState, int] = {}
        self._entered: dict[Successor, int] = {}
        """States of successors, for terms whose stops cut nothing: then a successor determines its state."""
        self._table = StepTable(self.counts)
        self._expanded: dict[int, Expanded] = {}
        self._edges: dict[int, tuple[Edge, ...]] = {}
        self._reached: list[bool] = []
        self._ahead: list[tuple[Goal, ...]] = []
        self._behind: list[tuple[Goal, ...]] = []
        self._pending: list[int] = []
        """For each state, flags that were raised by bytes that may still be cut off, as part of a count."""
        self._held: dict[tuple[int, tuple[int, ...], int], bool] = {}
        """Results of `holds` by state, region of the counts (its `low`) and flags."""
        start = TermState((0,) * len(self._machines), 0, ())
        for state in (UNKNOWN, NOWHERE):  # no text ends or continues there
            self._add(start._replace(utf8=1))
            self._ahead[state] = ()
        self._expanded[NOWHERE] = Expanded(np.full(256, DEAD, dtype=np.int16), [], [NO_STEP])
        self.start = self._number(start)

    # Building ----------------------------------------------------------------------------------------------------

    def _number(self, place: TermState) -> int:
        number = self._numbers.get(place)
        if number is None:
            number = len(self._places)
            if number >= STATE_BUDGET:
                self.is_full = True
                raise too_large(self.term, STATE_BUDGET)
            self._add(place)
            self._numbers[place] = number
        return number

    def _add(self, place: TermState) -> None:
        self._places.append(place)
        self._reached.append(self.has_stops and bool(self._stops.reached(place.atoms)))
        self._ahead.append(self._machine.goals(place.atoms, UNFINISHED[place.utf8]))
        self._behind.append(self._goals_behind(place) if place.before else ())
        self._pending.append(self.counts.flagged(self._raised_in(place, len(place.before))) if place.before else 0)

    def _expand(self, state: int) -> Expanded:
        """Groups the bytes of a state by their successors. Successors are numbered when they are asked for."""
        place = self._places[state]
        moves = [machine.moves(atom) for machine, atom in zip(self._machines, place.atoms, strict=True)]
        raised = self._machine.raised(place.atoms) if self.cuts_back or self.counts.num_flags else {}
        special = sorted(set[int](raised).union(*(move.special for move in moves)))
        other = tuple(move.other for move in moves)
        successors: dict[Successor, int] = {(other, after, 0): after for after in range(len(UNFINISHED))}
        utf8, kinds = UTF8.table[place.utf8], KINDS[place.utf8].copy()
        # one column of successors for each special byte, with one entry for each machine
        columns = zip(*([move.special.get(byte, move.other) for byte in special] for move in moves), strict=True)
        for byte, column in zip(special, columns, strict=bool(moves)):
            if utf8[byte] != DEAD:
                key = column, utf8[byte], raised.get(byte, 0)
                kinds[byte] = successors.setdefault(key, len(successors))
        return self._expanded.setdefault(state, Expanded(kinds, list(successors), [*[None] * len(successors), NO_STEP]))

    def _enter_kinds(self, state: int, wanted: list[int] | slice) -> Expanded:
        """Numbers the successors of a state for the bytes in `wanted`, and writes them to the table."""
        with self._lock:
            expanded = self._expanded.get(state) or self._expand(state)
            kinds, successors, steps = expanded
            try:
                for kind in set(kinds[wanted].tolist()):
                    steps[kind] = steps[kind] or self._enter_kind(state, successors[kind])
            finally:  # also if there are too many states: those that were entered are known
                self._table.write(state, expanded)
            return expanded

    def _enter_kind(self, state: int, successor: Successor) -> Step:
        """Step to a successor: the next state, and the increment of the counts."""
        after = self._entered.get(successor, UNKNOWN)
        if after == UNKNOWN:
            after = self._enter(self._places[state], *successor)
            if not self.cuts_back:
                self._entered[successor] = after
            self._table.make_room(len(self._places), self._expanded)
        return after, self._gain(state, after, successor[2]) if after != NOWHERE else 0

    def _gain(self, state: int, after: int, raised: int) -> int:
        """Increment of the counts for a byte that raises flags. Flags of bytes that may be cut off are added later."""
        if not (self.counts.units or self.counts.num_flags):
            return 0
        place, then = self._places[state], self._places[after]
        added = self._machine.added(place.atoms, then.atoms, place.utf8 == 0)
        if self.cuts_back:
            settled = [past.raised for past in place.before] + [raised]
            for flags in settled[: len(settled) - len(then.before)]:
                added |= flags
            return added
        return added | raised

    def _enter(self, place: TermState, after: Atoms, utf8: int, raised: int) -> int:
        """State after one byte, NOWHERE if no continuation can meet the term."""
        matched = max((machine.under_way(after[slot]) for slot, machine in self._stops.cutting), default=0)
        # while STOPS_BEFORE may be matching, the text itself may be dead: the values before its match are judged too
        past = Past(self._machine.judged(place.atoms), min(place.utf8, 1), raised)
        before = (*place.before, past)[-matched:] if matched else ()
        if self._machine.goals(after) or any(self._machine.may_hold(past.atoms) for past in before):
            return self._number(TermState(after, utf8, before))
        return NOWHERE

    def _goals_behind(self, place: TermState) -> tuple[Goal, ...]:
        """Goals, in counts and flags here, with which a stop may still cut the text to a value that meets the term."""
        found: list[Goal] = []
        packed, after = 0, place.atoms
        for at in reversed(range(len(place.before))):
            past = place.before[at]
            if self.counts.units:
                packed += self._machine.added(past.atoms, after, past.utf8 == 0)
            after = past.atoms
            if past.utf8:
                continue  # no phrase begins inside a character
            since = self.counts.unpack(packed)
            flags = self._raised_in(place, at)
            for goal in self._machine.goals(past.atoms):
                if goal.num_bytes == 0 and not goal.unwanted & flags:
                    # the tokens of the stop phrase count too, and some of them are still to come
                    bounds = tuple(
                        (0 if unit == "tokens" else low + more, high + more)
                        for unit, more, (low, high) in zip(self.counts.units, since, goal.bounds, strict=True)
                    )
                    found.append(goal._replace(bounds=bounds, wanted=goal.wanted & ~flags))
        return tuple(dict.fromkeys(found))

    def _raised_in(self, place: TermState, many: int) -> int:
        """Flags that were raised by the first `many` of the bytes that may be cut off."""
        return self.counts.flags(reduce(or_, (past.raised for past in place.before[:many]), 0))

    def _added_since(self, place: TermState, back: int) -> int:
        """Increment of the counts by the last `back` bytes, without tokens: a value is charged for tokens cut off."""
        pasts = place.before[-back:]
        following = (*(past.atoms for past in pasts[1:]), place.atoms)
        return sum(
            self._machine.added(past.atoms, after, past.utf8 == 0) for past, after in zip(pasts, following, strict=True)
        )

    def resume(self, other: Automaton, state: int) -> int:
        """State in this automaton that equals a state of another automaton with the same term."""
        with self._lock:
            return self._number(other._places[state])

    # Walking -----------------------------------------------------------------------------------------------------

    def follow(self, places: IntArray, out: IntArray | None = None) -> IntArray:
        """Next states, each times 256, for many places. A place is a state times 256 plus a byte."""
        after = self._table.after(places, out)
        if after.size and after.min() == UNKNOWN:
            unknown = np.unique(places[after == UNKNOWN]).tolist()
            for state, some in groupby(unknown, lambda place: place >> 8):
                self._enter_kinds(state, [place & 0xFF for place in some])
            after = self._table.after(places, out)
        return after

    def steps(self, state: int) -> list[Step]:
        """Next state and increment of the counts, without tokens, for each of the 256 bytes."""
        kinds, _, steps = self._enter_kinds(state, ALL_BYTES)
        return [steps[kind] or NO_STEP for kind in kinds.tolist()]

    def edges(self, state: int) -> tuple[Edge, ...]:
        edges = self._edges.get(state)
        if edges is None:
            expanded = self._enter_kinds(state, ALL_BYTES)
            kinds, steps = expanded.kinds.tolist(), expanded.steps
            found: dict[Step, tuple[int, int]] = {}
            for kind, how_many in Counter(kinds).items():  # in the order of their first bytes
                step = steps[kind] or NO_STEP
                if step[0] != NOWHERE:
                    first, many = found.get(step, (kinds.index(kind), 0))
                    found[step] = first, many + how_many
            each = (Edge(*step, step[1] + self.token, *at) for step, at in found.items())
            edges = self._edges[state] = tuple(sorted(each, key=lambda edge: -edge.how_many))  # the likeliest first
        return edges

    def step(self, state: int, count: int, byte: int) -> tuple[int, int]:
        """Configuration after one byte, with no token counted."""
        if not self._table.is_known(state, byte):
            self._enter_kinds(state, [byte])
        kinds, _, steps = self._expanded[state]
        after, gain = steps[kinds[byte]] or NO_STEP
        return after, self.counts.add(count, gain)

    def added(self, lane: int) -> IntArray:
        """Increments in one of `Counts.lanes`, indexed by the places of `follow`."""
        return self._table.added(lane)

    def undecided(self, state: int) -> int:
        """Number of last bytes that may turn out to belong to a match before which the value is cut."""
        return len(self._places[state].before)

    @property
    def stop_states(self) -> NDArray[np.bool_]:
        """True for each state at which some stop ends exactly: only there can `cut` be other than None."""
        return np.array(self._reached, dtype=np.bool_)

    # Judging -----------------------------------------------------------------------------------------------------

    def holds(self, state: int, count: int) -> bool:
        """True if the hole may end here by the model's own decision."""
        counts = self.counts
        region = self.regions.find(counts.unpack(count)).low if counts.units else ()
        key = state, region, count >> counts.flags_at
        known = self._held.get(key)
        if known is None:
            place = self._places[state]
            known = self._held[key] = not place.utf8 and self._machine.holds(place.atoms, count | self._pending[state])
        return known

    def grounds(self, state: int, count: int) -> tuple[int, int]:
        """Two sets of flags such that the hole may end here if all of the first are raised, and none of the second."""
        place = self._places[state]
        if self.holds(state, count):
            wanted, unwanted = self._machine.grounds(place.atoms, count | self._pending[state])
            return wanted & ~self.counts.flags(self._pending[state]), unwanted
        back = self.cut(state, count)
        assert back, "the hole ends here"
        past, before = place.before[-back], self._raised_in(place, len(place.before) - back)
        count = count - self._added_since(place, back) | self.counts.flagged(before)
        wanted, unwanted = self._machine.grounds(past.atoms, count)
        return wanted & ~before, unwanted

    def may_hold(self, state: int) -> bool:
        """True if `holds` is true for some count."""
        place = self._places[state]
        return not place.utf8 and self._machine.may_hold(place.atoms)

    def cut(self, state: int, count: int) -> int | None:
        """Number of last bytes of the text that a stop cuts off here; None if no stop fires.

        If several stops end at once, the first one in the term whose guard holds decides.
        """
        if not self._reached[state]:
            return None
        place = self._places[state]
        for stop, back in self._stops.reached(place.atoms):
            if self._fires(place, count, stop, back):
                return 0 if stop.inclusive else back
        return None

    def stops(self, state: int, count: int) -> bool:
        """True if a stop ends the hole here."""
        return self.cut(state, count) is not None

    def _fires(self, place: TermState, count: int, stop: AnyStop, back: int) -> bool:
        if stop.inclusive:
            return self._machine.fires(
                place.atoms, count | self.counts.flagged(self._raised_in(place, len(place.before))), stop
            )
        flags = self.counts.flagged(self._raised_in(place, len(place.before) - back))
        count = count - self._added_since(place, back) | flags
        return self._machine.fires(place.before[-back].atoms, count, stop)

    def is_whole(self, state: int) -> bool:
        """True if the text does not end inside a character."""
        return not self._places[state].utf8

    # Ends --------------------------------------------------------------------------------------------------------

    def go(self, search: DistanceSearch) -> None:
        """Takes distances in tokens from this search. Without it, every byte may cost a token (S19)."""
        self._search = search

    def distance(self, state: int, count: int) -> int:
        """Least number of bytes, each counted as a token, to a valid end; NEVER if there is none.

        If the term counts tokens and the vocabulary is searched (see `go`), a number of tokens.
        """
        return self._search.distance(state, count)

    def is_within(self, most: int, state: int, count: int) -> bool:
        """True if the distance is at most `most`."""
        return self._search.is_within(most, state, count)

    def lives(self, state: int, count: int) -> bool:
        if self._search.is_exact and self.counts.units:  # counts seldom recur, so nothing is stored
            return self.at_least(state, count) < NEVER
        return self._search.distance(state, count) < NEVER

    def witness(self, state: int, count: int) -> Witness | None:
        """Some path to an end, not always the shortest; None if there is none."""
        return self._search.witness(state, count)

    def goes_on(self, state: int, count: int) -> bool:
        """True if some longer text can still end well."""
        return any(self.lives(edge.state, self.counts.add(count, edge.spent)) for edge in self._search.edges(state))

    def listed(self, state: int) -> tuple[OptionMachine, int] | None:
        """Trie of the listed options, and the node that the text has reached; None if other texts are possible."""
        return (self._options, self._places[state].atoms[0]) if isinstance(self._options, OptionMachine) else None

    def only_edge(self, state: int, count: int) -> Edge | None:
        """Edge of the only byte with which the text can go on; None if there are several such bytes, or none."""
        only: Edge | None = None
        for edge in self.edges(state):
            if self.lives(edge.state, self.counts.add(count, edge.added)):
                if only is not None or edge.how_many > 1:
                    return None
                only = edge
        return only

    def ends(self, state: int, count: int) -> bool:
        """True if the hole may end here, by a stop or by the model's own decision."""
        return self.holds(state, count) or self.stops(state, count)

    def at_least(self, state: int, count: int, reach: Reach = ONE_BYTE) -> int:
        """Lower bound on the tokens to a valid end, cheap to compute. A token has at most `reach`."""
        if self._behind[state]:
            values, flags = self.counts.unpack(count), self.counts.flags(count)
            if any(goal.is_gone(values, flags) for goal in self._behind[state]):
                return 0
        place = self._places[state]
        unfinished = UNFINISHED[place.utf8]
        return self._missing.at_least(self._ahead[state], place.atoms, count | self._pending[state], reach, unfinished)

    def distances(self, states: IntArray, values: IntArray, flags: IntArray) -> IntArray:
        """Distances of many configurations, shape (configurations,), for terms with margins.

        `values` has shape (configurations, counts), and `flags` has (lanes, configurations). Inside a character, the
        result may be larger than the distance.
        """
        if not states.size:
            return states
        distinct = np.flatnonzero(np.bincount(states))
        places = [self._places[state] for state in distinct.tolist()]
        row = np.searchsorted(distinct, states)
        atoms = np.array([place.atoms for place in places], dtype=np.intp).reshape(distinct.size, -1)[row]
        found = self._missing.distances(self._ahead[self.start], atoms, values, flags)
        unfinished = np.array([UNFINISHED[place.utf8] for place in places], dtype=np.intp)[row]
        return np.where(states == NOWHERE, NEVER, np.minimum(found + unfinished, NEVER))

    def margins(self, values: tuple[int, ...], flags: int) -> list[Margin]:
        """Margins of every goal: how much may still be added before the goal is out of reach."""
        return self._missing.margins(self._ahead[self.start], values, flags)

    def most_counts(self, state: int) -> tuple[int, ...]:
        """Greatest value of each count with which the hole can end from here; NEVER if there is no limit."""
        bounds = [goal.bounds for goal in (*self._ahead[state], *self._behind[state])]
        return tuple(max((bound[at][1] for bound in bounds), default=-1) for at in range(len(self.counts.units)))
