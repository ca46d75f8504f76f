"""Phrases found anywhere in a text (Aho, Corasick 1975), and the machines that are made of that."""

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
    """Length of the longest proper beginning of a phrase with which a text ends."""
    for size in range(min(len(text), len(phrase) - 1), 0, -1):
        if text.endswith(phrase[:size]):
            return size
    return 0


class Phrases:
    """The state is the node of the phrases' trie with the longest text that the text read so far ends with."""

    def __init__(self, phrases: Iterable[bytes]) -> None:
        self._trie = Trie(phrases)
        children = self._trie.children
        self._shorter = [0] * len(children)
        """For each node the longest proper end of its text that is a node."""
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
        """The nodes of all ends of the text, the longest first, the root left out."""
        nodes = []
        while state:
            nodes.append(state)
            state = self._shorter[state]
        return nodes


class NoPhrase(Phrases):
    """None of the phrases occurs: the state is DEAD once one was found."""

    def __init__(self, phrases: Iterable[bytes]) -> None:
        super().__init__(phrases)
        self.said = frozenset(self._trie.bytes[1:])
        """All bytes of the phrases."""
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
        """At least: what ends the character may be forbidden."""
        return Need(NEVER if state == DEAD else 0, 0)


class Endings(Phrases):
    """The text ends with one of the phrases."""

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
    """The phrases of many stops, and how much of one of them the text ends with."""

    def __init__(self, phrases: Iterable[bytes]) -> None:
        super().__init__(phrases)
        self._depths = self._trie.depths()
        self._found: dict[int, tuple[tuple[int, int], ...]] = {}

    def found(self, state: int) -> tuple[tuple[int, int], ...]:
        """The phrases that end here: the number of each (`number`), and its length."""
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
        """Number of the last bytes that may be part of a phrase."""
        return self._depths[state]

    def number(self, phrase: bytes) -> int:
        return self._trie.node(phrase)


class PhraseCounter(Phrases):
    """Counts the occurrences of a phrase, as a machine of `units.Parts`. The state is the number of its bytes with
    which the text ends; behind a whole one none is begun."""

    has_filler = False

    def __init__(self, phrase: bytes) -> None:
        super().__init__([phrase])
        self._size = len(phrase)
        self.num_states = self._size + 1
        self._starts = [*map(starts_character, phrase), True]
        """Whether a character starts with each byte, and behind the last one."""
        self._characters = [*accumulate(self._starts, initial=0)]
        """In the phrase up to each byte."""

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
    """Each phrase raises its flags, a set of bits, where it ends. Equal phrases may have several.

    A state is the longest proper beginning of a phrase with which the text ends; `texts` are those beginnings.
    """

    def __init__(self, phrases: Sequence[tuple[bytes, int]]) -> None:
        super().__init__(phrase for phrase, _ in phrases)
        children = self._trie.children
        flags, texts, kept = ([0] * len(children), [b""] * len(children), [0] * len(children))
        for phrase, bits in phrases:
            flags[self._trie.node(phrase)] |= bits
        for node in self._order:
            flags[node] |= flags[self._shorter[node]]
            # a phrase that begins no longer one needs no state: it goes on as the longest end of it does
            kept[node] = node if children[node] or not node else kept[self._shorter[node]]
            for byte, child in children[node].items():
                texts[child] = texts[node] + bytes([byte])
        nodes = [node for node in self._order if kept[node] == node]
        numbers = {node: at for at, node in enumerate(nodes)}
        self.texts = [texts[node] for node in nodes]
        self.found: list[dict[int, int]] = []
        """For every state the flags that a byte raises, where it raises any."""
        self._of_state: list[Moves] = []
        for node in nodes:
            special = super().moves(node).special
            after = {byte: numbers[kept[child]] for byte, child in special.items()}
            self._of_state.append(Moves({byte: state for byte, state in after.items() if state}, 0))
            self.found.append({byte: flags[child] for byte, child in special.items() if flags[child]})
        said = set(b"".join(phrase for phrase, _ in phrases))
        self.is_plain = max(said) < 0x80 and any(byte not in said for byte in range(0x20, 0x7F))
        """Whether all phrases are ASCII, and leave a character of it unused."""

    def moves(self, state: int) -> Moves:
        return self._of_state[state]


AnyStop = Stop | StopPattern


class Past(NamedTuple):
    """A place that the text has left by some bytes, to which a stop may cut the value back.

    Only what the value is judged by: the machines of stops are in their first states, and `utf8` is 0 or 1. `raised`
    are the flags that the byte behind it raised.
    """

    atoms: Atoms
    utf8: int
    raised: int


class TermState(NamedTuple):
    """A state in parts: the machines' states, UTF-8, and where STOPS_BEFORE is under way the places of the last
    bytes, since the value will be judged as it was before the phrase (S15). What those bytes raised is not among the
    flags of a configuration yet."""

    atoms: Atoms
    utf8: int
    before: tuple[Past, ...]


class Stops:
    """The stops of a term: one machine for all phrases with which a value ends, one for all before which it ends, one
    for each pattern. Their states stand before those of the other atoms."""

    def __init__(self, stops: Iterable[AnyStop]) -> None:
        self.all = tuple(dict.fromkeys(stops))
        """In the order in which they stand in the term."""
        self.machines: list[StopPhrases | MatchEnds] = []
        self.cutting: list[tuple[int, StopPhrases | MatchEnds]] = []
        """The machines of stops before which a value is cut, and where their states stand."""
        self._numbers: dict[tuple[int, int], int] = {}
        """By place of a machine's state and number of what it finds: the place of that stop in `all`."""
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
        """The most characters by which a value is shorter than the text."""

    def _add(self, machine: StopPhrases | MatchEnds, found: dict[int, int], inclusive: bool) -> None:
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
