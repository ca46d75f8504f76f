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
from lmql_lite.engine.generate.generator import Generator, HoleFill
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.predicates import Judge, Objection
from lmql_lite.engine.result import OptionScores
from lmql_lite.engine.state import State
from lmql_lite.errors import ConstraintError, InputError, Span
from lmql_lite.program.ops import Hole, Op
from lmql_lite.program.values import texts_of


@dataclass(slots=True)
class OpenHole:
    """A hole until it has its value. `op` has its type and its conditions; `term` is the condition, with its values."""

    op: Hole
    term: Term
    fill: HoleFill[Any, Any]
    judge: Judge | None
    """None where every text of the hole is its value."""
    shown: int = 0
    """Number of bytes of its text that are emitted."""
    rejections: int = 0

    def fork(self, generator: Generator) -> OpenHole:
        return replace(self, fill=self.fill.fork(generator), judge=self.judge and self.judge.fork())

    def rejected(self, broken: Objection, matcher: Matcher) -> ConstraintError:
        value = matcher.value.decode("utf-8", "replace")
        if not self.op.may_reject:
            sentence = f"[{self.op.name}] is not a value of its type: {value!r} ({broken.reason})"
            hint = "bound the numbers in it, such as Annotated[float, Field(ge=0, le=100)]"
            return ConstraintError(sentence, span=broken.span, hint=hint)
        tries = self.rejections + 1
        times = "the only value that was left" if tries == 1 else f"the last of {tries} values"
        return ConstraintError(
            f"[{self.op.name}] has no value that meets `{broken.span.source}`: {times} was {value!r}"
            + (f" ({broken.reason})" if broken.reason else ""),
            span=broken.span,
            hint="a higher max_backtracks tries more; a condition that needs no Python guides the model from the start",
        )


class Branch:
    """`state` is the text so far and the next op; `frames` are the queries that are executed, the outermost first;
    `hole` is the open one. `value` is the query's, once the branch `is_over`.

    The query's own Python runs in variables that are the branch's own as soon as it may write (S23).
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
        """It goes as the only branch would: another value replaces one that Python rejects, others are given up."""
        self.is_rejected = False
        """Python rejected its value, and it does not lead."""
        self.python_span: Span | None = None
        """Place of the query's own Python that ran last."""
        self.final: BaseException | None = None
        """The exception with which it ends, whatever `finally` blocks run before."""
        self.calls = 0
        """Number of queries that its holes have called."""
        self.filled = 0
        """Number of holes that have got their value."""
        self.opened = 0
        """Number of holes that were opened, those of called queries included."""
        self.context = Context(self._score)
        self._is_borrowed = False
        """Another branch has the same objects in its variables."""
        self._pinned: Node | None = None
        frame.environment["context"] = self.context
        self.keep()

    def fork(self) -> Branch:
        """A copy: the state is a value, variables are shared until Python may write.

        Raises QueryError where a block is open that cannot be in two branches.
        """
        fork = object.__new__(Branch)
        fork.state, fork.value, fork.is_over = self.state, self.value, self.is_over
        fork.frames = [frame.fork() for frame in self.frames]
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
        return self  # `context.score` leads here, and is no variable of the query's

    @property
    def frame(self) -> Frame:
        """The query that goes on next."""
        return self.frames[-1]

    @property
    def op(self) -> Op:
        return self.frames[-1].program.ops[self.state.pc]

    def take_events(self) -> list[Event]:
        """The events since the last call."""
        taken, self.ledger.events = self.ledger.events, []
        return taken

    def go(self, state: State, target: int | None = None) -> None:
        """To the next op, or to another place in the program."""
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
        """The branch goes no further: nothing has to be kept for it."""
        if self._pinned is not None:
            self.generator.tree.unpin(self._pinned)
            self._pinned = None

    # Python ---------------------------------------------------------------------------------------------------------

    async def python(self, code: CodeType, span: Span, state: State | None = None) -> Any:
        """The value of the query's own Python. While the run waits for it, the model may go on."""
        self.python_span = span
        value = self.now(code)
        return await self.generator.waiting(value, state or self.state, span) if isawaitable(value) else value

    def now(self, code: CodeType) -> Any:
        """The value as it is."""
        if self._is_borrowed and not only_reads(code):
            self.own()
        return value_of(code, self.frame.environment)

    def own(self) -> None:
        """Makes the variables the branch's own, before Python may change them."""
        if self._is_borrowed:
            own(self.frames, (self.context,))
            self._is_borrowed = False

    def term(self, op: Hole) -> Term:
        """The condition of a hole, with the values of now. One that its query returns as it stands has to meet what is
        asked of the query's value, too (S26)."""
        frame, at = self.frame, self.state.pc
        term = frame.bound.pop(at, None) or op.term or op.condition.bind(self.now)
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
        """True if the query may go on without the text of now: then it is emitted once it is known to stay (S33)."""
        return any(frame.blocks.stack and frame.blocks.is_guarded for frame in self.frames)

    def say(self, text: Text | MediaShown) -> None:
        """Emits text, as soon as it is known to stay."""
        for frame in reversed(self.frames):
            if frame.held_back is not None:
                frame.held_back.append(text)
                return
        self.ledger.events.append(text)
