"""Oracle of holes by brute force: the rules of docs/semantics.md over `satisfies`, sharing no code with the engine.

It tries all texts over a small alphabet up to some length. So it is exact for conditions whose values are short, or
that show within a few characters whether they can still be met.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, cached_property
from itertools import product

from lmql_lite.constraints.simplify import satisfies
from lmql_lite.constraints.terms import And, Choice, Constant, Length, Matches, Not, Occurrences, Or, Stop, Term

FAR = 10**6
"""Distance of a text that no continuation makes valid."""


def atoms(term: Term) -> list[Term]:
    """Atoms in the order in which they stand in the term."""
    match term:
        case And(terms) | Or(terms):
            return [atom for part in terms for atom in atoms(part)]
        case Not(part):
            return atoms(part)
    return [term]


def fires(term: Term, value: str, stop: Term) -> bool:
    """True if a stop that was reached after a value ends the hole (S13): every conjunction that it is part of holds."""
    match term:
        case And(terms):
            return satisfies(term, value.encode()) and any(fires(part, value, stop) for part in terms)
        case Or(terms):
            return any(fires(part, value, stop) for part in terms)
    return term == stop


class Oracle:
    """The rules for one condition. A text is open if no stop has ended it.

    `letters` are the characters that are tried; one of each kind that the condition tells apart is enough.
    """

    def __repr__(self) -> str:
        return f"{self.term} before {self.following!r}"

    def __init__(self, term: Term, letters: Iterable[str], longest: int, following: str = "") -> None:
        self.term = term
        self.following = following
        self.letters = tuple(letters)
        self.longest = longest
        self.stops = [atom for atom in atoms(term) if isinstance(atom, Stop)]

    @cached_property
    def values(self) -> list[str]:
        """All texts that meet the condition, short ones first."""
        every = ("".join(text) for size in range(self.longest + 1) for text in product(self.letters, repeat=size))
        return [text for text in every if satisfies(self.term, text.encode())]

    @cached_property
    def _distances(self) -> dict[str, int]:
        """Bytes from each beginning of a value to the nearest value."""
        found: dict[str, int] = {}
        for value in self.values:
            for end in range(len(value) + 1):
                size = len(value[end:].encode())
                found[value[:end]] = min(found.get(value[:end], FAR), size)
        return found

    def holds(self, text: str) -> bool:
        return satisfies(self.term, text.encode())

    def distance(self, text: str) -> int:
        return self._distances.get(text, FAR)

    def lives(self, data: bytes) -> int:
        """Distance of a text that may end inside a character."""
        text, rest = split(data)
        if not rest:
            return self.distance(text)
        several = (letter for letter in self.letters if letter.encode().startswith(rest) and letter.encode() != rest)
        return min((len(letter.encode()) - len(rest) + self.distance(text + letter) for letter in several), default=FAR)

    @cached_property
    def closed(self) -> bool:
        return is_closed(positive(self.term))

    def stopped(self, text: str) -> str | None:
        """Value if a stop fires exactly at the end of the text; else None."""
        for stop in self.stops:
            for start in range(len(text)):
                part = text[start:]
                phrase = stop.phrase.decode()
                is_match = part == phrase if stop.flags is None else re.fullmatch(phrase, part, stop.flags) is not None
                if is_match:
                    value = text if stop.inclusive else text[:start]
                    if fires(self.term, value, stop):
                        return value
                    break
        return None

    def after(self, said: bytes, data: bytes) -> tuple[str | None, bytes] | None:
        """Ending and value after bytes that follow an open text; None if they are not allowed."""
        left: tuple[str | None, bytes] | None = None
        text, rest = split(said)
        whole = said + data
        for end in range(len(said), len(whole)):
            here, begun = split(whole[:end])
            if not begun and left is None and self.closed and self.holds(here) and self.lives(whole[: end + 1]) >= FAR:
                left = "end-of-text", here.encode()
            there, begun = split(whole[: end + 1])
            if not is_begun(begun):
                return left
            if not begun and (value := self.stopped(there)) is not None:
                return "stop", value.encode()
        text, rest = split(whole)
        if self.lives(whole) >= FAR:
            return left
        if not rest and self.holds(text) and not any(self.distance(text + letter) < FAR for letter in self.letters):
            return ("forced" if self.closed else "bound"), whole
        return None, whole

    def may_end(self, data: bytes) -> bool:
        text, rest = split(data)
        return not rest and self.holds(text)

    def mask(self, said: bytes, tokens: Iterable[bytes | None], held: bytes, tokens_left: int) -> set[bytes | None]:
        """Texts of the allowed tokens, None for the end."""
        found: set[bytes | None] = {data for data in tokens if data and self.allows(said, data, held, tokens_left)}
        return found | ({None} if not held and self.may_end(said) else set())

    def longest_valid(self, said: bytes, data: bytes) -> int:
        """Number of leading bytes after an open text that fit; a phrase that is cut off may break the condition."""
        stuck: int | None = None
        for at in range(len(data)):
            here, there = said + data[:at], said + data[: at + 1]
            text, rest = split(there)
            if not rest and self.stopped(text) is not None:
                return len(data)
            if stuck is None and self.lives(there) >= FAR:
                if self.closed and self.may_end(here):
                    return len(data)
                stuck = at
        return len(data) if stuck is None else stuck

    def allows(self, said: bytes, data: bytes, held: bytes, tokens_left: int) -> bool:
        """True if a token may follow an open text of which the tokens have still to say `held`."""
        if held and held.startswith(data):
            return True
        if not data.startswith(held):
            return False
        data = data[len(held) :]
        after = self.after(said, data)
        if after is None:
            return False
        ending, value = after
        if ending == "end-of-text":
            rest, following = (said + data)[len(value) :], self.following.encode()
            if not following:
                return not held and len(rest) == len(data)
            return following.startswith(rest) or rest.startswith(following)
        return ending == "stop" or self.lives(said + data) < tokens_left


def is_closed(term: Term) -> bool:
    """True if the condition itself shows where its text ends (S18)."""
    match term:
        case Choice():
            return True
        case Matches():
            return term.delimits
        case And(terms):
            return any(map(is_closed, terms))
        case Or(terms):
            several = [part for part in terms if not is_false(part)]
            return bool(several) and all(map(is_closed, several))
    return False


def is_false(term: Term) -> bool:
    """True if constants and lengths alone say that nothing meets the condition."""
    match term:
        case Constant(holds):
            return not holds
        case Or(terms):
            return all(map(is_false, terms))
        case And(terms):
            return any(map(is_false, terms)) or are_contradictory([each for part in terms for each in lengths(part)])
    return are_contradictory(lengths(term))


def are_contradictory(several: list[Length]) -> bool:
    pairs = [(one, other) for one in several for other in several if one.unit == other.unit]
    return any(other.at_most is not None and one.at_least > other.at_most for one, other in pairs)


def lengths(term: Term) -> list[Length]:
    """Lengths that every text has which meets the condition."""
    match term:
        case Length(_, 0, Occurrences()):
            return []
        case Length():
            return [term]
        case And(terms):
            return [each for part in terms for each in lengths(part)]
        case Or(terms):
            several = [part for part in terms if not is_false(part)]
            return lengths(several[0]) if len(several) == 1 else []
    return []


def positive(term: Term, yes: bool = True) -> Term:
    """The condition, or its opposite, with `not` before atoms only."""
    match term:
        case Not(part):
            return positive(part, not yes)
        case And(terms) | Or(terms):
            parts = tuple(positive(part, yes) for part in terms)
            return And(parts) if isinstance(term, And) == yes else Or(parts)
        case Constant(holds):
            return Constant(holds == yes)
        case Length(at_least, at_most, unit) if not yes:
            longer = () if at_most is None else (Length(at_most + 1, None, unit),)
            return Or((Length(0, at_least - 1, unit), *longer))
    return term if yes else Not(term)


@cache
def split(data: bytes) -> tuple[str, bytes]:
    """Whole characters, and the bytes after them."""
    text = data.decode("utf-8", "ignore")
    if text.encode() == data:
        return text, b""
    for size in range(len(data), -1, -1):
        try:
            return data[:size].decode(), data[size:]
        except UnicodeDecodeError:
            continue
    raise AssertionError("the empty text is text")


def is_begun(rest: bytes) -> bool:
    """True if some bytes can make this a whole character."""
    tails = (b"", b"\x80", b"\xbf", b"\x80\x80", b"\xbf\xbf", b"\x80\x80\x80", b"\xbf\xbf\xbf")
    for tail in tails:
        try:
            if len((rest + tail).decode()) <= 1:
                return True
        except UnicodeDecodeError:
            continue
    return False
