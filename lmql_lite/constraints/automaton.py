"""A condition as an automaton over characters: content is in states, lengths are in counts.

A *place* is a state with its counts. Characters that no part of the condition tells apart are one class. The distance
of every place to the nearest valid end is in a table (S19), filled backwards, one level for each number of characters.
A long pattern and a large choice need no table: their states are made when they are met.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from threading import RLock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.counts import (
    DEAD,
    Counts,
    PartCounter,
    PhraseMachine,
    Values,
)
from lmql_lite.constraints.pattern import (
    MATCH,
    SURROGATES,
    PatternProgram,
    Ranges,
    UnsupportedPattern,
    literally,
    program,
)
from lmql_lite.constraints.simplify import simplify
from lmql_lite.constraints.terms import (
    And,
    Begins,
    Choice,
    Constant,
    Ends,
    Lacks,
    Length,
    Matches,
    Not,
    Occurrences,
    Or,
    Stop,
    Term,
    Unit,
    atoms,
    conjuncts,
    is_closed,
)
from lmql_lite.constraints.vocabulary import NO_BYTE, open_range
from lmql_lite.errors import ConstraintError

IntArray = NDArray[np.intp]
Numbers = NDArray[np.signedinteger]
Flags = NDArray[np.bool_]

FAR = 60_000
"""Distance of a place from which no end can be reached."""
NOWHERE = 0
"""State of texts that nothing can make valid."""
MAX_STATES = 30_000
MAX_STEPS = 8_000_000
"""Most states times classes of characters times machines that are explored."""
MAX_EDGES = 4_000_000
"""Most edges between places of one level."""
MAX_COUNTERS = 12
"""Most of words, sentences, lines and phrases that are counted."""
MAX_CELLS = 100_000_000
"""Most edges that may be followed to fill a table, which takes about half a second."""
LEVEL_COST = 3_000
"""Edges that cost as much time as a level itself."""
MAX_KEPT = 30_000_000
"""Most distances in a table, two bytes each."""


class TooLarge(ConstraintError):
    """A condition needs more states or counts than an automaton may have."""


class PatternMachine:
    """Sets of a program's instructions, numbered as they are met. An instruction has the age of its oldest match.

    With `search`, a match may begin at each place of the text. Ages, in characters, are 0 unless they are `aged`.
    """

    def __init__(self, program: PatternProgram, *, search: bool = False, aged: bool = False) -> None:
        self._program = program
        self._search, self._aged = search, aged
        self.sets = self._program.sets
        self.farthest = self._program.farthest
        begin = {} if search else dict.fromkeys(self._program.start, 0)
        self.start = 0 if begin or search else DEAD
        self._places = [begin]
        self._numbers = {frozenset(begin.items()): 0}

    def step(self, state: int, character: str) -> int:
        if state == DEAD:
            return DEAD
        here, after = self._places[state], dict[int, int]()
        if self._search:
            here = dict.fromkeys(self._program.start, 0) | here
        for place in self._program.reading(character).intersection(here):
            age = here[place] + self._aged
            for reached in self._program.after(place):
                after[reached] = max(after.get(reached, 0), age)
        if not after and not self._search:
            return DEAD
        number = self._numbers.setdefault(frozenset(after.items()), len(self._places))
        if number == len(self._places):
            self._places.append(after)
        return number

    def holds(self, state: int) -> bool:
        return state != DEAD and MATCH in self._places[state]

    def need(self, state: int) -> tuple[int, int]:
        """Fewest characters to a match, and bytes of the shortest such text."""
        return min(self._program.shortest[place] for place in self._places[state])

    def cut(self, state: int) -> int | None:
        """Number of last characters that a stop cuts off here; None if no match ends here."""
        return self._places[state].get(MATCH)

    def pending(self, state: int) -> int:
        """Number of last characters that may turn out to be cut off."""
        return max(self._places[state].values(), default=0)


class Table:
    """Distances to the nearest end. Levels that are equal share a row.

    `starts` has the first level of each row, ascending; `rows` has shape (rows, states, indices).
    """

    def __init__(self, starts: list[int], rows: NDArray[np.uint16]) -> None:
        self.rows = rows
        self._starts, self._start_array = starts, np.array(starts, dtype=np.intp)
        reached = rows[rows < FAR]
        self.farthest = int(reached.max()) if reached.size else 0
        """Greatest distance of all places that reach an end."""

    def far(self, levels: IntArray, states: IntArray, indices: IntArray) -> IntArray:
        rows = np.searchsorted(self._start_array, levels, side="right") - 1
        return self.rows[rows, states, indices].astype(np.intp)

    def row_of(self, level: int) -> int:
        return bisect_right(self._starts, level) - 1


class Classes(NamedTuple):
    """A partition of the characters. `kinds` has the class of the code points from each of `cuts` on."""

    cuts: IntArray
    kinds: IntArray
    samples: list[str]
    """A character of each class."""
    sizes: IntArray
    """Bytes of the characters of each class."""

    @classmethod
    def of(cls, sets: Iterable[Ranges]) -> Classes:
        distinct = list(dict.fromkeys(sets))
        borders = {0, 0x80, 0x800, 0x10000, 0xD800, 0xE000}
        for ranges in distinct:
            borders.update(code for low, high in ranges for code in (low, high + 1))
        cuts = np.array(sorted(borders - {0x110000}), dtype=np.intp)
        told = np.searchsorted(np.array([0x80, 0x800, 0x10000]), cuts, side="right")
        for ranges in distinct:
            if ranges:
                lows, highs = np.array(ranges).T
                range_of = np.searchsorted(lows, cuts, side="right") - 1
                inside = (range_of >= 0) & (cuts <= highs[range_of])
                _, told = np.unique(told * 2 + inside, return_inverse=True)
        gap = cuts == SURROGATES[0]
        numbers: dict[int, int] = {}
        samples: list[int] = []
        for at, kind in enumerate(told.tolist()):
            if not gap[at] and numbers.setdefault(kind, len(numbers)) == len(samples):
                samples.append(int(cuts[at]))
        kinds = np.array([numbers.get(kind, 0) for kind in told.tolist()], dtype=np.intp)
        sizes = np.array([len(chr(code).encode()) for code in samples], dtype=np.intp)
        return cls(cuts, kinds, list(map(chr, samples)), sizes)

    def of_codes(self, codes: IntArray) -> IntArray:
        return self.kinds[np.searchsorted(self.cuts, codes, side="right") - 1]

    def of_character(self, character: str) -> int:
        return int(self.kinds[bisect_right(self.cuts, ord(character)) - 1])

    def ranges(self, wanted: Flags) -> list[tuple[int, int]]:
        """Ranges of code points of some classes. The characters of a range have equally many bytes."""
        ends = [*(self.cuts[1:] - 1).tolist(), 0x10FFFF]
        pairs = zip(self.cuts.tolist(), ends, wanted[self.kinds].tolist(), strict=True)
        return [(low, high) for low, high, is_wanted in pairs if is_wanted and low != SURROGATES[0]]

    def single(self) -> Flags:
        """Flags of each class alone, shape (classes, classes)."""
        return np.eye(len(self.samples), dtype=np.bool_)

    def only(self, kind: int) -> str | None:
        """The character of a class that has no other."""
        at = np.flatnonzero(self.kinds == kind)
        at = at[self.cuts[at] != SURROGATES[0]]
        is_one = at.size == 1 and (*self.cuts.tolist(), 0x110000)[at[0] + 1] == self.cuts[at[0]] + 1
        return self.samples[kind] if is_one else None

    def between(self, low: int, high: int) -> list[int]:
        """Classes of the characters in a range of code points that is not empty."""
        first, end = np.searchsorted(self.cuts, [low, high], side="right") - (1, 0)
        kinds = self.kinds[first:end]
        return sorted(set(kinds[self.cuts[first:end] != SURROGATES[0]].tolist()))


class Place(NamedTuple):
    """Place of a text in an automaton, after its last whole character.

    `begun` has the bytes of the character that is not complete. `before` has the places after earlier characters, at
    which a stop may still cut the value off.
    """

    state: int
    values: Values
    begun: bytes = b""
    before: tuple[tuple[int, Values], ...] = ()


class Automaton:
    """Automaton of one term. Threads may share it: it is only added to, under a lock.

    With `leaps`, which are texts of tokens, distances are in tokens: a leap counts as one, and so does any byte.
    """

    def __init__(self, term: Term, leaps: Sequence[str] = ()) -> None:
        self.term = term
        simple = simplify(term)
        self.closed = is_closed(simple)
        self._term = simple
        self._leaps = leaps
        parts = list(atoms(self._term))
        lengths = [atom for atom in parts if isinstance(atom, Length)]
        self.counts = Counts(lengths)
        self._borders = sorted({0, *_borders(lengths)})
        """Numbers of characters from which on some comparison has another result."""
        self._slots: dict[int, int] = {}
        """Maps the `id` of an atom to its machine."""
        self._contents: list[PatternMachine | PhraseMachine] = []
        known: dict[Term, int] = {}
        for atom in parts:
            if isinstance(atom, Choice | Matches | Begins | Ends | Lacks):
                slot = known.setdefault(atom, len(known))  # equal atoms share a machine
                if slot == len(self._contents):
                    self._contents.append(_machine(atom))
                self._slots[id(atom)] = slot
        self.stops = tuple(dict.fromkeys(atom for atom in parts if isinstance(atom, Stop)))
        self.cuts_back = any(not stop.inclusive for stop in self.stops)
        """True if the term has STOPS_BEFORE, which cuts the value before the place where the stop is reached."""
        self._watches = list(map(_watch, self.stops))
        self._counters: list[tuple[Unit, PartCounter | PhraseMachine]] = [
            (unit, PhraseMachine([unit.phrase], "counts") if isinstance(unit, Occurrences) else PartCounter(unit))
            for unit in self.counts.units
            if unit not in ("characters", "tokens")
        ]
        self.token = self.counts.vector(["tokens"])
        machines = [*self._contents, *self._watches, *(machine for _, machine in self._counters)]
        self._machines: Sequence[PatternMachine | PhraseMachine | PartCounter] = machines
        self.classes = Classes.of(each for machine in machines for each in machine.sets)
        self._rows: list[dict[int, list[int]]] = [{} for _ in machines]
        lazy = self._contents[0] if _is_lazy(self._term) else None
        self._lazy = lazy if isinstance(lazy, PatternMachine) else None
        self._lock = RLock()
        self._parts: list[tuple[int, ...]] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        width = len(self.classes.samples)
        self._next = np.zeros((64, width), dtype=np.int32)
        self._codes = np.zeros((64, width), dtype=np.int16)
        self._expanded = np.zeros(64, dtype=np.bool_)
        self._expanded[NOWHERE] = True
        self._parts.append(())
        self._needs = np.full((64, 2), FAR, dtype=np.intp)
        """Of the states of a long pattern: fewest characters to a match, and bytes of the shortest such text."""
        self.start = self._number(tuple(machine.start for machine in machines))
        self._gains: dict[Values, int] = {self.counts.vector(["characters"]): 0}
        """Numbers of the increments of the counts by a character."""
        self.vectors: IntArray = np.array(list(self._gains), dtype=np.intp)
        """The increments by their numbers."""
        self._known: dict[int, list[tuple[int, Values]]] = {}
        """Rows of states at which some text has been."""
        self._cuts: dict[int, tuple[tuple[Stop, int], ...]] = {}

    # States ------------------------------------------------------------------------------------------------------

    def _number(self, parts: tuple[int, ...]) -> int:
        number = self._numbers.get(parts)
        if number is None:
            if self._is_hopeless(parts):
                number = NOWHERE
            else:
                number = len(self._parts)
                if number >= MAX_STATES or number * len(self.classes.samples) * (4 + len(parts)) > MAX_STEPS:
                    raise _too_many_states(self.term)
                self._parts.append(parts)
                if number >= len(self._next):
                    self._next = np.concatenate([self._next, np.zeros_like(self._next)])
                    self._codes = np.concatenate([self._codes, np.zeros_like(self._codes)])
                    self._needs = np.concatenate([self._needs, np.full_like(self._needs, FAR)])
                    self._expanded = np.concatenate([self._expanded, np.zeros_like(self._expanded)])
                if self._lazy is not None:
                    self._needs[number] = self._lazy.need(parts[0])
            self._numbers[parts] = number
        return number

    def _is_hopeless(self, parts: tuple[int, ...]) -> bool:
        """True if no continuation can hold, and no stop may cut the text back to a value that does."""
        watched = parts[len(self._contents) :]
        for stop, watch, part in zip(self.stops, self._watches, watched, strict=False):
            if not stop.inclusive and watch.pending(part):
                return False
        return self._cannot_hold(self._term, parts)

    def _cannot_hold(self, term: Term, parts: tuple[int, ...]) -> bool:
        match term:
            case Constant(holds):
                return not holds
            case And(terms):
                return any(self._cannot_hold(part, parts) for part in terms)
            case Or(terms):
                return all(self._cannot_hold(part, parts) for part in terms)
            case Choice() | Matches() | Begins() | Ends() | Lacks():
                return parts[self._slots[id(term)]] == DEAD
        return False

    def expand(self, states: Numbers) -> None:
        """Makes the successors of these states known."""
        if not self._expanded[states].all():
            with self._lock:
                for state in np.unique(states).tolist():
                    self._expand(state)

    def _expand(self, state: int) -> None:
        if self._expanded[state]:
            return
        if len(self._counters) > MAX_COUNTERS:
            raise _too_many_counts(self.term)
        samples = self.classes.samples
        rows = []
        for machine, known, part in zip(self._machines, self._rows, self._parts[state], strict=True):
            row = known.get(part)
            if row is None:
                row = known[part] = [machine.step(part, sample) for sample in samples]
            rows.append(row)
        after = list(zip(*rows, strict=True)) if rows else [()] * len(samples)
        numbers = [self._numbers.get(parts, DEAD) for parts in after]
        numbers = [self._number(parts) if at == DEAD else at for at, parts in zip(numbers, after, strict=True)]
        raised: list[list[Unit]] = [["characters"] for _ in samples]
        first = len(self._contents) + len(self._watches)
        for at, (unit, counter) in enumerate(self._counters):
            before = self._parts[state][first + at]
            for kind, then in enumerate(rows[first + at]):
                if counter.adds(before, then):
                    raised[kind].append(unit)
        codes = [self._gains.setdefault(gain, len(self._gains)) for gain in map(self.counts.vector, raised)]
        if len(self._gains) > len(self.vectors):
            self.vectors = np.array(list(self._gains), dtype=np.intp)
        self._next[state], self._codes[state] = numbers, codes
        self._expanded[state] = True

    def explore(self) -> None:
        """Makes all states known."""
        with self._lock:
            state = 1
            while state < len(self._parts):
                self._expand(state)
                state += 1

    def follow(self, states: Numbers, kinds: Numbers) -> tuple[IntArray, NDArray[np.int16]]:
        """Next states after characters of some classes, and the numbers of what these add to the counts."""
        if self._lazy is not None:
            self.expand(states)
        else:
            assert self.table
        return self._next[states, kinds].astype(np.intp), self._codes[states, kinds]

    def row(self, state: int) -> list[tuple[int, Values]]:
        """Next state after each class of characters, and what the class adds to the counts."""
        row = self._known.get(state)
        if row is None:
            self.expand(np.array([state]))
            gains = list(self._gains)
            pairs = zip(self._next[state].tolist(), self._codes[state].tolist(), strict=True)
            row = self._known[state] = [(after, gains[code]) for after, code in pairs]
        return row

    def step(self, place: Place, kind: int) -> Place:
        """Place after a character of a class, with no token counted."""
        after, added = self.row(place.state)[kind]
        pending = self.undecided(after)
        before = (*place.before, (place.state, place.values))[-pending:] if pending else ()
        return Place(after, self.counts.add(place.values, added), b"", before)

    def fired(self, place: Place, previous: Place) -> int | None:
        """Number of last characters that a stop cuts off at a place; None if no stop fires there."""
        for stop, back in self.cuts(place.state):
            history = (*previous.before, (previous.state, previous.values))
            state, values = history[-back] if back else (place.state, place.values)
            judged = self.counts.with_tokens_of(np.array([values], dtype=np.intp), place.values)
            if self.fires(stop, np.array([state]), judged)[0]:
                return back
        return None

    # Judging -----------------------------------------------------------------------------------------------------

    def far(self, states: IntArray, values: IntArray) -> IntArray:
        """Distances of many places: 0 where the hole may end, FAR where no end can be reached."""
        if self._lazy is not None:
            needs = self._needs[states]
            if not self.counts.units:
                return needs[:, 1]
            limit = self.counts.sizes[0] - 2
            fits = np.minimum(values[:, 0], limit + 1) + needs[:, 0] <= limit
            return np.where(fits, needs[:, 1], FAR)
        levels, indices = self.counts.places(values)
        found: IntArray = self.table.far(levels, states, indices)
        return found

    def distance(self, place: Place) -> int:
        """Bytes, or tokens, to a valid end; FAR if there is none."""
        if not place.begun:
            return self._distance(place.state, place.values)
        opened = open_range(place.begun)
        if opened is None:
            return FAR
        low, high, left = opened
        values = self.counts.add(place.values, tuple(left * one for one in self.token))
        steps = [self.row(place.state)[kind] for kind in self.classes.between(low, high)]
        return min(left + min(self._distance(after, self.counts.add(values, added)) for after, added in steps), FAR)

    def _distance(self, state: int, values: Values) -> int:
        if self._lazy is not None:
            characters, far = self._needs[state].tolist()
            return far if not values or values[0] + characters <= self.counts.sizes[0] - 2 else FAR
        level, index = self.counts.place(values)
        return int(self.table.rows[self.table.row_of(level), state, index])

    @cached_property
    def origin(self) -> Place:
        """Place of the empty text."""
        return Place(self.start, self.counts.zero)

    @property
    def shortest(self) -> int:
        """Distance of the empty text; FAR if nothing meets the term. Raises TooLarge."""
        return self.distance(self.origin)

    def lives(self, place: Place) -> bool:
        """True if the text, or some longer one, can meet the term."""
        return self.distance(place) < FAR

    def holds(self, place: Place) -> bool:
        """True if the hole may end here by the model's own decision."""
        return not place.begun and self.distance(place) == 0

    def must_end(self, place: Place) -> bool:
        """True if the hole may end here, and no longer text can end well."""
        if not self.holds(place):
            return False
        here = self.counts.add(place.values, self.token)
        return all(self._distance(after, self.counts.add(here, added)) >= FAR for after, added in self.row(place.state))

    def ways(self, place: Place) -> Flags:
        """True for each class of characters with which the text can go on, no token counted."""
        width = len(self.classes.samples)
        states, codes = self.follow(np.full(width, place.state), np.arange(width))
        lives: Flags = self.far(states, self.vectors[codes] + np.array(place.values, dtype=np.intp)) < FAR
        return lives

    def first_bytes(self, place: Place) -> Flags:
        """Flags of the bytes with which the text can go on, no token counted; true for NO_BYTE."""
        found: Flags = np.zeros(NO_BYTE + 1, dtype=np.bool_)
        found[NO_BYTE] = True
        for low, high in self.classes.ranges(self.ways(place)):
            found[chr(low).encode()[0] : chr(high).encode()[0] + 1] = True
        return found

    def alike(self, state: int, values: Values, longest: int) -> tuple[int, ...]:
        """Equal for places that tokens of at most `longest` characters do not tell apart."""
        if self._lazy is not None:
            is_near = values and values[0] + longest + self._lazy.farthest[0] > self.counts.sizes[0] - 2
            return (state, *values) if is_near else (state,)
        level, index = self.counts.place(values)
        row = self.table.row_of(level)
        return (state, row, index) if row == self.table.row_of(level + longest) else (state, -level, index)

    @cached_property
    def size_bytes(self) -> int:
        """Memory, once it is known; that of a long pattern is not known in advance."""
        return 2000 + 2 * self._next.size + (0 if self._lazy is not None else self.table.rows.nbytes)

    @cached_property
    def farthest(self) -> int:
        """Greatest distance that matters to a limit of tokens."""
        return self.table.farthest if self._lazy is None else self._lazy.farthest[1]

    def cuts(self, state: int) -> tuple[tuple[Stop, int], ...]:
        """Stops that are reached here, in the order of the term, each with the number of characters that it cuts."""
        if not self.stops or state == NOWHERE:
            return ()
        known = self._cuts.get(state)
        if known is None:
            watched = self._parts[state][len(self._contents) :]
            each = zip(self.stops, self._watches, watched, strict=False)
            found = [(stop, cut) for stop, watch, part in each if (cut := watch.cut(part)) is not None]
            known = self._cuts[state] = tuple(found)
        return known

    def undecided(self, state: int) -> int:
        """Number of last characters that may turn out to be cut off."""
        if not self.cuts_back or state == NOWHERE:
            return 0
        watched = self._parts[state][len(self._contents) :]
        pairs = zip(self.stops, self._watches, watched, strict=False)
        return max(watch.pending(part) for stop, watch, part in pairs if not stop.inclusive)

    @cached_property
    def stopping(self) -> list[tuple[Stop, int, IntArray]]:
        """Stops with the number of characters that they cut, and the states at which they are reached."""
        found: dict[tuple[Stop, int], list[int]] = {}
        for state in range(len(self._parts)):
            for reached in self.cuts(state):
                found.setdefault(reached, []).append(state)
        return [(*reached, np.array(states, dtype=np.intp)) for reached, states in found.items()]

    def fires(self, stop: Stop, states: IntArray, values: IntArray) -> Flags:
        """True for each value, given by its place, for which a stop ends the hole that was reached after it (S13)."""
        levels, indices = self.counts.places(values)
        fired = self._judge(self._term, states, levels, indices, stop)[1]
        return np.broadcast_to(fired, states.shape)

    def _judge(
        self, term: Term, states: IntArray, levels: IntArray, indices: IntArray, reached: Stop | None
    ) -> tuple[Flags, Flags]:
        """Flags of the values that meet the term, and of those after which the stop that was just reached fires.

        The arguments are arrays that broadcast. A stop counts as met. It fires only if every conjunction that it is
        part of holds.
        """
        yes, no = np.array(True), np.array(False)
        match term:
            case Constant(is_true):
                return (yes if is_true else no), no
            case Length(at_least, at_most, unit):
                numbers = levels if unit == "characters" else self._of_index[unit][indices]
                return (numbers >= at_least) & (yes if at_most is None else numbers <= at_most), no
            case Stop():
                return yes, (yes if term == reached else no)
            case Not(part):
                return ~self._judge(part, states, levels, indices, None)[0], no
            case And(terms) | Or(terms):
                parts = [self._judge(part, states, levels, indices, reached) for part in terms]
                is_and = isinstance(term, And)
                holds: Flags = yes if is_and else no
                fires: Flags = no
                for part_holds, part_fires in parts:
                    holds = holds & part_holds if is_and else holds | part_holds
                    fires = fires | part_fires
                return holds, (holds & fires if is_and else fires)
        return self._holding[self._slots[id(term)]][states], no

    @cached_property
    def _of_index(self) -> dict[Unit, IntArray]:
        return {unit: self.counts.of_index(unit) for unit in self.counts.units if unit != "characters"}

    @cached_property
    def _holding(self) -> list[Flags]:
        """Flags of the states in which each content holds; for tables, and for stops, which have one."""
        self.explore()
        return [
            np.array([False, *(content.holds(parts[slot]) for parts in self._parts[1:])])
            for slot, content in enumerate(self._contents)
        ]

    # Distances ---------------------------------------------------------------------------------------------------

    @cached_property
    def table(self) -> Table:
        with self._lock:
            self.explore()
            return self._fill(self._edges())

    def _edges(self) -> IntArray:
        """Columns of all steps: state, next state, what they add to each count, characters and distance."""
        many = len(self._parts)
        width = len(self.classes.samples)
        states = np.repeat(np.arange(many), width)
        after, codes = self._next[:many].ravel(), self._codes[:many].ravel()
        sizes = np.tile(self.classes.sizes, many)
        added = self.vectors[codes] + sizes[:, None] * np.array(self.token, dtype=np.intp)
        found = [np.column_stack([states, after, added, np.ones_like(sizes), sizes])[after != NOWHERE]]
        stopping = np.zeros(many, dtype=np.bool_)
        for _, _, reached in self.stopping:
            stopping[reached] = True
        for leap in self._leaps:
            state, added = np.arange(many), np.zeros((many, len(self.counts.units)), dtype=np.intp)
            for character in leap:
                kind = self.classes.of_character(character)
                added = added + self.vectors[self._codes[state, kind]]
                state = self._next[state, kind]
                state = np.where(stopping[state], NOWHERE, state)
            columns = [np.arange(many), state, added + np.array(self.token, dtype=np.intp)]
            ones = np.ones(many, dtype=np.intp)
            found.append(np.column_stack([*columns, len(leap) * ones, ones])[state != NOWHERE])
        rows = np.concatenate(found)
        rows = rows[np.lexsort(rows.T[::-1])]  # of equal steps, the shortest comes first
        if len(rows):
            rows = rows[np.append(True, (rows[1:, :-1] != rows[:-1, :-1]).any(axis=1))]
        return rows

    def _fill(self, rows: IntArray) -> Table:
        counts, many = self.counts, len(self._parts)
        size, width = many * counts.size, max(map(len, self._leaps), default=1)
        if counts.size > MAX_EDGES or len(rows) * counts.size > MAX_EDGES or size > MAX_KEPT:
            raise _too_many_counts(self.term)
        sources, targets, costs = rows[:, 0], rows[:, 1], rows[:, -1].astype(np.uint16)[:, None]
        added, which = np.unique(rows[:, 2:-2], axis=0, return_inverse=True)
        shifts = np.array([counts.shifted(each) for each in added.tolist()], dtype=np.int32).reshape(-1, counts.size)
        gather = (targets[:, None] * counts.size + shifts[which.ravel()]).astype(np.int32)
        saturated = gather
        if counts.levels > 1:
            gather = gather + ((rows[:, -2] - 1) * size).astype(np.int32)[:, None]
        first = np.flatnonzero(np.append(True, sources[1:] != sources[:-1])) if len(rows) else sources
        owners = sources[first]
        spent = 0

        def step(after: NDArray[np.uint16], gather: NDArray[np.int32], ends: Flags) -> NDArray[np.uint16]:
            nonlocal spent
            spent += gather.size + LEVEL_COST
            if spent > MAX_CELLS:
                raise _too_many_counts(self.term)
            here = np.full((many, counts.size), FAR, dtype=np.uint16)
            if len(owners):
                here[owners] = np.minimum(np.minimum.reduceat(after[gather] + costs, first, axis=0), FAR)
            here[ends] = 0
            return here

        ends = self._ends(counts.levels - 1)
        top = np.where(ends, np.uint16(0), np.uint16(FAR))
        while True:  # the last level counts no further
            new = np.minimum(top, step(top.ravel(), saturated, ends))
            if (new == top).all():
                break
            top = new
        found, starts, level = [top], [counts.levels - 1], counts.levels - 2
        above, settled = np.tile(top.ravel(), width), 0
        while level >= 0:
            at = bisect_right(self._borders, level)
            if level + 1 in self._borders:
                ends, settled = self._ends(level), -1
            new = step(above, gather, ends)
            if settled >= 0 and (new == found[-1]).all():
                settled += 1
            else:
                found.append(new)
                starts.append(level)
                settled = 0
            if len(found) * size > MAX_KEPT:
                raise _too_many_counts(self.term)
            starts[-1] = level
            above = np.concatenate([new.ravel(), above[:-size]])
            if settled >= width:  # all lower levels are equal, down to where a comparison changes
                starts[-1] = level = self._borders[at - 1]
            level -= 1
        return Table(starts[::-1], np.array(found[::-1]))

    def _ends(self, level: int) -> Flags:
        """True for each place of a level in which the hole may end."""
        states = np.arange(len(self._parts))[:, None]
        holds, _ = self._judge(self._term, states, np.array(level), np.arange(self.counts.size)[None], None)
        ends = np.broadcast_to(holds, (len(self._parts), self.counts.size)).copy()
        ends[NOWHERE] = False
        return ends


def _borders(lengths: Iterable[Length]) -> Iterator[int]:
    for length in lengths:
        if length.unit == "characters":
            yield length.at_least
            if length.at_most is not None:
                yield length.at_most + 1


def _is_lazy(term: Term) -> bool:
    """True for one pattern with at most an upper length: it lives unless it is dead."""
    match term:
        case Matches():
            return True
        case And((Matches(), Length(0, int(), "characters"))) | And((Length(0, int(), "characters"), Matches())):
            return True
    return False


def _is_plain_length(term: Term) -> bool:
    return isinstance(term, Length) and not isinstance(term.unit, Occurrences)


def _machine(atom: Term) -> PatternMachine | PhraseMachine:
    match atom:
        case Choice(options):
            return PhraseMachine(options, "is")
        case Matches(pattern, flags, _, way, span, _):
            try:
                return PatternMachine(program(pattern, flags, way))
            except UnsupportedPattern as error:
                raise ConstraintError(error.sentence, span=span, hint=error.hint) from None
        case Begins(phrases):
            return PhraseMachine(phrases, "begins")
        case Ends(phrases):
            return PhraseMachine(phrases, "ends")
        case Lacks(phrases):
            return PhraseMachine(phrases, "lacks")
    raise AssertionError(f"{atom} has no machine")


def _watch(stop: Stop) -> PatternMachine:
    """Machine that finds where matches of a stop end, and if the value is cut before them, where they begin."""
    text = stop.phrase.decode()
    found = program(literally(text), 0, "stop") if stop.flags is None else program(text, stop.flags, "stop")
    return PatternMachine(found, search=True, aged=not stop.inclusive)


def _too_many_counts(term: Term) -> TooLarge:
    """Error for counts that multiply. It names the clauses about them."""
    counted = [atom for atom in atoms(term) if isinstance(atom, Length)]
    clauses = ", ".join(dict.fromkeys(f"`{atom.span.source}`" for atom in counted if atom.span)) or "lengths"
    hint = "leave one of them out, ask for it in a hole of its own, or bound the hole by max_tokens instead of by len()"
    return TooLarge(
        f"these conditions together distinguish too many combinations of counts: {clauses}", span=term.span, hint=hint
    )


def _too_many_states(term: Term) -> TooLarge:
    """Error for a term that needs too many states. It names the clauses that multiply."""
    parts = [part for part in conjuncts(term) if not isinstance(part, Constant)]
    several = [part for part in parts if not isinstance(part, Stop) and not _is_plain_length(part)]
    clauses = list(dict.fromkeys(f"`{part.span.source}`" for part in several if part.span))
    sentence = f"this condition needs more than {MAX_STATES:,} states"
    if len(clauses) > 1:
        sentence = f"these conditions together need more than {MAX_STATES:,} states: {', '.join(clauses)}"
    return TooLarge(
        sentence, span=term.span, hint="fewer or shorter options and phrases, or two holes, make it smaller"
    )
