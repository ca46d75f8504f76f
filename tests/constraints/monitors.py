"""What a hole may contain, decided by watching its characters: one monitor per atom, all of them side by side.

A monitor reads one character at a time and knows whether its atom would hold if the text ended here. The monitors of a
condition walk together; whether a valid end can still be reached, and in how few bytes, is found by trying characters,
one of each kind that the condition tells apart, until nothing new turns up. Nothing of the engine is used here.
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
"""Characters of every length in UTF-8, every kind of white space among them, and for each two bytes that a token of the
tests may end with one that goes on from there."""
MARKS = ".!?"

Item = TypeVar("Item", bound=Hashable)
Kind = Callable[[str], bool]
"""A question about one character whose answer changes what a monitor does."""

# Monitors ------------------------------------------------------------------------------------------------------------


class Monitor:
    """One atom. States are values, so that places can be compared."""

    start: Hashable

    def step(self, state: Any, character: str) -> Hashable:
        raise NotImplementedError

    def holds(self, state: Any) -> bool:
        raise NotImplementedError

    def kinds(self) -> list[Kind]:
        """Characters that agree in these are one to the monitor."""
        return []


def is_one_of(text: str) -> Kind:
    return lambda character: character in text


class Phrases(Monitor):
    """How much of a phrase the text ends with; with `sticky` the end of the first one is kept for good."""

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
        return self.phrases[0] if self.sticky and self.found(tail) else tail  # which of them makes no difference

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
    """The text itself while it is the beginning of an option, then None."""

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
    """The same, and the first option that it is for good."""

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
    """A number, as large as anyone asks for, and where in a word or sentence the text is."""

    def __init__(self, length: Length) -> None:
        self.length = length
        self.enough = max(length.at_least, -1 if length.at_most is None else length.at_most + 1)
        self.start: tuple[int, str] = (0, "between")

    def step(self, state: tuple[int, str], character: str) -> tuple[int, str]:
        number, mode = state
        more, mode = self.read(mode, character)
        return min(number + more, self.enough), mode

    def read(self, mode: str, character: str) -> tuple[int, str]:
        """How much one character adds, and the mode after it."""
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
    """Occurrences of a phrase; the mode is as much of the next one as the text ends with."""

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
    """Counted outside: it is no matter of characters."""

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
    """What is known at a border between two characters: the monitors' states, by number, and how many tokens have
    begun."""

    states: int
    tokens: int


class Thread(NamedTuple):
    """A phrase before which a value may be cut, as far as it has been said: since how many characters, what is left
    of it (an expression, by number), and the monitors' states before it. Its own tokens are the hole's too (S15)."""

    age: int
    rest: int
    before: int


class Place(NamedTuple):
    """A text as far as it matters. `threads` are those of each stop that cuts, the oldest first.

    `partial` is the beginning of a character; `tokens` have begun by now, those inside it included.
    """

    now: Snapshot
    threads: tuple[tuple[Thread, ...], ...]
    partial: bytes = b""
    tokens: int = 0


class Read(NamedTuple):
    """A token is kept as a whole, stops the hole, leaves it for what follows, or is refused: after so many bytes."""

    what: Literal["kept", "stopped", "left", "refused"]
    size: int
    place: Place


class Verdict(NamedTuple):
    holds: bool
    fires: tuple[bool, ...]
    """For each stop whether the conjunctions that it stands in hold."""


class Numbers(Generic[Item]):
    """Small numbers for what is slow to hash."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._known: dict[Item, int] = {}

    def number(self, item: Item) -> int:
        known = self._known.setdefault(item, len(self.items))
        if known == len(self.items):
            self.items.append(item)
        return known


def tail(data: bytes) -> bytes | None:
    """The beginning of a character that some bytes end with, None where they are no text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(data)
    except UnicodeDecodeError:
        return None
    return decoder.getstate()[0]


def tails(tokens: Sequence[bytes]) -> set[bytes]:
    """All that a text can end with, where only whole tokens and first bytes of tokens are said."""
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
    """`tokens` are the vocabulary's bytes, None for what is no text; `eos` are those that mean end-of-text.

    `closed` tells whether a token that cannot go on ends the hole (S18), `following` what is known to come then.
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
        """`by_token` tells that distances are tokens of the vocabulary, or bytes where one is needed; else they are
        bytes."""
        self.term = term
        self._by_token = by_token
        self.tokens = tokens
        self.eos = eos
        self.closed = closed
        self.following = following
        self.budget = budget
        self.too_large = False
        """Whether a search was given up: then nothing that is said here counts."""
        self._atoms: dict[int, int] = {}
        self._monitors: list[Monitor] = []
        self._stops: list[tuple[Stop | StopPattern, tuple[And, ...], int]] = []
        """Each with the conjunctions above it, and the number of its monitor or of its threads."""
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
        """One character of each kind that something here tells apart: an atom, UTF-8, or a token that ends inside."""
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
        """How many characters before this place a stop ends the value, None where none does."""
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
        """After a whole character, the tokens being those that have begun by its end."""
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
                after.setdefault(left, Thread(age + 1, left, before))  # the older one would end sooner
        return tuple(after.values())

    def _derive(self, rest: int, character: str) -> int | None:
        if (rest, character) not in self._derived:
            left = derivative(self._rests.items[rest], character)
            self._derived[rest, character] = None if left == NOTHING else self._rests.number(left)
        return self._derived[rest, character]

    def _feed(self, place: Place, byte: int) -> Place | None:
        """After one more byte of the same token, None where that is no text."""
        partial = place.partial + bytes([byte])
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            character = decoder.decode(partial)
        except UnicodeDecodeError:
            return None
        return self._step(place, character, place.tokens) if character else place._replace(partial=partial)

    def _begin(self, place: Place) -> Place:
        """One token more, of which no byte has been said yet."""
        return place._replace(tokens=min(place.tokens + 1, self._most_tokens))

    # Searching -----------------------------------------------------------------------------------------------------

    def _onwards(self, place: Place) -> list[tuple[int, Place]]:
        """The places one character on, and its bytes, every one of which is a token of its own; or one token on."""
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
        """The least number of bytes to an end, NEVER where none can be reached."""
        known = self._distances.get(place)
        if known is None:
            self._explore(place)
            known = self._distances[place]
        return known

    def _explore(self, start: Place) -> None:
        """Everything that can be reached and is not known yet, then backwards from the ends."""
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
        """What becomes of one token's bytes.

        Where it did not begin in the hole, it is not charged to it, and may leave it without a byte only for text that
        is known to follow."""
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
        # it cannot be kept: where a complete text does not go on like this, what follows has begun (S18)
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
        """Whether a token that leaves the hole may go on so. Where nothing is known to follow, none of it is kept, and
        a token with bytes of the hole is none that leaves it."""
        if not self.following:
            return not inside
        return self.following.startswith(data) or data.startswith(self.following)

    def after(self, text: str) -> Place:
        """Where a text leads of which every byte is a token. Also one that no mask would let through."""
        place: Place | None = self.start
        for byte in text.encode():
            place = self._feed(self._begin(place), byte) if place else None
        assert place is not None
        return place

    def mask(self, place: Place, tokens_left: int, held: bytes = b"") -> set[int]:
        """The allowed tokens. With `held` those that agree with text before the hole that is still to be said (S10)."""
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
        """After an allowed token: how the hole has ended, None where it goes on, the value so far, and the place."""
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
        """Whether every end from here keeps all that was said: no phrase that would cut it back is under way."""
        return not any(place.threads)
