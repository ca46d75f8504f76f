"""Branch of a run: one of several competing continuations. A run without beams has one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from inspect import isawaitable
from types import CodeType
from typing import Any

from lmql_lite.cache.entry import Node
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.terms import Term, conjunction
from lmql_lite.engine.copying import only_reads
from lmql_lite.engine.environment import Context, value_of
from lmql_lite.engine.events import Event, MediaShown, Text
from lmql_lite.engine.frame import Frame, own
from lmql_lite.engine.generate.generator import Generator
from lmql_lite.engine.generate.hole_fill import Fill
from lmql_lite.engine.generate.local import LocalGenerator
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.predicates import Judge, Objection
from lmql_lite.engine.result import OptionScores
from lmql_lite.engine.state import State
from lmql_lite.errors import ConstraintError, InputError, Span
from lmql_lite.program.ops import Hole, Op
from lmql_lite.program.values import texts_of


@dataclass(slots=True)
class OpenHole:
    """A hole that has no value yet. `op` has its type and its conditions; `term` is the evaluated condition."""

    op: Hole
    term: Term
    fill: Fill
    judge: Judge | None
    """None if the hole accepts every text as its value."""
    shown: int = 0
    """Number of emitted bytes of the hole's text."""
    rejections: int = 0

    def fork(self, generator: Generator) -> OpenHole:
        fill = self.fill.fork(generator.path, generator.ledger)
        return replace(self, fill=fill, judge=self.judge and self.judge.fork())

    def rejected(self, broken: Objection, matcher: Matcher) -> ConstraintError:
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
    """One continuation of a run. `state` is the text so far and the next op. `frames` are the queries that are
    executed, outermost first. `hole` is the open hole. `value` is the query's return value, once the branch `is_over`.

    Branches share variables until the query's own Python may write to them (S23).
    """

    def __init__(self, frame: Frame, generator: Generator) -> None:
        self.state = generator.path.start()
        self.frames = [frame]
        self.generator = generator
        self.ledger: Ledger = generator.ledger
        self.hole: OpenHole | None = None
        self.value: Any = None
        self.is_over = False
        self.leads = True
        """True if the branch goes as an only branch would: it tries another value after Python rejects one, where other
        branches are given up."""
        self.is_rejected = False
        """True if Python rejected a value and the branch does not lead."""
        self.python_span: Span | None = None
        """Place of the query's own Python that ran last."""
        self.final: BaseException | None = None
        """The exception with which the branch ends after its `finally` blocks."""
        self.calls = 0
        """Number of queries called by holes."""
        self.filled = 0
        """Number of holes that have their value."""
        self.opened = 0
        """Number of opened holes, including those of called queries."""
        self.context = Context(self._score)
        self._is_borrowed = False
        """True if the objects in the variables are shared with another branch."""
        self._pinned: Node | None = None
        frame.environment["context"] = self.context
        self.keep()

    def fork(self) -> Branch:
        """A copy of the branch. Both share their variables until Python may write to them.

        Raises QueryError if an open block cannot be in two branches.
        """
        fork = object.__new__(Branch)
        fork.state, fork.value, fork.is_over = self.state, self.value, self.is_over
        fork.frames = [frame.fork() for frame in self.frames]
        assert isinstance(self.generator, LocalGenerator), "only a model that scores has several branches"
        fork.generator = self.generator.fork()
        fork.ledger = fork.generator.ledger
        fork.hole = self.hole and self.hole.fork(fork.generator)
        fork.leads, fork.is_rejected = False, self.is_rejected
        fork.final, fork.calls, fork.filled, fork.opened = self.final, self.calls, self.filled, self.opened
        fork.context = Context(fork._score, self.context.prompt)
        fork._is_borrowed = self._is_borrowed = True
        fork._pinned = None
        for frame in fork.frames:
            frame.environment["context"] = fork.context
            frame.decoration = frame.decoration and frame.decoration.fork(fork.context)
        fork.keep()
        return fork

    def __deepcopy__(self, memo: Any) -> Branch:
        return self  # reached through `context.score`, which is not a variable of the query

    @property
    def frame(self) -> Frame:
        """The innermost query, which runs next."""
        return self.frames[-1]

    @property
    def op(self) -> Op:
        return self.frames[-1].program.ops[self.state.pc]

    def take_events(self) -> list[Event]:
        """The events since the last call."""
        taken, self.ledger.events = self.ledger.events, []
        return taken

    def go(self, state: State, target: int | None = None) -> None:
        """Moves to the next op, or to another place in the program."""
        self.state = state._replace(pc=state.pc + 1 if target is None else target)

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

    # Python ---------------------------------------------------------------------------------------------------------

    async def python(self, code: CodeType, span: Span, state: State | None = None) -> Any:
        """The value of an expression of the query's own Python. The model may generate while the run awaits it."""
        self.python_span = span
        value = self.now(code)
        return await self.generator.waiting(value, state or self.state, span) if isawaitable(value) else value

    def now(self, code: CodeType) -> Any:
        """The value of an expression, not awaited."""
        if self._is_borrowed and not only_reads(code):
            self.own()
        return value_of(code, self.frame.environment)

    def own(self) -> None:
        """Copies shared variables before Python may change them."""
        if self._is_borrowed:
            own(self.frames, (self.context,))
            self._is_borrowed = False

    def term(self, op: Hole) -> Term:
        """The condition of a hole, evaluated now. A hole that its query returns unchanged must also meet the condition
        on the query's value (S26)."""
        frame, at = self.frame, self.state.pc
        term = frame.bound.pop(at, None) or op.bind(self.now)
        if frame.caller is not None and frame.returns(op, at):
            return conjunction((term, frame.caller.term))
        return term

    async def _score(self, options: Any) -> OptionScores:
        """`context.score`."""
        try:
            texts = texts_of(options)
        except InputError as error:
            raise InputError(error.message, span=self.op.span, hint=error.hint) from None
        return await self.generator.score(self.state, texts)

    # Text for watchers ----------------------------------------------------------------------------------------------

    @property
    def is_guarded(self) -> bool:
        """True if a handler of the query may discard the current text, which is then emitted later (S33)."""
        return any(frame.blocks.stack and frame.blocks.is_guarded for frame in self.frames)

    def say(self, text: Text | MediaShown) -> None:
        """Emits text, or holds it back until it is known to stay."""
        for frame in reversed(self.frames):
            if frame.held_back is not None:
                frame.held_back.append(text)
                return
        self.ledger.events.append(text)
