"""A `where` clause between compile time and run time: its shape is known, its values are Python code.

`bind` evaluates the values and gives the term. What has a wrong type is said with the clause's place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from lmql_lite.constraints import shapes
from lmql_lite.constraints.terms import And, Constant, Not, Or, Term, conjunction
from lmql_lite.errors import Span
from lmql_lite.program.given import Compared, Given, OtherHoles
from lmql_lite.program.numbers import SHAPE, LengthFits, LengthIn, LengthIs, NumberIn, NumberIs, Occurs
from lmql_lite.program.patterns import Fits, StopsAt
from lmql_lite.program.texts import Edge, Has, OneOf, PartOf, Shaped
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
        reached: list[Term] = []
        """What a text must be for Python to come this far."""
        for condition in self.conditions:
            # as in Python, what comes after a true part is not evaluated; but a stop is a stop wherever it stands
            if not any(isinstance(term, Constant) and term.holds for term in terms) or _has_stops(condition):
                term = condition.bind(evaluate)
                terms.append(And((*reached, term), self.span) if reached else term)
                judgeable = _judgeable(condition, evaluate)
                if judgeable is not None:
                    reached.append(judgeable)
        return Or(tuple(terms), self.span)


@dataclass(frozen=True, slots=True)
class Joint:
    """A clause that reads other holes, too."""

    span: Span
    others: OtherHoles
    condition: Condition

    def bind(self, evaluate: Evaluate) -> Term:
        known = self.others.have_values(evaluate, self.span)
        return self.condition.bind(evaluate) if known else Constant(True, self.span)


Condition = (
    Given
    | Compared
    | LengthIs
    | LengthIn
    | LengthFits
    | OneOf
    | Has
    | Occurs
    | Fits
    | Shaped
    | Edge
    | PartOf
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
    | Joint
)


def negated(condition: Condition) -> Condition:
    """`not` before it. Where `int(X)` or `X[0]` is read `not` moves inwards: what is no number meets neither side."""
    if not _is_partial(condition):
        return No(condition.span, condition)
    match condition:
        case NumberIs(span, comparison, code, kind):
            return NumberIs(span, OPPOSITE[comparison], code, kind)
        case NumberIn(span, code, inside, kind):
            return NumberIn(span, code, not inside, kind)
        case PartOf():
            return replace(condition, inside=not condition.inside)
        case All(span, conditions):
            return Any(span, tuple(map(negated, conditions)))
        case Any(span, conditions):
            return All(span, tuple(map(negated, conditions)))
    return No(condition.span, condition)


def _judgeable(condition: Condition, evaluate: Evaluate) -> Term | None:
    """The texts of which Python can tell whether they meet the condition, `int` raising an error for all others; None
    for every text."""
    match condition:
        case NumberIs(span=span, kind=kind) | NumberIn(span=span, kind=kind):
            return shapes.shape(SHAPE[kind], span)
        case PartOf(is_single=True):
            return condition.judgeable(evaluate)
        case All(span, parts) | Any(span, parts) if _is_partial(condition):
            judgeable: list[Term] = []
            ends: list[Term] = []
            """For each part so far: the texts with which Python goes no further."""
            for part in parts:
                reads = _judgeable(part, evaluate)
                if reads is not None and Not(reads) not in ends:
                    judgeable.append(Or((*ends, reads), span))
                if _has_stops(part):  # true of every text, and no matter of the text
                    continue
                term = part.bind(evaluate)
                if term == Constant(isinstance(condition, Any)):
                    break
                ends.append(Not(term, span) if isinstance(condition, All) else term)
            return conjunction(tuple(judgeable)) if judgeable else None
    return None


def _is_partial(condition: Condition) -> bool:
    """Whether Python raises an error for some texts where it judges the condition: those that are no number."""
    match condition:
        case All(_, conditions) | Any(_, conditions):
            return any(map(_is_partial, conditions))
        case PartOf(is_single=is_single):
            return is_single
    return isinstance(condition, NumberIs | NumberIn)


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
