"""Regular expressions by Brzozowski's derivatives (1964): the rest of an expression after one character.

Reads the patterns that the tests use. It shares nothing with the engine, which uses sets of positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

Expression = tuple[Any, ...]
"""("nothing",), ("empty",), ("one", characters), ("then", a, b), ("or", {..}), ("times", a, least, most or None)."""
NOTHING: Expression = ("nothing",)
EMPTY: Expression = ("empty",)


class Characters(NamedTuple):
    """A character class. With `spaces`, it includes all white space."""

    negated: bool
    ranges: tuple[tuple[str, str], ...] = ()
    spaces: bool = False

    def has(self, character: str) -> bool:
        found = any(low <= character <= high for low, high in self.ranges) or (self.spaces and character.isspace())
        return found != self.negated


def then(first: Expression, second: Expression) -> Expression:
    if NOTHING in (first, second):
        return NOTHING
    if first == EMPTY:
        return second
    if first[0] == "then":  # nested to the right, so that equal expressions compare equal
        return then(first[1], then(first[2], second))
    return first if second == EMPTY else ("then", first, second)


def either(parts: Iterable[Expression]) -> Expression:
    flat = frozenset(each for part in parts for each in (part[1] if part[0] == "or" else (part,))) - {NOTHING}
    return NOTHING if not flat else next(iter(flat)) if len(flat) == 1 else ("or", flat)


def times(part: Expression, least: int, most: int | None) -> Expression:
    if most == 0 or part == EMPTY:
        return EMPTY
    return ("times", part, least, most)


@lru_cache(maxsize=100_000)
def nullable(expression: Expression) -> bool:
    match expression:
        case ("empty",):
            return True
        case ("then", first, second):
            return nullable(first) and nullable(second)
        case ("or", parts):
            return any(map(nullable, parts))
        case ("times", part, least, _):
            return least == 0 or nullable(part)
    return False


@lru_cache(maxsize=500_000)
def derivative(expression: Expression, character: str) -> Expression:
    match expression:
        case ("one", characters):
            return EMPTY if characters.has(character) else NOTHING
        case ("then", first, second):
            left = then(derivative(first, character), second)
            return either([left, derivative(second, character)]) if nullable(first) else left
        case ("or", parts):
            return either([derivative(part, character) for part in parts])
        case ("times", part, least, most):
            rest = times(part, max(least - 1, 0), None if most is None else most - 1)
            return then(derivative(part, character), rest)
    return NOTHING


def classes(expression: Expression) -> set[Characters]:
    match expression:
        case ("one", characters):
            return {characters}
        case ("then", first, second):
            return classes(first) | classes(second)
        case ("or", parts):
            return set[Characters]().union(*map(classes, parts))
        case ("times", part, _, _):
            return classes(part)
    return set()


class Reader:
    """Parser of the tests' patterns: literals, escapes, `.`, `(?s:.)`, classes, groups, `|`, `* + ?`, `{m,n}`."""

    def __init__(self, pattern: str) -> None:
        self._rest = pattern

    def read(self) -> Expression:
        expression = self._alternatives()
        assert not self._rest, f"not read: {self._rest!r}"
        return expression

    def _take(self, expected: str) -> bool:
        found = self._rest.startswith(expected)
        if found:
            self._rest = self._rest[len(expected) :]
        return found

    def _character(self) -> str:
        character, self._rest = self._rest[0], self._rest[1:]
        return character

    def _alternatives(self) -> Expression:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return either(parts)

    def _sequence(self) -> Expression:
        sequence = EMPTY
        while self._rest and self._rest[0] not in "|)":
            sequence = then(sequence, self._repeated(self._single()))
        return sequence

    def _repeated(self, part: Expression) -> Expression:
        for sign, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._take(sign):
                return times(part, least, most)
        if self._take("{"):
            bounds, self._rest = self._rest.split("}", 1)
            low, comma, high = bounds.partition(",")
            return times(part, int(low or 0), int(high) if high else None if comma else int(low))
        return part

    def _single(self) -> Expression:
        if self._take("(?s:.)"):
            return ("one", Characters(True))
        if self._take("(?:") or self._take("("):
            inside = self._alternatives()
            assert self._take(")")
            return inside
        if self._take("["):
            return ("one", self._class())
        if self._take("."):
            return ("one", Characters(True, (("\n", "\n"),)))
        character = self._character()
        return ("one", self._escape() if character == "\\" else Characters(False, ((character, character),)))

    def _escape(self) -> Characters:
        letter = self._character()
        if letter in "sS":
            return Characters(letter == "S", (), True)
        if letter in "uU":
            digits = 4 if letter == "u" else 8
            letter, self._rest = chr(int(self._rest[:digits], 16)), self._rest[digits:]
        letter = "\n" if letter == "n" else letter
        return Characters(False, ((letter, letter),))

    def _class(self) -> Characters:
        negated = self._take("^")
        ranges: list[tuple[str, str]] = []
        spaces = False
        while not self._take("]"):
            character = self._character()
            if character == "\\":
                escaped = self._escape()
                spaces = spaces or escaped.spaces
                ranges += escaped.ranges
            elif len(self._rest) > 1 and self._rest[0] == "-" and self._rest[1] != "]":
                self._rest = self._rest[1:]
                ranges.append((character, self._character()))
            else:
                ranges.append((character, character))
        return Characters(negated, tuple(ranges), spaces)


def literal(text: str) -> Expression:
    expression = EMPTY
    for character in text:
        expression = then(expression, ("one", Characters(False, ((character, character),))))
    return expression


ANY_TEXT = times(("one", Characters(True)), 0, None)
