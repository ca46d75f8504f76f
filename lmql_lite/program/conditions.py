"""A `where` clause between compile time and run time: its shape is known, its values are Python code.

`bind` evaluates the values and gives the term. What has a wrong type is said with the clause's place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from numbers import Integral, Rational, Real
from types import CodeType
from typing import Literal, cast

from lmql_lite.constraints import shapes
from lmql_lite.constraints.pattern import UnsupportedPattern, program
from lmql_lite.constraints.terms import (
    And,
    Choice,
    Constant,
    Contains,
    Length,
    Matches,
    Not,
    Or,
    Stop,
    Term,
    conjunction,
)
from lmql_lite.errors import ConstraintError, Span

Evaluate = Callable[[CodeType], object]
Comparison = Literal["<", "<=", "==", "!=", ">=", ">"]
MEANINGFUL = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.ASCII
"""The flags of a pattern that say what it matches."""
OPPOSITE: dict[Comparison, Comparison] = {"<": ">=", "<=": ">", "==": "!=", "!=": "==", ">=": "<", ">": "<="}


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
        value = _number(self.span, "a length is compared with a number", evaluate(self.code))
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
class Fits:
    """`REGEX(X, value)`, `re.fullmatch(value, X)`: a pattern as text, or a compiled one with its flags."""

    span: Span
    code: CodeType

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        pattern, flags = (value.pattern, value.flags) if isinstance(value, re.Pattern) else (value, 0)
        if not isinstance(pattern, str):
            raise _wrong(self.span, "a regular expression is a text, or what re.compile makes of one", value)
        return _followed(Matches(pattern, flags & MEANINGFUL, span=self.span))


@dataclass(frozen=True, slots=True)
class Shaped:
    """`INT(X)`, `X.isdigit()`: a kind of text that has a name."""

    span: Span
    name: str

    def bind(self, evaluate: Evaluate) -> Term:
        return (shapes.shape if self.name in shapes.SHAPES else shapes.method)(self.name, self.span)


@dataclass(frozen=True, slots=True)
class Edge:
    """`X.startswith(value)`, `ENDS_WITH(X, value)`: a text, or several, any of which will do.

    As in Python the methods take a tuple only; the functions take any collection.
    """

    span: Span
    code: CodeType
    at_start: bool
    tuple_only: bool

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        several = isinstance(value, tuple) if self.tuple_only else isinstance(value, Iterable)
        options = (
            [value] if isinstance(value, str) else list(value) if several and isinstance(value, Iterable) else [value]
        )
        for option in options:
            if not isinstance(option, str):
                kind = "a tuple of texts" if self.tuple_only else "a collection of texts"
                raise _wrong(self.span, f"a hole begins and ends with a text, or with one of {kind}", option)
            _encode(self.span, option)
        texts = tuple(sorted(set(options)))
        return _followed((shapes.begins if self.at_start else shapes.ends)(texts, self.span))


@dataclass(frozen=True, slots=True)
class NumberIs:
    """`int(X) < value`: true of integers only, since of everything else Python raises an error."""

    span: Span
    comparison: Comparison
    code: CodeType

    def bind(self, evaluate: Evaluate) -> Term:
        number = _bound(self.span, evaluate(self.code))
        term = shapes.integers(*_bounds("==" if self.comparison == "!=" else self.comparison, number), self.span)
        return shapes.other_integers(term, self.span) if self.comparison == "!=" else term


@dataclass(frozen=True, slots=True)
class NumberIn:
    """`int(X) in value`, `int(X) not in value`."""

    span: Span
    code: CodeType
    inside: bool

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise _wrong(self.span, "int() of a hole is one of a list, a range or another collection of numbers", value)
        term: Term
        if isinstance(value, range) and abs(value.step) == 1:
            ends = sorted(int(_bound(self.span, end)) for end in (value[0], value[-1])) if value else [1, 0]
            term = shapes.integers(ends[0], ends[1], self.span)
        else:
            numbers = [_bound(self.span, number) for number in value]
            texts = {str(math.floor(number)).encode(): None for number in numbers if number % 1 == 0}
            term = Choice(tuple(texts), self.span)
        return term if self.inside else shapes.other_integers(term, self.span)


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
        number_first = False
        for condition in self.conditions:
            # as in Python, what comes after a true part is not evaluated; but a stop is a stop wherever it stands
            if not any(isinstance(term, Constant) and term.holds for term in terms) or _has_stops(condition):
                term = condition.bind(evaluate)
                # and what comes after `int(X)` is only reached with a number
                terms.append(And((shapes.shape("INT", self.span), term), self.span) if number_first else term)
                number_first = number_first or reads_number(condition)
        return Or(tuple(terms), self.span)


Condition = Given | LengthIs | OneOf | Has | Fits | Shaped | Edge | NumberIs | NumberIn | StopsAt | No | All | Any


def negated(condition: Condition) -> Condition:
    """`not` before it. Where `int(X)` is read `not` moves inwards: what is no number meets neither side."""
    if not reads_number(condition):
        return No(condition.span, condition)
    match condition:
        case NumberIs(span, comparison, code):
            return NumberIs(span, OPPOSITE[comparison], code)
        case NumberIn(span, code, inside):
            return NumberIn(span, code, not inside)
        case All(span, conditions):
            return Any(span, tuple(map(negated, conditions)))
        case Any(span, conditions):
            return All(span, tuple(map(negated, conditions)))
    return No(condition.span, condition)


def reads_number(condition: Condition) -> bool:
    match condition:
        case All(_, conditions) | Any(_, conditions):
            return any(map(reads_number, conditions))
    return isinstance(condition, NumberIs | NumberIn)


def length_term(comparison: Comparison, value: float, span: Span) -> Term:
    """A comparison of a character count with a number, as bounds that are whole numbers."""
    if comparison == "!=":
        return Not(length_term("==", value, span), span)
    least, high = _bounds(comparison, value)
    low = max(least or 0, 0)
    return Constant(False, span) if high is not None and high < low else Length(low, high, span)


def _bounds(comparison: Comparison, value: float) -> tuple[int | None, int | None]:
    """The whole numbers, both included, for which a comparison other than `!=` is true."""
    if value in (math.inf, -math.inf):
        below = comparison in ("<", "<=") if value > 0 else comparison in (">", ">=")
        return (None, None) if below else (1, 0)
    match comparison:
        case "<":
            return None, math.ceil(value) - 1
        case "<=":
            return None, math.floor(value)
        case ">=":
            return math.ceil(value), None
        case ">":
            return math.floor(value) + 1, None
    return math.ceil(value), math.floor(value)


def _has_stops(condition: Condition) -> bool:
    match condition:
        case All(_, conditions) | Any(_, conditions):
            return any(_has_stops(part) for part in conditions)
    return isinstance(condition, StopsAt)


def _number(span: Span, sentence: str, value: object) -> float:
    """Any kind of number as one that is compared without rounding: as an int or a fraction where it is one."""
    if not isinstance(value, Real) or value != value:
        raise _wrong(span, sentence, value)
    exact = int(value) if isinstance(value, Integral) else value if isinstance(value, Rational) else float(value)
    return cast(float, exact)


def _bound(span: Span, value: object) -> float:
    """A number that `int(X)` is compared with."""
    number = _number(span, "int() of a hole is compared with a number", value)
    if abs(number) >= 10**shapes.DIGITS_BUDGET and abs(number) != math.inf:
        sentence = f"int() of a hole is compared with numbers of up to {shapes.DIGITS_BUDGET} digits"
        raise ConstraintError(sentence, span=span)
    return number


def _followed(term: Term) -> Term:
    """The term, if its pattern can be followed."""
    if isinstance(term, Matches):
        try:
            program(term.pattern, term.flags)
        except UnsupportedPattern as error:
            raise ConstraintError(error.sentence, span=term.span, hint=error.hint) from None
    return term


def _encode(span: Span, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _wrong(span, "half of a surrogate pair is no text that a model could say", text) from None


def _wrong(span: Span, sentence: str, value: object) -> ConstraintError:
    return ConstraintError(f"{sentence}; this is {value!r} ({type(value).__name__})", span=span)
