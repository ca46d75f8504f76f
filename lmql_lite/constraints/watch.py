"""What a term watches while a text is said: one byte machine for each atom, and the counts that it compares.

Phrases that a text shall have, or that only a part of the term forbids, share one machine: whether each was found is a
flag beside the state. Everything here is a function of the machines' states and of the counts; places and ways between
them are the automaton's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import NEVER, Beginnings, Endings, Forbidden, Options, StopPhrases
from lmql_lite.constraints.avoiding import FEW, Avoiding
from lmql_lite.constraints.counters import FLAGS_IN_LANE, Counts, Parts, Regions, parts
from lmql_lite.constraints.demand import Demand
from lmql_lite.constraints.phrases import Finder, Repeats
from lmql_lite.constraints.places import Atoms, Judgement, Reach
from lmql_lite.constraints.regex import Found, Regex
from lmql_lite.constraints.stops import AnyStop, Stops
from lmql_lite.constraints.terms import (
    And,
    Begins,
    Choice,
    Constant,
    Contains,
    Ends,
    Lacks,
    Length,
    Matches,
    Measure,
    Not,
    Occurrences,
    Or,
    Stop,
    StopPattern,
    Term,
    Unit,
)
from lmql_lite.constraints.ways import FREE, Bounds, Way, both, possible

IntArray = NDArray[np.intp]


class Distances(NamedTuple):
    """For many places the bytes that are missing, NEVER where no end can be reached, and the characters that may be
    said before that changes."""

    least: IntArray
    room: IntArray


Content = Options | Beginnings | Endings | Forbidden | Regex | Found | StopPhrases


class Watch:
    def __init__(self, term: Term) -> None:
        self.term = term
        """As `simplify` gives it."""
        self.stops = Stops(atom for atom in _atoms(term) if isinstance(atom, Stop | StopPattern))
        self._contents: list[Content] = [*self.stops.machines]
        self._conjuncts: dict[int, tuple[tuple[Term, ...], frozenset[Term]]] = {}
        """Identity of a conjunction within the term -> its parts that are no stops, and its stops: they may be many."""
        self._slots: dict[int, int] = {}
        """Identity of an atom within the term -> its place in a state: an atom with many options is slow to hash."""
        self._flags: dict[int, int] = {}
        """The same for atoms that a flag stands for."""
        largest: dict[Measure, int] = {}
        flagged: dict[Term, list[int]] = {}
        self._collect(term, True, largest, {}, flagged)
        # a value that is cut back is shorter than the text: leave room to count back
        most = {unit: value + 1 + self.stops.room for unit, value in largest.items()}
        self.counts = Counts(most, len(flagged))
        machines: list[Content | Finder | Repeats | Parts] = list(self._contents)
        self._finder, self._finds = self._find(flagged), len(machines)
        if self._finder is not None:
            machines.append(self._finder)
        self._repeats: dict[Occurrences, tuple[int, Repeats]] = {}
        self._parts: dict[Unit, tuple[int, Parts]] = {}
        """The machines that count, and where their states stand: behind those of the atoms."""
        for unit in self.counts.units:
            if isinstance(unit, Occurrences):
                self._repeats[unit] = (len(machines), repeats := Repeats(unit.phrase))
                machines.append(repeats)
            elif unit in ("words", "sentences"):
                self._parts[unit] = (len(machines), machine := parts(unit))
                machines.append(machine)
        self.machines: Sequence[Content | Finder | Repeats | Parts] = machines
        self.regions = Regions(self.counts.units, _lengths(term))
        self._units = {unit: index for index, unit in enumerate(self.counts.units)}
        self._characters, self._tokens = self._units.get("characters"), self._units.get("tokens")
        self._always = Way(0, 0, (FREE,) * len(self._units))
        self._ways: dict[Atoms, tuple[Way, ...]] = {}
        wanted = [atom.phrase for atom in flagged if isinstance(atom, Contains)]
        self._demand = Demand(wanted, [*self._repeats], self._finder.texts if self._finder else [b""])
        self._avoiding: dict[tuple[int, int], Avoiding | None] = {}
        self.only_phrases = bool(flagged or self._repeats) and self._has_only_phrases()
        """Whether the term compares nothing but phrases and characters: then what is demanded is all."""

    def _collect(
        self,
        term: Term,
        is_needed: bool,
        largest: dict[Measure, int],
        known: dict[Term, int],
        flagged: dict[Term, list[int]],
    ) -> None:
        """`is_needed` tells that nothing holds without this part."""
        match term:
            case And(terms) | Or(terms):
                if isinstance(term, And):
                    stops = frozenset(part for part in terms if isinstance(part, Stop | StopPattern))
                    others = tuple(part for part in terms if not isinstance(part, Stop | StopPattern))
                    self._conjuncts[id(term)] = others, stops
                for part in terms:
                    self._collect(part, is_needed and isinstance(term, And), largest, known, flagged)
            case Not(part):
                self._collect(part, False, largest, known, flagged)
            case Length(at_least, at_most, unit):
                largest[unit] = max(largest.get(unit, 0), at_least, at_most or 0)
            case Contains():
                flagged.setdefault(term, []).append(id(term))
            case Lacks() if not is_needed:
                flagged.setdefault(term, []).append(id(term))
            case Choice() | Matches() | Begins() | Ends() | Lacks():
                slot = known.setdefault(term, len(self._contents))  # equal atoms share a machine
                if slot == len(self._contents):
                    self._contents.append(_machine(term))
                self._slots[id(term)] = slot

    def _find(self, flagged: dict[Term, list[int]]) -> Finder | None:
        """The machine of all atoms with flags; those that are wanted come first."""
        atoms = sorted(flagged, key=lambda atom: not isinstance(atom, Contains))
        phrases: list[tuple[bytes, int]] = []
        for at, atom in enumerate(atoms):
            flag = self.counts.flagged(1 << at)
            self._flags.update(dict.fromkeys(flagged[atom], 1 << at))
            assert isinstance(atom, Contains | Lacks)
            phrases += [(phrase, flag) for phrase in ((atom.phrase,) if isinstance(atom, Contains) else atom.phrases)]
        return Finder(phrases) if phrases else None

    @property
    def counts_parts(self) -> bool:
        """Whether words, sentences or occurrences are counted: then what a byte adds depends on the state."""
        return bool(self._parts or self._repeats)

    # Counting ----------------------------------------------------------------------------------------------------

    def added(self, before: Atoms, after: Atoms, starts_character: bool) -> int:
        """What one byte between two places adds to the counts, tokens and flags left out."""
        added = self.counts.one("characters") if starts_character else 0
        for unit, (slot, machine) in self._parts.items():
            if machine.begins(before[slot], after[slot]):
                added += self.counts.one(unit)
        for phrase, (slot, repeats) in self._repeats.items():
            if after[slot] == repeats.size:
                added += self.counts.one(phrase)
        return added

    def raised(self, atoms: Atoms) -> dict[int, int]:
        """The flags that a byte raises behind a place, as part of a count; bytes that raise none are left out."""
        return self._finder.found[atoms[self._finds]] if self._finder else {}

    def judged(self, atoms: Atoms) -> Atoms:
        """What a value that ends here is judged by: how far a stop has come is not part of it."""
        many = len(self.stops.machines)
        return (0,) * many + atoms[many:]

    # Judging -----------------------------------------------------------------------------------------------------

    def holds(self, atoms: Atoms, count: int) -> bool:
        """Whether a value that ends here meets the term."""
        return self._judge(self.term, atoms, count, None).holds

    def fires(self, atoms: Atoms, count: int, reached: AnyStop) -> bool:
        """Whether this stop, which was just reached, ends the hole for a value that ends here."""
        return self._judge(self.term, atoms, count, reached).fires

    def grounds(self, atoms: Atoms, count: int) -> tuple[int, int]:
        """The flags by which a term holds here: with all of the first raised, and none of the second, it does."""
        return self._grounds(self.term, atoms, count)

    def _judge(self, term: Term, atoms: Atoms, count: int, reached: AnyStop | None) -> Judgement:
        return self._judge_part(term, atoms, self.counts.unpack(count), self.counts.flags(count), reached)

    def _judge_part(
        self, term: Term, atoms: Atoms, values: tuple[int, ...], flags: int, reached: AnyStop | None
    ) -> Judgement:
        match term:
            case Constant(holds):
                return Judgement(holds, False)
            case Length(at_least, at_most, unit):
                value = values[self._units[unit]]
                return Judgement(at_least <= value and (at_most is None or value <= at_most), False)
            case Contains() | Lacks() if id(term) in self._flags:
                return Judgement(bool(flags & self._flags[id(term)]) == isinstance(term, Contains), False)
            case Choice() | Matches() | Begins() | Ends() | Lacks():
                slot = self._slots[id(term)]
                return Judgement(self._contents[slot].holds(atoms[slot]), False)
            case Stop() | StopPattern():
                return Judgement(True, term == reached)
            case Not(part):
                return Judgement(not self._judge_part(part, atoms, values, flags, reached).holds, False)
            case And():
                others, stops = self._conjuncts[id(term)]
                parts = [self._judge_part(part, atoms, values, flags, reached) for part in others]
                holds = all(part.holds for part in parts)
                return Judgement(holds, holds and (reached in stops or any(part.fires for part in parts)))
            case Or(terms):
                parts = [self._judge_part(part, atoms, values, flags, reached) for part in terms]
                return Judgement(any(part.holds for part in parts), any(part.fires for part in parts))
        raise AssertionError("every phrase has a flag")

    def _grounds(self, term: Term, atoms: Atoms, count: int) -> tuple[int, int]:
        match term:
            case Contains() if id(term) in self._flags:
                return self._flags[id(term)], 0
            case Lacks() if id(term) in self._flags:
                return 0, self._flags[id(term)]
            case And(terms):
                wanted, unwanted = 0, 0
                for part in terms:
                    more = self._grounds(part, atoms, count)
                    wanted, unwanted = wanted | more[0], unwanted | more[1]
                return wanted, unwanted
            case Or(terms):
                for part in terms:
                    if self._judge(part, atoms, count, None).holds:
                        return self._grounds(part, atoms, count)
        return 0, 0

    # Estimating --------------------------------------------------------------------------------------------------

    def ways(self, atoms: Atoms) -> tuple[Way, ...]:
        """How the term may come to hold in a continuation. A superset: never less than what is possible."""
        contents = atoms[: self._finds]
        ways = self._ways.get(contents)
        if ways is None:
            ways = self._ways[contents] = self._ways_of(self.term, atoms)
        return ways

    def may_hold(self, atoms: Atoms) -> bool:
        """Whether a value that ends here meets the term if its counts are right."""
        return any(way.num_bytes == 0 for way in self.ways(atoms))

    def _ways_of(self, term: Term, atoms: Atoms) -> tuple[Way, ...]:
        match term:
            case Constant(False):
                return ()
            case Length(at_least, at_most, unit):
                return (self._always._replace(bounds=self._bounds(unit, at_least, at_most)),)
            case Contains() if id(term) in self._flags:
                return (self._always._replace(wanted=self._flags[id(term)]),)
            case Lacks() if id(term) in self._flags:
                return (self._always._replace(unwanted=self._flags[id(term)]),)
            case Choice() | Matches() | Begins() | Ends() | Lacks():
                slot = self._slots[id(term)]
                need = self._contents[slot].need(atoms[slot])
                return (Way(*need, self._always.bounds),) if need.num_bytes < NEVER else ()
            case And():
                ways: tuple[Way, ...] = (self._always,)
                for part in self._conjuncts[id(term)][0]:
                    ways = possible(both(a, b) for a in ways for b in self._ways_of(part, atoms))
                return ways
            case Or(terms):
                return possible(way for part in terms for way in self._ways_of(part, atoms))
        return (self._always,)

    def _bounds(self, unit: Measure, low: int, high: int | None) -> Bounds:
        bounds = (low, NEVER if high is None else high)
        return tuple(bounds if each == unit else FREE for each in self.counts.units)

    def at_least(self, ways: tuple[Way, ...], atoms: Atoms, count: int, reach: Reach) -> int:
        """A number of tokens, each of which reaches so far, below which none of these ways is gone to its end."""
        values, flags = self.counts.unpack(count), self.counts.flags(count)
        if len(ways) == 1:
            return self._length_of(ways[0], atoms, values, flags, reach)
        return min((self._length_of(way, atoms, values, flags, reach) for way in ways), default=NEVER)

    def _length_of(self, way: Way, atoms: Atoms, values: tuple[int, ...], flags: int, reach: Reach) -> int:
        num_bytes, num_characters, bounds, wanted, unwanted, _ = way
        if unwanted & flags:
            return NEVER
        repeats: list[int] = []
        num_tokens = 0
        for at, (low, high) in enumerate(bounds):
            value = values[at]
            if value > high:
                return NEVER
            unit = self.counts.units[at]
            if isinstance(unit, Occurrences):
                repeats.append(max(low - value, 0))
            elif value < low:
                more = low - value
                if unit in self._parts:
                    slot, machine = self._parts[unit]
                    missing = machine.missing(atoms[slot], more)
                    num_tokens = max(num_tokens, -(-more // reach.words))
                    num_bytes = max(num_bytes, missing.num_bytes)
                    num_characters = max(num_characters, missing.num_characters)
                elif unit == "characters":
                    num_characters = max(num_characters, more)
                else:
                    num_tokens = max(num_tokens, more)
        avoiding = self._avoid(way)
        if avoiding is not None:
            missed = avoiding.missing(atoms[self._finds], wanted & ~flags)
            if missed >= NEVER:
                return NEVER
            num_characters = max(num_characters, missed)
        elif wanted & ~flags or any(repeats):
            text = atoms[self._finds] if self._finder else 0
            begun = [repeats.begun(atoms[slot]) for slot, repeats in self._repeats.values()]
            demanded = self._demand.least(text, wanted & ~flags, repeats, begun)
            num_bytes, num_characters = max(num_bytes, demanded.num_bytes), max(num_characters, demanded.num_characters)
        num_tokens = max(num_tokens, -(-max(num_bytes, num_characters) // reach.bytes))
        for index, more in ((self._characters, num_characters), (self._tokens, num_tokens)):
            if index is not None and values[index] + more > bounds[index][1]:
                return NEVER
        return num_tokens

    def distances(self, ways: tuple[Way, ...], atoms: IntArray, values: IntArray, flags: IntArray) -> Distances:
        """The least that is missing, for many places at once, where there are only phrases.

        A row of `atoms` and `values` for each, and a column of `flags`, whose rows are `Counts.flag_lanes`.
        """
        texts = atoms[:, self._finds] if self._finder else np.zeros(len(atoms), dtype=np.intp)
        begun = [
            np.array([each.begun(at) for at in range(each.size + 1)])[atoms[:, slot]]
            for slot, each in self._repeats.values()
        ]
        least, room = np.full(len(atoms), NEVER), np.zeros(len(atoms), dtype=np.intp)
        for way in ways:
            low, high = np.array(way.bounds, dtype=np.intp).reshape(-1, 2).T
            lanes = self.counts.flag_lanes(way.wanted)
            wanted = [lane & ~raised for lane, raised in zip(lanes, flags, strict=True)]
            more = np.maximum(low - values, 0)
            missing = [more[:, at] for at, unit in enumerate(self.counts.units) if isinstance(unit, Occurrences)]
            avoiding = self._avoid(way)
            if avoiding is not None:
                demanded = avoiding.missing_of_all(texts, wanted, FLAGS_IN_LANE)
                for raised, bits in zip(flags, self.counts.flag_lanes(way.unwanted), strict=True):
                    demanded[(raised & bits) != 0] = NEVER
            else:
                demanded = self._demand.least_of_all(texts, wanted, missing, begun)
            after = values.copy()
            if self._characters is not None:
                np.maximum(demanded, more[:, self._characters], out=demanded)
                after[:, self._characters] += demanded
            within = (after <= high).all(axis=1) & (demanded < NEVER)
            np.minimum(least, demanded, out=least, where=within)
            if self._characters is not None:
                left = high[self._characters] - after[:, self._characters]
                np.maximum(room, left, out=room, where=within)
        return Distances(least, room)

    def _has_only_phrases(self) -> bool:
        """Whether nothing else takes part, and what is demanded can be said without saying anything that is counted."""
        units = all(unit == "characters" or isinstance(unit, Occurrences) for unit in self.counts.units)
        plain = len(self._contents) == len(self.stops.machines) and not self.stops.cutting
        ways = self._ways_of(self.term, ()) if units and plain else ()
        return (
            bool(ways)
            and all(way.is_exact for way in ways)
            and self._demand.is_attained()
            and all(not way.unwanted or (self._avoid(way) is not None and not self._repeats) for way in ways)
        )

    def _avoid(self, way: Way) -> Avoiding | None:
        """What is missing of a few phrases where others must not be said on the way; None where they are many."""
        if not way.unwanted:
            return None
        key = way.wanted, way.unwanted
        if key not in self._avoiding:
            assert self._finder is not None, "what is unwanted has a flag"
            few = way.wanted.bit_count() <= FEW and self._finder.is_plain
            self._avoiding[key] = Avoiding(self._finder, *key, self.counts.flags_at) if few else None
        return self._avoiding[key]


def _atoms(term: Term) -> Iterator[Term]:
    match term:
        case And(terms) | Or(terms):
            for part in terms:
                yield from _atoms(part)
        case Not(part):
            yield from _atoms(part)
        case _:
            yield term


def _machine(atom: Choice | Matches | Begins | Ends | Lacks) -> Content:
    match atom:
        case Choice(options):
            return Options(options)
        case Matches(pattern, flags, _, span):
            return Regex(pattern, flags, span)
        case Begins(phrases):
            return Beginnings(phrases)
        case Ends(phrases):
            return Endings(phrases)
        case Lacks(phrases):
            return Forbidden(phrases)


def _lengths(term: Term) -> list[Length]:
    return [atom for atom in _atoms(term) if isinstance(atom, Length)]  # `simplify` leaves none under `not`
