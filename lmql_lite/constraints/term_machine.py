"""A term as byte automata, one for each atom, and the counts and flags that the term compares.

Everything here is a function of the machines' states and of the counts. `Automaton` combines them to states and has the
transitions.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import NEVER, Atoms, Beginnings, Need, OptionMachine
from lmql_lite.constraints.counters import FREE, Bounds, Counts, Goal, Regions, both, possible
from lmql_lite.constraints.missing import Missing
from lmql_lite.constraints.phrases import (
    AnyStop,
    Endings,
    FlaggedPhrases,
    NoPhrase,
    PhraseCounter,
    StopPhrases,
    Stops,
)
from lmql_lite.constraints.regex import MatchEnds, Regex
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
)
from lmql_lite.constraints.units import COUNTED_ALONE, Occurrences, Parts, Unit, parts

IntArray = NDArray[np.intp]


class Judgement(NamedTuple):
    """Result of a term for a text. `fires` is true if the stop that was just reached ends the hole (S13).

    A stop counts as true in `holds`. It fires only if every conjunction that it is part of holds.
    """

    holds: bool
    fires: bool


Content = OptionMachine | Beginnings | Endings | NoPhrase | Regex | MatchEnds | StopPhrases


class TermMachine:
    def __init__(self, term: Term) -> None:
        self.term = term
        """Term in the normal form of `simplify`."""
        self.stops = Stops(atom for atom in _atoms(term) if isinstance(atom, Stop | StopPattern))
        self._contents: list[Content] = [*self.stops.machines]
        self._conjuncts: dict[int, tuple[tuple[Term, ...], frozenset[Term]]] = {}
        """Maps the `id` of a conjunction to its parts other than stops, and to its stops, which may be many."""
        self._slots: dict[int, int] = {}
        """Maps the `id` of an atom to the index of its machine's state; an atom with many options is slow to hash."""
        self._flags: dict[int, int] = {}
        """Maps the `id` of an atom that has a flag to its flag."""
        largest: dict[Unit, int] = {}
        flagged: dict[Term, list[int]] = {}
        self._collect(term, True, largest, {}, flagged)
        # a value that is cut is shorter than the text: the counts leave room to subtract what is cut off
        most = {unit: value + 1 + self.stops.room for unit, value in largest.items()}
        self.counts = Counts(most, len(flagged))
        machines: list[Content | FlaggedPhrases | Parts] = list(self._contents)
        self._finder, self._finds = self._find(flagged), len(machines)
        if self._finder is not None:
            machines.append(self._finder)
        self._parts: dict[Unit, tuple[int, Parts]] = {}
        """Maps a unit to the machine that counts it and the index of its state, after those of the atoms."""
        for unit in self.counts.units:
            if unit not in COUNTED_ALONE:
                machine = PhraseCounter(unit.phrase) if isinstance(unit, Occurrences) else parts(unit)
                self._parts[unit] = len(machines), machine
                machines.append(machine)
        self.machines: Sequence[Content | FlaggedPhrases | Parts] = machines
        self.regions = Regions(self.counts.units, [atom for atom in _atoms(term) if isinstance(atom, Length)])
        self._units = {unit: index for index, unit in enumerate(self.counts.units)}
        self._characters, self._tokens = self._units.get("characters"), self._units.get("tokens")
        self._always = Goal(0, 0, (FREE,) * len(self._units))
        self._goals: dict[tuple[Need, ...], tuple[Goal, ...]] = {}
        wanted = [atom.phrase for atom in flagged if isinstance(atom, Contains)]
        self.phrases_help = len(wanted) == len(flagged)
        """True if all flags are for wanted phrases: then no phrase in the text puts a valid end out of reach."""
        self.missing = Missing(self.counts, self._parts, wanted, self._finder, self._finds)
        self.only_phrases = bool(flagged) and self._has_only_phrases()
        """True if the term compares only phrases, characters and words, and what is missing needs no search."""
        self.only_counts = self._has_only_counts()

    def _collect(
        self,
        term: Term,
        is_needed: bool,
        largest: dict[Unit, int],
        known: dict[Term, int],
        flagged: dict[Term, list[int]],
    ) -> None:
        """Collects atoms, flags and largest bounds. `is_needed` is true if the term cannot hold without this part."""
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

    def _find(self, flagged: dict[Term, list[int]]) -> FlaggedPhrases | None:
        """Machine that finds the phrases of all atoms with flags. Wanted phrases have the first flags."""
        atoms = sorted(flagged, key=lambda atom: not isinstance(atom, Contains))
        phrases: list[tuple[bytes, int]] = []
        for at, atom in enumerate(atoms):
            flag = self.counts.flagged(1 << at)
            self._flags.update(dict.fromkeys(flagged[atom], 1 << at))
            assert isinstance(atom, Contains | Lacks)
            phrases += [(phrase, flag) for phrase in ((atom.phrase,) if isinstance(atom, Contains) else atom.phrases)]
        return FlaggedPhrases(phrases) if phrases else None

    # Counting ----------------------------------------------------------------------------------------------------

    def added(self, before: Atoms, after: Atoms, starts_character: bool) -> int:
        """Increment of the counts for one byte, by the states before and after it; tokens and flags left out."""
        added = self.counts.one("characters") if starts_character else 0
        for unit, (slot, machine) in self._parts.items():
            if machine.adds_one(before[slot], after[slot]):
                added += self.counts.one(unit)
        return added

    def raised(self, atoms: Atoms) -> dict[int, int]:
        """Maps bytes to the flags that they raise from here, as part of a count. Bytes that raise none are left out."""
        return self._finder.found[atoms[self._finds]] if self._finder else {}

    def judged(self, atoms: Atoms) -> Atoms:
        """States by which a value that ends here is judged: those of stops are reset."""
        many = len(self.stops.machines)
        return (0,) * many + atoms[many:]

    # Judging -----------------------------------------------------------------------------------------------------

    def holds(self, atoms: Atoms, count: int) -> bool:
        """True if a value that ends here meets the term."""
        return self._judge(self.term, atoms, count, None).holds

    def fires(self, atoms: Atoms, count: int, reached: AnyStop) -> bool:
        """True if this stop, which was just reached, ends the hole for a value that ends here."""
        return self._judge(self.term, atoms, count, reached).fires

    def grounds(self, atoms: Atoms, count: int) -> tuple[int, int]:
        """Two sets of flags such that the term holds here if all of the first are raised, and none of the second."""
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

    def goals(self, atoms: Atoms, unfinished: int = 0) -> tuple[Goal, ...]:
        """Goals of all continuations that may meet the term. Some goals may be unreachable."""
        needs = tuple([machine.need(at, unfinished) for machine, at in zip(self._contents, atoms, strict=False)])
        goals = self._goals.get(needs)
        if goals is None:
            goals = self._goals[needs] = self._goals_of(self.term, atoms, unfinished)
        return goals

    def may_hold(self, atoms: Atoms) -> bool:
        """True if a value that ends here may meet the term, depending on its counts and flags."""
        return any(goal.num_bytes == 0 for goal in self.goals(atoms))

    def _goals_of(self, term: Term, atoms: Atoms, unfinished: int) -> tuple[Goal, ...]:
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
                need = self._contents[slot].need(atoms[slot], unfinished)
                return (Goal(*need, self._always.bounds),) if need.num_bytes < NEVER else ()
            case And():
                goals: tuple[Goal, ...] = (self._always,)
                for part in self._conjuncts[id(term)][0]:
                    some = self._goals_of(part, atoms, unfinished)
                    goals = some if goals[:1] == (self._always,) else possible(both(a, b) for a in goals for b in some)
                return goals
            case Or(terms):
                return possible(goal for part in terms for goal in self._goals_of(part, atoms, unfinished))
        return (self._always,)

    def _bounds(self, unit: Unit, low: int, high: int | None) -> Bounds:
        bounds = (low, NEVER if high is None else high)
        return tuple(bounds if each == unit else FREE for each in self.counts.units)

    def _has_only_phrases(self) -> bool:
        """True if only phrases, characters and words are compared, and what is missing can be computed exactly."""
        units = all(unit in ("characters", "words") for unit in self.counts.units)
        plain = len(self._contents) == len(self.stops.machines) and not self.stops.cutting
        goals = self._goals_of(self.term, (), 0) if units and plain else ()
        if "words" in self.counts.units:  # what is missing has at most one word
            at = self._units["words"]
            one_word = all(not goal.unwanted and goal.bounds[at][0] == 0 for goal in goals)
            goals = goals if one_word and self.missing.is_one_word else ()
        return (
            bool(goals)
            and all(goal.is_exact for goal in goals)
            and self.missing.is_ascii
            and all(not goal.unwanted or self.missing.avoid(goal) is not None for goal in goals)
        )

    def _has_only_counts(self) -> bool:
        """True if only counts are missing, and text can raise each without another (a sentence also adds a word)."""
        others = [machine for machine in self._contents if machine not in self.stops.machines]
        said = b"".join(unit.phrase for unit in self._parts if isinstance(unit, Occurrences))
        forbidden = b"".join(bytes(each.said) for each in others if isinstance(each, NoPhrase))
        spare = bytes(range(0x80)).translate(None, forbidden)
        if said:
            material, filler = said, spare.translate(None, said)
            are_few = all(isinstance(unit, Occurrences) for unit in self._parts) and self.missing.fit_in_a_row
        else:
            material, filler = b" .", spare
            are_few = len(self._parts) <= 1 and all(machine.has_filler for _, machine in self._parts.values())
        return (
            not self.counts.num_flags
            and not self.stops.cutting
            and "tokens" not in self.counts.units
            and are_few
            and all(isinstance(each, NoPhrase) and max(each.said) < 0x80 for each in others)
            and all(each in spare for each in material)
            and any(each in filler for each in string.ascii_letters.encode())
            and all(goal.is_exact for goal in self._goals_of(self.term, (0,) * len(self.machines), 0))
        )


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
            return OptionMachine(options)
        case Matches(pattern, flags, _, span):
            return Regex(pattern, flags, span)
        case Begins(phrases):
            return Beginnings(phrases)
        case Ends(phrases):
            return Endings(phrases)
        case Lacks(phrases):
            return NoPhrase(phrases)
