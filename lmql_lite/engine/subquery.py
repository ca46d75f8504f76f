"""Queries in holes of other queries (S26): awaited calls, which continue the text so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmql_lite.cache.tokens.draws import mix
from lmql_lite.engine import events
from lmql_lite.engine.branch import Branch, Frame
from lmql_lite.engine.environment import sayable
from lmql_lite.engine.hole import bind, check
from lmql_lite.engine.nested import MAX_DEPTH, Caller, Elsewhere, NestedCall, begun, unmet
from lmql_lite.engine.path import answered
from lmql_lite.engine.record import FromText
from lmql_lite.errors import QueryError
from lmql_lite.program.ops import Hole


async def call(branch: Branch, op: Hole, nested: NestedCall, elsewhere: Elsewhere | None) -> None:
    """Gives the query's Python the query that fills a hole. `elsewhere` runs one with a model of its own."""
    if len(branch.frames) >= MAX_DEPTH:
        raise QueryError(
            f"queries are nested more than {MAX_DEPTH} deep, here by {nested.name} for [{op.name}]",
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
            await _answer(branch, caller, (other.value if nested.returns else text,), (), is_here=False)
            return
    frame = Frame(branch, nested.program, environment, settings, settings.sampling(), caller)
    frame.held_back = [] if nested.returns or branch.is_guarded else None
    branch.called = frame


async def return_value(branch: Branch, frame: Frame) -> None:
    """Gives the hole that called a query its value, after the query has ended."""
    assert frame.caller is not None, "a hole has called the query"
    await _answer(branch, frame.caller, frame.returned or (), frame.held_back or (), is_here=True)


async def _answer(
    branch: Branch,
    caller: Caller,
    returned: tuple[Any, ...],
    held: Sequence[events.Text | events.MediaShown],
    *,
    is_here: bool,
) -> None:
    """Fills the hole with the value that a query returned, which replaces its text; without one the text stays, and is
    the value. `held`: the text that was not emitted yet. `is_here`: the query had the model of the run."""
    op, before = caller.op, caller.before
    value = text = branch.state.text[len(before.text) :]
    if returned:
        value = returned[0] if caller.nested.typed is None else caller.nested.typed(returned[0])
        text = sayable(str(value), op.span)
        branch.generator.leave()
        branch.state = answered(before, branch.state, text, op.name, branch.record)
    rest = text if returned else ""
    await check(branch, op, unmet(op, caller.term, text, branch.generator.count), value, text, "the query")
    if not returned:
        for event in held:
            branch.say(event)
    await bind(branch, op.name, value, text, "forced", rest, FromText(text) if is_here else None)
