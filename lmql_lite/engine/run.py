"""Run: one execution of a program by one model. `Run.step` is the loop: an op, or the life of one token."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from functools import partial

from lmql_lite.cache.kv.blocks import CBlock
from lmql_lite.engine import events
from lmql_lite.engine.blocks import LeavingReturn
from lmql_lite.engine.branch import Branch
from lmql_lite.engine.budget import LAST_STEPS, Steps
from lmql_lite.engine.environment import Environment, called_at, interpolated
from lmql_lite.engine.frame import Elsewhere, Frame, answered
from lmql_lite.engine.generate.generator import Generator
from lmql_lite.engine.generate.hole_fill import fail_unfilled
from lmql_lite.engine.generate.local_fill import LocalFill, Way
from lmql_lite.engine.hole import decorate, look, open_hole, run_ahead
from lmql_lite.engine.result import Result
from lmql_lite.engine.settings import Settings
from lmql_lite.engine.state import State, noted
from lmql_lite.engine.subquery import call, called, return_value
from lmql_lite.engine.tools.fill import ToolFill
from lmql_lite.engine.tracebacks import from_query, unwrapped
from lmql_lite.errors import BudgetError, InputError, ModelError
from lmql_lite.media import Media
from lmql_lite.options import Sampling
from lmql_lite.program.ops import STEP, EndTry, Hole, Jump, JumpIf, Let, Op, Program, PromptText, Return, Try, Turn
from lmql_lite.tokens import Token


class Run:
    """One run, after the text `before`. `elsewhere` runs nested queries that have a model of their own."""

    def __init__(
        self,
        program: Program,
        environment: Environment,
        settings: Settings,
        sampling: Sampling,
        generator: Generator,
        elsewhere: Elsewhere | None = None,
        before: str = "",
    ) -> None:
        self.settings = settings
        self.seed = sampling.seed
        self.steps = Steps(settings.steps)
        self.generator = generator
        self._program = program
        self._elsewhere = elsewhere
        self._before = before
        environment[STEP] = self.steps.take
        self._frame = Frame(program, environment, settings, sampling, tuple(environment.values()))

    def begin(self) -> tuple[events.Started, Branch]:
        """The first event, and the first branch. The decoder decides which branches go on (`engine/decode/`)."""
        first = Branch(self._frame, self.generator)
        if self._before:
            first.state = first.state.say(self._before)
            first.say(events.Text(self._before))
        program, environment = self._program, self._frame.environment
        started = events.Started(
            self.generator.model,
            self.settings.decoder_name,
            self.seed,
            program.returns,
            results=self.settings.results,
            name=program.span.name,
            query=program.span.text,
            inputs={each.name: environment[each.name] for each in program.inputs if each.name in environment},
            date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )
        return started, first

    # The loop -------------------------------------------------------------------------------------------------------

    async def step(self, branch: Branch, ahead: int = 0) -> None:
        """Executes one op, or in an open hole adds one token or a stretch of forced text, and then at most `ahead`
        known tokens.

        Raises exceptions of the query, and BudgetError after too many steps.
        """
        raised = None
        try:
            self.steps.take()
            hole = branch.hole
            if hole is None:
                await self._execute(branch, branch.op)
            else:
                fill, state = hole.fill, branch.state
                if forced := fill.forced(state):
                    branch.state = fill.force(state, forced)
                else:
                    pick = fill.pick(state)  # all text is on the path, and the condition allows some tokens next
                    try:
                        choice = await fill.choose(pick)  # known in the tree, in flight, or asked of the model
                    except ModelError as error:
                        fail_unfilled(hole.op, error)
                    branch.state = fill.take(pick, choice)  # the token joins the path, its record and the events
                    if fill.thinks:
                        self.steps.left += 1
                        return
                if isinstance(fill, ToolFill):
                    branch.state = await fill.call_tools(branch.state)
                await look(branch, hole)  # emits the text, lets Python judge it, and closes a hole at its end
                if ahead and branch.hole is hole:
                    self.steps.left -= await run_ahead(branch, hole, min(ahead, self.steps.left))
        except BaseException as error:
            raised = error
        if raised is not None:  # outside the handler above, so that the query's exceptions get no false context
            try:
                await self._raised(branch, raised)
            finally:
                raised = None  # breaks the reference cycle of exception, traceback and frame
        branch.keep()

    async def ways(self, branch: Branch, most: int) -> list[Way]:
        """The next tokens of a branch that `may_part`; none after an exception that the query handles."""
        ways: list[Way] = []

        async def ask() -> None:
            self.steps.take()
            fill = _parting(branch)
            branch.state = fill.settle(branch.state)
            ways.extend(await fill.ways(branch.state, most))

        await self._guarded(branch, ask())
        return ways

    async def take(self, branch: Branch, way: Way) -> None:
        """Takes one of the next tokens. If Python rejects it, a branch that does not lead becomes `is_rejected`."""

        async def go() -> None:
            assert branch.hole is not None, "a hole is open"
            branch.state = _parting(branch).take(way.pick, way.choice)
            await look(branch, branch.hole)

        await self._guarded(branch, go())

    async def close_branch(self, branch: Branch) -> None:
        """Runs the `finally` blocks and the exits of `with`, without asking a model, since nobody reads on."""
        if branch.is_over:
            return
        try:
            await self._raised(branch, GeneratorExit(), by_handlers=False)
            for _ in range(LAST_STEPS):
                if branch.is_over:
                    break
                await self.step(branch)
        except GeneratorExit:
            pass

    def result(self, branch: Branch, pruned: tuple[Token, ...] = ()) -> Result:
        """The result of a branch; `pruned` are tokens of branches that were given up."""
        state, frame = branch.state, branch.frames[0]
        record = state.tokens() + pruned
        return Result(
            prompt=state.text,
            variables=dict(frame.variables),
            value=branch.value,
            tokens=record,
            usage=branch.ledger.usage(record),
            endings=dict(frame.endings),
            seed=self.seed,
            model=self.generator.model,
            score=state.score,
        )

    # Ops ------------------------------------------------------------------------------------------------------------

    async def _execute(self, branch: Branch, op: Op) -> None:
        match op:
            case PromptText():
                await self._text(branch, op)
            case Hole():
                await self._hole(branch, op)
            case Turn(span, role):
                branch.go(branch.generator.turn(branch.state, role, span))
            case Let(span, code):
                await branch.python(code, span)
                branch.go(branch.state)
            case Jump(_, target):
                branch.go(branch.state, target)
            case JumpIf(span, test, when, target):
                branch.go(branch.state, target if bool(await branch.python(test, span)) == when else None)
            case Return(span, code):
                value = await branch.python(code, span) if code else None
                returning, blocks = LeavingReturn(op, value), branch.frame.blocks
                onward = await blocks.leave(returning, branch.frame.environment) if blocks.stack else returning
                await self._onward(branch, onward)
            case _:
                if not isinstance(op, Try | EndTry):
                    branch.own()
                frame = branch.frame
                onward = await frame.blocks.do(op, branch.state.pc, frame.environment, branch.python)
                await self._onward(branch, onward)

    async def _text(self, branch: Branch, op: PromptText) -> None:
        """Adds literals and values to the prompt. A list of messages becomes turns of the chat."""
        shown = said = branch.state
        for part in op.parts:
            if isinstance(part, str):
                said = said.say(part)
                continue
            value = await branch.python(part.code, part.span, said)
            text = await called_at(part.here, partial(interpolated, value, part), branch.frame.environment)
            if isinstance(text, str):
                said = said.say(text, is_block=isinstance(text, CBlock), is_value=True)
                continue
            if isinstance(text, Media):
                said = branch.generator.show(said, text)
                _emit(branch, shown, said)
                branch.say(events.MediaShown(str(text), item=text))
                shown = said
                continue
            for role, content in text:
                _emit(branch, shown, said)
                shown = said = branch.generator.turn(said, role, part.span)
                said = said.say(content, is_value=True)
        _emit(branch, shown, said)
        branch.go(said)

    async def _hole(self, branch: Branch, op: Hole) -> None:
        """Opens a hole, or calls the query that fills it."""
        for frame in branch.frames:
            if frame.blocks.stack:
                frame.blocks.refuse_cancelled()
        branch.ledger.events.append(events.HoleOpened(op.name, op.span))
        branch.opened += 1
        branch.frame.opened = branch.state
        if op.decorators and await decorate(branch, op):
            return
        if op.callees and op.distribution is None:
            op, nested = await called(branch, op)
            if nested is not None:
                await call(branch, op, nested, self._elsewhere)
                return
        await open_hole(branch, op)

    async def _onward(self, branch: Branch, onward: int | LeavingReturn) -> None:
        """Moves to a place in the program, or back to the caller of the query."""
        if not isinstance(onward, LeavingReturn):
            branch.go(branch.state, onward)
        elif branch.frame.caller is not None:
            await return_value(branch, onward.op, onward.value)
        else:
            branch.value = onward.value
            branch.state = await branch.generator.finish(branch.state)
            branch.is_over = True

    # Exceptions -----------------------------------------------------------------------------------------------------

    async def _guarded(self, branch: Branch, work: Awaitable[None]) -> None:
        """Awaits the work; the query may handle its exceptions."""
        raised = None
        try:
            await work
        except BaseException as error:
            raised = error
        if raised is not None:
            try:
                await self._raised(branch, raised)
            finally:
                raised = None
        branch.keep()

    async def _raised(self, branch: Branch, error: BaseException, *, by_handlers: bool = True) -> None:
        """Moves to the query's handler of an exception. Without a handler, raises it or the one that replaced it.

        A hole or a query that is left without a value leaves no text.
        """
        if self.steps.spent is error:
            self.steps.spent.span = branch.op.span
        if not by_handlers or not branch.frame.may_catch(error, branch.op):
            branch.final = error
        by_handlers = error is not branch.final
        error = unwrapped(error)
        hole, branch.hole = branch.hole, None
        rejected = hole.fill.give_up(branch.state) if hole else []
        while True:
            frame = branch.frame
            if frame.opened is not None:
                branch.state = noted(answered(frame.opened, branch.state, "", "", branch.ledger), rejected)
                rejected, frame.opened, frame.decoration = [], None, None
            error.__traceback__ = from_query(error.__traceback__, frame.program.span.name)
            try:
                target = await frame.blocks.catch(error, frame.environment, by_handlers=by_handlers)
            except BaseException as other:
                by_handlers = by_handlers or other is not error
                error = other
            else:
                branch.go(branch.state, target)
                return
            if frame.caller is None:
                break
            branch.frames.pop()
            branch.generator.leave()
        if isinstance(error, InputError) and error.span is None:  # from a function of this package, such as image()
            error.span = branch.python_span
        if isinstance(error, BudgetError) and error.partial is None and not self.settings.has_beams:
            branch.state = await branch.generator.finish(branch.state)
            error.partial = self.result(branch)
        raise error


def _parting(branch: Branch) -> LocalFill:
    assert branch.hole is not None and isinstance(branch.hole.fill, LocalFill), "the branch may part"
    return branch.hole.fill


def _emit(branch: Branch, shown: State, said: State) -> None:
    text = said.text[len(shown.text) :]
    if text:
        branch.say(events.Text(text, role=said.turn))
