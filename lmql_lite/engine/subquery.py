"""Queries in holes of other queries (S26): awaited calls, which continue the text so far."""

from __future__ import annotations

from lmql_lite.cache.tokens.draws import mix
from lmql_lite.engine.branch import Branch, Frame
from lmql_lite.engine.environment import evaluate, sayable
from lmql_lite.engine.hole import bind, check
from lmql_lite.engine.nested import MAX_DEPTH, Caller, IsHere, NestedCall, begun, unmet
from lmql_lite.engine.path import answered
from lmql_lite.engine.record import FromText
from lmql_lite.errors import QueryError
from lmql_lite.program.ops import Hole


async def call(branch: Branch, op: Hole, nested: NestedCall, is_here: IsHere) -> None:
    """Gives the query's Python the query that fills a hole. Raises QueryError for one with another model than that of
    the run."""
    if len(branch.frames) >= MAX_DEPTH:
        raise QueryError(
            f"queries are nested more than {MAX_DEPTH} deep, here by {nested.name} for [{op.name}]",
            span=op.span,
            hint="give the recursion a case that ends it",
        )
    environment, own = await begun(nested)
    model, named = nested.model, nested.program.model
    if model is None and named is not None:
        model = await evaluate(named.value, environment)
    if model is not None and not is_here(model):
        raise QueryError(
            f"{nested.name} has a model of its own, but the model of the run fills [{op.name}]",
            span=op.span,
            hint="call it in Python, where it is a run of its own, and put its value into the prompt",
        )
    seed = mix(branch.frame.sampling.seed, branch.calls)
    branch.calls += 1
    settings = branch.frame.settings.of_query(own, seed)
    branch.state = branch.generator.path.resolve(branch.state)
    caller = Caller(op, nested, branch.term(op), branch.state)
    frame = Frame(branch, nested.program, environment, settings, settings.sampling(), caller)
    frame.is_guarded = branch.frame.is_guarded or op.is_guarded
    frame.held_back = [] if nested.returns or frame.is_guarded else None
    branch.called = frame


async def return_value(branch: Branch, frame: Frame) -> None:
    """Gives the hole that called a query its value, after the query has ended: the value that it returned, which
    replaces its text; without one the text stays, and is the value."""
    caller, returned = frame.caller, frame.returned
    assert caller is not None, "a hole has called the query"
    op, before = caller.op, caller.before
    value = text = branch.state.text[len(before.text) :]
    if returned:
        value = returned[0] if caller.nested.typed is None else caller.nested.typed(returned[0])
        text = sayable(str(value), op.span)
        branch.generator.leave()
        branch.state = answered(before, branch.state, text, op.name, branch.record)
    await check(branch, op, unmet(op, caller.term, text, branch.generator.count), value, text, "the query")
    if not returned:
        for event in frame.held_back or ():
            branch.say(event)
    await bind(branch, op.name, value, text, "forced", text if returned else "", FromText(text))
