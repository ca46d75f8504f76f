"""The loop over a program's ops: `op = program.ops[state.pc]`. Reads the tree through the frontier, writes nothing.

Events stream up; the caller of `Run.stream` drives the run by reading them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import replace
from inspect import isawaitable
from types import CodeType
from typing import Any

from lmql_lite.constraints.matcher import Ending, Matcher
from lmql_lite.constraints.terms import Term, conjunction
from lmql_lite.errors import ConstraintError, InputError, Span
from lmql_lite.program.clauses import settled
from lmql_lite.program.ops import (
    ITEM,
    Enter,
    Hole,
    Interpolated,
    Jump,
    JumpIf,
    Let,
    Next,
    Program,
    Return,
    Text,
    Turn,
)
from lmql_lite.program.options import texts_of
from lmql_lite.program.schemas import JsonType
from lmql_lite.program.types import NAMES, TextType
from lmql_lite.runtime import events
from lmql_lite.runtime.environment import Context, Environment, evaluate, value_of
from lmql_lite.runtime.judge import Judge, Objection
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.result import OptionScores, Result
from lmql_lite.runtime.settings import Settings
from lmql_lite.runtime.state import State
from lmql_lite.runtime.writer import Outlook, Writer


def _rejected(op: Hole, broken: Objection, matcher: Matcher, tries: int) -> ConstraintError:
    value = matcher.value.decode("utf-8", "replace")
    times = "the only value that was left" if tries == 1 else f"the last of {tries} values"
    return ConstraintError(
        f"[{op.name}] has no value that meets `{broken.span.source}`: {times} was {value!r}"
        + (f" ({broken.reason})" if broken.reason else ""),
        span=broken.span,
        hint="a higher max_backtracks tries more; a condition that needs no Python guides the model from the start",
    )


def _whole(op: Hole, term: Term) -> Term:
    """The condition with what the hole's type says of its text."""
    spec = op.type.spec if op.type else None
    return conjunction((spec.term, term)) if isinstance(spec, TextType) else term


def _schema(op: Hole, term: Term) -> str | None:
    spec = op.type.spec if op.type else None
    return json.dumps(spec.bounded(term, op.name, op.span)) if isinstance(spec, JsonType) else None


class Run:
    """One run of one program by one model."""

    def __init__(
        self, program: Program, environment: Environment, settings: Settings, writer: Writer, ledger: Ledger, seed: int
    ) -> None:
        self._program = program
        self._context = Context(self._score)
        self._environment = environment
        self._environment["context"] = self._context
        self._settings = settings
        self._writer = writer
        self._ledger = ledger
        self._seed = seed
        self._here = writer.start()
        self._bound: dict[int, Term] = {}
        """Conditions of holes that were evaluated when their segment began, by place in the program."""
        self._variables: dict[str, Any] = {}
        self._endings: dict[str, Ending] = {}

    async def stream(self) -> AsyncGenerator[events.Event, None]:
        """Runs the program to its end; the last event carries the result."""
        yield events.Started(self._writer.model, self._settings.decoder_name, self._seed)
        state = self._here
        try:
            while True:
                self._writer.stand_at(state.node)
                self._context.prompt = state.text
                self._here = state
                op = self._program.ops[state.pc]
                match op:
                    case Text():
                        said = state
                        for part in op.parts:
                            said = said.say(await self._part(part, said))
                        yield events.Text(said.text[len(state.text) :])
                        state = replace(said, pc=state.pc + 1)
                    case Hole():
                        async for step in self._choose(op, state) if op.distribution else self._fill(op, state):
                            if isinstance(step, State):
                                state = step
                            else:
                                yield step
                        state = replace(state, pc=state.pc + 1)
                    case Turn(span, role):
                        state = replace(self._writer.turn(state, role, span), pc=state.pc + 1)
                    case Return():
                        value = await evaluate(op.value, self._environment) if op.value else None
                        state = await self._writer.finish(state)
                        for event in self._news():
                            yield event
                        yield events.Finished(self._result(state, value))
                        return
                    case _:
                        state = replace(state, pc=await self._control(op, state))
        finally:
            self._writer.stand_at(None)

    async def _control(self, op: Let | Jump | JumpIf | Enter | Next, state: State) -> int:
        """The ops that touch variables only; gives the next place in the program."""
        environment = self._environment
        match op:
            case Let(span, code):
                await self._value(code, state, span)
            case Jump(_, target):
                return target
            case JumpIf(span, test, when, target):
                if bool(await self._value(test, state, span)) == when:
                    return target
            case Enter(span, slot, iterable):
                environment[slot] = iter(await self._value(iterable, state, span))
            case Next(span, slot, assign, target):
                try:
                    environment[ITEM] = next(environment[slot])
                except StopIteration:
                    del environment[slot]
                    return target
                await self._value(assign, state, span)
        return state.pc + 1

    async def _value(self, code: CodeType, state: State, span: Span) -> Any:
        """What the query's own Python says. While it lets the run wait, the model goes on writing."""
        value = value_of(code, self._environment)
        return await self._writer.waiting(value, state, span) if isawaitable(value) else value

    async def _part(self, part: str | Interpolated, state: State) -> str:
        if isinstance(part, str):
            return part
        value = await self._value(part.code, state, part.span)
        match part.conversion:
            case "s":
                value = str(value)
            case "r":
                value = repr(value)
            case "a":
                value = ascii(value)
        return format(value, part.format)

    # Holes -------------------------------------------------------------------------------------------------------

    async def _fill(self, op: Hole, state: State) -> AsyncIterator[events.Event | State]:
        """One hole, from opening to its value. The last thing given is the state after it."""
        yield events.HoleOpened(op.name, op.span)
        op = await self._settled(op)
        limit, pc = self._settings.limit, state.pc
        term = self._term(op, pc)
        matcher = self._matcher(op, term, limit)
        fill = self._writer.fill(op, state, limit, lambda: self._outlook(op, term, pc))
        state = fill.open(state, matcher)
        matcher = state.matcher or matcher
        judge = Judge(op, self._environment)
        shown, rejections = 0, 0
        while True:
            self._writer.stand_at(state.node)
            for event in self._news():
                yield event
            # text that may still be cut or rejected, and a character that is not complete, wait (S33)
            ready = matcher.text[shown : matcher.certain].decode("utf-8", "ignore")
            if ready and matcher.ending is None and not op.may_reject:
                shown += len(ready.encode())
                yield events.Text(ready, op.name)
            broken = await judge.objects(matcher)
            if broken is not None:
                back = await fill.go_back() if rejections < self._settings.backtracks else None
                if back is None:
                    raise _rejected(op, broken, matcher, rejections + 1)
                rejections += 1
                state = back
            elif matcher.ending is None:
                state = await fill.step(state, matcher)
            else:
                break
            matcher = state.matcher or matcher
        state = fill.close(state, matcher)
        for event in self._news():
            yield event
        self._variables[op.name] = judge.value
        self._endings[op.name] = matcher.ending
        rest = matcher.value[shown:].decode()
        if rest:
            yield events.Text(rest, op.name)
        yield events.HoleClosed(op.name, matcher.value.decode(), matcher.ending)
        yield state

    async def _choose(self, op: Hole, state: State) -> AsyncIterator[events.Event | State]:
        """One hole with a distribution, from opening to its value. The last thing given is the state after it."""
        assert op.distribution is not None, "there are options to choose from"
        yield events.HoleOpened(op.name, op.span)
        options = await self._value(op.distribution.options, state, op.distribution.span)
        op = await self._settled(op)
        limit = self._settings.limit
        matcher = self._matcher(op, self._term(op, state.pc), limit)
        chosen = await self._writer.choose(op, self._environment, state, options, matcher, limit)
        for event in self._news():
            yield event
        self._environment[op.name] = self._variables[op.name] = chosen.value
        self._variables[f"P({op.name})"] = chosen.distribution
        self._endings[op.name] = "forced"
        yield events.Text(chosen.text, op.name)
        yield events.HoleClosed(op.name, chosen.text, "forced")
        yield chosen.state

    async def _score(self, options: Any) -> OptionScores:
        """`context.score`: asks about the text so far, and leaves it as it is."""
        try:
            texts = texts_of(options)
        except InputError as error:
            span = self._program.ops[self._here.pc].span
            raise InputError(error.message, span=span, hint=error.hint) from None
        return await self._writer.score(self._here, texts)

    async def _settled(self, op: Hole) -> Hole:
        """The hole with its type known; names that an annotation may use are the query's own where it binds them."""
        if op.type is None or op.type.spec is not None:
            return op
        names = {**self._environment, **{name: NAMES[name] for name in op.type.offered}}
        return settled(op, await evaluate(op.type.code, names))

    def _term(self, op: Hole, pc: int) -> Term:
        """Its condition, the values in it being known."""
        if pc in self._bound:
            return self._bound.pop(pc)
        return op.condition.bind(lambda code: value_of(code, self._environment))

    def _matcher(self, op: Hole, term: Term, limit: int) -> Matcher:
        spec, engine = op.type.spec if op.type else None, self._writer.engine
        if isinstance(spec, JsonType) and op.type:
            rules = spec.rules(term, op.name, op.type.span, free_spelling=self._writer.spells_freely)
            return engine.grammars.matcher(rules, op.following, op.name, op.type.span)
        return engine.matcher(_whole(op, term), op.following, limit, op.name, op.span)

    def _outlook(self, op: Hole, term: Term, pc: int) -> Outlook:
        """What is known from this hole to the end of its segment. Texts that Python has yet to make end it earlier."""
        ops = self._program.ops
        parts: list[Term | bytes] = [_whole(op, term)]
        end, is_whole = pc + 1, True
        while isinstance(ops[end], Text | Hole):
            following = ops[end]
            if isinstance(following, Text):
                literal = "".join(part for part in following.parts if isinstance(part, str))
                is_whole = all(isinstance(part, str) for part in following.parts)
                if not is_whole:
                    break
                parts.append(literal.encode())
            elif isinstance(following, Hole):
                if not following.continues_segment:
                    break
                self._bound[end] = self._term(following, end)
                parts.append(_whole(following, self._bound[end]))
            end += 1
        later = [index for index in range(end, len(ops)) if isinstance(ops[index], Hole | Jump | Next)]
        return Outlook(tuple(parts), goes_on=bool(later), is_whole=is_whole, schema=_schema(op, term))

    # The end -----------------------------------------------------------------------------------------------------

    def _news(self) -> Iterator[events.TokenMoved]:
        news, self._ledger.news = self._ledger.news, []
        for step in news:
            yield events.TokenMoved(step.token, step.node, step.parent)

    def _result(self, state: State, value: Any) -> Result:
        return Result(
            prompt=state.text,
            variables=dict(self._variables),
            value=value,
            tokens=state.tokens(),
            usage=self._ledger.usage(),
            endings=dict(self._endings),
            seed=self._seed,
            model=self._writer.model,
        )
