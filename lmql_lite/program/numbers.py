"""Conditions on a number that belongs to a hole: how long it is, or what `int()` and `float()` make of its text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType
from typing import Literal

from lmql_lite.constraints import decimals, shapes
from lmql_lite.constraints.terms import (
    Choice,
    Constant,
    Length,
    Matches,
    Measure,
    Not,
    Occurrences,
    Or,
    Term,
    Unit,
)
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.program.values import Comparison, Evaluate, encode, finite, number, wrong

Kind = Literal["int", "float"]
SHAPE: dict[Kind, str] = {"int": "INT", "float": "FLOAT"}
"""The texts that are such a number: of everything else Python raises an error."""
MADE: dict[Kind, Callable[[str], float]] = {"int": int, "float": finite}
"""What makes the number of such a text."""
AT_ONCE = 100
"""Numbers that `float()` of a hole is compared with one by one."""
TRIED = 4_000
"""Lengths of which Python is asked one by one."""
PERIOD = 60
"""Lengths after which what fits repeats itself, at most: `len(X) % 7 == 0`."""
LISTED = 100_000
"""Numbers that are held in memory one by one."""


@dataclass(frozen=True, slots=True)
class LengthIs:
    """`len(X) < value`, `len(WORDS(X)) < value`."""

    span: Span
    comparison: Comparison
    code: CodeType
    unit: Unit = "characters"

    def bind(self, evaluate: Evaluate) -> Term:
        value = number(self.span, "a length is compared with a number", evaluate(self.code))
        return length_term(self.comparison, value, self.span, self.unit)


@dataclass(frozen=True, slots=True)
class LengthFits:
    """Any Python about `len(X)` alone, which judges the value at the end as well.

    It is asked about every length up to TRIED. Where what it says does not repeat itself by then, it guides nothing.
    """

    span: Span
    code: CodeType
    """A function of the length."""
    unit: Unit

    def bind(self, evaluate: Evaluate) -> Term:
        holds = _truth(evaluate(self.code))
        start, period = _repetition(holds)
        changes = [at for at in range(1, start) if holds[at] != holds[at - 1]]
        is_told = any(holds) and (period == 1 or self.unit == "characters") and len(changes) <= AT_ONCE
        if not period or not is_told:
            return Constant(True, self.span)
        runs = [(low, high - 1) for low, high in pairwise([0, *changes, start]) if low < high and holds[low]]
        terms: list[Term] = [Length(low, high, self.unit, self.span) for low, high in runs]
        for length in (at for at in range(start, start + period) if holds[at]):
            if period == 1:
                terms.append(Length(length, None, self.unit, self.span))
            else:
                pattern = f"(?s:.{{{length}}})(?:(?s:.{{{period}}}))*"
                terms.append(Matches(pattern, delimits=False, span=self.span))
        return Or(tuple(terms), self.span)


@dataclass(frozen=True, slots=True)
class LengthIn:
    """`len(X) in value`."""

    span: Span
    code: CodeType
    unit: Unit

    def bind(self, evaluate: Evaluate) -> Term:
        sentence = "a length is one of a list, a range or another collection of numbers"
        value = _collection(self.span, sentence, evaluate(self.code))
        if isinstance(value, range) and abs(value.step) == 1:
            first, last = _ends(value)
            low = max(first, 0)
            return Length(low, last, self.unit, self.span) if low <= last else Constant(False, self.span)
        numbers = {number(self.span, sentence, each) for each in value}
        lengths = sorted(math.floor(each) for each in numbers if 0 <= each < math.inf and each % 1 == 0)
        runs = [0, *(at for at, (one, two) in enumerate(pairwise(lengths), 1) if two > one + 1), len(lengths)]
        terms = tuple(
            Length(lengths[start], lengths[end - 1], self.unit, self.span)
            for start, end in pairwise(runs)
            if end > start
        )
        return terms[0] if len(terms) == 1 else Or(terms, self.span) if terms else Constant(False, self.span)


@dataclass(frozen=True, slots=True)
class NumberIs:
    """`int(X) < value`: true of numbers only, since of everything else Python raises an error."""

    span: Span
    comparison: Comparison
    code: CodeType
    kind: Kind = "int"

    def bind(self, evaluate: Evaluate) -> Term:
        value = _bound(self.span, self.kind, evaluate(self.code))
        if self.kind == "float":
            return decimals.compared(self.comparison, value, self.span)
        term = shapes.integers(*_bounds("==" if self.comparison == "!=" else self.comparison, value), self.span)
        return shapes.other_integers(term, self.span) if self.comparison == "!=" else term

    def reach(self, evaluate: Evaluate) -> tuple[float, float]:
        """The least and the greatest number for which it may be true."""
        value = _bound(self.span, self.kind, evaluate(self.code))
        if self.comparison == "!=":
            return -math.inf, math.inf
        if self.kind == "int":
            least, most = _bounds(self.comparison, value)
            return -math.inf if least is None else least, math.inf if most is None else most
        return (
            value if self.comparison in (">", ">=", "==") else -math.inf,
            value if self.comparison in ("<", "<=", "==") else math.inf,
        )


@dataclass(frozen=True, slots=True)
class NumberIn:
    """`int(X) in value`, `float(X) not in value`."""

    span: Span
    code: CodeType
    inside: bool
    kind: Kind = "int"

    def bind(self, evaluate: Evaluate) -> Term:
        sentence = f"{self.kind}() of a hole is one of a list, a range or another collection of numbers"
        return self.among(_collection(self.span, sentence, evaluate(self.code)))

    def among(self, value: Iterable[object]) -> Term:
        """The texts that are one of these numbers."""
        return self._float_in(value) if self.kind == "float" else self._int_in(value)

    def _int_in(self, value: Iterable[object]) -> Term:
        term: Term
        if isinstance(value, range) and abs(value.step) == 1:
            low, high = (int(_bound(self.span, "int", end)) for end in _ends(value))
            term = shapes.integers(low, high, self.span)
        else:
            numbers = [_bound(self.span, "int", each) for each in value]
            texts = {str(math.floor(each)).encode(): None for each in numbers if each % 1 == 0}
            term = Choice(tuple(texts), self.span)
        return term if self.inside else shapes.other_integers(term, self.span)

    def _float_in(self, value: Iterable[object]) -> Term:
        numbers: list[float] = []
        for each in value:
            numbers.append(_bound(self.span, "float", each))
            if len(numbers) > AT_ONCE:
                sentence = f"float() of a hole is compared with up to {AT_ONCE} numbers one by one, and these are more"
                raise ConstraintError(sentence, span=self.span, hint="write bounds, such as 3 <= float(X) < 9")
        return (decimals.one_of if self.inside else decimals.none_of)(numbers, self.span)


@dataclass(frozen=True, slots=True)
class Occurs:
    """`X.count(phrase) < value`, `len(X.split(phrase)) < value`: parts are one more than what is between them."""

    span: Span
    phrase: CodeType
    comparison: Comparison
    code: CodeType
    more: int = 0

    def bind(self, evaluate: Evaluate) -> Term:
        phrase, sentence = evaluate(self.phrase), "what is counted in a hole is a text"
        if self.more and phrase is None:  # white space divides it
            words = number(self.span, "how many words there are is compared with a number", evaluate(self.code))
            return length_term(self.comparison, words, self.span, "words")
        if self.more and not phrase:
            sentence = "what divides a hole is a text that is not empty"
        if not isinstance(phrase, str) or (self.more and not phrase):
            raise wrong(self.span, sentence, phrase, "a text has quotes")
        encode(self.span, phrase)
        value = number(self.span, "how often a text occurs is compared with a number", evaluate(self.code)) - self.more
        if not phrase:  # stands before every character, and at the end
            return length_term(self.comparison, value - 1, self.span)
        return length_term(self.comparison, value, self.span, Occurrences(phrase.encode()))


def _truth(function: object) -> list[bool]:
    """What a function says of each length. One for which Python raises an error does not fit."""
    assert callable(function), "the code is a function"
    holds = []
    for length in range(TRIED):
        try:
            holds.append(bool(function(length)))
        except ArithmeticError:
            holds.append(False)
    return holds


def _repetition(holds: list[bool]) -> tuple[int, int]:
    """From where on it repeats itself, and after how many; 0 where it does not."""
    for period in range(1, PERIOD + 1):
        start = len(holds) - period
        while start and holds[start - 1] == holds[start - 1 + period]:
            start -= 1
        if start <= len(holds) // 2:
            return start, period
    return 0, 0


def length_term(comparison: Comparison, value: float, span: Span, unit: Measure = "characters") -> Term:
    """A comparison of a count with a number, as bounds that are whole numbers."""
    if comparison == "!=":
        return Not(length_term("==", value, span, unit), span)
    least, high = _bounds(comparison, value)
    low = max(least or 0, 0)
    return Constant(False, span) if high is not None and high < low else Length(low, high, unit, span)


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


def _ends(numbers: range) -> tuple[int, int]:
    """The least and the greatest of a range without gaps; (1, 0) where it is empty."""
    return (min(numbers[0], numbers[-1]), max(numbers[0], numbers[-1])) if numbers else (1, 0)


def _collection(span: Span, sentence: str, value: object) -> Iterable[object]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise wrong(span, sentence, value, "[3, 5, 8] or range(3, 9)")
    if isinstance(value, range) and abs(value.step) > 1 and value and (value[-1] - value[0]) // value.step >= LISTED:
        sentence = f"a range with steps lists its numbers one by one, and these are more than {LISTED:,}"
        raise ConstraintError(sentence, span=span, hint="write bounds, and leave the steps to Python: int(X) % 3 == 0")
    return value


def _bound(span: Span, kind: Kind, value: object) -> float:
    """A number that `int(X)` or `float(X)` is compared with."""
    exact = number(span, f"{kind}() of a hole is compared with a number", value)
    if abs(exact) >= 10**shapes.DIGITS_BUDGET and abs(exact) != math.inf:
        sentence = f"{kind}() of a hole is compared with numbers of up to {shapes.DIGITS_BUDGET} digits"
        raise ConstraintError(sentence, span=span, hint="INT(X) or FLOAT(X) alone sets no bound")
    return exact
