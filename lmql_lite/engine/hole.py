"""Holes of a branch: opened, shown and judged as they fill, and closed with their value."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.terms import Ending, Term, conjunction
from lmql_lite.engine import events
from lmql_lite.engine.branch import Branch, OpenHole
from lmql_lite.engine.distribution import choose
from lmql_lite.engine.fill import Fill, matcher_of
from lmql_lite.engine.generator import Generator
from lmql_lite.engine.hole_decorators import decoration_of
from lmql_lite.engine.nested import unmet
from lmql_lite.engine.path import answered
from lmql_lite.engine.predicates import Objection, objection, valued
from lmql_lite.engine.record import Answer, Decorated, FromText, copied
from lmql_lite.engine.replay import wake
from lmql_lite.engine.segment import Lookahead, lookahead_at
from lmql_lite.engine.state import State
from lmql_lite.engine.tools.fill import ToolCalls
from lmql_lite.engine.tools.toolbox import own_decoder
from lmql_lite.errors import ConstraintError, InputError
from lmql_lite.program.json_types import JsonType
from lmql_lite.program.ops import Distribution, Hole
from lmql_lite.program.symbols import MADE
from lmql_lite.program.types import TextType


async def open_hole(branch: Branch, op: Hole) -> None:
    """Opens a hole that no query fills. If a decorator or a distribution fills it, the hole has its value
    afterwards."""
    given = _given(branch, op) if branch.frame.settings.prefill else None
    if op.distribution is not None:
        await _choose(branch, op, op.distribution, given and given.text)
        return
    op = await branch.frame.typed(op) if op.type is not None else op
    frame, generator = branch.frame, branch.generator
    term, limit = branch.term(op), frame.settings.limit
    matcher = matcher_for(op, term, limit, generator)
    sampling, toolbox = frame.sampling, None
    if op.decoder is not None:
        sampling, toolbox = await own_decoder(op, frame.settings, sampling, frame.python)
        frame.options = sampling
    state, tools = generator.path.resolve(branch.state) if given else branch.state, None
    fill: Fill
    if toolbox is None:
        fill = generator.fill(op, term, branch.state, sampling, limit, partial(_lookahead, branch, op, term))
        branch.state = fill.open(state, matcher)
    else:
        tools = ToolCalls(op, term, toolbox, sampling, limit, generator)
        fill, branch.state = tools.begin(state, matcher)
    branch.hole = OpenHole(op, term, fill, tools=tools)
    if given is not None:
        branch.state = await _prefilled(branch, branch.hole, given)
    await look(branch, branch.hole)


async def decorate(branch: Branch, op: Hole) -> bool:
    """Runs the decorators of a hole before it opens; True if one of them returns its value."""
    frame = branch.frame
    frame.decoration = await decoration_of(op, frame.python, branch.context)
    frame.opened = branch.state
    if frame.decoration is None:
        return False
    fixed = await frame.decoration.fixed(frame.environment)
    if fixed is None:
        return False
    op = await branch.frame.typed(op)
    value, text, broken = fixed_value(op, branch.term(op), fixed, branch.generator.count)
    await check(branch, op, broken, value, text, "a decorator")
    branch.state = answered(branch.state, branch.state, text, op.name, branch.record)
    await bind(branch, op.name, value, text, "forced", text)
    return True


class Given(NamedTuple):
    """Text of a hole from the caller; `is_whole` if the hole ends with it."""

    text: str
    is_whole: bool


def _given(branch: Branch, op: Hole) -> Given | None:
    """The text from the caller for this hole, None if there is none. Raises InputError if the names differ."""
    prefill, at = branch.frame.settings.prefill, branch.opened - 1
    if at >= len(prefill):
        return None
    name, text = prefill[at]
    if not name and at + 1 == len(prefill):
        return None
    if name != op.name:
        sentence = f"prefill names [{name}] as hole {at + 1} of the run, but [{op.name}] opens there"
        raise InputError(sentence, span=op.span, hint="give the holes in the order in which they open")
    return Given(text, is_whole=at + 1 < len(prefill))


async def _prefilled(branch: Branch, hole: OpenHole, given: Given) -> State:
    """The state after the given text. Raises ConstraintError if the conditions of the hole forbid the text."""
    state, matcher, data = branch.state, matcher_of(branch.state), given.text.encode()
    if hole.tools is not None:
        sentence, hint = f"prefill cannot give the text of [{hole.op.name}], which has tools", "leave it out of prefill"
        raise InputError(sentence, span=hole.op.span, hint=hint)
    fits = matcher.longest_valid(data) == len(data)
    if fits and data:
        state = await branch.generator.finish(hole.fill.force(state, data))
    matcher = matcher_of(state)
    if fits and given.is_whole and matcher.ending is None:
        fits = matcher.may_end
        state = state._replace(matcher=matcher.end("forced"))
    if not fits:
        verb = "be" if given.is_whole else "begin with"
        raise ConstraintError(
            f"[{hole.op.name}] cannot {verb} {given.text!r}: its conditions forbid it",
            span=hole.op.span,
            hint="change the text, or the condition",
        )
    return state


async def look(branch: Branch, hole: OpenHole) -> None:
    """Emits the text of the hole, or passes it to decorators. Text that may be cut, rejected or discarded waits, and
    so does an incomplete character (S33). At its end, Python judges the value, and the hole closes or goes back for
    another one (S21)."""
    frame = branch.frame
    while True:
        piece = matcher_of(branch.state)
        matcher = piece if hole.tools is None else hole.tools.whole(piece)
        if branch.sleeps and (matcher.ending is not None or frame.decoration is not None):
            await wake(branch)
        if matcher.ending is None:
            break
        text = matcher.value.decode()
        value, broken = await valued(hole.op, text, frame.environment)
        if broken is None:
            branch.state = hole.fill.close(branch.state)
            branch.hole = None
            rest = matcher.value[hole.shown :].decode()
            await bind(branch, hole.op.name, value, text, matcher.ending, rest, FromText(text))
            return
        if not branch.leads:
            branch.rejection = broken
            return
        goes_back = hole.op.may_reject and hole.rejections < frame.settings.backtracks
        back = await hole.fill.go_back(branch.state) if goes_back else None
        if back is None:
            raise hole.rejected(broken, matcher)
        hole.rejections += 1
        branch.state = back
    if hole.op.may_reject:
        return
    if frame.decoration is not None:
        await frame.decoration.tell(matcher.text[: matcher.certain].decode("utf-8", "ignore"), frame.environment)
    elif not (frame.is_guarded or hole.op.is_guarded):
        ready = matcher.text[hole.shown : matcher.certain].decode("utf-8", "ignore")
        hole.shown += len(ready.encode())
        branch.say(events.Text(ready, hole.op.name))


async def bind(
    branch: Branch, name: str, value: Any, text: str, ending: Ending, rest: str, answer: Answer = None
) -> None:
    """Assigns a hole its value, and continues after it. `rest` is the part of its text that is not emitted yet. Forks
    make the value anew from the `answer`, or from a copy of the value."""
    frame = branch.frame
    before = branch.state.text if frame.opened is None else frame.opened.text
    if branch.record.keeps_answers and answer is None:
        answer = copied(value)
    if frame.decoration is not None and frame.opened is not None:
        value, other = await frame.decoration.finished(value, text, frame.environment)
        answer = Decorated(answer, text, tuple(frame.decoration.told), other)
        if other != text:
            branch.state = answered(frame.opened, branch.state, other, name, branch.record)
            text = rest = other
    frame.opened = frame.decoration = None
    if rest:
        branch.say(events.Text(rest, name))
    frame.environment[name] = frame.variables[name] = value
    frame.endings[name] = ending
    branch.filled += 1
    branch.record.tell(events.HoleClosed(name, text, ending))
    branch.record.tell(events.Bound(name, value))
    if branch.record.keeps_answers:
        branch.record.add(branch.state.part, answer, term=frame.term, options=frame.options, prompt=before)


async def check(branch: Branch, op: Hole, broken: Objection | None, value: Any, text: str, giver: str) -> None:
    """Raises ConstraintError if a value that the model did not generate breaks a condition. `broken` is the result of
    an earlier check."""
    broken = broken or await objection(op, value, text, branch.frame.environment)
    if broken is not None:
        because = f" ({broken.reason})" if broken.reason else ""
        raise ConstraintError(
            f"[{op.name}] does not meet `{broken.span.source}`: {giver} gave {str(value)!r}{because}",
            span=broken.span,
            hint=f"make {giver} give a value that meets the condition",
        )


async def _choose(branch: Branch, op: Hole, distribution: Distribution, given: str | None) -> None:
    """Scores the options of a distribution, and makes one of them the hole's value: the `given` one, if any."""
    frame, generator = branch.frame, branch.generator
    if frame.settings.weighs:
        raise InputError(
            f"{frame.settings.decoder_name} gives P({op.name}) without a distribution",
            span=distribution.span,
            hint=f"write `where {op.name} in [...]`, or leave {frame.settings.decoder_name} out",
        )
    options = await frame.python(distribution.options)
    op = await branch.frame.typed(op)
    matcher = matcher_for(op, branch.term(op), frame.settings.limit, generator)
    chosen = await choose(branch, op, options, matcher, given or None)
    branch.state = chosen.state
    await bind(branch, op.name, chosen.value, chosen.text, "forced", chosen.text)
    frame.variables[f"P({op.name})"] = chosen.distribution
    if branch.record.keeps_answers:
        branch.record.entries[-1] = replace(branch.record.entries[-1], shares=chosen.distribution)


def _lookahead(branch: Branch, op: Hole, term: Term) -> Lookahead:
    """The known part of the segment that begins with this hole."""
    frame, here = branch.frame, branch.state.part

    def text_at(number: int) -> Term:
        later = frame.program.parts[number]
        assert isinstance(later, Hole), "a segment is made of holes and texts"
        return text_term(op, term) if number == here else text_term(later, frame.bind(number))

    return lookahead_at(frame.program, here, text_at, schema_of(op, term))


# Parts of a hole -------------------------------------------------------------------------------------------------


def text_term(op: Hole, term: Term) -> Term:
    """The condition on the text of the hole, including that of its type."""
    spec = op.type.spec if op.type else None
    return conjunction((spec.term, term)) if isinstance(spec, TextType) else term


def schema_of(op: Hole, term: Term) -> str | None:
    """The JSON Schema of a hole that is JSON."""
    spec = op.type.spec if op.type else None
    return json.dumps(spec.bounded(term, op.name, op.span)) if isinstance(spec, JsonType) else None


def matcher_for(op: Hole, term: Term, limit: int, generator: Generator) -> Matcher:
    """The matcher at the beginning of the hole."""
    spec, engine = op.type.spec if op.type else None, generator.engine
    if isinstance(spec, JsonType) and op.type:
        rules = spec.rules(term, op.name, op.type.span, free_spelling=generator.spells_freely)
        return engine.grammars.matcher(rules, op.following, op.name, op.type.span)
    return engine.matcher(text_term(op, term) if op.type else term, op.following, limit, op.name, op.span)


def fixed_value(op: Hole, term: Term, value: Any, count: Callable[[str], int]) -> tuple[Any, str, Objection | None]:
    """The value of a decorator in the hole's type, its text, and the type or condition that it breaks. `count` returns
    the number of tokens of a text."""
    spec = op.type.spec if op.type else None
    if spec is None or op.type is None:
        text = str(value)
        broken = unmet(op, term, text, count)
        return MADE[op.number](text) if op.number and broken is None else value, text, broken
    try:
        text = spec.spelled(value)
        if isinstance(spec, TextType) and (broken := unmet(op, text_term(op, term), text, count)):
            return value, text, broken
        value = spec.convert(text)
    except (ValueError, RecursionError) as error:
        return value, "", Objection(op.type.span, str(error))
    return value, text, None
