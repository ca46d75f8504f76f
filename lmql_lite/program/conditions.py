"""A `where` clause between compile time and run time: its shape is known, its values are Python code.

`bind` evaluates the values and gives the term. What has a wrong type is said with the clause's place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lmql_lite.constraints import shapes
from lmql_lite.constraints.terms import And, Constant, Not, Or, Term, conjunction
from lmql_lite.errors import Span
from lmql_lite.program.given import Compared, Given
from lmql_lite.program.numbers import SHAPE, Kind, LengthIn, LengthIs, NumberIn, NumberIs, Occurs
from lmql_lite.program.patterns import Fits, StopsAt
from lmql_lite.program.texts import Edge, Has, OneOf, Shaped
from lmql_lite.program.typed_values import DateIn, DateIs, ListedIn, ListedIs
from lmql_lite.program.values import Comparison, Evaluate, once

OPPOSITE: dict[Comparison, Comparison] = {"<": ">=", "<=": ">", "==": "!=", "!=": "==", ">=": "<", ">": "<="}


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
        evaluate = once(evaluate)
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
        evaluate = once(evaluate)
        terms: list[Term] = []
        numbers: dict[Kind, None] = {}
        for condition in self.conditions:
            # as in Python, what comes after a true part is not evaluated; but a stop is a stop wherever it stands
            if not any(isinstance(term, Constant) and term.holds for term in terms) or _has_stops(condition):
                term = condition.bind(evaluate)
                # and what comes after `int(X)` is only reached with a number
                first = tuple(shapes.shape(SHAPE[kind], self.span) for kind in numbers)
                terms.append(And((*first, term), self.span) if first else term)
                numbers |= dict.fromkeys(numbers_read(condition))
        return Or(tuple(terms), self.span)


Condition = (
    Given
    | Compared
    | LengthIs
    | LengthIn
    | OneOf
    | Has
    | Occurs
    | Fits
    | Shaped
    | Edge
    | NumberIs
    | NumberIn
    | ListedIs
    | ListedIn
    | DateIs
    | DateIn
    | StopsAt
    | No
    | All
    | Any
)


def negated(condition: Condition) -> Condition:
    """`not` before it. Where `int(X)` is read `not` moves inwards: what is no number meets neither side."""
    if not numbers_read(condition):
        return No(condition.span, condition)
    match condition:
        case NumberIs(span, comparison, code, kind):
            return NumberIs(span, OPPOSITE[comparison], code, kind)
        case NumberIn(span, code, inside, kind):
            return NumberIn(span, code, not inside, kind)
        case All(span, conditions):
            return Any(span, tuple(map(negated, conditions)))
        case Any(span, conditions):
            return All(span, tuple(map(negated, conditions)))
    return No(condition.span, condition)


def numbers_read(condition: Condition) -> tuple[Kind, ...]:
    """The kinds of number that Python makes of the hole's text to judge the condition."""
    match condition:
        case All(_, conditions) | Any(_, conditions):
            return tuple(dict.fromkeys(kind for part in conditions for kind in numbers_read(part)))
        case NumberIs() | NumberIn():
            return (condition.kind,)
    return ()


def reach(condition: Condition, evaluate: Evaluate) -> tuple[float, float]:
    """The least and the greatest number for which the condition may be true, for all that it says of `int(X)`."""
    match condition:
        case All(_, conditions):
            lows, highs = zip(*(reach(part, evaluate) for part in conditions), strict=True)
            return max(lows), min(highs)
        case NumberIs():
            return condition.reach(evaluate)
    return -math.inf, math.inf


def _has_stops(condition: Condition) -> bool:
    match condition:
        case All(_, conditions) | Any(_, conditions):
            return any(_has_stops(part) for part in conditions)
    return isinstance(condition, StopsAt)
