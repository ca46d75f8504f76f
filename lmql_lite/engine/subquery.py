"""Queries in holes of other queries (S26): awaited calls, which continue the text so far."""

from __future__ import annotations

from typing import Any

from lmql_lite.cache.tokens.draws import mix
from lmql_lite.engine.branch import Branch, Frame
from lmql_lite.engine.environment import sayable
from lmql_lite.engine.hole import bind, check
from lmql_lite.engine.nested import MOST_DEEP, Caller, Elsewhere, NestedCall, begun
from lmql_lite.engine.path import answered
from lmql_lite.engine.record import Returned
from lmql_lite.errors import QueryError
from lmql_lite.program.ops import Hole


async def call(branch: Branch, op: Hole, nested: NestedCall, elsewhere: Elsewhere | None) -> None:
    """Gives the query's Python the query that fills a hole. `elsewhere` runs one with a model of its own."""
    if len(branch.frames) >= MOST_DEEP:
        raise QueryError(
            f"queries are nested more than {MOST_DEEP} deep, here by {nested.name} for [{op.name}]",
            span=op.span,
            hint="give the recursion a case that ends it",
        )
    environment, own = await begun(nested)
    seed = mix(branch.frame.sampling.seed, branch.calls)
    branch.calls += 1
    settings = branch.frame.settings.of_query(own, seed)
    branch.state = branch.generator.path.resolve(branch.state)
    caller = Caller(op, nested, branch.term(op), branch.state)
    if elsewhere is not None:
        other = await elsewhere(nested, settings, branch.state.text)
        if other is not None:
            text = other.prompt[len(branch.state.text) :]
            await _answer(branch, caller, other.value if nested.returns else text)
            return
    frame = Frame(branch, nested.program, environment, settings, settings.sampling(), caller)
    frame.held_back = [] if nested.returns or branch.is_guarded else None
    branch.called = frame


async def return_value(branch: Branch, frame: Frame) -> None:
    """Gives the hole that called a query its value: that which the query returned, or its text."""
    caller, returned = frame.caller, frame.returned
    assert caller is not None, "a hole has called the query"
    if returned:
        await _answer(branch, caller, returned[0], is_recorded=True)
        return
    text = branch.state.text[len(caller.before.text) :]  # the text stays, and is the value
    for event in frame.held_back or ():
        branch.say(event)
    await check(branch, caller.op, caller.objects(text, branch.generator.count), text, text, "the query")
    await bind(branch, caller.op.name, text, text, "forced", "", Returned(text))


async def _answer(branch: Branch, caller: Caller, value: Any, *, is_recorded: bool = False) -> None:
    """Replaces the text of a query by its value."""
    if caller.nested.typed is not None:
        value = caller.nested.typed(value)
    name, text = caller.op.name, sayable(str(value), caller.op.span)
    branch.generator.leave()
    branch.state = answered(caller.before, branch.state, text, name, branch.ledger)
    broken = caller.objects(text, branch.generator.count)
    await check(branch, caller.op, broken, value, text, "the query")
    await bind(branch, name, value, text, "forced", text, Returned(text) if is_recorded else None)
