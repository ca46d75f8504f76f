"""A `where` clause between compile time and run time: its shape is known, its values are Python code.

`bind` evaluates the values and gives the term. What has a wrong type is said with the clause's place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from numbers import Integral, Real
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
        if not isinstance(value, Real) or value != value:
            raise _wrong(self.span, "a length is compared with a number", value)
        return length_term(self.comparison, int(value) if isinstance(value, Integral) else float(value), self.span)


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
        options: dict[bytes, None] = {}
        for option in value:
            if not isinstance(option, str):
                raise _wrong(self.span, "a hole is text and can only be one of several texts", option)
            options[_encode(self.span, option)] = None
        return Choice(tuple(options), self.span)


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
        phrases = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else []
        if not phrases or not all(isinstance(phrase, str) and phrase for phrase in phrases):
            raise _wrong(self.span, "a stop is a text that is not empty, or a list of such texts", value)
        if isinstance(value, Set):  # the order of a set differs from process to process
            phrases.sort()
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
        terms: list[Term] = []
        for condition in self.conditions:
            terms.append(condition.bind(evaluate))
            if isinstance(terms[-1], Constant) and not terms[-1].holds:
                break  # as in Python, what comes after a false part is not evaluated
        return conjunction(tuple(terms))


@dataclass(frozen=True, slots=True)
class Any:
    span: Span
    conditions: tuple[Condition, ...]

    def bind(self, evaluate: Evaluate) -> Term:
        terms: list[Term] = []
        for condition in self.conditions:
            # as in Python, what comes after a true part is not evaluated; but a stop is a stop wherever it stands
            if not any(isinstance(term, Constant) and term.holds for term in terms) or _has_stops(condition):
                terms.append(condition.bind(evaluate))
        return Or(tuple(terms), self.span)


Condition = Given | LengthIs | OneOf | Has | StopsAt | No | All | Any


def length_term(comparison: Comparison, value: float, span: Span) -> Term:
    """A comparison of a character count with a number, as bounds that are whole numbers."""
    if comparison == "!=":
        return Not(length_term("==", value, span), span)
    if value in (math.inf, -math.inf):
        below = comparison in ("<", "<=") if value > 0 else comparison in (">", ">=")
        return Length(0, None, span) if below else Constant(False, span)
    low: int = 0
    high: int | None = None
    match comparison:
        case "<":
            high = math.ceil(value) - 1
        case "<=":
            high = math.floor(value)
        case "==":
            low, high = math.ceil(value), math.floor(value)
        case ">=":
            low = math.ceil(value)
        case ">":
            low = math.floor(value) + 1
    low = max(low, 0)
    return Constant(False, span) if high is not None and high < low else Length(low, high, span)


def _has_stops(condition: Condition) -> bool:
    match condition:
        case All(_, conditions) | Any(_, conditions):
            return any(_has_stops(part) for part in conditions)
    return isinstance(condition, StopsAt)


def _encode(span: Span, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _wrong(span, "half of a surrogate pair is no text that a model could say", text) from None


def _wrong(span: Span, sentence: str, value: object) -> ConstraintError:
    return ConstraintError(f"{sentence}; this is {value!r} ({type(value).__name__})", span=span)
