"""The stops of a term: one byte machine for all phrases with which a value ends, one for all before which it ends, and
one for each pattern. Their states stand before those of the other atoms."""

from __future__ import annotations

from collections.abc import Iterable

from lmql_lite.constraints.atoms import StopPhrases
from lmql_lite.constraints.places import Atoms
from lmql_lite.constraints.regex import LONGEST_CUT, Found
from lmql_lite.constraints.simplify import characters
from lmql_lite.constraints.terms import Stop, StopPattern

AnyStop = Stop | StopPattern


class Stops:
    def __init__(self, stops: Iterable[AnyStop]) -> None:
        self.all = tuple(dict.fromkeys(stops))
        """In the order in which they stand in the term."""
        self.machines: list[StopPhrases | Found] = []
        self.cutting: list[tuple[int, StopPhrases | Found]] = []
        """The machines of stops before which a value is cut, and where their states stand."""
        self._numbers: dict[tuple[int, int], int] = {}
        """Where a machine's state stands, and its number of what it finds -> the place of that stop in `all`."""
        numbers = {stop: number for number, stop in enumerate(self.all)}
        for inclusive in (True, False):
            phrases = {stop.phrase: stop for stop in self.all if isinstance(stop, Stop) and stop.inclusive == inclusive}
            if phrases:
                machine = StopPhrases(phrases)
                found = {machine.number(phrase): numbers[stop] for phrase, stop in phrases.items()}
                self._add(machine, found, inclusive)
        for stop in self.all:
            if isinstance(stop, StopPattern):
                pattern = Found(stop.pattern, stop.flags, stop.span, measured=not stop.inclusive)
                self._add(pattern, {0: numbers[stop]}, stop.inclusive)
        self.room = max((_longest(stop) for stop in self.all if not stop.inclusive), default=0)
        """The most characters by which a value is shorter than the text."""

    def _add(self, machine: StopPhrases | Found, found: dict[int, int], inclusive: bool) -> None:
        slot = len(self.machines)
        self.machines.append(machine)
        self._numbers.update({(slot, number): place for number, place in found.items()})
        if not inclusive:
            self.cutting.append((slot, machine))

    def reached(self, atoms: Atoms) -> list[tuple[AnyStop, int]]:
        """Those that end exactly here, in their order, each with the length of what it has found."""
        numbers = sorted(
            (self._numbers[slot, number], length)
            for slot, machine in enumerate(self.machines)
            for number, length in machine.found(atoms[slot])
        )
        return [(self.all[number], length) for number, length in numbers]


def _longest(stop: AnyStop) -> int:
    """The most characters that a stop cuts off."""
    return characters(stop.phrase) if isinstance(stop, Stop) else LONGEST_CUT
