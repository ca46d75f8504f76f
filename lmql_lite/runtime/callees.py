"""A query in a hole of another one (S26): which of the things that a hole calls is a query, and what it is called with.

`[X: q(a)]`, `[X: q]`, `[q(X, a)]` and `where q(X, a)` all mean: run q's body here, with its own variables; X is what
it returns. Only the run knows what `q` is, since `kind(3)` may as well be a type and `fits(X)` a predicate; therefore
an op keeps function and arguments apart (`Callee`): a query is never called as the Python function that it also is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import CodeType
from typing import Any

from lmql_lite.errors import QueryError
from lmql_lite.program.clauses import asked
from lmql_lite.program.ops import Callee, Hole
from lmql_lite.runtime import nested
from lmql_lite.runtime.nested import NestedCall


async def called(hole: Hole, evaluate: Callable[[CodeType], Awaitable[Any]]) -> tuple[Hole, NestedCall | None]:
    """The hole without what turned out to be a query, and that query's call; None where nothing in it is one.

    Raises QueryError where two queries would fill it, and for a call in the hole that is none.
    """
    found: tuple[Callee, nested.Callable] | None = None
    for callee in hole.callees:
        function = await evaluate(callee.function)
        if isinstance(function, nested.Callable) and not isinstance(function, type):
            if found is not None:
                hint = "keep one of them; the other can stand in a hole of its own"
                raise QueryError(f"two queries cannot fill [{hole.name}] at once", span=callee.span, hint=hint)
            found = (callee, function)
        elif callee.form == "hole":
            problem = f"what [{hole.name}] calls is no query: {_shown(function)}"
            hint = "a function judges a value as `where f(X)`; one that the model may call stands in tools=[...]"
            raise QueryError(problem, span=callee.span, hint=hint)
    if found is None:
        return hole, None
    callee, function = found
    by_place, by_name = await evaluate(callee.arguments) if callee.arguments else ((), {})
    try:
        call = function.nested(by_place, by_name)
    except TypeError as error:
        raise QueryError(f"this call of a query does not fit: {error}", span=callee.span) from error
    return _without(hole, callee), call


def _without(hole: Hole, callee: Callee) -> Hole:
    """The hole as it is for the query that fills it: that is no type of its and no predicate."""
    if callee.form == "type":  # its clauses are those of a hole without type
        return asked(replace(hole, type=None), hole.type.clauses if hole.type else ())
    if callee.form == "hole":
        return hole
    predicates = tuple(each for each in hole.predicates if each.span != callee.span)
    type = hole.type and replace(
        hole.type, clauses=tuple(c for c in hole.type.clauses if c.expression.span != callee.span)
    )
    return replace(hole, predicates=predicates, type=type)


def _shown(value: Any) -> str:
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else type(value).__name__
