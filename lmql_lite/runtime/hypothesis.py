"""One hypothesis of a run: it goes through the program, op by op, and inside an open hole token by token.

`step` does one op, or one token or stretch of forced text of the open hole; what watchers should know lies in `news`
afterwards. `fork` gives a second hypothesis that stands at the same place and goes its own way. Who drives hypotheses
decides how many there are: interpreter.py drives one, beams.py many. Where one stands, and its Python, is the matter of
standing.py, its holes are that of holes.py, the queries that these call that of calling.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

from lmql_lite.constraints.matcher import Matcher
from lmql_lite.program.ops import EndTry, Hole, Jump, JumpIf, Let, Op, Return, Text, Try, Turn
from lmql_lite.runtime import events
from lmql_lite.runtime.blocks import Returned
from lmql_lite.runtime.calling import Calling
from lmql_lite.runtime.environment import called_at
from lmql_lite.runtime.fill import Way
from lmql_lite.runtime.frames import Frame
from lmql_lite.runtime.holes import Holes
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.messages import interpolated
from lmql_lite.runtime.nested import Elsewhere, answered
from lmql_lite.runtime.opening import OpenHole
from lmql_lite.runtime.standing import Standing
from lmql_lite.runtime.state import State, Step, noted
from lmql_lite.runtime.steps import LAST_STEPS, Steps
from lmql_lite.runtime.tracebacks import from_query, unwrapped
from lmql_lite.runtime.writer import Writer


class Hypothesis:
    """`value` is what the query returned, once it `is_over`."""

    def __init__(self, frame: Frame, writer: Writer, steps: Steps, elsewhere: Elsewhere | None = None) -> None:
        self.value: Any = None
        self.is_over = False
        self._steps = steps
        self._standing = Standing(frame, writer)
        self._holes = Holes(self._standing, leads=True)
        self._calling = Calling(self._standing, self._holes, elsewhere)
        self._final: BaseException | None = None
        """It ends with that, whatever runs before."""

    def fork(self) -> Hypothesis:
        """Another one that stands here. Raises QueryError where something is under way that cannot be copied."""
        fork = object.__new__(Hypothesis)
        fork.value, fork.is_over = self.value, self.is_over
        fork._steps = self._steps
        fork._standing = self._standing.fork()
        fork._holes = self._holes.fork(fork._standing)
        fork._calling = self._calling.fork(fork._standing, fork._holes)
        fork._final = self._final
        return fork

    @property
    def state(self) -> State:
        return self._standing.state

    @property
    def frames(self) -> list[Frame]:
        """The queries under way, the outermost first."""
        return self._standing.frames

    @property
    def hole(self) -> OpenHole | None:
        """The one that is being filled."""
        return self._holes.open

    @property
    def matcher(self) -> Matcher:
        """Where that stands."""
        return self._holes.matcher

    @property
    def ledger(self) -> Ledger:
        return self._standing.ledger

    def news(self) -> list[events.Event]:
        """What happened since this was last asked."""
        news, self._standing.news = self._standing.news, []
        return news

    def begin(self, before: str) -> None:
        """Puts text before the query."""
        if before:
            self._standing.state = self._standing.state.say(before)
            self._standing.say(events.Text(before))

    def leave(self) -> None:
        """It goes no further: nothing has to be kept for it."""
        self._standing.leave()

    async def step(self, ahead: int = 0) -> None:
        """Goes on by one op, or inside the open hole by one token or stretch of forced text; behind it by so many more
        tokens at most, as far as they are known: for them nobody waits.

        Raises what the query raises, and BudgetError where the run has taken too many steps.
        """
        await self._guarded(self._go_on(ahead))

    async def _go_on(self, ahead: int) -> None:
        self._steps.take()
        if self._holes.open is not None:
            self._steps.left -= await self._holes.fill(self._holes.open, min(ahead, self._steps.left))
        else:
            await self._do(self._standing.op)

    async def close(self) -> None:
        """Nobody reads on: runs what the query wants to have run in any case, and asks no model."""
        if self.is_over:
            return
        try:
            await self._raised(GeneratorExit(), by_handlers=False)
            for _ in range(LAST_STEPS):
                if self.is_over:
                    break
                await self.step()
        except GeneratorExit:
            pass

    # Where hypotheses part ways ------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether it goes as the only one would."""
        return self._holes.leads

    @property
    def is_rejected(self) -> bool:
        """Whether Python objects to what it said, and it does not lead."""
        return self._holes.is_rejected

    @property
    def is_asking(self) -> bool:
        """Whether it stands where the model is asked for a token of the open hole."""
        return self.hole is not None and not self.matcher.forced()

    @property
    def may_part(self) -> bool:
        """Whether it may go several ways from there."""
        return self._holes.may_part

    async def ways(self, most: int) -> list[Way]:
        """How the open hole may go on where it `may_part`; none where what is asked raises, and the query deals with
        that."""
        ways: list[Way] = []

        async def ask() -> None:
            self._steps.take()
            ways.extend(await self._holes.ways(most))

        await self._guarded(ask())
        return ways

    async def go(self, way: Way) -> None:
        """Takes one of them. It `is_rejected` afterwards where Python objects, unless it leads."""
        await self._guarded(self._holes.take(way))

    async def logprobs(self, steps: Sequence[Step]) -> list[float]:
        """The raw log-probabilities of tokens that follow one another, of which none was asked for."""
        return await self._standing.writer.logprobs(steps)

    # Ops ---------------------------------------------------------------------------------------------------------

    async def _do(self, op: Op) -> None:
        here = self._standing
        match op:
            case Text():
                await self._text(op)
            case Hole():
                call = await self._holes.begin(op)
                if call is not None:
                    await self._calling.call(*call)
            case Turn(span, role):
                here.go(here.writer.turn(here.state, role, span))
            case Let(span, code):
                await here.python(code, span)
                here.go(here.state)
            case Jump(_, target):
                here.go(here.state, target)
            case JumpIf(span, test, when, target):
                here.go(here.state, target if bool(await here.python(test, span)) == when else None)
            case Return(span, code):
                value = await here.python(code, span) if code else None
                await self._onward(await here.frame.blocks.leave(Returned(op, value), here.frame.environment))
            case _:
                if not isinstance(op, Try | EndTry):
                    here.own()
                frame = here.frame
                await self._onward(await frame.blocks.do(op, here.state.pc, frame.environment, here.python))

    async def _onward(self, onward: int | Returned) -> None:
        """To a place in the program, or back to who called the query."""
        here = self._standing
        if not isinstance(onward, Returned):
            here.go(here.state, onward)
        elif here.frame.caller is not None:
            await self._calling.give_back(onward.op, onward.value)
        else:
            self.value = onward.value
            here.state = await here.writer.finish(here.state)
            here.tell()
            self.is_over = True

    async def _text(self, op: Text) -> None:
        """Literals and values; a list of messages is so many turns of the chat."""
        here = self._standing
        told = said = here.state
        for part in op.parts:
            if isinstance(part, str):
                said = said.say(part)
                continue
            value = await here.python(part.code, part.span, said)
            spoken = await called_at(part.here, partial(interpolated, value, part), here.frame.environment)
            if isinstance(spoken, str):
                said = said.say(spoken)
                continue
            for role, text in spoken:
                self._say_since(told, said)
                told = said = here.writer.turn(said, role, part.span)
                said = said.say(text)
        self._say_since(told, said)
        here.go(said)

    def _say_since(self, told: State, said: State) -> None:
        text = said.text[len(told.text) :]
        if text:
            self._standing.say(events.Text(text, role=said.turn))

    # Exceptions --------------------------------------------------------------------------------------------------

    async def _guarded(self, work: Awaitable[None]) -> None:
        """Does that. What it raises may be dealt with by the query."""
        raised = None
        try:
            await work
        except BaseException as error:
            raised = error
        if raised is not None:  # out of the handler above: what the query does now has no part in it
            try:
                await self._raised(raised)
            finally:
                raised = None  # it knows this call, which must not know it for ever
        self._standing.keep()

    async def _raised(self, error: BaseException, *, by_handlers: bool = True) -> None:
        """Goes on where a query deals with the exception. Raises it, or what took its place, where none does.

        A hole that gets no value leaves no text, nor does a query that gives none.
        """
        here = self._standing
        if self._steps.spent is error:
            self._steps.spent.span = here.op.span
        if not by_handlers or not here.frame.may_catch(error, here.op):
            self._final = error
        by_handlers = error is not self._final
        error = unwrapped(error)
        others = self._holes.give_up()
        while True:
            frame = here.frame
            if frame.opened is not None:
                here.state = noted(answered(frame.opened, here.state, "", "", here.ledger), others)
                others, frame.opened, frame.decoration = [], None, None
            error.__traceback__ = from_query(error.__traceback__, frame.program.span.name)
            try:
                target = await frame.blocks.catch(error, frame.environment, by_handlers=by_handlers)
            except BaseException as other:
                by_handlers = by_handlers or other is not error
                error = other
            else:
                here.go(here.state, target)
                return
            if frame.caller is None:
                break
            here.frames.pop()
            here.writer.leave()
        here.tell()
        raise error
