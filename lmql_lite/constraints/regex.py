"""Byte machine of a regular expression: subsets of its program's places, built as far as it is walked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from lmql_lite.constraints.atoms import DEAD, NEVER, Moves, Need
from lmql_lite.constraints.charset import DONE, charset, others
from lmql_lite.constraints.pattern import MATCH, UnsupportedPattern, program
from lmql_lite.errors import ConstraintError, Span

SUBSET_BUDGET = 500_000
"""Most places in all subsets together, at about 100 bytes each."""

Place = tuple[int, int]
"""A step of the program, and the node of its set up to which its character has been read."""
Aged = tuple[Place, int]
"""A place, and the number of bytes since its match began."""
SKIP = -1
"""Stands in for an instruction while no match has begun."""
LONGEST_CUT = 64
"""Most characters of a match before which a value is cut."""
BETWEEN = (*range(0x80), *range(0xC2, 0xF5))
CONTINUING = range(0x80, 0xC0)
"""Bytes that UTF-8 allows after a whole character, and inside one. Other bytes never reach these machines."""


class Regex:
    """Equivalent to `re.fullmatch` on well-formed UTF-8; undefined on other bytes."""

    def __init__(self, pattern: str, flags: int, span: Span | None) -> None:
        try:
            self._program = program(pattern, flags)
        except UnsupportedPattern as error:
            raise ConstraintError(error.sentence, span=span, hint=error.hint) from None
        self._span = span
        self._numbers: dict[frozenset[Place], int] = {}
        self._subsets: list[frozenset[Place]] = []
        self._needs: list[Need] = []
        self._moves: list[Moves | None] = []
        self._size = 0
        self._number(self._entered(frozenset(), self._program.start))  # state 0, even if no text matches

    def moves(self, state: int) -> Moves:
        if state == DEAD:
            return Moves({}, DEAD)
        moves = self._moves[state]
        if moves is None:
            moves = self._moves[state] = self._expand(self._subsets[state])
        return moves

    def step(self, state: int, byte: int) -> int:
        moves = self.moves(state)
        return moves.special.get(byte, moves.other)

    def holds(self, state: int) -> bool:
        return state != DEAD and (MATCH, DONE) in self._subsets[state]

    def need(self, state: int, unfinished: int) -> Need:
        return Need(NEVER, 0) if state == DEAD else self._needs[state]

    def _expand(self, subset: frozenset[Place]) -> Moves:
        """Successors of a subset, found once for each run of bytes that no place tells apart."""
        reaches: list[tuple[int, int, Place]] = []
        for instruction, node in subset:
            if instruction != MATCH:
                characters, then = self._program.step(instruction)
                reaches += (
                    (low, high + 1, (then, DONE) if after == DONE else (instruction, after))
                    for low, high, after in characters.nodes[node]
                )
        cuts = sorted({cut for low, end, _ in reaches for cut in (low, end)})
        index = {cut: at for at, cut in enumerate(cuts)}
        reached: list[list[Place]] = [[] for _ in cuts]
        for low, end, place in reaches:
            for at in range(index[low], index[end]):
                reached[at].append(place)
        known: dict[frozenset[Place], int] = {}
        special: dict[int, int] = {}
        for at, places in enumerate(reached):
            if places:
                key = frozenset(places)
                if key not in known:
                    known[key] = self._arrive(key)
                if known[key] != DEAD:
                    special.update(dict.fromkeys(range(cuts[at], cuts[at + 1]), known[key]))
        return _compact(special)

    def _arrive(self, reached: frozenset[Place]) -> int:
        inside = frozenset(place for place in reached if place[1] != DONE)
        complete = frozenset(instruction for instruction, node in reached if node == DONE)
        after = self._entered(inside, self._program.enter(complete)) if complete else inside
        return self._number(after) if after else DEAD

    def _entered(self, places: frozenset[Place], instructions: frozenset[int]) -> frozenset[Place]:
        return places.union(
            (instruction, DONE if instruction == MATCH else self._program.step(instruction).characters.root)
            for instruction in instructions
        )

    def _number(self, subset: frozenset[Place]) -> int:
        number = self._numbers.get(subset)
        if number is None:
            self._size += len(subset)
            if self._size > SUBSET_BUDGET:
                raise ConstraintError(
                    "this regular expression has too many ways to be read at once",
                    span=self._span,
                    hint="smaller numbers in {..}, or parts that begin differently, make it smaller",
                )
            number = self._numbers[subset] = len(self._subsets)
            self._subsets.append(subset)
            self._needs.append(self._need(subset))
            self._moves.append(None)
        return number

    def _need(self, subset: frozenset[Place]) -> Need:
        num_bytes = num_characters = NEVER
        for instruction, node in subset:
            if instruction == MATCH:
                return Need(0, 0)
            characters, then = self._program.step(instruction)
            after = self._program.needs[then]
            num_bytes = min(num_bytes, characters.num_bytes[node] + after.num_bytes)
            num_characters = min(num_characters, int(node == characters.root) + after.num_characters)
        return Need(num_bytes, num_characters)


class MatchEnds:
    """Machine of a stop: finds the places where a match of its pattern ends, wherever the match began.

    With `measured`, it also knows the length in bytes of the longest match that ends here.
    """

    def __init__(self, pattern: str, flags: int, span: Span | None, *, measured: bool) -> None:
        try:
            self._program = program(pattern, flags)
        except UnsupportedPattern as error:
            raise ConstraintError(error.sentence, span=span, hint=error.hint) from None
        self._span = span
        self._measured = measured
        self._anything = charset(others(()))
        self._numbers: dict[frozenset[Aged], int] = {}
        self._threads: list[frozenset[Aged]] = []
        self._moves: list[Moves | None] = []
        self._size = 0
        self._number(self._started())

    def moves(self, state: int) -> Moves:
        moves = self._moves[state]
        if moves is None:
            moves = self._moves[state] = self._expand(self._threads[state])
        return moves

    def step(self, state: int, byte: int) -> int:
        moves = self.moves(state)
        return moves.special.get(byte, moves.other)

    def holds(self, state: int) -> bool:
        return any(place == (MATCH, DONE) for place, _ in self._threads[state])

    def found(self, state: int) -> tuple[tuple[int, int], ...]:
        """Longest match that ends here, in the form of `StopPhrases.found`: number 0, and its length in bytes."""
        ages = [age for place, age in self._threads[state] if place == (MATCH, DONE)]
        return ((0, max(ages)),) if ages else ()

    def under_way(self, state: int) -> int:
        """Number of last bytes that may belong to a match before which the value is cut."""
        return max((age for _, age in self._threads[state]), default=0)

    def need(self, state: int, unfinished: int) -> Need:
        return Need(0, 0)

    def _started(self) -> frozenset[Aged]:
        """Threads between two characters: a match may begin with the next one."""
        return frozenset((self._enter(step), 0) for step in self._program.start if step != MATCH) | {
            ((SKIP, self._anything.root), 0)
        }

    def _enter(self, instruction: int) -> tuple[int, int]:
        done = instruction == MATCH
        return instruction, DONE if done else self._program.step(instruction).characters.root

    def _expand(self, threads: frozenset[Aged]) -> Moves:
        reaches: list[tuple[int, int, Aged]] = []
        for (instruction, node), age in threads:
            if instruction == MATCH:
                continue
            characters, then = (self._anything, SKIP) if instruction == SKIP else self._program.step(instruction)
            older = age + (self._measured and instruction != SKIP)
            for low, high, after in characters.nodes[node]:
                reaches.append((low, high + 1, ((then, DONE) if after == DONE else (instruction, after), older)))
        cuts = sorted({cut for low, end, _ in reaches for cut in (low, end)})
        special: dict[int, int] = {}
        known: dict[frozenset[Aged], int] = {}
        for low, end in pairwise(cuts):
            key = frozenset(thread for first, last, thread in reaches if first <= low < last)
            if key:
                if key not in known:
                    known[key] = self._number(self._arrive(key))
                special.update(dict.fromkeys(range(low, end), known[key]))
        return _compact(special)

    def _arrive(self, reached: frozenset[Aged]) -> frozenset[Aged]:
        oldest: dict[Place, int] = {}
        for (instruction, node), age in reached:
            if node != DONE:
                places: Iterable[Place] = [(instruction, node)]
            elif instruction == SKIP:
                places = [place for place, _ in self._started()]
            else:
                places = map(self._enter, self._program.enter(frozenset({instruction})))
            for place in places:
                oldest[place] = max(age, oldest.get(place, 0))
        return frozenset(oldest.items())

    def _number(self, threads: frozenset[Aged]) -> int:
        number = self._numbers.get(threads)
        if number is None:
            self._size += len(threads)
            if self._size > SUBSET_BUDGET or any(age > 4 * LONGEST_CUT for _, age in threads):
                raise ConstraintError(
                    "this regular expression of a stop can match too many texts at once",
                    span=self._span,
                    hint=f"STOPS_BEFORE cuts at most {LONGEST_CUT} characters: write {{1,20}} instead of + or *",
                )
            number = self._numbers[threads] = len(self._threads)
            self._threads.append(threads)
            self._moves.append(None)
        return number


def _compact(special: dict[int, int]) -> Moves:
    """Moves whose default is the commonest successor of the bytes that may come here."""
    expected = CONTINUING if any(byte in CONTINUING for byte in special) else BETWEEN
    successors = {byte: special.get(byte, DEAD) for byte in expected}
    commonest = Counter(successors.values()).most_common(1)[0][0]
    return Moves({byte: after for byte, after in successors.items() if after != commonest}, commonest)
