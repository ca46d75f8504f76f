"""One hypothesis of a run: where it stands, the queries under way in it, their variables, the hole that is open.

`step` does one op, or one token or stretch of forced text of the open hole; what watchers should know lies in `news`
afterwards. `fork` gives a second hypothesis that stands at the same place and goes its own way: the state is a frozen
value, the open hole is copied, variables are shared until Python may write (variables.py). Who drives hypotheses
decides how many there are: interpreter.py drives one, beams.py many.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from inspect import isawaitable
from types import CodeType
from typing import Any

from lmql_lite.cache.sampling import mix
from lmql_lite.cache.tree import Node
from lmql_lite.constraints.matcher import Ending, Matcher
from lmql_lite.constraints.terms import Term
from lmql_lite.errors import ConstraintError, InputError, QueryError, Span
from lmql_lite.program.clauses import settled
from lmql_lite.program.ops import (
    Distribution,
    EndTry,
    Hole,
    Jump,
    JumpIf,
    Let,
    Op,
    Return,
    Text,
    Try,
    Turn,
)
from lmql_lite.program.options import texts_of
from lmql_lite.program.types import NAMES
from lmql_lite.runtime import events
from lmql_lite.runtime.blocks import Returned
from lmql_lite.runtime.callees import called
from lmql_lite.runtime.decorated import Decoration, decoration_of
from lmql_lite.runtime.environment import Context, environment_of, evaluate, value_of
from lmql_lite.runtime.fill import Fill, Way
from lmql_lite.runtime.frames import Frame, own
from lmql_lite.runtime.header import header, within
from lmql_lite.runtime.hole_decoder import decoding_of
from lmql_lite.runtime.judge import Judge, Objection
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.messages import interpolated
from lmql_lite.runtime.nested import MOST_DEEP, Caller, Elsewhere, NestedCall, answered, unmet
from lmql_lite.runtime.opening import OpenHole, matcher_of, schema_of, text_term
from lmql_lite.runtime.outlook import outlook_of
from lmql_lite.runtime.result import OptionScores
from lmql_lite.runtime.state import State, Step, noted
from lmql_lite.runtime.tool_fill import ToolFill
from lmql_lite.runtime.tracebacks import from_query, unwrapped
from lmql_lite.runtime.variables import only_reads
from lmql_lite.runtime.writer import Outlook, Writer


class Hypothesis:
    def __init__(self, frame: Frame, writer: Writer, ledger: Ledger, elsewhere: Elsewhere | None = None) -> None:
        self.state = writer.start()
        self.frames = [frame]
        self.hole: OpenHole | None = None
        self.value: Any = None
        """What the query returned, once it `is_over`."""
        self.is_over = False
        self.news: list[events.Event] = []
        self.leads = True
        """It goes as the only one would: what Python rejects it fills otherwise, where others are given up."""
        self.is_rejected = False
        self._writer = writer
        self._ledger = ledger
        self._elsewhere = elsewhere
        self._is_borrowed = False
        """Another hypothesis has the same objects in its variables."""
        self._calls = 0
        """So many queries have been called."""
        self._final: BaseException | None = None
        """It ends with that, whatever runs before."""
        self._standing: Node | None = None
        self._context = Context(self._score)
        frame.environment["context"] = self._context
        self._stand()

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    @property
    def op(self) -> Op:
        return self.frame.program.ops[self.state.pc]

    def fork(self) -> Hypothesis:
        """Another one that stands here. Raises QueryError where something is under way that cannot be copied."""
        fork = object.__new__(Hypothesis)
        fork.state = self.state
        fork.frames = [frame.fork() for frame in self.frames]
        fork._writer = self._writer.fork()
        fork._ledger = fork._writer.ledger
        fork.hole = self.hole.fork(fork._writer) if self.hole else None
        fork.value, fork.is_over, fork.news = self.value, self.is_over, []
        fork.leads, fork.is_rejected = False, self.is_rejected
        fork._elsewhere, fork._calls = self._elsewhere, self._calls
        fork._is_borrowed = self._is_borrowed = True
        fork._final = self._final
        fork._standing = None
        fork._context = Context(fork._score, self._context.prompt)
        for frame in fork.frames:
            frame.environment["context"] = fork._context
            frame.decoration = frame.decoration and frame.decoration.fork(fork._context)
        fork._stand()
        return fork

    def begin(self, before: str) -> None:
        """Puts text before the query."""
        if before:
            self.state = self.state.say(before)
            self._say(events.Text(before))

    def leave(self) -> None:
        """It goes no further: nothing has to be kept for it."""
        self._writer.stand(self._standing, None)
        self._standing = None

    async def step(self) -> None:
        """Goes on by one op, or inside the open hole by one token or stretch of forced text."""
        await self._guarded(self._fill(self.hole) if self.hole is not None else self._do(self.op))

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
        self._stand()

    async def fail(self, error: BaseException) -> None:
        """Whoever drives it wants it to end with that: no handler of a query takes it. Raises it, unless the query has
        something that runs in any case: then that comes first."""
        await self._raised(error, by_handlers=False)
        self._stand()

    async def close(self) -> None:
        """Nobody reads on: runs what the query wants to have run in any case, and asks no model."""
        try:
            await self.fail(GeneratorExit())
            while not self.is_over:
                await self.step()
        except GeneratorExit:
            pass

    def _stand(self) -> None:
        self._writer.stand(self._standing, self.state.node)
        self._standing = self.state.node
        self._context.prompt = self.state.text

    # Ops ---------------------------------------------------------------------------------------------------------

    async def _do(self, op: Op) -> None:
        state = self.state
        match op:
            case Text():
                await self._text(op)
            case Hole():
                for frame in self.frames:
                    frame.blocks.refuse_cancelled()
                await self._open(op)
            case Turn(span, role):
                self._go(self._writer.turn(state, role, span))
            case Let(span, code):
                await self._python(code, span)
                self._go(state)
            case Jump(_, target):
                self._go(state, target)
            case JumpIf(span, test, when, target):
                self._go(state, target if bool(await self._python(test, span)) == when else None)
            case Return(span, code):
                value = await self._python(code, span) if code else None
                await self._onward(await self.frame.blocks.leave(Returned(op, value), self.frame.environment))
            case _:
                if not isinstance(op, Try | EndTry):
                    self._own()
                frame = self.frame
                await self._onward(await frame.blocks.do(op, state.pc, frame.environment, self._python))

    def _go(self, state: State, target: int | None = None) -> None:
        """To the next op, or to another place in the program."""
        self.state = replace(state, pc=state.pc + 1 if target is None else target)

    async def _raised(self, error: BaseException, *, by_handlers: bool = True) -> None:
        """Goes on where a query deals with the exception. Raises it, or what took its place, where none does.

        A hole that gets no value leaves no text, nor does a query that gives none.
        """
        if not by_handlers or not self.frame.may_catch(error, self.op):
            self._final = error
        by_handlers = error is not self._final
        error = unwrapped(error)
        others = self.hole.filling.give_up(self.state) if self.hole else []
        self.hole = None
        while True:
            frame = self.frame
            if frame.opened is not None:
                self.state = noted(answered(frame.opened, self.state, "", "", self._ledger), others)
                others, frame.opened, frame.decoration = [], None, None
            error.__traceback__ = from_query(error.__traceback__, frame.program.span.name)
            try:
                target = await frame.blocks.catch(error, frame.environment, by_handlers=by_handlers)
            except BaseException as other:
                by_handlers = by_handlers or other is not error
                error = other
            else:
                self._go(self.state, target)
                return
            if frame.caller is None:
                break
            self.frames.pop()
            self._writer.leave()
        self._tell()
        raise error

    @property
    def _is_guarded(self) -> bool:
        """Whether the query may go on without what is being said: then that is told when it is known to stay (S33)."""
        return any(frame.blocks.is_guarded for frame in self.frames)

    async def _onward(self, onward: int | Returned) -> None:
        if isinstance(onward, Returned):
            await self._return(onward)
        else:
            self._go(self.state, onward)

    async def _python(self, code: CodeType, span: Span, state: State | None = None) -> Any:
        """What the query's own Python says. While it lets the run wait, the model goes on writing."""
        if not only_reads(code):
            self._own()
        value = value_of(code, self.frame.environment)
        return await self._writer.waiting(value, state or self.state, span) if isawaitable(value) else value

    async def _text(self, op: Text) -> None:
        """Literals and values; a list of messages is so many turns of the chat."""
        told = said = self.state
        for part in op.parts:
            if isinstance(part, str):
                said = said.say(part)
                continue
            spoken = interpolated(await self._python(part.code, part.span, said), part)
            if isinstance(spoken, str):
                said = said.say(spoken)
                continue
            for role, text in spoken:
                self._say_since(told, said)
                told = said = self._writer.turn(said, role, part.span)
                said = said.say(text)
        self._say_since(told, said)
        self._go(said)

    def _say_since(self, told: State, said: State) -> None:
        text = said.text[len(told.text) :]
        if text:
            self._say(events.Text(text, role=said.turn))

    def _own(self) -> None:
        """Python is about to run that may change variables: other hypotheses must not see that."""
        if not self._is_borrowed:
            return
        own(self.frames, (self._context,), self.op.span)
        self._is_borrowed = False

    # Queries under way -------------------------------------------------------------------------------------------

    async def call(self, op: Hole, nested: NestedCall) -> None:
        """The hole `op` is filled by a query, which goes on with the text as it stands (S26)."""
        if len(self.frames) >= MOST_DEEP:
            raise QueryError(
                f"queries call each other more than {MOST_DEEP} deep, here {nested.name} for [{op.name}]",
                span=op.span,
                hint="a query that calls itself needs a case in which it does not",
            )
        self._own()
        environment = environment_of(nested.program, nested.inputs)
        environment["context"] = self._context
        seed = mix(self.frame.sampling.seed, self._calls)
        self._calls += 1
        settings = within(self.frame.settings, await header(nested.program, environment), seed)
        self.state = self._writer.begin_call(self.state)
        caller = Caller(op, nested, self._term(op), self.state)
        if self._elsewhere is not None:
            other = await self._elsewhere(nested, settings, self.state.text)
            if other is not None:
                text = other.prompt[len(self.state.text) :]
                await self._answer(caller, other.value if nested.returns else text)
                return
        own = {id(value) for frame in self.frames for value in frame.environment.values()}
        shared = tuple(value for value in nested.scope.values() if id(value) not in own)
        frame = Frame(nested.program, environment, settings, settings.sampling(), shared, caller)
        frame.unsaid = [] if nested.returns or self._is_guarded else None
        self.frames.append(frame)
        self._go(self.state, 0)

    async def _return(self, returned: Returned) -> None:
        self.value = returned.value
        caller = self.frame.caller
        if caller is None:
            self.state = await self._writer.finish(self.state)
            self._tell()
            self.is_over = True
            return
        unsaid = self.frames.pop().unsaid or []
        if returned.op.value is not None:
            await self._answer(caller, self.value)
            return
        text = self.state.text[len(caller.before.text) :]  # it stays, and is the value
        self.state = replace(self.state, pc=caller.before.pc)
        for event in unsaid:
            self._say(event)
        await self._check(caller.op, caller.objects(text), text, "the query")
        await self._bind(caller.op.name, text, text, "forced", "")

    async def _answer(self, caller: Caller, value: Any) -> None:
        """What a query gives comes in the place of what it said."""
        if caller.nested.typed is not None:
            value = caller.nested.typed(value)
        name, text = caller.op.name, str(value)
        self._writer.leave()
        self.state = answered(caller.before, self.state, text, name, self._ledger)
        self._tell()
        await self._check(caller.op, caller.objects(text), value, "the query")
        await self._bind(name, value, text, "forced", text)

    async def _check(self, op: Hole, broken: Objection | None, value: Any, giver: str) -> None:
        """Whether a value that no model said meets the conditions of its hole; `broken` is one that it does not."""
        self.frame.environment[op.name] = value
        for predicate in op.predicates:
            if broken is None and not await self._python(predicate.code, predicate.span):
                broken = Objection(predicate.span)
        if broken is not None:
            raise ConstraintError(
                f"[{op.name}] does not meet `{broken.span.source}`: {giver} gave {str(value)!r}",
                span=broken.span,
                hint=f"say the condition in {giver}, too",
            )

    def _say(self, text: events.Text) -> None:
        """Text that is told as soon as it is known to stay."""
        holding = [frame.unsaid for frame in self.frames if frame.unsaid is not None]
        if holding:
            holding[-1].append(text)
        else:
            self.news.append(text)

    # Holes -------------------------------------------------------------------------------------------------------

    @property
    def matcher(self) -> Matcher:
        """Where the open hole stands."""
        assert self.state.matcher is not None, "a hole is open"
        return self.state.matcher

    async def _open(self, op: Hole) -> None:
        self.news.append(events.HoleOpened(op.name, op.span))
        frame = self.frame
        frame.decoration = await decoration_of(op, self._python, self._context)
        frame.opened = self.state
        fixed = await self._fixed(frame.decoration)
        if fixed is not None:
            await self._give(op, fixed)
            return
        if op.distribution is not None:
            await self._choose(op, op.distribution)
            return
        if op.callees:  # a query may be one of this query's own, and see its variables
            self._own()
        op, nested = await called(op, lambda code: self._python(code, op.span))
        if nested is not None:
            await self.call(op, nested)
            return
        op = await self._settled(op)
        limit, term = self.frame.settings.limit, self._term(op)
        matcher = matcher_of(op, term, limit, self._writer)
        decoding = await decoding_of(op, self.frame.settings, self.frame.sampling, self._python)
        filling = decoding.filling(op, term, self.state, limit, self._writer, lambda: self._outlook(op, term))
        self.state = filling.open(self.state, matcher)
        self.hole = OpenHole(op, filling, Judge(op))
        await self.look(self.hole)

    async def _fixed(self, decoration: Decoration | None) -> Any:
        """The value that a decorator gives in the model's place."""
        if decoration is None:
            return None
        self._own()
        return await decoration.fixed(self.frame.environment)

    async def _give(self, op: Hole, value: Any) -> None:
        """The hole has a value that nobody was asked for. It has to meet the conditions all the same."""
        text, term = str(value), self._term(op)
        await self._check(op, unmet(op, term, text), value, "a decorator")
        self.state = answered(self.state, self.state, text, op.name, self._ledger)
        await self._bind(op.name, value, text, "forced", text)

    async def _show(self, hole: OpenHole, matcher: Matcher) -> None:
        """What the open hole says by now, as far as it is certain. Decorators are told; a watcher waits for them."""
        decoration = self.frame.decoration
        if decoration is not None:
            if not hole.op.may_reject:
                self._own()
                text = matcher.text[: matcher.certain].decode("utf-8", "ignore")
                await decoration.tell(text, self.frame.environment)
        elif not self._is_guarded and (ready := hole.ready(matcher)):
            self._say(events.Text(ready, hole.op.name))

    async def _fill(self, hole: OpenHole) -> None:
        self.state = await hole.filling.step(self.state, self.matcher)
        if isinstance(hole.filling, ToolFill):
            self.news += hole.filling.told()
        await self.look(hole)

    async def look(self, hole: OpenHole) -> None:
        """What the open hole says by now is shown and judged: it may have to go back, and it may have its value."""
        while True:
            self._tell()
            matcher = self.matcher
            await self._show(hole, matcher)
            if hole.op.may_reject:
                self._own()
            broken = await hole.judge.objects(matcher, self.frame.environment)
            if broken is None:
                break
            if not self.leads:
                self.is_rejected = True
                return
            back = await hole.filling.go_back() if hole.rejections < self.frame.settings.backtracks else None
            if back is None:
                raise hole.rejected(broken, matcher)
            hole.rejections += 1
            self.state = back
        if matcher.ending is not None:
            await self._close(hole, matcher, matcher.ending)

    # Where hypotheses part ways ------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    @property
    def is_asking(self) -> bool:
        """Whether it stands where the model is asked for a token of the open hole."""
        return self.hole is not None and not self.matcher.forced()

    @property
    def may_part(self) -> bool:
        """Whether the open hole is filled as the whole run is: with a decoder of its own it goes one way."""
        hole, settings = self.hole, self.frame.settings
        return hole is not None and isinstance(hole.filling, Fill) and hole.op.decoder is None and settings.has_beams

    async def ways(self, most: int) -> list[Way]:
        """How the open hole may go on where it `may_part`; none where what is asked raises, and the query deals with
        that."""
        ways: list[Way] = []

        async def ask() -> None:
            assert self.hole is not None and isinstance(self.hole.filling, Fill), "a hole is open"
            self.state = self.hole.filling.settle(self.state)
            self._tell()
            ways.extend(await self.hole.filling.ways(self.state, self.matcher, most))

        await self._guarded(ask())
        return ways

    async def go(self, way: Way) -> None:
        """Takes one of them. It `is_rejected` afterwards where Python objects, unless it leads."""

        async def take() -> None:
            assert self.hole is not None and isinstance(self.hole.filling, Fill), "a hole is open"
            self.state = self.hole.filling.take(way)
            await self.look(self.hole)

        await self._guarded(take())

    async def logprobs(self, steps: Sequence[Step]) -> list[float]:
        """The raw log-probabilities of tokens that follow one another, of which none was asked for."""
        return await self._writer.logprobs(steps)

    async def _close(self, hole: OpenHole, matcher: Matcher, ending: Ending) -> None:
        name, text = hole.op.name, matcher.value.decode()
        self.state = hole.filling.close(self.state, matcher)
        self.hole = None
        self._tell()
        await self._bind(name, hole.judge.value, text, ending, matcher.value[hole.shown :].decode())

    async def _bind(self, name: str, value: Any, text: str, ending: Ending, untold: str) -> None:
        """A hole has its value: the query's own Python sees it, and goes on behind it."""
        frame = self.frame
        if frame.decoration is not None and frame.opened is not None:
            self._own()
            value, said = await frame.decoration.finished(value, text, frame.environment)
            if said != text:
                self.state = answered(frame.opened, self.state, said, name, self._ledger)
                self._tell()
                text = untold = said
        frame.opened = frame.decoration = None
        if untold:
            self._say(events.Text(untold, name))
        frame.environment[name] = frame.variables[name] = value
        frame.endings[name] = ending
        self.news += [events.HoleClosed(name, text, ending), events.Bound(name, value)]
        self._go(self.state)

    async def _choose(self, op: Hole, distribution: Distribution) -> None:
        """One hole with a distribution, from opening to its value."""
        options = await self._python(distribution.options, distribution.span)
        op = await self._settled(op)
        limit = self.frame.settings.limit
        matcher = matcher_of(op, self._term(op), limit, self._writer)
        self._own()
        environment = self.frame.environment
        chosen = await self._writer.choose(op, environment, self.state, options, self.frame.sampling, matcher, limit)
        self.state = chosen.state
        self._tell()
        await self._bind(op.name, chosen.value, chosen.text, "forced", chosen.text)
        self.frame.variables[f"P({op.name})"] = chosen.distribution

    async def _score(self, options: Any) -> OptionScores:
        """`context.score`: asks about the text so far, and leaves it as it is."""
        try:
            texts = texts_of(options)
        except InputError as error:
            raise InputError(error.message, span=self.op.span, hint=error.hint) from None
        return await self._writer.score(self.state, texts)

    async def _settled(self, op: Hole) -> Hole:
        """The hole with its type known; names that an annotation may use are the query's own where it binds them."""
        if op.type is None or op.type.spec is not None:
            return op
        self._own()
        names = {**self.frame.environment, **{name: NAMES[name] for name in op.type.offered}}
        return settled(op, await evaluate(op.type.code, names))

    def _term(self, op: Hole) -> Term:
        """Its condition, the values in it being known."""
        return self.frame.term(op, self.state.pc, self._now)

    def _now(self, code: CodeType) -> Any:
        """The value of an expression in a condition."""
        if not only_reads(code):
            self._own()
        return value_of(code, self.frame.environment)

    def _outlook(self, op: Hole, term: Term) -> Outlook:
        """What is known of the segment that begins with this hole."""
        frame, here = self.frame, self.state.pc

        def text_at(at: int) -> Term:
            later = frame.program.ops[at]
            assert isinstance(later, Hole), "a segment is made of holes and texts"
            return text_term(op, term) if at == here else text_term(later, frame.bind(at, self._now))

        return outlook_of(frame.program.ops, here, text_at, schema_of(op, term))

    def _tell(self) -> None:
        """Tokens that joined or left the path."""
        moved, self._ledger.news = self._ledger.news, []
        self.news += [events.TokenMoved(step.token, step.node, step.parent) for step in moved]
