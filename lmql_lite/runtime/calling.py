"""Queries that the holes of a hypothesis call: how one begins on the text as it stands, and what it gives (S26)."""

from __future__ import annotations

from typing import Any

from lmql_lite.cache.sampling import mix
from lmql_lite.errors import QueryError
from lmql_lite.program.ops import STEP, Hole, Return
from lmql_lite.runtime.environment import environment_of
from lmql_lite.runtime.frames import Frame
from lmql_lite.runtime.header import header, within
from lmql_lite.runtime.holes import Holes
from lmql_lite.runtime.messages import sayable
from lmql_lite.runtime.nested import MOST_DEEP, Caller, Elsewhere, NestedCall, answered
from lmql_lite.runtime.standing import Standing


class Calling:
    """`elsewhere` runs a query that has a model of its own."""

    def __init__(self, standing: Standing, holes: Holes, elsewhere: Elsewhere | None) -> None:
        self._standing = standing
        self._holes = holes
        self._elsewhere = elsewhere
        self._calls = 0
        """So many queries have been called."""

    def fork(self, standing: Standing, holes: Holes) -> Calling:
        fork = Calling(standing, holes, self._elsewhere)
        fork._calls = self._calls
        return fork

    async def call(self, op: Hole, nested: NestedCall) -> None:
        """The hole `op` is filled by a query, which goes on with the text as it stands."""
        here = self._standing
        if len(here.frames) >= MOST_DEEP:
            raise QueryError(
                f"queries call each other more than {MOST_DEEP} deep, here {nested.name} for [{op.name}]",
                span=op.span,
                hint="a query that calls itself needs a case in which it does not",
            )
        here.own()
        environment = environment_of(nested.program, nested.inputs)
        environment["context"] = here.context
        environment[STEP] = here.frame.environment[STEP]
        seed = mix(here.frame.sampling.seed, self._calls)
        self._calls += 1
        settings = within(here.frame.settings, await header(nested.program, environment), seed)
        here.state = here.writer.begin_call(here.state)
        caller = Caller(op, nested, self._holes.term(op), here.state)
        if self._elsewhere is not None:
            other = await self._elsewhere(nested, settings, here.state.text)
            if other is not None:
                text = other.prompt[len(here.state.text) :]
                await self._answer(caller, other.value if nested.returns else text)
                return
        own = {id(value) for frame in here.frames for value in frame.environment.values()}
        shared = tuple(value for value in nested.scope.values() if id(value) not in own)
        frame = Frame(nested.program, environment, settings, settings.sampling(), shared, caller)
        frame.unsaid = [] if nested.returns or here.is_guarded else None
        here.frames.append(frame)
        here.go(here.state, 0)

    async def give_back(self, op: Return, value: Any) -> None:
        """The query under way, which a hole has called, returns."""
        here = self._standing
        frame = here.frames.pop()
        caller = frame.caller
        assert caller is not None, "a hole has called it"
        if op.value is not None:
            await self._answer(caller, value)
            return
        text = here.state.text[len(caller.before.text) :]  # it stays, and is the value
        here.state = here.state._replace(pc=caller.before.pc)
        for event in frame.unsaid or ():
            here.say(event)
        await self._holes.check(caller.op, caller.objects(text), text, "the query")
        await self._holes.bind(caller.op.name, text, text, "forced", "")

    async def _answer(self, caller: Caller, value: Any) -> None:
        """What a query gives comes in the place of what it said."""
        here = self._standing
        if caller.nested.typed is not None:
            value = caller.nested.typed(value)
        name, text = caller.op.name, sayable(str(value), caller.op.span)
        here.writer.leave()
        here.state = answered(caller.before, here.state, text, name, here.ledger)
        here.tell()
        await self._holes.check(caller.op, caller.objects(text), value, "the query")
        await self._holes.bind(name, value, text, "forced", text)
