"""Brute-force oracle of holes: tries texts and evaluates the condition by its meaning. It uses no idea of the engine.

Texts are continued byte by byte over a small alphabet. Two texts with the same `sight` have the same future. The sight
has the last bytes, the phrases before them, the length up to the largest bound, the whole text while it is no longer
than an option, and the short continuations with which each pattern would match.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections import deque
from functools import lru_cache

from lmql_lite.constraints.terms import (
    And,
    Begins,
    Choice,
    Constant,
    Contains,
    Ends,
    Length,
    Matches,
    Not,
    Or,
    Stop,
    Term,
)

ALPHABET = b"abz\xc3\xa9\xaa\xab"
"""Bytes of the characters a, b, z (which no phrase of the tests has unless it says so), é, ê and ë."""
NEVER = 10**6
TOO_LARGE = 800
"""Most sights of a condition that is tried."""

Sight = tuple[object, ...]

CONTINUATIONS = tuple("".join(word) for size in range(4) for word in itertools.product("abzéêë", repeat=size))
"""Words that tell the states of a small pattern apart (Myhill, Nerode 1958)."""


@lru_cache(maxsize=200_000)
def outlook(pattern: str, text: bytes) -> object:
    """State of a pattern after a text: its matching CONTINUATIONS as bits, and the text's incomplete last character."""
    whole = text.decode("utf-8", "ignore")
    compiled = re.compile(pattern)
    matching = sum(1 << bit for bit, word in enumerate(CONTINUATIONS) if compiled.fullmatch(whole + word))
    return matching, text[len(whole.encode()) :]


def atoms(term: Term) -> list[Term]:
    """Atoms in the order in which they stand in the term."""
    match term:
        case And(terms) | Or(terms):
            return [atom for part in terms for atom in atoms(part)]
        case Not(part):
            return atoms(part)
    return [term]


def satisfied(term: Term, value: bytes) -> bool:
    """True if the condition holds as Python would evaluate it, with `STOPS_*` as true."""
    text = value.decode()
    match term:
        case Constant(holds):
            return holds
        case Length(at_least, at_most):
            return at_least <= len(text) <= (NEVER if at_most is None else at_most)
        case Choice(options):
            return value in options
        case Matches(pattern, flags):
            return bool(re.compile(pattern, flags).fullmatch(text))
        case Contains(phrase):
            return phrase.decode() in text
        case Begins(phrases):
            return any(text.startswith(phrase.decode()) for phrase in phrases)
        case Ends(phrases):
            return any(text.endswith(phrase.decode()) for phrase in phrases)
        case Stop():
            return True
        case Not(part):
            return not satisfied(part, value)
        case And(terms):
            return all(satisfied(part, value) for part in terms)
        case Or(terms):
            return any(satisfied(part, value) for part in terms)
    raise AssertionError(term)


def guarded(term: Term, stop: Stop, value: bytes) -> bool:
    """True if all conjunctions around `stop` hold for the value. Then the stop ends the hole (S13)."""
    match term:
        case Stop():
            return term == stop
        case And(terms):
            return satisfied(term, value) and any(guarded(part, stop, value) for part in terms)
        case Or(terms):
            return any(guarded(part, stop, value) for part in terms)
    return False


def is_text_so_far(text: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return False
    return True


def is_whole(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


class Oracle:
    def __init__(self, term: Term, closed: bool, following: bytes = b"", tokens: tuple[bytes, ...] = ()) -> None:
        """With `tokens`, limits count these tokens; else every byte is a token."""
        self.term = term
        self.tokens = tokens
        self.closed = closed
        self.following = following
        parts = atoms(term)
        self.stops = [part for part in parts if isinstance(part, Stop)]
        phrases = [part.phrase for part in parts if isinstance(part, Stop | Contains)]
        phrases += [phrase for part in parts if isinstance(part, Ends) for phrase in part.phrases]
        self.patterns = [part.pattern for part in parts if isinstance(part, Matches)]
        self.begun = [part.phrases for part in parts if isinstance(part, Begins)]
        self.contained = [part.phrase for part in parts if isinstance(part, Contains)]
        reach = max(map(len, phrases), default=0)
        # if a phrase may cut a value back, the text before the phrase matters too
        self.back = reach if any(not stop.inclusive for stop in self.stops) else 0
        self.tail = reach + self.back + 1
        self.options = [option for part in parts if isinstance(part, Choice) for option in part.options]
        self.options += [phrase for phrases in self.begun for phrase in phrases]
        bounds = [bound for part in parts if isinstance(part, Length) for bound in (part.at_least, part.at_most or 0)]
        self.longest_length = max(bounds, default=-1)
        self.distances: dict[Sight, int] = {}
        self.in_tokens: dict[Sight, int] = {}
        self.values: set[bytes] = set()
        self.too_large = False
        self._explore(b"")

    def sight(self, text: bytes) -> Sight:
        settled = text[: max(len(text) - self.back, 0)]
        length = sum(byte & 0xC0 != 0x80 for byte in text)
        return (
            text[max(len(text) - self.tail, 0) :],
            tuple(phrase in settled for phrase in self.contained),
            tuple(text.startswith(phrases) for phrases in self.begun),
            min(length, self.longest_length + self.back + 1),
            text if len(text) <= max(map(len, self.options), default=-1) + self.back else None,
            tuple(
                outlook(pattern, text[: max(len(text) - cut, 0)])
                for pattern in self.patterns
                for cut in range(self.back + 1)
            ),
        )

    def stopped(self, text: bytes) -> bytes | None:
        """The value if a stop ends the hole exactly after this text; else None."""
        for stop in self.stops:
            if text.endswith(stop.phrase):
                value = text if stop.inclusive else text[: -len(stop.phrase)]
                if is_whole(value) and guarded(self.term, stop, value):
                    return value
        return None

    def may_end(self, text: bytes) -> bool:
        return is_whole(text) and satisfied(self.term, text)

    def _explore(self, start: bytes) -> None:
        """Finds one reachable text for each sight, and its distances to an end."""
        texts = {self.sight(start): start}
        before: dict[Sight, list[Sight]] = {}
        tokens_before: dict[Sight, list[Sight]] = {}
        queue = deque([start])
        ends: list[Sight] = []
        while queue:
            text = queue.popleft()
            here = self.sight(text)
            value = self.stopped(text)
            if value is None and self.may_end(text):
                value = text
            if value is not None:
                ends.append(here)
                self.values.add(value)
                if self.stopped(text) is not None:
                    continue
            if len(texts) > TOO_LARGE:
                self.too_large = True
                return
            for byte in ALPHABET:
                longer = text + bytes([byte])
                if is_text_so_far(longer):
                    after = self.sight(longer)
                    before.setdefault(after, []).append(here)
                    tokens_before.setdefault(after, []).append(here)
                    if after not in texts:
                        texts[after] = longer
                        queue.append(longer)
            for token in self.tokens:
                if is_text_so_far(text + token):
                    tokens_before.setdefault(self.sight(text + token), []).append(here)
        self.distances = dict.fromkeys(texts, NEVER) | self._backwards(ends, before)
        self.in_tokens = dict.fromkeys(texts, NEVER) | self._backwards(ends, tokens_before)

    def _backwards(self, ends: list[Sight], before: dict[Sight, list[Sight]]) -> dict[Sight, int]:
        found = dict.fromkeys(ends, 0)
        backwards = deque(ends)
        while backwards:
            here = backwards.popleft()
            for earlier in before.get(here, ()):
                if earlier not in found:
                    found[earlier] = found[here] + 1
                    backwards.append(earlier)
        return found

    def distance(self, text: bytes) -> int:
        """Number of bytes to the nearest end. Only for texts in which the hole has not ended before their last byte."""
        return self.distances[self.sight(text)] if is_text_so_far(text) else NEVER

    def goes_on(self, text: bytes, byte: int) -> bool:
        return self.distance(text + bytes([byte])) < NEVER

    def _leaves_choice(self, text: bytes, data: bytes) -> bool:
        """True if a token, or the rest of one, ends a complete choice and none of its bytes is kept (S18)."""
        return self.closed and self.may_end(text) and not self.goes_on(text, data[0])

    def _may_follow(self, data: bytes) -> bool:
        return self.following.startswith(data) or data.startswith(self.following)

    def allows(self, text: bytes, data: bytes, tokens_left: int) -> bool:
        if self._leaves_choice(text, data):
            return self._may_follow(data)
        for end in range(1, len(data) + 1):
            said = text + data[:end]
            if not is_text_so_far(said):
                return False
            if self.stopped(said) is not None:
                return True
            if end < len(data) and self._leaves_choice(said, data[end:]):  # it reaches into the following text (S16)
                return bool(self.following) and self._may_follow(data[end:])
        distances = self.in_tokens if self.tokens else self.distances
        return is_text_so_far(text + data) and distances[self.sight(text + data)] < min(tokens_left, NEVER)

    def allows_after(self, held: bytes, text: bytes, data: bytes, tokens_left: int) -> bool:
        """Same as `allows`, for a token that must agree with `held` first (S10).

        Such a token may end the hole without a byte only if the following text is known.
        """
        if held.startswith(data):
            return True
        rest = data[len(held) :]
        if not data.startswith(held):
            return False
        return self.allows(text, rest, tokens_left) and (bool(self.following) or not self._leaves_choice(text, rest))

    def advance(self, text: bytes, data: bytes) -> tuple[str | None, bytes]:
        """Ending of the hole in an allowed token (None while it is open), and its value so far."""
        for end in range(len(data)):
            if self._leaves_choice(text + data[:end], data[end:]):
                return "end-of-text", text + data[:end]
            value = self.stopped(text + data[: end + 1])
            if value is not None:
                return "stop", value
        said = text + data
        if self.may_end(said) and not any(self.goes_on(said, byte) for byte in ALPHABET):
            return ("forced" if self.closed else "bound"), said
        return None, said

    def forced(self, text: bytes) -> bytes:
        said = text
        while not self.may_end(said):
            possible = [byte for byte in ALPHABET if self.goes_on(said, byte)]
            if len(possible) != 1:
                break
            said += bytes(possible)
            if self.stopped(said) is not None:
                break
        return said[len(text) :]

    def longest_valid(self, text: bytes, data: bytes) -> int:
        for end in range(1, len(data) + 1):
            if self._leaves_choice(text + data[: end - 1], data[end - 1 :]):
                return len(data)
            said = text + data[:end]
            if self.distance(said) >= NEVER:
                return end - 1
            if self.stopped(said) is not None:
                return len(data)
        return len(data)
