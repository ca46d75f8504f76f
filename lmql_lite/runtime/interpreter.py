"""The loop over a program's ops: `op = program.ops[state.pc]`. Reads the tree through the frontier, writes nothing.

Events stream up; the caller of `Run.stream` drives the run by reading them.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from lmql_lite.constraints.hole import Engine
from lmql_lite.constraints.matcher import Ending, Matcher
from lmql_lite.errors import ConstraintError, InputError
from lmql_lite.program.ops import (
    ITEM,
    Enter,
    Hole,
    Interpolated,
    Jump,
    JumpIf,
    Let,
    Next,
    Predicate,
    Program,
    Return,
    Text,
)
from lmql_lite.runtime import events
from lmql_lite.runtime.fill import Fill
from lmql_lite.runtime.frontier import Frontier
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.path import Path
from lmql_lite.runtime.result import Result
from lmql_lite.runtime.settings import Settings
from lmql_lite.runtime.state import State

Environment = dict[str, Any]


def environment_of(program: Program, inputs: Mapping[str, Any]) -> Environment:
    """The variables of one run. Raises InputError for a missing input and for one that the query does not read.

    One dict is globals and locals of all Python in the query: functions and comprehensions see each variable as it is
    when they run.
    """
    missing = [wanted for wanted in program.inputs if wanted.name not in inputs]
    if missing:
        first = missing[0]
        others = ", ".join(wanted.name for wanted in missing[1:])
        raise InputError(
            f"the input {first.name!r} is missing" + (f", and so are {others}" if others else ""),
            span=first.span,
            hint=f"pass --var {first.name}=..., or inputs={{{first.name!r}: ...}} from Python",
        )
    return {"__builtins__": builtins, "__name__": "__main__", **inputs}


@dataclass(slots=True)
class Context:
    """What a query's own Python may ask about its run, under the name `context`."""

    prompt: str = ""
    """The whole text so far."""


async def evaluate(code: CodeType, environment: Environment) -> Any:
    """An expression's value; an awaitable one is awaited."""
    value = eval(code, environment)
    return await value if inspect.isawaitable(value) else value


async def execute(code: CodeType, environment: Environment) -> None:
    """Statements, with `await` at their top level or without."""
    value = eval(code, environment)
    if code.co_flags & inspect.CO_COROUTINE:
        await value


def _rejected(op: Hole, broken: Predicate, value: str, tries: int) -> ConstraintError:
    times = "the only value that was left" if tries == 1 else f"the last of {tries} values"
    return ConstraintError(
        f"[{op.name}] has no value that meets `{broken.span.source}`: {times} was {value!r}",
        span=broken.span,
        hint="a higher max_backtracks tries more; a condition that needs no Python guides the model from the start",
    )


class Run:
    """One run of one program by one model.

    `isolated` means cache=False: the frontier and its tree are this run's own, and each hole asks anew (S7).
    """

    def __init__(
        self,
        program: Program,
        environment: Environment,
        settings: Settings,
        frontier: Frontier,
        engine: Engine,
        ledger: Ledger,
        isolated: bool,
        notices: tuple[str, ...],
    ) -> None:
        self._program = program
        self._context = Context()
        self._environment = environment
        self._environment["context"] = self._context
        self._settings = settings
        self._sampling = settings.sampling()
        self._frontier = frontier
        self._engine = engine
        self._ledger = ledger
        self._isolated = isolated
        self._notices = notices
        tokenizer = frontier.scorer.tokenizer
        self._path = Path(frontier.tree, tokenizer, engine.vocabulary, ledger)
        self._variables: dict[str, str] = {}
        self._endings: dict[str, Ending] = {}

    async def stream(self) -> AsyncIterator[events.Event]:
        """Runs the program to its end; the last event carries the result."""
        model, decoder = self._frontier.scorer.name, self._settings.decoder_name
        yield events.Started(model, decoder, self._sampling.seed)
        for notice in self._notices:
            yield events.Notice(notice)
        state = self._path.start()
        while True:
            self._context.prompt = state.text
            op = self._program.ops[state.pc]
            match op:
                case Text():
                    text = "".join([await self._part(part) for part in op.parts])
                    state = replace(state.say(text), pc=state.pc + 1)
                    yield events.Text(text)
                case Hole():
                    async for step in self._fill(op, state):
                        if isinstance(step, State):
                            state = step
                        else:
                            yield step
                    state = replace(state, pc=state.pc + 1)
                case Return():
                    value = await evaluate(op.value, self._environment) if op.value else None
                    state = self._path.settle(state, last=True)
                    for event in self._news():
                        yield event
                    yield events.Finished(self._result(state, value))
                    return
                case _:
                    state = replace(state, pc=await self._control(op, state.pc))

    async def _control(self, op: Let | Jump | JumpIf | Enter | Next, pc: int) -> int:
        """The ops that touch variables only; gives the next place in the program."""
        environment = self._environment
        match op:
            case Let(_, code):
                await execute(code, environment)
            case Jump(_, target):
                return target
            case JumpIf(_, test, when, target):
                if bool(await evaluate(test, environment)) == when:
                    return target
            case Enter(_, slot, iterable):
                environment[slot] = iter(await evaluate(iterable, environment))
            case Next(_, slot, assign, target):
                try:
                    environment[ITEM] = next(environment[slot])
                except StopIteration:
                    del environment[slot]
                    return target
                await execute(assign, environment)
        return pc + 1

    async def _part(self, part: str | Interpolated) -> str:
        if isinstance(part, str):
            return part
        value = await evaluate(part.code, self._environment)
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
        if self._isolated:
            self._frontier.tree.forget_scores()
        limit = self._settings.limit
        term = op.condition.bind(lambda code: eval(code, self._environment))
        matcher: Matcher = self._engine.matcher(term, op.following, limit, op.name, op.span)
        fill = Fill(op, self._path, self._frontier, self._engine, self._ledger, self._sampling, limit)
        state = fill.open(state, matcher)
        shown, rejections = 0, 0
        while True:
            while matcher.ending is None:
                state = await fill.step(state, matcher)
                matcher = state.matcher or matcher
                for event in self._news():
                    yield event
                # text that may still be cut or rejected, and a character that is not complete, wait (S33)
                ready = matcher.text[shown : matcher.certain].decode("utf-8", "ignore")
                if ready and matcher.ending is None and not op.predicates:
                    shown += len(ready.encode())
                    yield events.Text(ready, op.name)
            value = matcher.value.decode()
            broken = await self._broken(op, value)
            if broken is None:
                break
            back = fill.go_back() if rejections < self._settings.backtracks else None
            if back is None:
                raise _rejected(op, broken, value, rejections + 1)
            rejections += 1
            state = back
            matcher = state.matcher or matcher
        state = fill.close(state, matcher)
        for event in self._news():
            yield event
        self._variables[op.name] = value
        self._endings[op.name] = matcher.ending
        rest = matcher.value[shown:].decode()
        if rest:
            yield events.Text(rest, op.name)
        yield events.HoleClosed(op.name, value, matcher.ending)
        yield state

    async def _broken(self, op: Hole, value: str) -> Predicate | None:
        """The first condition in Python that the value does not meet; the value is bound already."""
        self._environment[op.name] = value
        for predicate in op.predicates:
            if not await evaluate(predicate.code, self._environment):
                return predicate
        return None

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
            seed=self._sampling.seed,
            model=self._frontier.scorer.name,
            notices=self._notices,
        )
