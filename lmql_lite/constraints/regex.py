"""The byte machine of a regular expression: subsets of its program's places, made as they are walked to."""

from __future__ import annotations

from collections import Counter

from lmql_lite.constraints.atoms import DEAD, NEVER, Moves, Need
from lmql_lite.constraints.charset import DONE
from lmql_lite.constraints.pattern import MATCH, UnsupportedPattern, program
from lmql_lite.errors import ConstraintError, Span

SUBSET_BUDGET = 500_000
"""Places in all subsets together, about 100 bytes each."""

Place = tuple[int, int]
"""A step of the program, and how far its character has been read: a node of its set."""
BETWEEN = (*range(0x80), *range(0xC2, 0xF5))
CONTINUING = range(0x80, 0xC0)
"""The bytes of UTF-8 between two characters, and inside one. The others never come here."""


class Regex:
    """Equal to `re.fullmatch` on well-formed UTF-8; what it does on other bytes means nothing."""

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
        self._number(self._entered(frozenset(), self._program.start))  # state 0, also where no text matches

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

    def need(self, state: int) -> Need:
        """Exact in bytes, and exact in characters."""
        return Need(NEVER, 0) if state == DEAD else self._needs[state]

    def _expand(self, subset: frozenset[Place]) -> Moves:
        """Bytes are cut where the reach of some place begins or ends: what is between two cuts is stepped once."""
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


def _compact(special: dict[int, int]) -> Moves:
    """The commonest successor of the bytes that may stand here stands for all of them that are not named."""
    expected = CONTINUING if any(byte in CONTINUING for byte in special) else BETWEEN
    successors = {byte: special.get(byte, DEAD) for byte in expected}
    commonest = Counter(successors.values()).most_common(1)[0][0]
    return Moves({byte: after for byte, after in successors.items() if after != commonest}, commonest)
