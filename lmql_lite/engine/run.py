"""Run: one execution of a program by one model. `Run.step` is the loop: an op, or the life of one token."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from lmql_lite.cache.kv.blocks import CBlock
from lmql_lite.engine import events
from lmql_lite.engine.branch import Branch, Frame
from lmql_lite.engine.budget import LAST_STEPS, Steps
from lmql_lite.engine.environment import Environment, environment_of
from lmql_lite.engine.generator import Generator
from lmql_lite.engine.hole import decorate, look, open_hole
from lmql_lite.engine.local import LocalFill, Way
from lmql_lite.engine.nested import IsHere, called
from lmql_lite.engine.record import CANCELLATIONS, GivenUp, Raised
from lmql_lite.engine.replay import Inputs, wake
from lmql_lite.engine.result import Result
from lmql_lite.engine.settings import Settings, header
from lmql_lite.engine.subquery import call, return_value
from lmql_lite.engine.tracebacks import from_query, unwrapped
from lmql_lite.errors import BudgetError, ConstraintError, ModelError
from lmql_lite.media import Media
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole, Program, PromptText, Turn
from lmql_lite.tokens import Token

Done = TypeVar("Done")


class Run:
    """One run. `is_here` says whether a model, of a query that a hole calls, is that of the run."""

    def __init__(
        self,
        program: Program,
        environment: Environment,
        settings: Settings,
        sampling: Sampling,
        generator: Generator,
        is_here: IsHere,
        inputs: Mapping[str, Any],
    ) -> None:
        self.settings = settings
        self.seed = sampling.seed
        self.steps = Steps(settings.steps)
        self.generator = generator
        self._program = program
        self._is_here = is_here
        self._environment = environment
        self._sampling = sampling
        self._inputs = Inputs(program, inputs) if settings.has_beams else None

    def begin(self) -> tuple[events.Started, Branch]:
        """The first event, and the first branch. The decoder decides which branches go on (`engine/decode/`)."""
        first = Branch(self.generator, self.steps, self._anew)
        first.frame = Frame(first, self._program, self._environment, self.settings, self._sampling)
        first.frames.append(first.frame)
        program, environment = self._program, self._environment
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

    async def _anew(self) -> Environment:
        """The variables of the query as they were at its beginning. Raises QueryError if an input has changed."""
        assert self._inputs is not None, "branches fork under beams"
        environment = environment_of(self._program, self._inputs.unchanged())
        await header(self._program, environment)
        return environment

    # The loop -------------------------------------------------------------------------------------------------------

    async def step(self, branch: Branch, ahead: int = 0) -> None:
        """Runs the query's Python to the next part of a prompt, or in an open hole adds one token or a stretch of
        forced text, and then at most `ahead` more that are known. Like `ways` and `take`, it is called `guarded`.

        Raises exceptions of the query, and BudgetError after too many steps.
        """
        self.steps.take()
        hole = branch.hole
        if hole is None:
            await self._advance(branch)
            return
        if hole.op.may_reject or hole.tools is not None or branch.frame.decoration is not None:
            ahead = 0  # Python may run between the tokens
        for more in range(min(ahead, self.steps.left) + 1):
            if forced := hole.fill.forced(branch.state):
                branch.state = hole.fill.force(branch.state, forced)
            else:
                pick = hole.fill.pick(branch.state)  # all text is on the path, and the condition allows some tokens
                branch.state = pick.state
                # known in the tree, in flight, or asked of the model
                choice = hole.fill.known(pick) if more else await hole.fill.choose(pick)
                if choice is None:
                    self.steps.left += not more
                    return
                branch.state = hole.fill.take(pick, choice)  # the token joins the path, its record and the events
            self.steps.left -= bool(more)
            if hole.tools is not None:
                hole.fill, branch.state = await hole.tools.go_on(hole.fill, branch.state)
            await look(branch, hole)  # emits the text, lets Python judge it, and closes the hole at its end
            if branch.hole is not hole:
                return

    async def ways(self, branch: Branch, most: int, *, weighed: bool = False) -> list[Way]:
        """The next tokens of a branch that `may_part`, for a decoder that weighs with their weights."""
        self.steps.take()
        fill = _parting(branch)
        branch.state = fill.settle(branch.state)
        return await (fill.outcomes if weighed else fill.ways)(fill.pick(branch.state), most)

    def known_ways(self, branch: Branch, most: int) -> list[Way]:
        """The next tokens of a branch that `may_part`, if the tree knows them all; else none, as if there were an
        exception, and `ways` asks or raises."""
        fill, ways = _parting(branch), list[Way]()
        try:
            branch.state = fill.settle(branch.state)
            if not self.steps.left or not fill.add_known(fill.pick(branch.state), most, ways):
                return []
        except (ConstraintError, ModelError):
            return []
        self.steps.take()
        branch.keep()
        return ways

    async def take(self, branch: Branch, way: Way) -> None:
        """Takes one of the next tokens. If Python rejects it, a branch that does not lead has a `rejection`."""
        assert branch.hole is not None, "a hole is open"
        branch.state = _parting(branch).take(way.pick, way.choice)
        await look(branch, branch.hole)

    async def close_branch(self, branch: Branch) -> None:
        """Runs the `finally` blocks and the exits of `with`, without asking a model, since nobody reads on."""
        if branch.is_over:
            return
        if branch.sleeps or not branch.has_last_words:
            branch.close()
            return
        try:
            await self._raised(branch, GivenUp())
            for _ in range(LAST_STEPS):
                if branch.is_over:
                    break
                await self.guarded(branch, self.step(branch))
        except GivenUp:
            pass

    def result(self, branch: Branch, pruned: tuple[Token, ...] = ()) -> Result:
        """The result of a branch; `pruned` are tokens of branches that were given up."""
        state, frame = branch.state, branch.frames[0]
        tokens = branch.record.tokens() + pruned
        return Result(
            prompt=state.text,
            variables=dict(frame.variables),
            value=branch.value,
            tokens=tokens,
            usage=branch.record.ledger.usage(tokens),
            endings=dict(frame.endings),
            seed=self.seed,
            model=self.generator.model,
            score=state.score,
        )

    # Parts of prompts -----------------------------------------------------------------------------------------------

    async def _advance(self, branch: Branch) -> None:
        ask = branch.asked if branch.asked or branch.has_ended else await branch.resume()
        if ask is None:
            returned = branch.frame.returned
            branch.value = returned[0] if returned else None
            branch.state = await branch.generator.finish(branch.state)
            branch.is_over = True
            return
        branch.asked = None
        branch.state = branch.state._replace(part=ask.number)
        part = branch.frame.program.parts[ask.number]
        if isinstance(part, Hole):
            await (self._hole(branch, part) if ask.ended is None else return_value(branch, ask.ended))
            return
        prompt = branch.state.text
        if isinstance(part, Turn):
            branch.state = branch.generator.path.begin(branch.state, part.role)
        else:
            self._text(branch, part, ask.values)
        if branch.record.keeps_answers:
            branch.record.add(ask.number, values=ask.values, prompt=prompt)

    def _text(self, branch: Branch, text: PromptText, values: tuple[Any, ...]) -> None:
        """Adds literals and values to the prompt. A list of messages becomes turns of the chat."""
        state, shown, given = branch.state, len(branch.state.text), iter(values)
        for part in text.parts:
            value = part if isinstance(part, str) else next(given)
            if isinstance(value, str):
                state = state.say(value, is_block=isinstance(value, CBlock), is_value=value is not part)
                continue
            if isinstance(value, Media):
                state = branch.generator.show(state, value)
                branch.say(events.Text(state.text[shown:], role=state.turn))
                branch.say(events.MediaShown(str(value), item=value))
                shown = len(state.text)
                continue
            for role, content in value:
                branch.say(events.Text(state.text[shown:], role=state.turn))
                shown = len(state.text)
                state = branch.generator.path.begin(state, role).say(content, is_value=True)
        branch.say(events.Text(state.text[shown:], role=state.turn))
        branch.state = state

    async def _hole(self, branch: Branch, op: Hole) -> None:
        """Opens a hole, or calls the query that fills it."""
        if branch.final is not None and isinstance(branch.final, CANCELLATIONS):
            raise branch.final  # `finally` blocks of a cancelled run ask no model
        branch.record.tell(events.HoleOpened(op.name, op.span))
        branch.opened += 1
        branch.frame.opened = branch.state
        branch.frame.term = branch.frame.options = None
        if op.decorators and await decorate(branch, op):
            return
        if op.callees and op.distribution is None:
            op, nested = await called(op, branch.frame.python)
            if nested is not None:
                await call(branch, op, nested, self._is_here)
                return
        await open_hole(branch, op)

    # Exceptions -----------------------------------------------------------------------------------------------------

    async def guarded(self, branch: Branch, work: Awaitable[Done]) -> Done | None:
        """Awaits the work. The query may handle its exceptions; the return value is None then."""
        raised, done = None, None
        try:
            done = await work
        except BaseException as error:
            raised = error
        if raised is not None:  # outside the handler above, so that the query's exceptions get no false context
            try:
                await self._raised(branch, raised)
            finally:
                raised = None  # breaks the reference cycle of exception, traceback and frame
        branch.keep()
        return done

    async def _raised(self, branch: Branch, error: BaseException) -> None:
        """Moves to the query's handler of an exception. Without a handler, raises it or the one that replaced it.

        A hole that is left without a value leaves no text.
        """
        branch.failed(error, branch.part if branch.is_under_way else None)
        error = unwrapped(error)
        branch.hole = None
        branch.take_back()
        if branch.sleeps:
            await wake(branch)
        file = branch.frames[0].program.span.name
        error.__traceback__ = trace = from_query(error.__traceback__, file)
        if branch.is_under_way:
            branch.record.add(branch.state.part, Raised(error), term=branch.frame.term, prompt=branch.state.text)
            other: BaseException | None = None
            try:
                await branch.resume(error)
            except BaseException as raised:
                other = raised
            if other is None:
                return
            if other is error:  # nothing of the query handled it
                error.__traceback__ = trace or other.__traceback__
            else:
                error = unwrapped(other)
            other = None
            error.__traceback__ = from_query(error.__traceback__, file)
        if isinstance(error, BudgetError) and error.partial is None and not self.settings.has_beams:
            branch.state = await branch.generator.finish(branch.state)
            error.partial = self.result(branch)
        raise error


def _parting(branch: Branch) -> LocalFill:
    assert branch.hole is not None and isinstance(branch.hole.fill, LocalFill), "the branch may part"
    return branch.hole.fill
