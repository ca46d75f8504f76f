"""Replay: a fork of a branch runs the query's Python again, on the answers that it has already (S23).

It says nothing and asks no model. Every text, role, condition and awaited call must equal the record.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator, Mapping
from io import IOBase
from typing import Any

from lmql_lite.engine.branch import Ask, Branch, Frame
from lmql_lite.engine.environment import Environment
from lmql_lite.engine.hole_decorators import Decoration, decoration_of
from lmql_lite.engine.nested import NestedCall, begun, called
from lmql_lite.engine.record import Answer, Called, Copied, Decorated, Entry, FromText, Raised, Record, refuse
from lmql_lite.engine.tools.toolbox import own_decoder
from lmql_lite.errors import InputError, QueryError
from lmql_lite.program.ops import STEP, Hole, Program
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
    left, prompt = branch.steps.left, branch.context.prompt
    environment = await branch.anew()
    for frame, inner in zip(branch.frames, [*branch.frames[1:], None], strict=True):
        caller = None if inner is None else inner.caller
        number = branch.state.part if caller is None else caller.before.part
        hole = await _replay(branch, frame, environment, number)
        assert hole is not None, "a hole is open"
        if inner is not None:
            environment, _ = await begun(await _called(frame, hole))
        else:
            await _opened(branch, frame, hole)
    branch.steps.left, branch.context.prompt = left, prompt


async def _replay(branch: Branch, frame: Frame, environment: Environment, number: int | None = None) -> Hole | None:
    """Runs the Python of a query up to the open hole, which has this number; without a number, to its end."""
    frame.begin(environment)
    environment["context"], environment[STEP] = branch.context, branch.steps.take
    record = frame.record
    record.at, error = 0, None
    while True:
        branch.context.prompt = record.prompt
        ask = await _asked(frame, error)
        error = None
        if ask is None or record.at == len(record.entries):
            break
        part = frame.program.parts[ask.number]
        entry = record.next_entry(ask.number, part.span)
        if isinstance(entry.answer, Raised):
            error = entry.answer.error
        elif isinstance(part, Hole):
            value = await _value(branch, frame, part, entry.answer, entry)
            environment[part.name] = frame.variables[part.name] = value
            if entry.shares is not None:
                frame.variables[f"P({part.name})"] = entry.shares
        elif ask.values != entry.values:
            one, other = next(pair for pair in zip(ask.values, entry.values, strict=True) if pair[0] != pair[1])
            refuse(f"said {one!r} instead of {other!r}", part.span)
    if record.at < len(record.entries) or (ask and ask.number) != number:
        refuse("took another way", frame.program.parts[ask.number].span if ask else frame.program.span)
    record.at = None
    hole = frame.program.parts[ask.number] if ask else None
    return hole if isinstance(hole, Hole) else None


async def _asked(frame: Frame, error: BaseException | None) -> Ask | None:
    """The next part that the Python asks for."""
    raised: BaseException | None = None
    try:
        ask = await frame.resume(error)
    except QueryError:
        raise
    except Exception as problem:
        raised = problem
    if raised is not None:
        refuse(f"raised {type(raised).__name__}: {raised}", frame.place(raised) or frame.program.span)
    frame.asked = None
    return ask


async def _value(branch: Branch, frame: Frame, hole: Hole, answer: Answer, entry: Entry) -> Any:
    """The value of a hole that was filled, made anew."""
    match answer:
        case Decorated(inner, before, told, text):
            decoration = await _decorated(branch, frame, hole)
            value = await _value(branch, frame, hole, inner, entry)
            for each in told:
                await decoration.tell(each, frame.environment)
            value, other = await decoration.finished(value, before, frame.environment)
            if other != text:
                refuse(f"made {other!r} of [{hole.name}] instead of {text!r}", hole.span)
            return value
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
        case Called(record, text):
            return await _returned(branch, frame, hole, record, text)
        case Copied():
            return answer.anew(hole.span)
    raise AssertionError("a hole was filled")


async def _called(frame: Frame, hole: Hole) -> NestedCall:
    _, nested = await called(hole, frame.python)
    if nested is None:
        refuse(f"called no query for [{hole.name}]", hole.span)
    return nested


async def _returned(branch: Branch, frame: Frame, hole: Hole, record: Record, text: str) -> Any:
    """The value of a query in a hole, whose Python runs again to its end."""
    nested = await _called(frame, hole)
    environment, _ = await begun(nested)
    inner = Frame(branch, nested.program, environment, frame.settings, frame.sampling)
    inner.record = record.fork()
    await _replay(branch, inner, environment)
    returned = inner.returned
    if not returned:
        return text
    value = returned[0] if nested.typed is None else nested.typed(returned[0])
    if str(value) != text:
        refuse(f"returned {str(value)!r} instead of {text!r}", hole.span)
    return value


async def _decorated(branch: Branch, frame: Frame, hole: Hole) -> Decoration:
    """The decorators of a hole, which have begun again."""
    decoration = await decoration_of(hole, frame.python, branch.context)
    assert decoration is not None, "the hole has decorators"
    await decoration.fixed(frame.environment)
    return decoration


async def _opened(branch: Branch, frame: Frame, hole: Hole) -> None:
    """The open hole, with the type and the decorators of this branch."""
    if frame.decoration is not None:
        told, frame.decoration = frame.decoration.told, await _decorated(branch, frame, hole)
        for each in told:
            await frame.decoration.tell(each, frame.environment)
    if branch.hole is not None and hole.type is not None and hole.type.spec is None:
        branch.hole.retype((await frame.typed(hole)).type)
