"""Where a hypothesis stands: its text, the queries under way with their variables, and what watchers are to be told.

The query's own Python runs here, in variables that are the hypothesis's own as soon as it may write.
"""

from __future__ import annotations

from inspect import isawaitable
from types import CodeType
from typing import Any

from lmql_lite.cache.tree import Node
from lmql_lite.constraints.terms import Term
from lmql_lite.errors import InputError, Span
from lmql_lite.program.ops import Op
from lmql_lite.program.options import texts_of
from lmql_lite.runtime import events
from lmql_lite.runtime.environment import Context, value_of
from lmql_lite.runtime.frames import Frame, own
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.moves import moves
from lmql_lite.runtime.result import OptionScores
from lmql_lite.runtime.state import State
from lmql_lite.runtime.variables import only_reads
from lmql_lite.runtime.writer import Writer


class Standing:
    """`state` is what the text is by now and which op comes next; `frames` are the queries under way, the outermost
    first; `news` is what happened since somebody looked."""

    def __init__(self, frame: Frame, writer: Writer) -> None:
        self.state = writer.start()
        self.frames = [frame]
        self.writer = writer
        self.news: list[events.Event] = []
        self.context = Context(self._score)
        self._is_borrowed = False
        """Another hypothesis has the same objects in its variables."""
        self._pinned: Node | None = None
        frame.environment["context"] = self.context
        self.keep()

    def fork(self) -> Standing:
        """The same place in another hypothesis: the state is a value, variables are shared until Python may write.

        Raises QueryError where a block is open that cannot be in two hypotheses.
        """
        fork = object.__new__(Standing)
        fork.state = self.state
        fork.frames = [frame.fork() for frame in self.frames]
        fork.writer = self.writer.fork()
        fork.news = []
        fork.context = Context(fork._score, self.context.prompt)
        fork._is_borrowed = self._is_borrowed = True
        fork._pinned = None
        for frame in fork.frames:
            frame.environment["context"] = fork.context
            frame.decoration = frame.decoration and frame.decoration.fork(fork.context)
        fork.keep()
        return fork

    def __deepcopy__(self, memo: Any) -> Standing:
        return self  # where `context.score` leads is no variable of the query's

    @property
    def frame(self) -> Frame:
        """The query under way that goes on next."""
        return self.frames[-1]

    @property
    def op(self) -> Op:
        return self.frame.program.ops[self.state.pc]

    @property
    def ledger(self) -> Ledger:
        return self.writer.ledger

    def go(self, state: State, target: int | None = None) -> None:
        """To the next op, or to another place in the program."""
        self.state = state._replace(pc=state.pc + 1 if target is None else target)

    def keep(self) -> None:
        """The facts on the way to here stay in memory (S9), and `context` knows the text."""
        self.writer.stand(self._pinned, self.state.node)
        self._pinned = self.state.node
        self.context.prompt = self.state.text

    def leave(self) -> None:
        """It goes no further: nothing has to be kept for it."""
        self.writer.stand(self._pinned, None)
        self._pinned = None

    # Python ------------------------------------------------------------------------------------------------------

    async def python(self, code: CodeType, span: Span, state: State | None = None) -> Any:
        """What the query's own Python says. While it lets the run wait, the model goes on writing."""
        value = self.now(code)
        return await self.writer.waiting(value, state or self.state, span) if isawaitable(value) else value

    def now(self, code: CodeType) -> Any:
        """What it says without waiting."""
        if self._is_borrowed and not only_reads(code):
            self.own()
        return value_of(code, self.frame.environment)

    def own(self) -> None:
        """Python is about to run that may change variables: other hypotheses must not see that."""
        if self._is_borrowed:
            own(self.frames, (self.context,))
            self._is_borrowed = False

    async def _score(self, options: Any) -> OptionScores:
        """`context.score`: asks about the text so far, and leaves it as it is."""
        try:
            texts = texts_of(options)
        except InputError as error:
            raise InputError(error.message, span=self.op.span, hint=error.hint) from None
        return await self.writer.score(self.state, texts)

    # What watchers are told ----------------------------------------------------------------------------------------

    @property
    def is_guarded(self) -> bool:
        """Whether the query may go on without what is being said: then that is told when it is known to stay (S33)."""
        return any(frame.blocks.is_guarded for frame in self.frames)

    def say(self, text: events.Text) -> None:
        """Text that is told as soon as it is known to stay."""
        for frame in reversed(self.frames):
            if frame.unsaid is not None:
                frame.unsaid.append(text)
                return
        self.news.append(text)

    def tell(self, term: Term | None = None) -> None:
        """Tokens that joined or left the path; `term` is the condition of the open hole."""
        self.news += moves(self.writer.ledger, term)
