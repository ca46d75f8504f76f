"""A `where` clause between compile time and run time: its shape is known, its values are Python code.

`bind` evaluates the values and gives the term. What has a wrong type is said with the clause's place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Literal

from lmql_lite.constraints.terms import And, Choice, Constant, Contains, Length, Not, Or, Stop, Term, conjunction
from lmql_lite.errors import ConstraintError, Span

Evaluate = Callable[[CodeType], object]
Comparison = Literal["<", "<=", "==", "!=", ">=", ">"]


@dataclass(frozen=True, slots=True)
class Given:
    """A condition that does not mention the hole: Python's truth of it."""

    span: Span
    code: CodeType

    def bind(self, evaluate: Evaluate) -> Term:
        return Constant(bool(evaluate(self.code)), self.span)


@dataclass(frozen=True, slots=True)
class LengthIs:
    """`len(X) < value`."""

    span: Span
    comparison: Comparison
    code: CodeType

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        if not isinstance(value, int | float) or math.isnan(value):
            raise _wrong(self.span, "a length is compared with a number", value)
        return length_term(self.comparison, value, self.span)


@dataclass(frozen=True, slots=True)
class OneOf:
    """`X in value`, `X == value`."""

    span: Span
    code: CodeType
    single: bool

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        if self.single:
            value = [value]
        elif isinstance(value, str) or not isinstance(value, Iterable):
            raise _wrong(self.span, "the options of a hole are a list, set or other collection of texts", value)
        options = list(dict.fromkeys(value))
        for option in options:
            if not isinstance(option, str):
                raise _wrong(self.span, "a hole is text and can only be one of several texts", option)
        return Choice(tuple(_encode(self.span, option) for option in options), self.span)


@dataclass(frozen=True, slots=True)
class Has:
    """`value in X`."""

    span: Span
    code: CodeType

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        if not isinstance(value, str):
            raise _wrong(self.span, "a hole is text and can only contain text", value)
        return Contains(_encode(self.span, value), self.span)


@dataclass(frozen=True, slots=True)
class StopsAt:
    """`STOPS_AT(X, value)`, `STOPS_BEFORE(X, value)`: a phrase or several, any of which stops."""

    span: Span
    code: CodeType
    inclusive: bool

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        phrases = [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple | set) else []
        if not phrases or not all(isinstance(phrase, str) and phrase for phrase in phrases):
            raise _wrong(self.span, "a stop is a text that is not empty, or a list of such texts", value)
        stops = tuple(Stop(_encode(self.span, phrase), self.inclusive, self.span) for phrase in phrases)
        return stops[0] if len(stops) == 1 else And(stops, self.span)


@dataclass(frozen=True, slots=True)
class No:
    span: Span
    condition: Condition

    def bind(self, evaluate: Evaluate) -> Term:
        return Not(self.condition.bind(evaluate), self.span)


@dataclass(frozen=True, slots=True)
class All:
    span: Span
    conditions: tuple[Condition, ...]

    def bind(self, evaluate: Evaluate) -> Term:
        return conjunction(tuple(condition.bind(evaluate) for condition in self.conditions))


@dataclass(frozen=True, slots=True)
class Any:
    span: Span
    conditions: tuple[Condition, ...]

    def bind(self, evaluate: Evaluate) -> Term:
        return Or(tuple(condition.bind(evaluate) for condition in self.conditions), self.span)


Condition = Given | LengthIs | OneOf | Has | StopsAt | No | All | Any


def length_term(comparison: Comparison, value: float, span: Span) -> Term:
    """A comparison of a character count with a number, as bounds that are whole numbers."""
    match comparison:
        case "!=":
            return Not(length_term("==", value, span), span)
        case "<":
            low, high = 0.0, math.ceil(value) - 1 if math.isfinite(value) else value
        case "<=":
            low, high = 0.0, math.floor(value) if math.isfinite(value) else value
        case "==":
            low, high = value, value
        case ">=":
            low, high = math.ceil(value) if math.isfinite(value) else value, math.inf
        case ">":
            low, high = math.floor(value) + 1 if math.isfinite(value) else value, math.inf
    low = max(low, 0)
    if high < low or low == math.inf or low != int(low):
        return Constant(False, span)
    return Length(int(low), None if high == math.inf else int(high), span)


def _encode(span: Span, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _wrong(span, "half of a surrogate pair is no text that a model could say", text) from None


def _wrong(span: Span, sentence: str, value: object) -> ConstraintError:
    return ConstraintError(f"{sentence}; this is {value!r} ({type(value).__name__})", span=span)
