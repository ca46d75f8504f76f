"""Aho-Corasick automata (1975), which find phrases anywhere in a text, and the machines that are built on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from lmql_lite.constraints.atoms import (
    DEAD,
    EVERY_BYTE,
    FIRST_BYTES,
    NEVER,
    Atoms,
    Moves,
    Need,
    Trie,
    starts_character,
)
from lmql_lite.constraints.regex import LONGEST_CUT, MatchEnds
from lmql_lite.constraints.simplify import characters
from lmql_lite.constraints.terms import Stop, StopPattern


def overlap(text: bytes, phrase: bytes) -> int:
    """Length of the longest proper prefix of a phrase that is a suffix of a text."""
    for size in range(min(len(text), len(phrase) - 1), 0, -1):
        if text.endswith(phrase[:size]):
            return size
    return 0


class Phrases:
    """Aho-Corasick automaton. The state is the trie node of the longest prefix of a phrase with which the text ends."""

    def __init__(self, phrases: Iterable[bytes]) -> None:
        self._trie = Trie(phrases)
        children = self._trie.children
        self._shorter = [0] * len(children)
        """Failure link of each node: the node of the longest proper suffix of its text that is in the trie."""
        self._order: list[int] = []
        """All nodes, shorter texts before longer ones."""
        queue = deque([0])
        while queue:
            node = queue.popleft()
            self._order.append(node)
            for byte, child in children[node].items():
                queue.append(child)
                end = self._shorter[node]
                while end and byte not in children[end]:
                    end = self._shorter[end]
                self._shorter[child] = children[end].get(byte, 0) if node else 0
        self._moves: dict[int, Moves] = {}

    def moves(self, state: int) -> Moves:
        ends = [state]
        while ends[-1] not in self._moves and ends[-1]:
            ends.append(self._shorter[ends[-1]])
        for end in reversed(ends):
            if end not in self._moves:
                fallback = self._moves[self._shorter[end]].special if end else {}
                self._moves[end] = Moves({**fallback, **self._trie.children[end]}, 0)
        return self._moves[state]

    def chain(self, state: int) -> list[int]:
        """Nodes of all suffixes of the text that are in the trie, the longest first, without the root."""
        nodes = []
        while state:
            nodes.append(state)
            state = self._shorter[state]
        return nodes


class NoPhrase(Phrases):
    """Accepts texts that contain none of the phrases. The state is DEAD after one was found."""

    def __init__(self, phrases: Iterable[bytes]) -> None:
        super().__init__(phrases)
        self.said = frozenset(self._trie.bytes[1:])
        """All bytes that occur in the phrases."""
        dead = set[int]()
        for node in self._order:
            if node in self._trie.complete or self._shorter[node] in dead:
                dead.add(node)
        self._dead = dead
        self._alive: dict[int, Moves] = {}

    def moves(self, state: int) -> Moves:
        if state == DEAD:
            return Moves({}, DEAD)
        if state not in self._alive:
            special, other = super().moves(state)
            alive = {byte: DEAD if after in self._dead else after for byte, after in special.items()}
            self._alive[state] = Moves(alive, other)
        return self._alive[state]

    def holds(self, state: int) -> bool:
        return state != DEAD

    def need(self, state: int, unfinished: int) -> Need:
        """Lower bound: the bytes that would complete the character may be forbidden."""
        return Need(NEVER if state == DEAD else 0, 0)


class Endings(Phrases):
    """Accepts texts that end with one of the phrases."""

    def __init__(self, phrases: Iterable[bytes]) -> None:
        super().__init__(phrases)
        self._num_bytes = self._trie.least(EVERY_BYTE)
        self._num_characters = self._trie.least(FIRST_BYTES)

    def holds(self, state: int) -> bool:
        return any(node in self._trie.complete for node in self.chain(state))

    def need(self, state: int, unfinished: int) -> Need:
        chain = self.chain(state)
        num_bytes = min((self._num_bytes[node] for node in chain), default=NEVER)
        num_characters = min((self._num_characters[node] for node in chain), default=NEVER)
        return Need(min(num_bytes, unfinished + self._num_bytes[0]), min(num_characters, self._num_characters[0]))


class StopPhrases(Phrases):
    """Finds where the phrases of many stops end, and how much of one may be under way."""

    def __init__(self, phrases: Iterable[bytes]) -> None:
        super().__init__(phrases)
        self._depths = self._trie.depths()
        self._found: dict[int, tuple[tuple[int, int], ...]] = {}

    def found(self, state: int) -> tuple[tuple[int, int], ...]:
        """Phrases that end here: the number of each (see `number`), and its length in bytes."""
        found = self._found.get(state)
        if found is None:
            ends = [node for node in self.chain(state) if node in self._trie.complete]
            found = self._found[state] = tuple((node, self._depths[node]) for node in ends)
        return found

    def holds(self, state: int) -> bool:
        return bool(self.found(state))

    def need(self, state: int, unfinished: int) -> Need:
        return Need(0, 0)

    def under_way(self, state: int) -> int:
        """Number of last bytes that may be part of a phrase."""
        return self._depths[state]

    def number(self, phrase: bytes) -> int:
        return self._trie.node(phrase)


class PhraseCounter(Phrases):
    """Counts the non-overlapping occurrences of a phrase; implements `units.Parts`.

    The state is the length of the longest prefix of the phrase with which the text ends. After a whole occurrence it
    moves as from state 0, so that the next one cannot overlap.
    """

    has_filler = False

    def __init__(self, phrase: bytes) -> None:
        super().__init__([phrase])
        self._size = len(phrase)
        self.num_states = self._size + 1
        self._starts = [*map(starts_character, phrase), True]
        """For each byte of the phrase, and the place after it: True if a character starts there."""
        self._characters = [*accumulate(self._starts, initial=0)]
        """Number of characters that begin in the first n bytes of the phrase, indexed by n."""

    def moves(self, state: int) -> Moves:
        return super().moves(state % self._size)

    def adds_one(self, before: int, after: int) -> bool:
        return after == self._size

    def is_inside(self, state: int) -> bool:
        return not self._starts[state]

    def missing(self, state: int, how_many: int) -> Need:
        begun = state % self._size
        all_characters = how_many * self._characters[self._size]
        return Need(how_many * self._size - begun, all_characters - self._characters[begun])

    def most_missing(self, how_many: int) -> Need:
        return Need(how_many * self._size, how_many * self._characters[self._size])


class FlaggedPhrases(Phrases):
    """Raises the flags of a phrase, a set of bits, where the phrase ends. Equal phrases may have different flags.

    A state is the longest proper prefix of a phrase with which the text ends; `texts` has the prefix of each state.
    """

    def __init__(self, phrases: Sequence[tuple[bytes, int]]) -> None:
        super().__init__(phrase for phrase, _ in phrases)
        children = self._trie.children
        flags, texts, kept = ([0] * len(children), [b""] * len(children), [0] * len(children))
        for phrase, bits in phrases:
            flags[self._trie.node(phrase)] |= bits
        for node in self._order:
            flags[node] |= flags[self._shorter[node]]
            # a phrase that is no proper prefix of another needs no state: its longest suffix that has one stands for it
            kept[node] = node if children[node] or not node else kept[self._shorter[node]]
            for byte, child in children[node].items():
                texts[child] = texts[node] + bytes([byte])
        nodes = [node for node in self._order if kept[node] == node]
        numbers = {node: at for at, node in enumerate(nodes)}
        self.texts = [texts[node] for node in nodes]
        self.found: list[dict[int, int]] = []
        """Maps bytes to the flags that they raise, for each state. Bytes that raise none are left out."""
        self._of_state: list[Moves] = []
        for node in nodes:
            special = super().moves(node).special
            after = {byte: numbers[kept[child]] for byte, child in special.items()}
            self._of_state.append(Moves({byte: state for byte, state in after.items() if state}, 0))
            self.found.append({byte: flags[child] for byte, child in special.items() if flags[child]})
        said = set(b"".join(phrase for phrase, _ in phrases))
        self.is_plain = max(said) < 0x80 and any(byte not in said for byte in range(0x20, 0x7F))
        """True if all phrases are ASCII and some printable ASCII character occurs in none of them."""

    def moves(self, state: int) -> Moves:
        return self._of_state[state]


AnyStop = Stop | StopPattern


class Past(NamedTuple):
    """An earlier place in the text, to which a stop may cut the value back.

    It has only what a value that ends there is judged by: the machines of stops are in their initial states, and `utf8`
    is 0 between characters and 1 inside one. `raised` are the flags, as part of a count, of the byte after the place.
    """

    atoms: Atoms
    utf8: int
    raised: int


class TermState(NamedTuple):
    """The parts of a state: the states of the machines and of UTF-8, and the places before the last bytes.

    Those places are kept while STOPS_BEFORE may be matching, since the value is judged as it was before the phrase
    (S15). Flags that those bytes raised are not in the count of a configuration yet.
    """

    atoms: Atoms
    utf8: int
    before: tuple[Past, ...]


class Stops:
    """The stops of a term: one machine for the phrases of STOPS_AT, one for those of STOPS_BEFORE, one per pattern.

    Their states come before those of the other atoms.
    """

    def __init__(self, stops: Iterable[AnyStop]) -> None:
        self.all = tuple(dict.fromkeys(stops))
        """All distinct stops, in the order of the term."""
        self.machines: list[StopPhrases | MatchEnds] = []
        self.cutting: list[tuple[int, StopPhrases | MatchEnds]] = []
        """Machines of STOPS_BEFORE, each with the index of its state."""
        self._numbers: dict[tuple[int, int], int] = {}
        """Maps the index of a machine's state and the number of what it finds to the index of the stop in `all`."""
        numbers = {stop: number for number, stop in enumerate(self.all)}
        for inclusive in (True, False):
            phrases = {stop.phrase: stop for stop in self.all if isinstance(stop, Stop) and stop.inclusive == inclusive}
            if phrases:
                machine = StopPhrases(phrases)
                found = {machine.number(phrase): numbers[stop] for phrase, stop in phrases.items()}
                self._add(machine, found, inclusive)
        for stop in self.all:
            if isinstance(stop, StopPattern):
                pattern = MatchEnds(stop.pattern, stop.flags, stop.span, measured=not stop.inclusive)
                self._add(pattern, {0: numbers[stop]}, stop.inclusive)
        self.room = max((_longest(stop) for stop in self.all if not stop.inclusive), default=0)
        """Most characters by which a stop makes the value shorter than the text."""

    def _add(self, machine: StopPhrases | MatchEnds, found: dict[int, int], inclusive: bool) -> None:
        slot = len(self.machines)
        self.machines.append(machine)
        self._numbers.update({(slot, number): place for number, place in found.items()})
        if not inclusive:
            self.cutting.append((slot, machine))

    def reached(self, atoms: Atoms) -> list[tuple[AnyStop, int]]:
        """Stops that end exactly here, in the order of `all`, each with the length of its match in bytes.

        Patterns of STOPS_AT are not measured: their length is 0.
        """
        numbers = sorted(
            (self._numbers[slot, number], length)
            for slot, machine in enumerate(self.machines)
            for number, length in machine.found(atoms[slot])
        )
        return [(self.all[number], length) for number, length in numbers]


def _longest(stop: AnyStop) -> int:
    """Most characters that a stop cuts off."""
    return characters(stop.phrase) if isinstance(stop, Stop) else LONGEST_CUT
