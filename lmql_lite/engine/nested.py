"""Queries in holes of other queries (S26): recognised, and begun.

`[X: q(a)]`, `[X: q]`, `[q(X, a)]` and `where q(X, a)` all run q's body on the text as it is, with its own variables; X
is its return value. Only the run knows whether `q` is a query, since `kind(3)` may be a type and `fits(X)` a predicate.
A hole therefore keeps function and arguments apart (`Callee`), so that a query is not called as a Python function.
"""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, Protocol, runtime_checkable

from lmql_lite.constraints.simplify import satisfies
from lmql_lite.constraints.terms import And, Term
from lmql_lite.engine.environment import Environment, environment_of
from lmql_lite.engine.predicates import Objection
from lmql_lite.engine.settings import Settings, header
from lmql_lite.engine.state import State
from lmql_lite.errors import QueryError
from lmql_lite.models.base import Model
from lmql_lite.program.holes import asked
from lmql_lite.program.ops import Callee, Hole, Program

Python = typing.Callable[[CodeType], Awaitable[Any]]
"""Function that evaluates the query's own Python."""
MAX_DEPTH = 100
"""Maximum depth of nested queries, so that endless recursion ends with an error."""


@dataclass(frozen=True, slots=True)
class NestedCall:
    """A query and its inputs: `arguments` from the calling query, `scope` from the place of the query's definition.
    `model` is the query's own model, if any. `typed` converts its value to the type of its annotation."""

    name: str
    program: Program
    arguments: Mapping[str, Any]
    scope: Mapping[str, Any]
    model: str | Model | None = None
    typed: typing.Callable[[Any], Any] | None = None

    @property
    def inputs(self) -> dict[str, Any]:
        return {**self.scope, **self.arguments}

    @property
    def returns(self) -> bool:
        """True if the query has a `return` with a value. Its text does not remain in the prompt then."""
        return self.program.returns


IsHere = typing.Callable[[str | Model], bool]
"""Function that says whether a model is that of the run."""


@runtime_checkable
class Callable(Protocol):
    """A query as a value."""

    def nested(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> NestedCall:
        """The call of the query. Raises TypeError for arguments that do not fit, as for a function."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """The hole that waits for a query, its condition, and the state before the call."""

    op: Hole
    nested: NestedCall
    term: Term
    before: State


def unmet(op: Hole, term: Term, value: str, count: typing.Callable[[str], int]) -> Objection | None:
    """The part of a hole's condition that a text breaks, None if it meets all. `count` returns the number of tokens of
    a text."""
    parts = term.terms if isinstance(term, And) else (term,)
    broken = next((part for part in parts if not satisfies(part, value.encode(), count)), None)
    return None if broken is None else Objection(getattr(broken, "span", None) or op.span)


async def called(hole: Hole, python: Python) -> tuple[Hole, NestedCall | None]:
    """The hole without the callee that is a query, and the call of that query; None if no callee is a query.

    `python` evaluates the query's own Python. Raises QueryError if two queries would fill the hole, and for a call in
    the hole that is not a query.
    """
    found: tuple[Callee, Callable] | None = None
    for callee in hole.callees:
        function = await python(callee.function)
        if isinstance(function, Callable) and not isinstance(function, type):
            if found is not None:
                hint = "keep one of them, and give the other a hole of its own"
                raise QueryError(f"two queries cannot fill [{hole.name}] at once", span=callee.span, hint=hint)
            found = (callee, function)
        elif callee.form == "hole":
            problem = f"what [{hole.name}] calls is not a query: {_shown(function)}"
            hint = "a function judges a value as `where f(X)`; one that the model may call stands in tools=[...]"
            raise QueryError(problem, span=callee.span, hint=hint)
    if found is None:
        return hole, None
    callee, function = found
    by_place, by_name = await python(callee.arguments) if callee.arguments else ((), {})
    try:
        call = function.nested(by_place, by_name)
    except TypeError as error:
        raise QueryError(f"the arguments do not fit the query: {error}", span=callee.span) from error
    return _without(hole, callee), call


def _without(hole: Hole, callee: Callee) -> Hole:
    """The hole without the query that fills it as its type or predicate."""
    if callee.form == "type":  # the clauses then belong to a hole without a type
        return asked(replace(hole, type=None), hole.type.clauses if hole.type else ())
    if callee.form == "hole":
        return hole
    conditions = tuple(each for each in hole.conditions if each.span != callee.span)
    type = hole.type and replace(
        hole.type, clauses=tuple(c for c in hole.type.clauses if c.expression.span != callee.span)
    )
    return replace(hole, conditions=conditions, type=type)


def _shown(value: Any) -> str:
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else type(value).__name__


async def begun(nested: NestedCall) -> tuple[Environment, Settings]:
    """The variables of a query at its beginning, and the settings of its header."""
    environment = environment_of(nested.program, nested.inputs)
    return environment, await header(nested.program, environment)
