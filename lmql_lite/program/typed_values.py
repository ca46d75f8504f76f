"""Conditions on the value of a typed hole: one of those that its type lists, or a date."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from lmql_lite.constraints import shapes
from lmql_lite.constraints.terms import Choice, Not, Term
from lmql_lite.errors import Span
from lmql_lite.program.values import Comparison, Evaluate, wrong

COMPARED: dict[Comparison, Callable[[Any, Any], object]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}
Listed = tuple[tuple[bytes, object], ...]
"""All values of a type, each behind its text."""


@dataclass(frozen=True, slots=True)
class ListedIs:
    """`X < value`: the listed values of which Python says so."""

    span: Span
    comparison: Comparison
    code: CodeType
    listed: Listed

    def bind(self, evaluate: Evaluate) -> Term:
        other, compare = evaluate(self.code), COMPARED[self.comparison]
        return Choice(tuple(text for text, value in self.listed if compare(value, other)), self.span)


@dataclass(frozen=True, slots=True)
class ListedIn:
    """`X in value`."""

    span: Span
    code: CodeType
    listed: Listed

    def bind(self, evaluate: Evaluate) -> Term:
        others = evaluate(self.code)
        if not isinstance(others, Iterable):
            raise wrong(self.span, "a hole is one of a list, a set or another collection of values", others)
        among: Any = others if hasattr(others, "__contains__") else list(others)
        found = tuple(text for text, value in self.listed if value in among)
        return Choice(found, self.span)


@dataclass(frozen=True, slots=True)
class DateIs:
    """`X < value`."""

    span: Span
    comparison: Comparison
    code: CodeType

    def bind(self, evaluate: Evaluate) -> Term:
        day = _day(self.span, evaluate(self.code)).toordinal()
        first, last = datetime.date.min.toordinal(), datetime.date.max.toordinal()
        match self.comparison:
            case "<":
                last = day - 1
            case "<=":
                last = day
            case ">=":
                first = day
            case ">":
                first = day + 1
            case "==" | "!=":
                first = last = day
        days = shapes.days(first, last, self.span)
        return Not(days, self.span) if self.comparison == "!=" else days


@dataclass(frozen=True, slots=True)
class DateIn:
    """`X in value`."""

    span: Span
    code: CodeType

    def bind(self, evaluate: Evaluate) -> Term:
        days = evaluate(self.code)
        if not isinstance(days, Iterable):
            raise wrong(self.span, "a date is one of a list, a set or another collection of dates", days)
        texts = {_day(self.span, day).isoformat().encode(): None for day in days}
        return Choice(tuple(texts), self.span)


def _day(span: Span, value: object) -> datetime.date:
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise wrong(span, "a date is compared with a date", value)
    return value
