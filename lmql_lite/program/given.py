"""Conditions that do not mention the hole: Python's truth of them is a constant by then."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from lmql_lite.constraints.terms import Constant, Term
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.program.values import Evaluate

NO_VALUE = object()
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
class OtherHoles:
    """The holes besides its own that a clause reads. One without a value binds nothing yet if the clause `waits`."""

    names: tuple[str, ...]
    codes: tuple[CodeType, ...]
    """Each name as an expression."""
    waits: bool

    def have_values(self, evaluate: Evaluate, clause: Span) -> bool:
        """Raises ConstraintError where a hole has no value and the clause cannot wait for it."""
        for name, code in zip(self.names, self.codes, strict=True):
            try:
                value = evaluate(code)
            except NameError:
                value = NO_VALUE
            if value is not vars(builtins).get(name, NO_VALUE):
                continue
            if self.waits:
                return False
            raise ConstraintError(
                f"`{clause.source}` reads [{name}], which has no value yet",
                span=clause,
                hint=f"fill [{name}] first, or put the condition into the `where` at the end of the query",
            )
        return True


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
