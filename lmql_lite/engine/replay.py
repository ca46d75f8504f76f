"""Replay: a fork of a branch runs the query's Python again, on the answers that it has already (S23).

It says nothing and asks no model. Every text, role, condition and awaited call must equal the record.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from io import IOBase
from typing import Any

from lmql_lite.constraints.terms import Constant
from lmql_lite.engine.branch import Ask, Branch, Frame
from lmql_lite.engine.hole_decorators import Decoration, decoration_of
from lmql_lite.engine.nested import Caller, begun, called
from lmql_lite.engine.record import Answer, Begun, Copied, Decorated, Entry, FromText, Raised, refuse
from lmql_lite.engine.tools.toolbox import own_decoder
from lmql_lite.errors import InputError, QueryError
from lmql_lite.program.ops import Hole, Program
from lmql_lite.program.symbols import MADE

READ_ONCE = (Iterator, AsyncIterator, IOBase)
"""Inputs of these types can be read only once."""


class Inputs:
    """The inputs of a run whose branches may fork. Raises InputError for one that can be read only once."""

    def __init__(self, program: Program, inputs: Mapping[str, Any]) -> None:
        self._inputs = inputs
        self._spans = {each.name: each.span for each in program.inputs}
        self._before = {name: _kept(value) for name, value in inputs.items() if isinstance(value, list | dict | set)}
        for name, value in inputs.items():
            if isinstance(value, READ_ONCE):
                raise InputError(
                    f"the input {name!r} can be read only once, but the branches of the run each read it",
                    span=self._spans.get(name),
                    hint=f"pass list({name}), or use argmax or sample",
                )

    def unchanged(self) -> Mapping[str, Any]:
        """The inputs. Raises QueryError if one has changed since the run began."""
        for name, before in self._before.items():
            if not same(self._inputs[name], before):
                raise QueryError(
                    f"the branches of the run fork, but the input {name!r} has changed since the run began",
                    span=self._spans.get(name),
                    hint="change a copy of it, or use argmax or sample",
                )
        return self._inputs


def _kept(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # a __deepcopy__ or a __reduce__ may raise anything
        return copy.copy(value)


def same(one: Any, other: Any) -> bool:
    """True if two values are equal; those that cannot be compared count as different."""
    try:
        return bool(one == other)
    except Exception:  # an __eq__ may raise anything
        return False


async def wake(branch: Branch) -> None:
    """Runs the Python of a fork's queries again, up to the open hole."""
    branch.sleeps = False
    record, number, left, prompt = branch.record, branch.state.part, branch.steps.left, branch.context.prompt
    waiting, decoration = branch.frames, branch.frame.decoration
    for frame in waiting:
        frame.decoration = None
    branch.frames, branch.frame, record.at, record.depth = waiting[:1], waiting[0], 0, 1
    branch.frame.begin(await branch.anew())
    error: BaseException | None = None
    while True:
        branch.context.prompt = record.prompt
        ask = await _asked(branch, error)
        if ask is not None:
            branch.state = branch.state._replace(part=ask.number)
        if ask is None or record.at == len(record.entries):
            break
        error = await _answered(branch, ask, waiting)
    frame = branch.frame
    if record.at < len(record.entries) or ask is None or ask.number != number or len(branch.frames) != len(waiting):
        refuse("took another way", frame.program.parts[ask.number].span if ask else frame.program.span)
    record.at = None
    hole = frame.program.parts[ask.number]
    assert isinstance(hole, Hole), "a hole is open"
    if decoration is not None:
        frame.decoration = await _decorated(branch, hole)
        for each in decoration.told:
            await frame.decoration.tell(each, frame.environment)
    if branch.hole is not None and hole.type is not None and hole.type.spec is None:
        branch.hole.op = replace(branch.hole.op, type=(await frame.typed(hole)).type)
    branch.steps.left, branch.context.prompt = left, prompt


async def _asked(branch: Branch, error: BaseException | None) -> Ask | None:
    """The next part that the Python asks for."""
    raised: BaseException | None = None
    try:
        ask = await branch.resume(error)
    except QueryError:
        raise
    except Exception as problem:
        raised = problem
    if raised is not None:
        frame = branch.frame
        refuse(f"raised {type(raised).__name__}: {raised}", frame.place(raised) or frame.program.span)
    branch.asked = None
    return ask


async def _answered(branch: Branch, ask: Ask, waiting: Sequence[Frame]) -> BaseException | None:
    """Gives the Python the recorded answer of a part, or returns an exception to raise there. `waiting` are the queries
    that have not ended."""
    frame, at = branch.frame, branch.record.at
    part = frame.program.parts[ask.number]
    entry = branch.record.next_entry(ask.number, part.span)
    match entry.answer:
        case Raised(error):
            return error
        case Begun(settings):
            assert isinstance(part, Hole), "a query fills a hole"
            if part.decorators:
                frame.decoration = await _decorated(branch, part)
            hole, nested = await called(part, frame.python)
            if nested is None:
                refuse(f"called no query for [{hole.name}]", hole.span)
            environment, _ = await begun(nested)
            inner = next((each for each in waiting[1:] if each.begun == at), None)
            if inner is None:
                caller = Caller(hole, nested, Constant(True), branch.state)
                inner = Frame(branch, nested.program, environment, settings, settings.sampling(), caller)
            else:
                inner.begin(environment)
            branch.called = inner
        case answer if isinstance(part, Hole):
            value = await _value(branch, part, answer, entry, ask.ended)
            frame.environment[part.name] = frame.variables[part.name] = value
            if entry.shares is not None:
                frame.variables[f"P({part.name})"] = entry.shares
        case _ if ask.values != entry.values:
            one, other = next(pair for pair in zip(ask.values, entry.values, strict=True) if pair[0] != pair[1])
            refuse(f"said {one!r} instead of {other!r}", part.span)
    return None


async def _value(branch: Branch, hole: Hole, answer: Answer, entry: Entry, ended: Frame | None) -> Any:
    """The value of a hole that was filled, made anew. A query that filled it has `ended`."""
    frame = branch.frame
    match answer:
        case Decorated(inner, before, told, text):
            decoration = frame.decoration or await _decorated(branch, hole)
            frame.decoration = None
            value = await _value(branch, hole, inner, entry, ended)
            for each in told:
                await decoration.tell(each, frame.environment)
            value, other = await decoration.finished(value, before, frame.environment)
            if other != text:
                refuse(f"made {other!r} of [{hole.name}] instead of {text!r}", hole.span)
            return value
        case FromText(text) if ended is not None:
            return _returned(hole, ended, text)
        case FromText(text):
            hole = await frame.typed(hole)
            if entry.term is not None and hole.bind(frame.now) != entry.term:
                refuse(f"gave [{hole.name}] another condition", hole.span)
            if entry.options is not None:
                options, _ = await own_decoder(hole, frame.settings, frame.sampling, frame.python)
                if options != entry.options:
                    refuse(f"gave [{hole.name}] other options", hole.span)
            if hole.type is not None and hole.type.spec is not None:
                return hole.type.spec.convert(text)
            return MADE[hole.number](text) if hole.number else text
        case Copied():
            return answer.anew(hole.span)
    raise AssertionError("a hole was filled")


def _returned(hole: Hole, ended: Frame, text: str) -> Any:
    """The value of a query in a hole, whose Python ran again."""
    assert ended.caller is not None, "a hole has called the query"
    returned, typed = ended.returned, ended.caller.nested.typed
    if not returned:
        return text
    value = returned[0] if typed is None else typed(returned[0])
    if str(value) != text:
        refuse(f"returned {str(value)!r} instead of {text!r}", hole.span)
    return value


async def _decorated(branch: Branch, hole: Hole) -> Decoration:
    """The decorators of a hole, which have begun again."""
    decoration = await decoration_of(hole, branch.frame.python, branch.context)
    assert decoration is not None, "the hole has decorators"
    await decoration.fixed(branch.frame.environment)
    return decoration
