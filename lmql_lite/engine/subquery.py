"""Queries in holes of other queries (S26): recognised, called on the text as it is, and answered.

`[X: q(a)]`, `[X: q]`, `[q(X, a)]` and `where q(X, a)` all run q's body here, with its own variables; X is its return
value. Only the run knows whether `q` is a query, since `kind(3)` may be a type and `fits(X)` a predicate. An op
therefore keeps function and arguments apart (`Callee`), so that a query is not called as a Python function.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lmql_lite.cache.sampling import mix
from lmql_lite.engine.branch import Branch
from lmql_lite.engine.environment import environment_of, sayable
from lmql_lite.engine.frame import MOST_DEEP, Callable, Caller, Elsewhere, Frame, NestedCall, answered
from lmql_lite.engine.hole import bind, check
from lmql_lite.engine.settings import header
from lmql_lite.errors import QueryError
from lmql_lite.program.holes import asked
from lmql_lite.program.ops import STEP, Callee, Hole, Return


async def called(branch: Branch, hole: Hole) -> tuple[Hole, NestedCall | None]:
    """The hole without the callee that is a query, and the call of that query; None if no callee is a query.

    Raises QueryError if two queries would fill the hole, and for a call in the hole that is not a query.
    """
    branch.own()  # a query defined in this query sees its variables
    found: tuple[Callee, Callable] | None = None
    for callee in hole.callees:
        function = await branch.python(callee.function, hole.span)
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
    by_place, by_name = await branch.python(callee.arguments, hole.span) if callee.arguments else ((), {})
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


async def call(branch: Branch, op: Hole, nested: NestedCall, elsewhere: Elsewhere | None) -> None:
    """Calls the query that fills a hole; it continues the text so far. `elsewhere` runs one with a model of its own."""
    if len(branch.frames) >= MOST_DEEP:
        raise QueryError(
            f"queries are nested more than {MOST_DEEP} deep, here by {nested.name} for [{op.name}]",
            span=op.span,
            hint="give the recursion a case that ends it",
        )
    branch.own()
    environment = environment_of(nested.program, nested.inputs)
    environment["context"] = branch.context
    environment[STEP] = branch.frame.environment[STEP]
    seed = mix(branch.frame.sampling.seed, branch.calls)
    branch.calls += 1
    settings = branch.frame.settings.of_query(await header(nested.program, environment), seed)
    branch.state = branch.generator.path.resolve(branch.state)
    caller = Caller(op, nested, branch.term(op), branch.state)
    if elsewhere is not None:
        other = await elsewhere(nested, settings, branch.state.text)
        if other is not None:
            text = other.prompt[len(branch.state.text) :]
            await _answer(branch, caller, other.value if nested.returns else text)
            return
    own = {id(value) for frame in branch.frames for value in frame.environment.values()}
    shared = tuple(value for value in nested.scope.values() if id(value) not in own)
    frame = Frame(nested.program, environment, settings, settings.sampling(), shared, caller)
    frame.held_back = [] if nested.returns or branch.is_guarded else None
    branch.frames.append(frame)
    branch.go(branch.state, 0)


async def return_value(branch: Branch, op: Return, value: Any) -> None:
    """Returns from the innermost query to the hole that called it."""
    frame = branch.frames.pop()
    caller = frame.caller
    assert caller is not None, "a hole has called the query"
    if op.value is not None:
        await _answer(branch, caller, value)
        return
    text = branch.state.text[len(caller.before.text) :]  # the text stays, and is the value
    branch.state = branch.state._replace(pc=caller.before.pc)
    for event in frame.held_back or ():
        branch.say(event)
    await check(branch, caller.op, caller.objects(text, branch.generator.count), text, text, "the query")
    await bind(branch, caller.op.name, text, text, "forced", "")


async def _answer(branch: Branch, caller: Caller, value: Any) -> None:
    """Replaces the text of a query by its value."""
    if caller.nested.typed is not None:
        value = caller.nested.typed(value)
    name, text = caller.op.name, sayable(str(value), caller.op.span)
    branch.generator.leave()
    branch.state = answered(caller.before, branch.state, text, name, branch.ledger)
    broken = caller.objects(text, branch.generator.count)
    await check(branch, caller.op, broken, value, text, "the query")
    await bind(branch, name, value, text, "forced", text)
