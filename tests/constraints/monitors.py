"""Oracle of holes that reads characters: one monitor per atom, all of them side by side. It uses no code of the engine.

A monitor reads one character at a time and knows if its atom would hold if the text ended here. The monitors of a
condition walk together. A search over the characters, one of each kind that the condition tells apart, finds whether a
valid end can still be reached, and in how few bytes.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush
from typing import Any, Generic, Literal, NamedTuple, TypeVar

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
from lmql_lite.constraints.units import NamedUnit, Occurrences
from tests.constraints.derivatives import (
    ANY_TEXT,
    NOTHING,
    Expression,
    Reader,
    classes,
    derivative,
    literal,
    nullable,
    then,
)

NEVER = 10**9
CANDIDATES = tuple(
    map(chr, [*range(0x180), *range(0x2000, 0x2080), *range(0x2080, 0x3000, 64), 0x3000, 0x4E2D, 0x1F600])
)
"""Characters of every length in UTF-8, with every kind of white space. For any two bytes of an incomplete character at
the end of a token of the tests, one of them continues these."""
MARKS = ".!?"

Item = TypeVar("Item", bound=Hashable)
Kind = Callable[[str], bool]
"""A question about one character whose answer changes what a monitor does."""

# Monitors ------------------------------------------------------------------------------------------------------------


class Monitor:
    """Automaton of one atom over characters. States are values, so that places can be compared."""

    start: Hashable

    def step(self, state: Any, character: str) -> Hashable:
        raise NotImplementedError

    def holds(self, state: Any) -> bool:
        raise NotImplementedError

    def kinds(self) -> list[Kind]:
        """Questions that tell characters apart: the monitor treats those with equal answers alike."""
        return []


def is_one_of(text: str) -> Kind:
    return lambda character: character in text


class Phrases(Monitor):
    """Monitor whose state is the longest end of the text that begins a phrase. With `sticky`, a found phrase stays."""

    def __init__(self, phrases: Sequence[str], sticky: bool) -> None:
        self.phrases = phrases
        self.sticky = sticky
        self.start = ""

    def step(self, state: str, character: str) -> str:
        if self.sticky and self.found(state):
            return state
        tail = state + character
        while not any(phrase.startswith(tail) for phrase in self.phrases):
            tail = tail[1:]
        return self.phrases[0] if self.sticky and self.found(tail) else tail  # any phrase will do

    def found(self, state: str) -> bool:
        return any(state.endswith(phrase) for phrase in self.phrases)

    def holds(self, state: str) -> bool:
        return self.found(state)

    def kinds(self) -> list[Kind]:
        return [is_one_of(character) for character in set("".join(self.phrases))]


class Absent(Phrases):
    def holds(self, state: str) -> bool:
        return not self.found(state)


class OneOf(Monitor):
    """Monitor whose state is the text while it begins an option, then None."""

    def __init__(self, options: Sequence[str]) -> None:
        self.options = options
        self.start = "" if options else None

    def step(self, state: str | None, character: str) -> str | None:
        if state is None:
            return None
        text = state + character
        return text if any(option.startswith(text) for option in self.options) else None

    def holds(self, state: str | None) -> bool:
        return state in self.options

    def kinds(self) -> list[Kind]:
        return [is_one_of(character) for character in set("".join(self.options))]


class Beginning(OneOf):
    """Like OneOf, but a completed option stays."""

    def step(self, state: str | None, character: str) -> str | None:
        return state if self.holds(state) else super().step(state, character)


class Pattern(Monitor):
    def __init__(self, expression: Expression) -> None:
        self.start = expression

    def step(self, state: Expression, character: str) -> Expression:
        return derivative(state, character)

    def holds(self, state: Expression) -> bool:
        return nullable(state)

    def kinds(self) -> list[Kind]:
        assert isinstance(self.start, tuple)
        return [characters.has for characters in classes(self.start)]


class Count(Monitor):
    """Monitor of a length. Its state is the count, saturated above the bounds, and a mode such as inside a word."""

    def __init__(self, length: Length) -> None:
        self.length = length
        self.enough = max(length.at_least, -1 if length.at_most is None else length.at_most + 1)
        self.start: tuple[int, str] = (0, "between")

    def step(self, state: tuple[int, str], character: str) -> tuple[int, str]:
        number, mode = state
        more, mode = self.read(mode, character)
        return min(number + more, self.enough), mode

    def read(self, mode: str, character: str) -> tuple[int, str]:
        """Increment of the count by one character, and the next mode."""
        return 1, mode

    def holds(self, state: tuple[int, str]) -> bool:
        return self.within(state[0])

    def within(self, number: int) -> bool:
        return self.length.at_least <= number and (self.length.at_most is None or number <= self.length.at_most)


class Words(Count):
    def read(self, mode: str, character: str) -> tuple[int, str]:
        if character.isspace():
            return 0, "between"
        return int(mode == "between"), "inside"

    def kinds(self) -> list[Kind]:
        return [str.isspace]


class Sentences(Count):
    def read(self, mode: str, character: str) -> tuple[int, str]:
        if character.isspace():
            return 0, "between" if mode == "after a mark" else mode
        return int(mode == "between"), "after a mark" if character in MARKS else "inside"

    def kinds(self) -> list[Kind]:
        return [str.isspace, is_one_of(MARKS)]


class Lines(Count):
    def read(self, mode: str, character: str) -> tuple[int, str]:
        return int(mode == "between"), "between" if character == "\n" else "inside"

    def kinds(self) -> list[Kind]:
        return [is_one_of("\n")]


class Times(Count):
    """Monitor of the occurrences of a phrase. The mode is the part of the next one that the text ends with."""

    def __init__(self, length: Length) -> None:
        super().__init__(length)
        assert isinstance(length.unit, Occurrences)
        self.phrase = length.unit.phrase.decode()
        self.start = (0, "")

    def read(self, mode: str, character: str) -> tuple[int, str]:
        tail = mode + character
        while not self.phrase.startswith(tail):
            tail = tail[1:]
        return (1, "") if tail == self.phrase else (0, tail)

    def kinds(self) -> list[Kind]:
        return [is_one_of(character) for character in set(self.phrase)]


class Tokens(Count):
    """Monitor of tokens, which are counted outside because characters do not show them."""

    def step(self, state: tuple[int, str], character: str) -> tuple[int, str]:
        return state


COUNTS: dict[NamedUnit, type[Count]] = {
    "characters": Count,
    "words": Words,
    "sentences": Sentences,
    "lines": Lines,
    "tokens": Tokens,
}


def monitor(atom: Term) -> Monitor | None:
    match atom:
        case Length(unit=Occurrences()):
            return Times(atom)
        case Length():
            return COUNTS[atom.unit](atom)
        case Choice(options):
            return OneOf([option.decode() for option in options])
        case Matches(pattern):
            return Pattern(Reader(pattern).read())
        case Contains(phrase):
            return Phrases([phrase.decode()], sticky=True)
        case Begins(phrases):
            return Beginning([phrase.decode() for phrase in phrases])
        case Ends(phrases):
            return Phrases([phrase.decode() for phrase in phrases], sticky=False)
        case Lacks(phrases):
            return Absent([phrase.decode() for phrase in phrases], sticky=True)
        case Stop(phrase, True):
            return Phrases([phrase.decode()], sticky=False)
        case StopPattern(pattern, _, True):
            return Pattern(then(ANY_TEXT, Reader(pattern).read()))
    return None


# The whole condition -------------------------------------------------------------------------------------------------


class Snapshot(NamedTuple):
    """Status between two characters: the number of a tuple of monitor states, and how many tokens have begun."""

    states: int
    tokens: int


class Thread(NamedTuple):
    """A begun phrase before which a value may be cut. Its own tokens are the hole's too (S15).

    `age` is its number of characters so far, `rest` the number of the expression that is left of it, and `before` that
    of the monitor states before it.
    """

    age: int
    rest: int
    before: int


class Place(NamedTuple):
    """Configuration after a text. `threads` are those of each stop that cuts, the oldest first.

    `partial` is the beginning of a character. `tokens` is the number of tokens begun so far, also inside the character.
    """

    now: Snapshot
    threads: tuple[tuple[Thread, ...], ...]
    partial: bytes = b""
    tokens: int = 0


class Read(NamedTuple):
    """Effect of a token: kept whole, or after `size` bytes it stops the hole, leaves it or is refused."""

    what: Literal["kept", "stopped", "left", "refused"]
    size: int
    place: Place


class Verdict(NamedTuple):
    holds: bool
    fires: tuple[bool, ...]
    """For each stop, True if all conjunctions around it hold."""


class Numbers(Generic[Item]):
    """Maps items that are slow to hash to small numbers."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._known: dict[Item, int] = {}

    def number(self, item: Item) -> int:
        known = self._known.setdefault(item, len(self.items))
        if known == len(self.items):
            self.items.append(item)
        return known


def tail(data: bytes) -> bytes | None:
    """Incomplete character at the end of some bytes, b"" if there is none; None if the bytes are not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(data)
    except UnicodeDecodeError:
        return None
    return decoder.getstate()[0]


def tails(tokens: Sequence[bytes]) -> set[bytes]:
    """Incomplete characters with which a text of whole tokens and first bytes of tokens can end."""
    found = {b""}
    waiting = [b""]
    while waiting:
        partial = waiting.pop()
        for data in {each for token in tokens for each in (token, token[:1])}:
            after = tail(partial + data)
            if after is not None and after not in found:
                found.add(after)
                waiting.append(after)
    return found - {b""}


class Oracle:
    """Oracle of one term. `tokens` are the vocabulary's bytes, None for tokens without text; `eos` has end-of-text ids.

    If `closed`, a token that cannot continue the hole ends it (S18). `following` is the text known to come after it.
    """

    def __init__(
        self,
        term: Term,
        tokens: Sequence[bytes | None],
        eos: frozenset[int],
        *,
        closed: bool = False,
        following: bytes = b"",
        budget: int = NEVER,
        by_token: bool = False,
    ) -> None:
        """If `by_token`, distances are in tokens of the vocabulary, or single bytes of characters; else in bytes."""
        self.term = term
        self._by_token = by_token
        self.tokens = tokens
        self.eos = eos
        self.closed = closed
        self.following = following
        self.budget = budget
        self.too_large = False
        """True if a search was given up, which makes every answer invalid."""
        self._atoms: dict[int, int] = {}
        self._monitors: list[Monitor] = []
        self._stops: list[tuple[Stop | StopPattern, tuple[And, ...], int]] = []
        """Stops, with the conjunctions around each and the number of its monitor or of its threads."""
        self._cutting: list[Expression] = []
        self._collect(term, ())
        counts = [each.enough for each in self._monitors if isinstance(each, Tokens)]
        self._most_tokens = max(counts, default=0)
        self._states: Numbers[tuple[Hashable, ...]] = Numbers()
        self._rests: Numbers[Expression] = Numbers()
        self._steps: dict[tuple[int, str], int] = {}
        self._derived: dict[tuple[int, str], int | None] = {}
        self._verdicts: dict[Snapshot, Verdict] = {}
        self._distances: dict[Place, int] = {}
        self.alphabet = self._representatives()
        start = self._states.number(tuple(each.start for each in self._monitors))
        self.start = Place(Snapshot(start, 0), ((),) * len(self._cutting))
        self._whole = [self._rests.number(expression) for expression in self._cutting]

    def _collect(self, term: Term, above: tuple[And, ...]) -> None:
        match term:
            case And(terms):
                for part in terms:
                    self._collect(part, (*above, term))
            case Or(terms):
                for part in terms:
                    self._collect(part, above)
            case Not(part):
                self._collect(part, above)
            case Stop(phrase, False):
                self._stops.append((term, above, len(self._cutting)))
                self._cutting.append(literal(phrase.decode()))
            case StopPattern(pattern, _, False):
                self._stops.append((term, above, len(self._cutting)))
                self._cutting.append(Reader(pattern).read())
            case _:
                watching = monitor(term)
                if watching is not None:
                    self._atoms[id(term)] = len(self._monitors)
                    if isinstance(term, Stop | StopPattern):
                        self._stops.append((term, above, len(self._monitors)))
                    self._monitors.append(watching)

    def _representatives(self) -> list[tuple[str, bytes]]:
        """One character of each kind that an atom, UTF-8 or a token's incomplete end tells apart, with its bytes."""
        kinds = [kind for watching in self._monitors for kind in watching.kinds()]
        kinds += [characters.has for expression in self._cutting for characters in classes(expression)]
        encoded = [(character, character.encode()) for character in CANDIDATES]
        ends = tails([data for data in self.tokens if data])
        seen: dict[tuple[object, ...], tuple[str, bytes]] = {}
        for character, data in encoded:
            alike = (len(data), *(data.startswith(part) for part in ends), *(kind(character) for kind in kinds))
            seen.setdefault(alike, (character, data))
        return list(seen.values())

    # Judging -----------------------------------------------------------------------------------------------------

    def _holds(self, term: Term, at: Snapshot) -> bool:
        match term:
            case Constant(holds):
                return holds
            case And(terms):
                return all(self._holds(part, at) for part in terms)
            case Or(terms):
                return any(self._holds(part, at) for part in terms)
            case Not(part):
                return not self._holds(part, at)
            case Stop() | StopPattern():
                return True
        number = self._atoms[id(term)]
        watching = self._monitors[number]
        return (
            watching.within(at.tokens)
            if isinstance(watching, Tokens)
            else watching.holds(self._states.items[at.states][number])
        )

    def _judge(self, at: Snapshot) -> Verdict:
        verdict = self._verdicts.get(at)
        if verdict is None:
            fires = tuple(all(self._holds(each, at) for each in above) for _, above, _ in self._stops)
            verdict = self._verdicts[at] = Verdict(self._holds(self.term, at), fires)
        return verdict

    def _stopped(self, place: Place) -> int | None:
        """Number of characters before this place at which a stop ends the value; None if no stop fires."""
        for index, (stop, _, number) in enumerate(self._stops):
            if stop.inclusive:
                state = self._states.items[place.now.states][number]
                if self._monitors[number].holds(state) and self._judge(place.now).fires[index]:
                    return 0
                continue
            said = next((each for each in place.threads[number] if nullable(self._rests.items[each.rest])), None)
            if said is not None and self._judge(Snapshot(said.before, place.tokens)).fires[index]:
                return said.age
        return None

    def may_end(self, place: Place) -> bool:
        return not place.partial and self._judge(place.now).holds

    # Walking -----------------------------------------------------------------------------------------------------

    def _step(self, place: Place, character: str, tokens: int) -> Place:
        """Place after a whole character. `tokens` is the number of tokens begun by its end."""
        states = self._steps.get((place.now.states, character))
        if states is None:
            pairs = zip(self._monitors, self._states.items[place.now.states], strict=True)
            states = self._states.number(tuple(watching.step(state, character) for watching, state in pairs))
            self._steps[place.now.states, character] = states
        threads = tuple(
            self._go_on((*begun, Thread(0, whole, place.now.states)), character)
            for begun, whole in zip(place.threads, self._whole, strict=True)
        )
        tokens = min(tokens, self._most_tokens)
        return Place(Snapshot(states, tokens), threads, b"", tokens)

    def _go_on(self, threads: tuple[Thread, ...], character: str) -> tuple[Thread, ...]:
        after: dict[int, Thread] = {}
        for age, rest, before in threads:
            left = self._derive(rest, character)
            if left is not None:
                after.setdefault(left, Thread(age + 1, left, before))  # the older thread would cut off more
        return tuple(after.values())

    def _derive(self, rest: int, character: str) -> int | None:
        if (rest, character) not in self._derived:
            left = derivative(self._rests.items[rest], character)
            self._derived[rest, character] = None if left == NOTHING else self._rests.number(left)
        return self._derived[rest, character]

    def _feed(self, place: Place, byte: int) -> Place | None:
        """Place after one more byte of the same token; None if the result is not UTF-8."""
        partial = place.partial + bytes([byte])
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            character = decoder.decode(partial)
        except UnicodeDecodeError:
            return None
        return self._step(place, character, place.tokens) if character else place._replace(partial=partial)

    def _begin(self, place: Place) -> Place:
        """Place with one more token, of which no byte has been read yet."""
        return place._replace(tokens=min(place.tokens + 1, self._most_tokens))

    # Searching -----------------------------------------------------------------------------------------------------

    def _onwards(self, place: Place) -> list[tuple[int, Place]]:
        """Costs and places of all steps: one character, whose remaining bytes are a token each, or one token."""
        if self._by_token:
            return self._a_token_on(place)
        return [
            (left, self._step(place, character, place.tokens + left))
            for character, data in self.alphabet
            if data.startswith(place.partial)
            for left in [len(data) - len(place.partial)]
        ]

    def _a_token_on(self, place: Place) -> list[tuple[int, Place]]:
        inside = len(place.partial)
        single = {data[inside : inside + 1] for _, data in self.alphabet if data.startswith(place.partial)}
        texts = single.union(data for token, data in enumerate(self.tokens) if data and token not in self.eos) - {b""}
        found: dict[Place, None] = {}
        for data in texts:
            after: Place | None = self._begin(place)
            for byte in data:
                after = self._feed(after, byte) if after else None
            if after is not None:
                found[after] = None
        return [(1, after) for after in found]

    def distance(self, place: Place) -> int:
        """Least number of bytes, or tokens if `by_token`, to an end; NEVER if none can be reached."""
        known = self._distances.get(place)
        if known is None:
            self._explore(place)
            known = self._distances[place]
        return known

    def _explore(self, start: Place) -> None:
        """Finds all new places that can be reached, then their distances, backwards from the ends."""
        new: dict[Place, list[tuple[int, Place]]] = {}
        waiting = [start]
        queue: list[tuple[int, int, Place]] = []
        turn = itertools.count()
        while waiting:
            here = waiting.pop()
            if here in new or here in self._distances:
                continue
            if len(self._distances) + len(new) > self.budget:
                self.too_large = True
                self._distances[start] = NEVER
                return
            stopped = not here.partial and self._stopped(here) is not None
            if stopped or self.may_end(here):
                heappush(queue, (0, next(turn), here))
            new[here] = [] if stopped else self._onwards(here)
            waiting += [after for _, after in new[here]]
        before: dict[Place, list[tuple[int, Place]]] = {}
        for here, ways in new.items():
            for cost, after in ways:
                if after in new:
                    before.setdefault(after, []).append((cost, here))
                elif self._distances[after] < NEVER:
                    heappush(queue, (cost + self._distances[after], next(turn), here))
        found: dict[Place, int] = {}
        while queue:
            cost, _, here = heappop(queue)
            if here in found:
                continue
            found[here] = cost
            for more, earlier in before.get(here, ()):
                if earlier not in found:
                    heappush(queue, (cost + more, next(turn), earlier))
        self._distances.update((here, found.get(here, NEVER)) for here in new)

    # What is compared with the engine --------------------------------------------------------------------------------

    def _read(self, place: Place, data: bytes, begins: bool = True) -> Read:
        """Effect of one token's bytes.

        A token that did not begin in the hole may leave it without a byte only for text that is known to follow.
        """
        said = [self._begin(place)]
        for size, byte in enumerate(data, start=1):
            after = self._feed(said[-1], byte)
            if after is None:
                break
            if self._has_stopped(after):
                return Read("stopped", size, after)
            said.append(after)
        if len(said) > len(data) and self.distance(said[-1]) < NEVER:
            return Read("kept", len(data), said[-1])
        # it cannot be kept whole: a byte that cannot continue a complete value begins the following text (S18)
        for size, here in enumerate([place, *said[1:]][: len(data)]):
            if (
                self.closed
                and (size or begins or self.following)
                and self.may_end(here)
                and self._agrees(data[size:], inside=size > 0)
            ):
                after = said[size + 1] if size + 1 < len(said) else None
                if after is None or self.distance(after) >= NEVER:
                    return Read("left", size, here)
        return Read("refused", 0, place)

    def _has_stopped(self, place: Place) -> bool:
        return not place.partial and self._stopped(place) is not None

    def _agrees(self, data: bytes, inside: bool) -> bool:
        """True if the rest of a token that leaves the hole agrees with the following text.

        If that is not known, only a token without bytes of the hole may leave it, and none of it is kept.
        """
        if not self.following:
            return not inside
        return self.following.startswith(data) or data.startswith(self.following)

    def after(self, text: str) -> Place:
        """Place after a text of which every byte is a token, even if no mask allows it."""
        place: Place | None = self.start
        for byte in text.encode():
            place = self._feed(self._begin(place), byte) if place else None
        assert place is not None
        return place

    def mask(self, place: Place, tokens_left: int, held: bytes = b"") -> set[int]:
        """Ids of the allowed tokens. `held` is text before the hole that a token must agree with first (S10)."""
        texts = [(token, data) for token, data in enumerate(self.tokens) if data and token not in self.eos]
        if held:
            return {token for token, data in texts if self._allows_behind(held, place, data, tokens_left)}
        allowed = {token for token, data in texts if self._allows(place, data, tokens_left)}
        return allowed | (self.eos if self.may_end(place) else frozenset())

    def _allows_behind(self, held: bytes, place: Place, data: bytes, tokens_left: int) -> bool:
        inside = data[len(held) :]
        return held.startswith(data) or (
            data.startswith(held) and self._allows(place, inside, tokens_left, begins=False)
        )

    def _allows(self, place: Place, data: bytes, tokens_left: int, begins: bool = True) -> bool:
        read = self._read(place, data, begins)
        if read.what == "kept":
            return self.distance(read.place) < tokens_left
        return read.what != "refused"

    def advance(self, place: Place, text: bytes, data: bytes) -> tuple[str | None, bytes, Place]:
        """Ending (None while the hole is open), value so far, and place after an allowed token."""
        what, size, after = self._read(place, data)
        match what:
            case "left":
                return "end-of-text", text + data[:size], after
            case "stopped":
                said = (text + data[:size]).decode()
                return "stop", said[: len(said) - (self._stopped(after) or 0)].encode(), after
        assert what == "kept", "not allowed"
        if self.may_end(after) and not self.can_go_on(after):
            return ("forced" if self.closed else "bound"), text + data, after
        return None, text + data, after

    def can_go_on(self, place: Place) -> bool:
        return any(self.distance(after) < NEVER for _, after in self._onwards(place))

    def keeps_all(self, place: Place) -> bool:
        """True if every end from here keeps the whole text: no phrase is begun that would cut it back."""
        return not any(place.threads)
