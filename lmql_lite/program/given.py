"""Conditions that do not mention the hole: Python's truth of them is a constant by then."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from lmql_lite.constraints.terms import Constant, Term
from lmql_lite.errors import Span
from lmql_lite.program.values import Evaluate

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
    "in": lambda item, collection: item in collection,
    "not in": lambda item, collection: item not in collection,
    "is": operator.is_,
    "is not": operator.is_not,
}


@dataclass(frozen=True, slots=True)
class Given:
    """`n > 3`."""

    span: Span
    code: CodeType

    def bind(self, evaluate: Evaluate) -> Term:
        return Constant(bool(evaluate(self.code)), self.span)


@dataclass(frozen=True, slots=True)
class Compared:
    """The part `a < b` of a chain such as `a < b < len(X)`."""

    span: Span
    left: CodeType
    symbol: str
    right: CodeType

    def bind(self, evaluate: Evaluate) -> Term:
        left = evaluate(self.left)
        return Constant(bool(OPERATORS[self.symbol](left, evaluate(self.right))), self.span)
