"""One hypothesis of a run: where it stands, the queries under way in it, their variables, the hole that is open.

`step` does one op, or one token or stretch of forced text of the open hole; what watchers should know lies in `news`
afterwards. `fork` gives a second hypothesis that stands at the same place and goes its own way: the state is a frozen
value, the open hole is copied, variables are shared until Python may write (variables.py). Who drives hypotheses
decides how many there are: interpreter.py drives one, beams.py many.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from types import CodeType
from typing import Any

from lmql_lite.cache.tree import Node
from lmql_lite.constraints.matcher import Ending, Matcher
from lmql_lite.constraints.terms import Term, conjunction
from lmql_lite.errors import ConstraintError, InputError, QueryError, Span
from lmql_lite.program.clauses import settled
from lmql_lite.program.ops import (
    ITEM,
    Distribution,
    Enter,
    Hole,
    Interpolated,
    Jump,
    JumpIf,
    Let,
    Next,
    Op,
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
from lmql_lite.runtime.result import OptionScores
from lmql_lite.runtime.settings import Settings
from lmql_lite.runtime.state import State
from lmql_lite.runtime.variables import NotCopied, copied, only_reads
from lmql_lite.runtime.writer import Filling, Outlook, Writer
from lmql_lite.tokens import Sampling


@dataclass(slots=True)
class Frame:
    """One query under way: the outermost, or one that a hole of the frame before it has called (S26).

    `shared` are values that every hypothesis has in common: what the caller gave.
    """

    program: Program
    environment: Environment
    shared: tuple[Any, ...] = ()
    bound: dict[int, Term] = field(default_factory=dict)
    """Conditions of holes that were evaluated when their segment began, by place in the program."""
    variables: dict[str, Any] = field(default_factory=dict)
    """The values of its holes."""
    endings: dict[str, Ending] = field(default_factory=dict)

    def fork(self) -> Frame:
        return replace(
            self,
            environment=dict(self.environment),
            bound=dict(self.bound),
            variables=dict(self.variables),
            endings=dict(self.endings),
        )


@dataclass(slots=True)
class OpenHole:
    """A hole on its way to a value. `op` has its type and its conditions."""

    op: Hole
    filling: Filling
    judge: Judge
    shown: int = 0
    """So many bytes of its text have been told."""
    rejections: int = 0

    def fork(self) -> OpenHole:
        return replace(self, filling=self.filling.fork(), judge=self.judge.fork())


class Hypothesis:
    def __init__(self, frame: Frame, settings: Settings, sampling: Sampling, writer: Writer, ledger: Ledger) -> None:
        self.state = writer.start()
        self.frames = [frame]
        self.hole: OpenHole | None = None
        self.value: Any = None
        """What the query returned, once it `is_over`."""
        self.is_over = False
        self.news: list[events.Event] = []
        self._settings = settings
        self._sampling = sampling
        self._writer = writer
        self._ledger = ledger
        self._is_borrowed = False
        """Another hypothesis has the same objects in its variables."""
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
        fork.hole = self.hole.fork() if self.hole else None
        fork.value, fork.is_over, fork.news = self.value, self.is_over, []
        fork._settings, fork._sampling = self._settings, self._sampling
        fork._writer, fork._ledger = self._writer, self._ledger
        fork._is_borrowed = self._is_borrowed = True
        fork._standing = None
        fork._context = Context(fork._score, self._context.prompt)
        for frame in fork.frames:
            frame.environment["context"] = fork._context
        fork._stand()
        return fork

    def leave(self) -> None:
        """It goes no further: nothing has to be kept for it."""
        self._writer.stand(self._standing, None)
        self._standing = None

    async def step(self) -> None:
        """Goes on by one op, or inside the open hole by one token or stretch of forced text."""
        if self.hole is not None:
            await self._fill(self.hole)
        else:
            await self._do(self.op)
        self._stand()

    def _stand(self) -> None:
        self._writer.stand(self._standing, self.state.node)
        self._standing = self.state.node
        self._context.prompt = self.state.text

    # Ops ---------------------------------------------------------------------------------------------------------

    async def _do(self, op: Op) -> None:
        state = self.state
        match op:
            case Text():
                said = state
                for part in op.parts:
                    said = said.say(await self._part(part, said))
                self.news.append(events.Text(said.text[len(state.text) :]))
                self._go(said)
            case Hole():
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
            case Enter(span, slot, iterable):
                self.frame.environment[slot] = iter(await self._python(iterable, span))
                self._go(state)
            case Next():
                await self._next(op)
            case Return(span, code):
                self.value = await self._python(code, span) if code else None
                self.state = await self._writer.finish(state)
                self._tell()
                self.is_over = True

    def _go(self, state: State, target: int | None = None) -> None:
        """To the next op, or to another place in the program."""
        self.state = replace(state, pc=state.pc + 1 if target is None else target)

    async def _next(self, op: Next) -> None:
        self._own()
        environment = self.frame.environment
        try:
            environment[ITEM] = next(environment[op.slot])
        except StopIteration:
            del environment[op.slot]
            self._go(self.state, op.target)
            return
        await self._python(op.assign, op.span)
        self._go(self.state)

    async def _python(self, code: CodeType, span: Span, state: State | None = None) -> Any:
        """What the query's own Python says. While it lets the run wait, the model goes on writing."""
        if not only_reads(code):
            self._own()
        value = value_of(code, self.frame.environment)
        return await self._writer.waiting(value, state or self.state, span) if isawaitable(value) else value

    async def _part(self, part: str | Interpolated, said: State) -> str:
        if isinstance(part, str):
            return part
        value = await self._python(part.code, part.span, said)
        match part.conversion:
            case "s":
                value = str(value)
            case "r":
                value = repr(value)
            case "a":
                value = ascii(value)
        return format(value, part.format)

    def _own(self) -> None:
        """Python is about to run that may change variables: other hypotheses must not see that."""
        if not self._is_borrowed:
            return
        shared = (self._context, *(value for frame in self.frames for value in frame.shared))
        holders = [each for frame in self.frames for each in (frame.environment, frame.variables)]
        try:
            fresh = copied(holders, shared, lambda name: name.startswith("#"))
        except NotCopied as error:
            raise QueryError(
                "hypotheses part ways inside a loop over something that cannot be copied",
                span=self._loop(error.name),
                hint="loop over list(...), or use argmax or sample",
            ) from error
        for at, frame in enumerate(self.frames):
            frame.environment, frame.variables = fresh[2 * at : 2 * at + 2]
        self._is_borrowed = False

    def _loop(self, slot: str) -> Span:
        ops = [op for frame in self.frames for op in frame.program.ops]
        return next((op.span for op in ops if isinstance(op, Enter) and op.slot == slot), self.op.span)

    # Holes -------------------------------------------------------------------------------------------------------

    @property
    def matcher(self) -> Matcher:
        """Where the open hole stands."""
        assert self.state.matcher is not None, "a hole is open"
        return self.state.matcher

    async def _open(self, op: Hole) -> None:
        self.news.append(events.HoleOpened(op.name, op.span))
        if op.distribution is not None:
            await self._choose(op, op.distribution)
            return
        op = await self._settled(op)
        limit, pc = self._settings.limit, self.state.pc
        term = self._term(op, pc)
        matcher = self._matcher(op, term, limit)
        filling = self._writer.fill(op, self.state, self._sampling, limit, lambda: self._outlook(op, term, pc))
        self.state = filling.open(self.state, matcher)
        self.hole = OpenHole(op, filling, Judge(op))
        await self.look(self.hole)

    async def _fill(self, hole: OpenHole) -> None:
        self.state = await hole.filling.step(self.state, self.matcher)
        await self.look(hole)

    async def look(self, hole: OpenHole) -> None:
        """What the open hole says by now is shown and judged: it may have to go back, and it may have its value."""
        while True:
            self._tell()
            matcher = self.matcher
            # text that may still be cut or rejected, and a character that is not complete, wait (S33)
            ready = matcher.text[hole.shown : matcher.certain].decode("utf-8", "ignore")
            if ready and matcher.ending is None and not hole.op.may_reject:
                hole.shown += len(ready.encode())
                self.news.append(events.Text(ready, hole.op.name))
            if hole.op.may_reject:
                self._own()
            broken = await hole.judge.objects(matcher, self.frame.environment)
            if broken is None:
                break
            back = await hole.filling.go_back() if hole.rejections < self._settings.backtracks else None
            if back is None:
                raise _rejected(hole.op, broken, matcher, hole.rejections + 1)
            hole.rejections += 1
            self.state = back
        if matcher.ending is not None:
            self._close(hole, matcher, matcher.ending)

    def _close(self, hole: OpenHole, matcher: Matcher, ending: Ending) -> None:
        name, text = hole.op.name, matcher.value.decode()
        self.state = hole.filling.close(self.state, matcher)
        self.hole = None
        self._tell()
        rest = matcher.value[hole.shown :].decode()
        if rest:
            self.news.append(events.Text(rest, name))
        self._bind(name, hole.judge.value, text, ending)

    def _bind(self, name: str, value: Any, text: str, ending: Ending) -> None:
        """A hole has its value: the query's own Python sees it, and goes on behind it."""
        frame = self.frame
        frame.environment[name] = frame.variables[name] = value
        frame.endings[name] = ending
        self.news.append(events.HoleClosed(name, text, ending))
        self._go(self.state)

    async def _choose(self, op: Hole, distribution: Distribution) -> None:
        """One hole with a distribution, from opening to its value."""
        options = await self._python(distribution.options, distribution.span)
        op = await self._settled(op)
        limit = self._settings.limit
        matcher = self._matcher(op, self._term(op, self.state.pc), limit)
        self._own()
        environment = self.frame.environment
        chosen = await self._writer.choose(op, environment, self.state, options, self._sampling, matcher, limit)
        self.state = chosen.state
        self._tell()
        self.news.append(events.Text(chosen.text, op.name))
        self._bind(op.name, chosen.value, chosen.text, "forced")
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

    def _term(self, op: Hole, pc: int) -> Term:
        """Its condition, the values in it being known."""
        if pc in self.frame.bound:
            return self.frame.bound.pop(pc)
        return op.condition.bind(self._now)

    def _now(self, code: CodeType) -> Any:
        """The value of an expression in a condition."""
        if not only_reads(code):
            self._own()
        return value_of(code, self.frame.environment)

    def _matcher(self, op: Hole, term: Term, limit: int) -> Matcher:
        spec, engine = op.type.spec if op.type else None, self._writer.engine
        if isinstance(spec, JsonType) and op.type:
            rules = spec.rules(term, op.name, op.type.span, free_spelling=self._writer.spells_freely)
            return engine.grammars.matcher(rules, op.following, op.name, op.type.span)
        return engine.matcher(_whole(op, term), op.following, limit, op.name, op.span)

    def _outlook(self, op: Hole, term: Term, pc: int) -> Outlook:
        """What is known from this hole to the end of its segment. Texts that Python has yet to make end it earlier."""
        ops, bound = self.frame.program.ops, self.frame.bound
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
                bound[end] = self._term(following, end)
                parts.append(_whole(following, bound[end]))
            end += 1
        later = [index for index in range(end, len(ops)) if isinstance(ops[index], Hole | Jump | Next)]
        return Outlook(tuple(parts), goes_on=bool(later), is_whole=is_whole, schema=_schema(op, term))

    def _tell(self) -> None:
        """Tokens that joined or left the path."""
        moved, self._ledger.news = self._ledger.news, []
        self.news += [events.TokenMoved(step.token, step.node, step.parent) for step in moved]


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
