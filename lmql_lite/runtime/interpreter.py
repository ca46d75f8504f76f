"""The loop over a program's ops: `op = program.ops[state.pc]`. Reads the tree through the frontier, writes nothing.

Events stream up; the caller of `Run.stream` drives the run by reading them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

from lmql_lite.constraints.hole import Engine
from lmql_lite.constraints.matcher import Ending, Matcher
from lmql_lite.constraints.terms import conjunction
from lmql_lite.errors import ConstraintError
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
)
from lmql_lite.program.schemas import JsonType
from lmql_lite.program.types import NAMES, TextType
from lmql_lite.runtime import events
from lmql_lite.runtime.environment import Context, Environment, evaluate, execute, value_of
from lmql_lite.runtime.fill import Fill
from lmql_lite.runtime.frontier import Frontier
from lmql_lite.runtime.judge import Judge, Objection
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.path import Path
from lmql_lite.runtime.result import Result
from lmql_lite.runtime.settings import Settings
from lmql_lite.runtime.state import State


def _rejected(op: Hole, broken: Objection, matcher: Matcher, tries: int) -> ConstraintError:
    value = matcher.value.decode("utf-8", "replace")
    times = "the only value that was left" if tries == 1 else f"the last of {tries} values"
    return ConstraintError(
        f"[{op.name}] has no value that meets `{broken.span.source}`: {times} was {value!r}"
        + (f" ({broken.reason})" if broken.reason else ""),
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
        *,
        isolated: bool,
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
        tokenizer = frontier.scorer.tokenizer
        self._path = Path(frontier.tree, tokenizer, engine.vocabulary, ledger)
        self._variables: dict[str, Any] = {}
        self._endings: dict[str, Ending] = {}

    async def stream(self) -> AsyncIterator[events.Event]:
        """Runs the program to its end; the last event carries the result."""
        model, decoder = self._frontier.scorer.name, self._settings.decoder_name
        yield events.Started(model, decoder, self._sampling.seed)
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
        op = await self._settled(op)
        matcher = self._matcher(op, limit)
        fill = Fill(op, self._path, self._frontier, self._engine, self._ledger, self._sampling, limit)
        state = fill.open(state, matcher)
        matcher = state.matcher or matcher
        judge = Judge(op, self._environment)
        shown, rejections = 0, 0
        while True:
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

    async def _settled(self, op: Hole) -> Hole:
        """The hole with its type known; names that an annotation may use are the query's own where it binds them."""
        if op.type is None or op.type.spec is not None:
            return op
        names = {**self._environment, **{name: NAMES[name] for name in op.type.offered}}
        return settled(op, await evaluate(op.type.code, names))

    def _matcher(self, op: Hole, limit: int) -> Matcher:
        spec = op.type.spec if op.type else None
        term = op.condition.bind(lambda code: value_of(code, self._environment))
        if isinstance(spec, JsonType) and op.type:
            rules = spec.rules(term, op.name, op.type.span)
            return self._engine.grammars.matcher(rules, op.following, op.name, op.type.span)
        term = conjunction((spec.term, term)) if isinstance(spec, TextType) else term
        return self._engine.matcher(term, op.following, limit, op.name, op.span)

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
        )
