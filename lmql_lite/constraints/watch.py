"""What a term watches while a text is said: one byte machine for each atom, and the counts that it compares.

Everything here is a function of the machines' states and of the counts; places and ways between them are the
automaton's.
"""

from __future__ import annotations

from collections.abc import Iterator

from lmql_lite.constraints.atoms import NEVER, Beginnings, Endings, Forbidden, Options, Phrase, StopPhrases
from lmql_lite.constraints.counters import Counts, Parts, Regions, parts
from lmql_lite.constraints.places import Atoms, Judgement
from lmql_lite.constraints.regex import LONGEST_CUT, Found, Regex
from lmql_lite.constraints.simplify import characters
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
    Not,
    Or,
    Stop,
    StopPattern,
    Term,
    Unit,
)
from lmql_lite.constraints.ways import FREE, Bounds, Way, both, possible

Content = Phrase | Options | Beginnings | Endings | Forbidden | Regex | Found | StopPhrases
AnyStop = Stop | StopPattern


class Watch:
    def __init__(self, term: Term) -> None:
        self.term = term
        """As `simplify` gives it."""
        self._contents: list[Content] = []
        self._parts: dict[Unit, tuple[int, Parts]] = {}
        """The machines that count, and where their states stand: behind those of the atoms."""
        self.stops: list[AnyStop] = []
        """In the order in which they stand in the term."""
        self._numbers: dict[tuple[int, int], int] = {}
        """Where a machine's state stands, and its number of what it finds -> the place of that stop in `stops`."""
        self._finding: dict[int, StopPhrases | Found] = {}
        """The machines of stops by where their states stand: one for all phrases with which values end, and one for
        all before which they end."""
        self._conjuncts: dict[int, tuple[tuple[Term, ...], frozenset[Term]]] = {}
        """Identity of a conjunction within the term -> its parts that are no stops, and its stops: they may be many."""
        self._slots: dict[int, int] = {}
        """Identity of an atom within the term -> its place in a state: an atom with many options is slow to hash."""
        largest: dict[Unit, int] = {}
        self._phrases: dict[bool, tuple[int, StopPhrases]] = {}
        self._find_phrases(term)
        self._collect(term, largest, {})
        slots = {slot for (slot, _), number in self._numbers.items() if not self.stops[number].inclusive}
        self.cutting = [(slot, self._finding[slot]) for slot in sorted(slots)]
        """The machines of stops before which a value is cut."""
        self._of_stops = set(self._finding)
        # such a value is shorter than the text: leave room to count back
        self.room = max((_longest(stop) for stop in self.stops if not stop.inclusive), default=0)
        self.counts = Counts({unit: most + 1 + self.room for unit, most in largest.items()})
        for unit in self.counts.units:
            if unit in ("words", "sentences"):
                self._parts[unit] = (len(self._contents) + len(self._parts), parts(unit))
        self.machines = (*self._contents, *(machine for _, machine in self._parts.values()))
        self.regions = Regions(self.counts.units, _lengths(term))
        self._units = {unit: index for index, unit in enumerate(self.counts.units)}
        self._characters, self._tokens = self._units.get("characters"), self._units.get("tokens")
        self._always = Way(0, 0, (FREE,) * len(self._units))
        self._ways: dict[Atoms, tuple[Way, ...]] = {}

    def _collect(self, term: Term, largest: dict[Unit, int], known: dict[Term, int]) -> None:
        match term:
            case And(terms) | Or(terms):
                if isinstance(term, And):
                    stops = frozenset(part for part in terms if isinstance(part, Stop | StopPattern))
                    others = tuple(part for part in terms if not isinstance(part, Stop | StopPattern))
                    self._conjuncts[id(term)] = others, stops
                for part in terms:
                    self._collect(part, largest, known)
            case Not(part):
                self._collect(part, largest, known)
            case Length(at_least, at_most, unit):
                largest[unit] = max(largest.get(unit, 0), at_least, at_most or 0)
            case Stop(phrase, inclusive):
                if term not in known:
                    slot, machine = self._phrases[inclusive]
                    self._watch_for(term, slot, machine.number(phrase))
                    known[term] = slot
            case Choice() | Matches() | Contains() | Begins() | Ends() | Lacks() | StopPattern():
                slot = known.setdefault(term, len(self._contents))  # equal atoms share a machine
                if slot == len(self._contents):
                    self._add(term, slot)
                self._slots[id(term)] = slot

    def _add(self, atom: Choice | Matches | Contains | Begins | Ends | Lacks | StopPattern, slot: int) -> None:
        match atom:
            case Choice(options):
                self._contents.append(Options(options))
            case Matches(pattern, flags, _, span):
                self._contents.append(Regex(pattern, flags, span))
            case Lacks(phrases):
                self._contents.append(Forbidden(phrases))
            case Contains(phrase):
                self._contents.append(Phrase(phrase, sticky=True))
            case Begins(phrases):
                self._contents.append(Beginnings(phrases))
            case Ends(phrases):
                self._contents.append(Endings(phrases))
            case StopPattern(pattern, flags, inclusive, span):
                found = Found(pattern, flags, span, measured=not inclusive)
                self._contents.append(found)
                self._finding[slot] = found
                self._watch_for(atom, slot, 0)

    def _watch_for(self, stop: AnyStop, slot: int, number: int) -> None:
        self._numbers[slot, number] = len(self.stops)
        self.stops.append(stop)

    def _find_phrases(self, term: Term) -> None:
        """The machines of all stops that are phrases."""
        stops = [atom for atom in _atoms(term) if isinstance(atom, Stop)]
        for inclusive in (True, False):
            phrases = dict.fromkeys(stop.phrase for stop in stops if stop.inclusive == inclusive)
            if phrases:
                slot, machine = len(self._contents), StopPhrases(phrases)
                self._contents.append(machine)
                self._finding[slot] = machine
                self._phrases[inclusive] = slot, machine

    def reached(self, atoms: Atoms) -> list[tuple[AnyStop, int]]:
        """The stops that end exactly here, in their order, each with the length of what it has found."""
        numbers = sorted(
            (self._numbers[slot, number], length)
            for slot, machine in self._finding.items()
            for number, length in machine.found(atoms[slot])
        )
        return [(self.stops[number], length) for number, length in numbers]

    @property
    def counts_parts(self) -> bool:
        """Whether words or sentences are counted: then what a byte adds depends on the state."""
        return bool(self._parts)

    # Counting ----------------------------------------------------------------------------------------------------

    def added(self, before: Atoms, after: Atoms, starts_character: bool) -> int:
        """What one byte between two places adds to the counts, tokens left out."""
        added = self.counts.one("characters") if starts_character else 0
        for unit, (slot, machine) in self._parts.items():
            if machine.begins(before[slot], after[slot]):
                added += self.counts.one(unit)
        return added

    def judged(self, atoms: Atoms) -> Atoms:
        """What a value that ends here is judged by: how far a stop has come is not part of it."""
        return tuple(0 if slot in self._of_stops else atom for slot, atom in enumerate(atoms))

    # Judging -----------------------------------------------------------------------------------------------------

    def holds(self, atoms: Atoms, count: int) -> bool:
        """Whether a value that ends here meets the term."""
        return self._judge(self.term, atoms, self.counts.unpack(count), None).holds

    def fires(self, atoms: Atoms, count: int, reached: AnyStop) -> bool:
        """Whether this stop, which was just reached, ends the hole for a value that ends here."""
        return self._judge(self.term, atoms, self.counts.unpack(count), reached).fires

    def _judge(self, term: Term, atoms: Atoms, values: tuple[int, ...], reached: AnyStop | None) -> Judgement:
        match term:
            case Constant(holds):
                return Judgement(holds, False)
            case Length(at_least, at_most, unit):
                value = values[self._units[unit]]
                return Judgement(at_least <= value and (at_most is None or value <= at_most), False)
            case Choice() | Matches() | Contains() | Begins() | Ends() | Lacks():
                slot = self._slots[id(term)]
                return Judgement(self._contents[slot].holds(atoms[slot]), False)
            case Stop() | StopPattern():
                return Judgement(True, term == reached)
            case Not(part):
                return Judgement(not self._judge(part, atoms, values, reached).holds, False)
            case And():
                others, stops = self._conjuncts[id(term)]
                parts = [self._judge(part, atoms, values, reached) for part in others]
                holds = all(part.holds for part in parts)
                return Judgement(holds, holds and (reached in stops or any(part.fires for part in parts)))
            case Or(terms):
                parts = [self._judge(part, atoms, values, reached) for part in terms]
                return Judgement(any(part.holds for part in parts), any(part.fires for part in parts))

    # Estimating --------------------------------------------------------------------------------------------------

    def ways(self, atoms: Atoms) -> tuple[Way, ...]:
        """How the term may come to hold in a continuation. A superset: never less than what is possible."""
        ways = self._ways.get(atoms)
        if ways is None:
            ways = self._ways[atoms] = self._ways_of(self.term, atoms)
        return ways

    def may_hold(self, atoms: Atoms) -> bool:
        """Whether a value that ends here meets the term if its counts are right."""
        return any(way.num_bytes == 0 for way in self.ways(atoms))

    def _ways_of(self, term: Term, atoms: Atoms) -> tuple[Way, ...]:
        match term:
            case Constant(False):
                return ()
            case Length(at_least, at_most, unit):
                return (Way(0, 0, self._bounds(unit, at_least, NEVER if at_most is None else at_most)),)
            case Choice() | Matches() | Contains() | Begins() | Ends() | Lacks():
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

    def _bounds(self, unit: Unit, low: int, high: int) -> Bounds:
        return tuple((low, high) if each == unit else FREE for each in self.counts.units)

    def at_least(self, ways: tuple[Way, ...], atoms: Atoms, count: int) -> int:
        """A number of bytes below which none of these ways is gone to its end."""
        values = self.counts.unpack(count)
        if len(ways) == 1:
            return self._length_of(ways[0], atoms, values)
        return min((self._length_of(way, atoms, values) for way in ways), default=NEVER)

    def _length_of(self, way: Way, atoms: Atoms, values: tuple[int, ...]) -> int:
        num_bytes, num_characters, bounds = way
        for at, (low, high) in enumerate(bounds):
            value = values[at]
            if value > high:
                return NEVER
            if value < low:
                unit, more = self.counts.units[at], low - value
                if unit in self._parts:
                    slot, machine = self._parts[unit]
                    missing = machine.missing(atoms[slot], more)
                    num_bytes = max(num_bytes, missing.num_bytes)
                    num_characters = max(num_characters, missing.num_characters)
                elif unit == "characters":
                    num_characters = max(num_characters, more)
                else:
                    num_bytes = max(num_bytes, more)
        num_bytes = max(num_bytes, num_characters)
        for index, more in ((self._characters, num_characters), (self._tokens, num_bytes)):
            if index is not None and values[index] + more > bounds[index][1]:
                return NEVER
        return num_bytes


def _atoms(term: Term) -> Iterator[Term]:
    match term:
        case And(terms) | Or(terms):
            for part in terms:
                yield from _atoms(part)
        case Not(part):
            yield from _atoms(part)
        case _:
            yield term


def _longest(stop: AnyStop) -> int:
    """The most characters that a stop cuts off."""
    return characters(stop.phrase) if isinstance(stop, Stop) else LONGEST_CUT


def _lengths(term: Term) -> list[Length]:
    match term:
        case And(terms) | Or(terms):
            return [length for part in terms for length in _lengths(part)]
        case Length():
            return [term]
    return []  # `simplify` leaves no length under `not`
