"""Computes how much a text lacks to reach the goals of a term: at one place, at many at once, or in the worst case."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import NEVER, UNFINISHED, Atoms, Need
from lmql_lite.constraints.counters import FLAGS_IN_LANE, Counts, Goal
from lmql_lite.constraints.phrases import FlaggedPhrases, overlap
from lmql_lite.constraints.search import Reach
from lmql_lite.constraints.superstrings import FEW, Avoiding, Superstrings
from lmql_lite.constraints.units import Occurrences, Parts, Unit, WordMachine

IntArray = NDArray[np.intp]

AT_ONCE = 2**18
"""Most places times goals that are judged in one step."""


class Margin(NamedTuple):
    """Sufficient condition for a goal to stay reachable from every state, within `num_bytes`.

    At most `left` may be added to each count, and no flag in `unwanted` may be raised. Where nothing is missing, the
    condition is exact: no more may be added.
    """

    left: tuple[int, ...]
    unwanted: int
    num_bytes: int
    is_exact: bool


class Missing:
    """Computes what the goals of a term lack.

    `parts` are the machines that count, each with the index of its state. `wanted` are the phrases of the first flags.
    `finder` finds all phrases that have a flag, and `finds` is the index of its state.
    """

    def __init__(
        self,
        counts: Counts,
        parts: dict[Unit, tuple[int, Parts]],
        wanted: list[bytes],
        finder: FlaggedPhrases | None,
        finds: int,
    ) -> None:
        self.counts = counts
        self._parts = parts
        self._finder, self._finds = finder, finds
        self._units = {unit: index for index, unit in enumerate(counts.units)}
        self._characters, self._tokens = self._units.get("characters"), self._units.get("tokens")
        self._wanted = (1 << len(wanted)) - 1
        texts = finder.texts if finder else [b""]
        self._shortest = Superstrings(wanted, texts)
        self.is_ascii, self.crowd = all(map(bytes.isascii, wanted)), self._shortest.crowd
        self._fewest = self._shortest if self.is_ascii else Superstrings(wanted, texts, characters=True)
        self._avoiding: dict[tuple[int, int], Avoiding | None] = {}
        self.is_one_word = not any(any(map(str.isspace, phrase.decode("utf-8", "ignore"))) for phrase in wanted)
        """True if all wanted phrases fit into one word."""
        words = parts.get("words")
        self._words = (words[0], words[1]) if words and isinstance(words[1], WordMachine) else None
        phrases = [unit.phrase for unit in parts if isinstance(unit, Occurrences)]
        self._shared = {phrase: _shared(phrase, phrases) for phrase in phrases if phrase.isascii()}
        """Result of `_shared` for each counted phrase that is ASCII."""
        self.are_apart = not any(self._shared.values())
        """True if no two counted phrases can share a byte of a text, so that sizes add up. Decided for ASCII only."""
        self.fit_in_a_row = len(self._shared) == len(phrases) and not any(
            max(shared.values())[0] + max(overlap(phrase, other) for other in phrases) >= len(phrase)
            for phrase, shared in self._shared.items()
            if shared
        )
        """True if counted phrases are ASCII and writing whole ones one after another creates no other occurrence."""
        self._solid = {phrase for phrase in phrases if not any(map(str.isspace, phrase.decode()))}
        """Counted phrases without white space."""

    def at_least(self, goals: tuple[Goal, ...], atoms: Atoms, count: int, reach: Reach, unfinished: int) -> int:
        """Lower bound on the tokens to one of these goals, NEVER if none is reachable. A token has at most `reach`."""
        values, flags = self.counts.unpack(count), self.counts.flags(count)
        if len(goals) == 1:
            return self._length_of(goals[0], atoms, values, flags, reach, unfinished)
        return min((self._length_of(goal, atoms, values, flags, reach, unfinished) for goal in goals), default=NEVER)

    def _length_of(
        self, goal: Goal, atoms: Atoms, values: tuple[int, ...], flags: int, reach: Reach, unfinished: int
    ) -> int:
        num_bytes, num_characters, bounds, wanted, unwanted, _ = goal
        if unwanted & flags:
            return NEVER
        num_tokens = 0
        more_parts: dict[Unit, int] = {}
        for at, (low, high) in enumerate(bounds):
            value = values[at]
            if value > high:
                return NEVER
            unit = self.counts.units[at]
            if value < low:
                more = low - value
                if unit in self._parts:
                    more_parts[unit] = more
                    if isinstance(self._parts[unit][1], WordMachine):
                        num_tokens = max(num_tokens, -(-more // reach.words))
                elif unit == "characters":
                    num_characters = max(num_characters, more)
                else:
                    num_tokens = max(num_tokens, more)
        if more_parts:
            missing = self._missing_parts(more_parts, atoms, unfinished)
            num_bytes, num_characters = max(num_bytes, missing[0]), max(num_characters, missing[1])
        avoiding = self.avoid(goal)
        if avoiding is not None:
            missed = avoiding.missing(atoms[self._finds], wanted & ~flags)
            if missed >= NEVER:
                return NEVER
            num_characters = max(num_characters, missed)
        elif wanted & ~flags:
            text, left = atoms[self._finds], wanted & ~flags & self._wanted
            num_bytes = max(num_bytes, self._shortest.least(text, left) + unfinished * self.is_ascii)
            num_characters = max(num_characters, self._fewest.least(text, left))
            if self._words and self.is_one_word and atoms[self._words[0]] < self._words[1].width:
                at = self._units["words"]
                if values[at] >= bounds[at][1]:
                    return NEVER
        num_tokens = max(num_tokens, -(-max(num_bytes, num_characters + unfinished) // reach.bytes))
        for index, more in ((self._characters, num_characters), (self._tokens, num_tokens)):
            if index is not None and values[index] + more > bounds[index][1]:
                return NEVER
        return num_tokens

    def _missing_parts(self, more: dict[Unit, int], atoms: Atoms, unfinished: int) -> Need:
        """Lower bound on the size of `more` parts of each unit. Exact for phrases that share no byte."""
        num_bytes, num_characters, of_phrases, begun, between = 0, 0, 0, -unfinished, 0
        for unit, how_many in more.items():
            slot, machine = self._parts[unit]
            least, most = machine.missing(atoms[slot], how_many), machine.most_missing(how_many)
            # inside a character that may begin or end a part, the machine has counted the rest of the character
            rest = 0 if machine.is_inside(atoms[slot]) else unfinished
            num_bytes, num_characters = max(num_bytes, least[0] + rest), max(num_characters, least[1])
            if isinstance(unit, Occurrences):
                shared = self._shared.get(unit.phrase)
                if shared is not None:
                    before = [(size, often * more[other]) for other, (size, often) in shared.items() if other in more]
                    size, many = max((size for size, _ in before), default=0), sum(many for _, many in before)
                    of_phrases += most[0] - size * min(how_many, many)
                    begun = max(begun, most[0] - least[0] - size * (how_many <= many) - rest)
            elif unit == "words":
                between = least[1] - how_many
        is_solid = all(unit.phrase in self._solid for unit in more if isinstance(unit, Occurrences))
        together = max(of_phrases - begun, 0) + between * is_solid
        return Need(max(num_bytes, together), max(num_characters, together - unfinished))

    def _most_of_parts(self, more: dict[Unit, int]) -> Need:
        """Upper bound on the size of `more` parts of each unit, from any state."""
        num_bytes, num_characters, in_a_row = 0, 0, 0
        for unit, how_many in more.items():
            most = self._parts[unit][1].most_missing(how_many)
            num_bytes, num_characters = max(num_bytes, most[0]), max(num_characters, most[1])
            if isinstance(unit, Occurrences):
                in_a_row += most[0]
        in_a_row += in_a_row > 0 and not self.are_apart
        return Need(max(num_bytes, in_a_row), max(num_characters, in_a_row))

    @cached_property
    def _rooms(self) -> dict[Unit, tuple[int, IntArray, int]]:
        """For each unit with a machine: the index of its state, a table, and the characters of each further part.

        The table has the characters to one more and to two more parts, shape (2, states).
        """
        rooms = {}
        for unit, (slot, machine) in self._parts.items():
            states = range(machine.num_states)
            nearest = [[machine.missing(state, more).num_characters for state in states] for more in (1, 2)]
            again = machine.most_missing(3).num_characters - machine.most_missing(2).num_characters
            if isinstance(unit, Occurrences) and not self.are_apart:  # a begun phrase is given up
                nearest = [[again] * len(states), [2 * again] * len(states)]
            rooms[unit] = slot, np.array(nearest, dtype=np.intp), again
        return rooms

    def distances(self, goals: tuple[Goal, ...], atoms: IntArray, values: IntArray, flags: IntArray) -> IntArray:
        """Characters that are missing at many places, NEVER where no goal can be reached.

        Only for terms of nothing but phrases or nothing but counts. `atoms` has shape (places, machines), `values` has
        (places, counts), and `flags` has (lanes, places).
        """
        least: IntArray = np.full(len(atoms), NEVER, dtype=np.intp)
        at_once = max(AT_ONCE // max(len(atoms), 1), 1)
        for first in range(0, len(goals), at_once):
            some = goals[first : first + at_once]
            demanded = self._room_of_phrases(some, atoms, flags)
            begins = demanded > 0
            if self._words:
                begins &= atoms[:, self._words[0]] < self._words[1].width
            if self._parts:
                np.maximum(demanded, self._room_of_parts(some, atoms, values), out=demanded)
            for unit, here in zip(self.counts.units, values.T, strict=True):
                low, high = np.array([goal.bounds[self._units[unit]] for goal in some]).T[..., None]
                if unit == "characters":
                    here = here + np.maximum(demanded, low - here, out=demanded)
                elif unit == "words":
                    here = here + begins
                demanded[here > high] = NEVER
            np.minimum(least, demanded.min(axis=0), out=least)
        return least

    def _room_of_phrases(self, goals: tuple[Goal, ...], atoms: IntArray, flags: IntArray) -> IntArray:
        """Characters of all missing phrases, NEVER where an unwanted one has occurred. Shape (goals, places)."""
        if self._finder is None:
            return np.zeros((len(goals), len(atoms)), dtype=np.intp)
        texts = atoms[:, self._finds]
        wanted = [lane & ~raised for lane, raised in zip(self._lanes(g.wanted for g in goals), flags, strict=True)]
        demanded = self._shortest.least_of_all(np.tile(texts, len(goals)), [lane.ravel() for lane in wanted])
        demanded = demanded.reshape(len(goals), -1)
        for at, goal in enumerate(goals):
            avoiding = self.avoid(goal)
            if avoiding is not None:
                demanded[at] = avoiding.missing_of_all(texts, [lane[at] for lane in wanted], FLAGS_IN_LANE)
        for lane, raised in zip(self._lanes(g.unwanted for g in goals), flags, strict=True):
            demanded[(lane & raised) != 0] = NEVER
        return demanded

    def _room_of_parts(self, goals: tuple[Goal, ...], atoms: IntArray, values: IntArray) -> IntArray:
        """Characters of all missing parts. Shape (goals, places)."""
        room, apart, begun = np.zeros((3, len(goals), len(atoms)), dtype=np.intp)
        for unit, (slot, (first, second), again) in self._rooms.items():
            at = self._units[unit]
            low = np.array([goal.bounds[at][0] for goal in goals], dtype=np.intp)[:, None]
            if not low.any():
                continue
            more = np.maximum(low - values[:, at], 0)
            state = atoms[:, slot]
            saved = np.where(more > 1, 2 * again - second[state], np.where(more > 0, again - first[state], 0))
            if isinstance(unit, Occurrences):
                apart += more * again
                np.maximum(begun, saved, out=begun)
            else:
                np.maximum(room, more * again - saved, out=room)
        if not self.are_apart:  # a filler character ends a begun phrase
            apart += apart > 0
        np.maximum(room, apart - begun, out=room)
        return room

    def margins(self, goals: tuple[Goal, ...], values: tuple[int, ...], flags: int) -> list[Margin]:
        """Margins of the goals, as if every place lacked the most that any place can lack."""
        found = []
        for goal in goals:
            if goal.unwanted & flags:
                continue
            wanted, avoiding = goal.wanted & ~flags & self._wanted, self.avoid(goal)
            shortest = avoiding.most(wanted) if avoiding else self._shortest.least(0, wanted)
            fewest = shortest if avoiding else self._fewest.least(0, wanted)
            num_bytes, num_characters = max(goal.num_bytes, shortest), max(goal.num_characters, fewest)
            more = [max(low - value, 0) for (low, _), value in zip(goal.bounds, values, strict=True)]
            parts = {
                unit: each for unit, each in zip(self.counts.units, more, strict=True) if each and unit in self._parts
            }
            missing = self._most_of_parts(parts)
            num_bytes, num_characters = max(num_bytes, missing[0]), max(num_characters, missing[1])
            if self._words:
                at = self._units["words"]
                more[at] = max(more[at], shortest > 0)
            if self._characters is not None:
                more[self._characters] = num_characters = max(num_characters, more[self._characters])
            left = [high - here - each for (_, high), here, each in zip(goal.bounds, values, more, strict=True)]
            num_bytes = max(num_bytes, num_characters) + max(UNFINISHED)
            found.append(Margin(tuple(left), goal.unwanted, num_bytes, not (wanted or any(more))))
        return found

    def _lanes(self, flags: Iterable[int]) -> list[IntArray]:
        """Splits flags into lanes: an array of shape (flags, 1) for each lane."""
        return list(np.array([self.counts.flag_lanes(each) for each in flags], dtype=np.intp).T[..., None])

    def avoid(self, goal: Goal) -> Avoiding | None:
        """Table for a goal with unwanted phrases. None if it has none, wants too many, or some are not plain."""
        if not goal.unwanted:
            return None
        key = goal.wanted, goal.unwanted
        if key not in self._avoiding:
            assert self._finder is not None, "what is unwanted has a flag"
            few = goal.wanted.bit_count() <= FEW and self._finder.is_plain
            self._avoiding[key] = Avoiding(self._finder, *key, self.counts.flags_at) if few else None
        return self._avoiding[key]


def _shared(phrase: bytes, others: Iterable[bytes]) -> dict[Unit, tuple[int, int]]:
    """Maps each other phrase whose earlier occurrence can share bytes with occurrences of `phrase` to two numbers.

    They are the most bytes shared with one of those occurrences, and the most occurrences with which it shares bytes.
    """
    found: dict[Unit, tuple[int, int]] = {}
    for other in others:
        size = len(phrase) if phrase in other else overlap(other, phrase)
        if size and other != phrase:
            found[Occurrences(other)] = size, len(other) // size + 1
    return found
