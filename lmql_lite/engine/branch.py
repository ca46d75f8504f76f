"""Branch of a run: one of several competing continuations. A run without beams has one.

The query's Python is a coroutine that asks the branch for one part of a prompt after another, and awaits nothing else
of the engine. A query in a hole (S26) is a coroutine too, awaited where the hole stands. A frame has the variables of
one of these queries.
"""

from __future__ import annotations

import asyncio
import sys
from collections import abc
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext, redirect_stderr, redirect_stdout, suppress
from copy import copy
from dataclasses import dataclass, replace
from inspect import isawaitable
from io import IOBase
from types import CodeType, CoroutineType, FunctionType, coroutine
from typing import Any

from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.terms import Ending, Term
from lmql_lite.engine import events
from lmql_lite.engine.budget import Steps
from lmql_lite.engine.environment import Context, Environment, evaluate, interpolated, value_of
from lmql_lite.engine.events import MediaShown, Text
from lmql_lite.engine.fill import Fill
from lmql_lite.engine.generator import Generator, scored
from lmql_lite.engine.hole_decorators import Decoration
from lmql_lite.engine.local import LocalGenerator
from lmql_lite.engine.nested import Caller
from lmql_lite.engine.path import answered
from lmql_lite.engine.predicates import Objection
from lmql_lite.engine.record import CANCELLATIONS, Begun, GivenUp, Raised, Record, refuse
from lmql_lite.engine.result import OptionScores
from lmql_lite.engine.settings import Settings
from lmql_lite.engine.state import State
from lmql_lite.engine.tools.fill import ToolCalls, ToolText
from lmql_lite.errors import BudgetError, ConstraintError, InputError, LmqlLiteError, ModelError, QueryError, Span
from lmql_lite.options import Sampling
from lmql_lite.program.holes import settled
from lmql_lite.program.ops import FRAME, STEP, Hole, Interpolated, Part, Program, PromptText, Turn
from lmql_lite.program.types import NAMES
from lmql_lite.program.values import texts_of


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """A question of the query's Python to its branch: the number of the part that comes next, and the values in it. The
    answer is None, or the frame of a query that fills the hole. At the end of that query, the hole is asked for again,
    with the frame that `ended`."""

    number: int
    values: tuple[Any, ...] = ()
    ended: Frame | None = None

    def __await__(self) -> abc.Generator[Ask, Frame | None, Frame | None]:
        return (yield self)


class Frame:
    """One query that is executed: its variables, and what its code calls."""

    def __init__(
        self,
        branch: Branch,
        program: Program,
        environment: Environment,
        settings: Settings,
        sampling: Sampling,
        caller: Caller | None = None,
    ) -> None:
        self.branch = branch
        self.program = program
        self.settings = settings
        self.sampling = sampling
        self.caller = caller
        self.variables: dict[str, Any] = {}
        """Values of the query's holes."""
        self.endings: dict[str, Ending] = {}
        self.opened: State | None = None
        """The state at the beginning of the open hole."""
        self.decoration: Decoration | None = None
        """The decorators of the open hole."""
        self.is_guarded = False
        """True if a handler of a calling query may discard the text, which is then emitted later (S33)."""
        self.held_back: list[events.Text | events.MediaShown] | None = None
        """Text of a query that may return a value: it is emitted once it is known to stay (S33)."""
        self.bound: dict[int, Term] = {}
        """Conditions evaluated at the beginning of a segment, by the number of their hole."""
        self.begun = 0
        """Index of the entry of the record at which the query began."""
        self.term: Term | None = None
        """The own condition of the open hole."""
        self.options: Sampling | None = None
        """The sampling of the open hole, if it has a decoder of its own."""
        self.returned: tuple[Any, ...] | None = None
        """The value that the query returned; () for a bare `return`, None without one."""
        self.begin(environment)

    def begin(self, environment: Environment) -> None:
        """Gives the query its variables."""
        self.environment, branch = environment, self.branch
        environment[FRAME], environment["context"], environment[STEP] = self, branch.context, branch.steps.take
        if branch.record.keeps_answers:
            environment["input"] = branch.record.remembering(environment["input"])

    def fork(self, branch: Branch) -> Frame:
        """A copy for another branch, whose Python has not run yet."""
        fork = copy(self)
        fork.branch, fork.environment = branch, {}
        fork.variables, fork.endings, fork.bound = {}, dict(self.endings), dict(self.bound)
        fork.held_back = None if self.held_back is None else list(self.held_back)
        return fork

    def may_catch(self, error: BaseException, part: Part | None = None) -> bool:
        """True if a handler of the query may catch an exception raised at a part. Errors of the run itself and of its
        budget cannot be caught."""
        if not isinstance(error, LmqlLiteError) or isinstance(error, ConstraintError | ModelError):
            return True
        is_about_it = error.span is not None and error.span.text == self.program.span.text
        return not is_about_it and not isinstance(part, Hole)

    def bind(self, number: int) -> Term:
        """The condition of a later hole of the segment, evaluated now."""
        hole = self.program.parts[number]
        assert isinstance(hole, Hole), "only holes have conditions"
        self.bound[number] = hole.bind(self.now)
        return self.bound[number]

    def now(self, code: CodeType) -> Any:
        """The value of an expression of the query's own Python, not awaited."""
        return value_of(code, self.environment)

    async def python(self, code: CodeType) -> Any:
        """The value of an expression of the query's own Python."""
        return await evaluate(code, self.environment)

    async def typed(self, hole: Hole) -> Hole:
        """A hole with its type evaluated. An annotation that is an expression may use the names of types, unless the
        query assigns them."""
        if hole.type is None or hole.type.spec is not None:
            return hole
        names = {**self.environment, **{name: NAMES[name] for name in hole.type.offered}}
        return settled(hole, await evaluate(hole.type.code, names))

    def place(self, error: BaseException) -> Span | None:
        """Place of the query's own Python that raised an exception; None if it did not."""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code is self.program.code:
                return self.program.place(trace.tb_lineno)
            trace = trace.tb_next
        return None

    # Called by the query's code -------------------------------------------------------------------------------------

    def ask(self, number: int, *values: Any) -> Awaitable[Any]:
        """The next part of a prompt."""
        ask, part = Ask(number, values), self.program.parts[number]
        return self._filled(ask) if isinstance(part, Hole) and part.callees else ask

    async def _filled(self, ask: Ask) -> None:
        """A hole, and the query that fills it if the branch answers with one."""
        called = await ask
        if called is not None:
            await called.run(ask.number)
            await Ask(ask.number, ended=called)

    async def run(self, number: int) -> None:
        """The Python of a query in the hole of this number, which that of the calling query awaits. If it fails, the
        hole leaves no text."""
        branch, record = self.branch, self.branch.record
        if record.at is None:
            self.begun = len(record.entries)
            record.add(number, Begun(self.settings), prompt=branch.state.text)
        branch.state = branch.state._replace(part=-1)
        branch.frames.append(self)
        branch.frame = self
        record.depth += 1
        try:
            self.returned = await FunctionType(self.program.code, self.environment)()
        except BaseException as error:
            branch.failed(error)
            branch.leave_query(number, error)
            raise
        branch.leave_query(number)

    async def value(self, value: Any) -> Any:
        """The value of an expression beside prompts, awaited if it is awaitable."""
        return await self.answer(value) if isawaitable(value) else value

    async def answer(self, awaitable: Awaitable[Any]) -> Any:
        """The answer that the query's Python awaits."""
        branch = self.branch
        if not branch.record.keeps_answers or _is_own(awaitable, self.environment):
            return await awaitable
        return await branch.record.answer(awaitable, branch.span)

    async def shown(self, number: int, at: int, value: Any) -> Any:
        """A value in a prompt, as it is said. `at` is its place in the text."""
        text = self.program.parts[number]
        assert isinstance(text, PromptText)
        part = text.parts[at]
        assert isinstance(part, Interpolated)
        return interpolated(await self.value(value), part)

    async def manager(self, number: int, is_async: bool, manager: Any) -> Any:
        """The manager of a `with` around prompts. Under beams it notes that it is open, unless it may be entered
        again."""
        if not is_async and isawaitable(manager) and not hasattr(type(manager), "__enter__"):
            manager = await self.answer(manager)
        is_none = not hasattr(type(manager), "__aexit__" if is_async else "__exit__")  # Python itself refuses it
        record = self.branch.record
        if not record.keeps_answers or is_none or isinstance(manager, REENTERED):
            return manager
        return Once(manager, self.program.python[number].span, record.managers)

    def final(self) -> type[BaseException] | tuple[()]:
        """The type of the current exception if no handler of the query may catch it: it ends the run."""
        error = sys.exc_info()[1]
        assert error is not None
        return type(error) if self.branch.ends(error) or not self.may_catch(error) else ()


PACKAGE = __name__.partition(".")[0]
SHARED = tuple(module.__file__ for module in (asyncio.locks, asyncio.queues))
"""Files of the objects by which tasks wait for one another."""
REENTERED = (IOBase, suppress, nullcontext, redirect_stdout, redirect_stderr)
"""Context managers that branches of a run may enter again."""


class Once:
    """A context manager that only one branch can leave. `opened` are the places of those that are open."""

    def __init__(self, manager: Any, span: Span, opened: list[Span]) -> None:
        self._manager, self._span, self._opened = manager, span, opened

    def __enter__(self) -> Any:
        entered = type(self._manager).__enter__(self._manager)
        self._opened.append(self._span)
        return entered

    def __exit__(self, *what: Any) -> Any:
        self._opened.pop()
        return type(self._manager).__exit__(self._manager, *what)

    async def __aenter__(self) -> Any:
        entered = await type(self._manager).__aenter__(self._manager)
        self._opened.append(self._span)
        return entered

    async def __aexit__(self, *what: Any) -> Any:
        self._opened.pop()
        return await type(self._manager).__aexit__(self._manager, *what)


def _is_own(awaitable: Any, environment: Environment) -> bool:
    """True for a coroutine of a function that the query defines."""
    frame = getattr(awaitable, "cr_frame", None)
    return frame is not None and frame.f_globals is environment


@dataclass(slots=True)
class OpenHole:
    """A hole that has no value yet. `op` has its type and its conditions; `term` is the evaluated condition."""

    op: Hole
    term: Term
    fill: Fill
    shown: int = 0
    """Number of emitted bytes of the hole's text."""
    rejections: int = 0
    tools: ToolCalls | None = None

    def fork(self, generator: Generator) -> OpenHole:
        return replace(self, fill=self.fill.fork(generator.path))

    def rejected(self, broken: Objection, matcher: Matcher | ToolText) -> ConstraintError:
        value = matcher.value.decode("utf-8", "replace")
        if not self.op.may_reject:
            sentence = f"[{self.op.name}] is not a value of its type: {value!r} ({broken.reason})"
            hint = "bound the numbers in it, such as Annotated[float, Field(ge=0, le=100)]"
            return ConstraintError(sentence, span=broken.span, hint=hint)
        remedies = [condition.remedy for condition in self.op.judges if condition.span == broken.span]
        tries = self.rejections + 1
        times = "the only possible value" if tries == 1 else f"the last of {tries} values"
        return ConstraintError(
            f"[{self.op.name}] has no value that meets `{broken.span.source}`: {times} was {value!r}"
            + (f" ({broken.reason})" if broken.reason else ""),
            span=broken.span,
            hint=remedies[0] if remedies else "raise max_backtracks, or narrow the type, so that it guides the model",
        )


class Branch:
    """One continuation of a run. `state` is the text so far. `frames` are the queries that are executed, outermost
    first; each is awaited by the one before it. `hole` is the open hole. `value` is the query's return value, once the
    branch `is_over`.

    A fork runs the query's Python again when a hole of it has its value (S23, `engine/replay.py`); `anew` makes the
    variables of the outermost query for that.
    """

    def __init__(self, generator: Generator, steps: Steps, anew: Callable[[], Awaitable[Environment]]) -> None:
        self.state = generator.path.start()
        self.frames: list[Frame] = []
        self.frame: Frame
        """The innermost query, which runs next."""
        self.steps = steps
        self.anew = anew
        self.generator = generator
        self.record: Record = generator.record
        self.asked: Ask | None = None
        """The question that waits for the branch."""
        self.called: Frame | None = None
        """The answer to the last question, if that is a query."""
        self.has_ended = False
        """True once the query's Python has ended."""
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self.hole: OpenHole | None = None
        self.value: Any = None
        self.is_over = False
        self.leads = True
        """True if the branch goes as an only branch would: it tries another value after Python rejects one, where other
        branches are given up."""
        self.rejection: Objection | None = None
        """The reason why Python rejected a value, if the branch does not lead."""
        self.final: BaseException | None = None
        """The exception with which the branch ends after its `finally` blocks."""
        self.sleeps = False
        """True for a fork whose Python has not run again yet."""
        self.calls = 0
        """Number of queries called by holes."""
        self.filled = 0
        """Number of holes that have their value."""
        self.opened = 0
        """Number of opened holes, including those of called queries."""
        self.context = Context(self._score)
        self._pinned: Node | None = None
        self.keep()

    def fork(self, number: int) -> Branch:
        """A copy of the branch that sleeps, with this number. Raises QueryError inside a `with` that cannot be entered
        again."""
        if self.record.managers:
            raise QueryError(
                "the branches of the run fork inside a `with`, which can be left only once",
                span=self.record.managers[-1],
                hint="close it before the next hole, or use argmax or sample",
            )
        fork = copy(self)
        fork.sleeps = True
        fork.asked = fork.called = fork._coroutine = None
        fork.frames = [frame.fork(fork) for frame in self.frames]
        fork.frame = fork.frames[-1]
        assert isinstance(self.generator, LocalGenerator), "only a model that scores has several branches"
        fork.generator = self.generator.fork(number)
        fork.record = fork.generator.record
        fork.hole = self.hole and self.hole.fork(fork.generator)
        fork.leads = False
        fork.context = Context(fork._score, self.context.prompt)
        fork._pinned = None
        fork.keep()
        return fork

    @property
    def part(self) -> Part | None:
        """The part of a prompt that the innermost query asked for last; None before the first."""
        parts = self.frame.program.parts
        return parts[self.state.part] if self.state.part >= 0 else None

    @property
    def span(self) -> Span:
        """Place of that part."""
        part = self.part
        return part.span if part is not None else self.frame.program.span

    def ends(self, error: BaseException) -> bool:
        """True for an exception that ends the branch, whatever handlers its queries have."""
        return error is self.final or error is self.steps.spent or isinstance(error, CANCELLATIONS)

    def keep(self) -> None:
        """Pins the entries on the path in memory (S9), and shows the text to `context`."""
        node, before = self.state.node, self._pinned
        self.context.prompt = self.state.text
        if node != before:
            self._pinned = node
            self.generator.tree.pin(node)
            if before is not None:
                self.generator.tree.unpin(before)

    def leave(self) -> None:
        """Unpins the branch's entries: the branch has ended."""
        if self._pinned is not None:
            self.generator.tree.unpin(self._pinned)
            self._pinned = None

    # The coroutine --------------------------------------------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """True if the query's Python has begun and not ended."""
        return self._coroutine is not None and not self.has_ended

    @coroutine
    def resume(self, error: BaseException | None = None) -> abc.Generator[Any, Any, Ask | None]:
        """The next question of the query's Python, None at its end. The last one is answered with `called`, or the
        `error` is raised there. Futures that the Python awaits are passed on to the event loop.

        Raises the exceptions that the Python does not handle.
        """
        if self._coroutine is None:
            outermost = self.frames[0]
            self._coroutine = FunctionType(outermost.program.code, outermost.environment)()
        given, self.called, self.asked = self.called, None, None
        while True:
            try:
                met = self._coroutine.send(given) if error is None else self._coroutine.throw(error)
            except BaseException as end:
                self.has_ended = True
                if not isinstance(end, StopIteration):
                    raise
                self.frames[0].returned = end.value
                return None
            if type(met) is Ask:
                self.asked = met
                return met
            error = None
            try:
                given = yield met
            except BaseException as raised:
                error = raised

    def close(self) -> None:
        """Ends the query's Python, which has nothing left to do."""
        self.has_ended = True
        if self._coroutine is not None:
            self._coroutine.close()

    @property
    def waits_for_others(self) -> str:
        """Name of the function of asyncio's locks and queues that the query's own Python awaits; "" for none, and for
        those that other functions await, which may wait for a timer or a connection."""
        waiting, name = self._coroutine, ""
        while isinstance(waiting, CoroutineType):
            code = waiting.cr_code
            if code.co_filename in SHARED:
                name = code.co_qualname
            elif waiting.cr_frame is None or not self._is_own(waiting.cr_frame.f_globals):
                break
            waiting = waiting.cr_await
        return name

    def _is_own(self, names: dict[str, Any]) -> bool:
        """True for the variables of the queries, and for those of this package."""
        is_package = (names.get("__package__") or "").partition(".")[0] == PACKAGE
        return is_package or any(names is frame.environment for frame in self.frames)

    def failed(self, error: BaseException, part: Part | None = None) -> None:
        """Notes an exception that leaves the innermost query, or is raised at a part of it: its place, and that it is
        final if no handler may catch it."""
        frame = self.frame
        if isinstance(error, BudgetError) and error is self.steps.spent and error.span is None:
            error.span = frame.place(error) or self.span
        if isinstance(error, InputError) and error.span is None:  # from a function of this package, such as image()
            error.span = frame.place(error)
        if isinstance(error, ModelError) and error.span is None and isinstance(part, Turn | PromptText):
            error.span = part.span
        if isinstance(error, CANCELLATIONS) or not frame.may_catch(error, part):
            self.final = error

    def leave_query(self, number: int, error: BaseException | None = None) -> None:
        """Goes back to the hole of this number, whose query has ended. After an exception the hole leaves no text."""
        record = self.record
        self.frames.pop()
        self.frame = self.frames[-1]
        record.depth -= 1
        self.state = self.state._replace(part=number)
        if error is None or isinstance(error, GeneratorExit | GivenUp):  # nobody reads on
            return
        if record.at is None:
            self.generator.leave()
            self.take_back()
            self.keep()
            record.add(number, Raised(error), prompt=self.state.text)
        elif not isinstance(error, QueryError):
            entry = record.next_entry(number, self.span)
            if not isinstance(entry.answer, Raised):
                refuse(f"raised {type(error).__name__}: {error}", self.span)
            self.frame.decoration, self.context.prompt = None, entry.prompt

    def take_back(self) -> None:
        """Takes back the text of the innermost query's hole, which is left without a value, and tokens that are not on
        the path yet."""
        frame = self.frame
        if frame.opened is not None:
            self.state = answered(frame.opened, self.state, "", "", self.record)
            frame.opened = frame.decoration = None
        self.record.reject(self.state.newest, self.state.newest)

    # Conditions -----------------------------------------------------------------------------------------------------

    def term(self, op: Hole) -> Term:
        """The condition of a hole, evaluated now."""
        frame = self.frame
        frame.term = frame.bound.pop(self.state.part, None) or op.bind(frame.now)
        return frame.term

    async def _score(self, options: Any) -> OptionScores:
        """`context.score`."""
        return await scored(self.generator, self.state, texts_of(options))

    # Text for watchers ----------------------------------------------------------------------------------------------

    @property
    def has_last_words(self) -> bool:
        """True if a `with` or a `finally` of the query must run before the branch ends."""
        parts = [frame.caller.op for frame in self.frames if frame.caller is not None] + [self.part]
        return any(isinstance(part, Hole) and part.has_last_words for part in parts)

    def say(self, text: Text | MediaShown) -> None:
        """Emits text, if there is any, or holds it back until it is known to stay."""
        if isinstance(text, Text) and not text.text:
            return
        for frame in reversed(self.frames):
            if frame.held_back is not None:
                frame.held_back.append(text)
                return
        self.record.tell(text)
