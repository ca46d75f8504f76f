"""Holes with tools: they are filled piece by piece, with calls of tools between the pieces."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from lmql_lite.constraints.matcher import HoleMatcher, Matcher
from lmql_lite.constraints.terms import And, Constant, Ending, Stop, Term, conjunction
from lmql_lite.engine import events
from lmql_lite.engine.fill import Fill, matcher_of
from lmql_lite.engine.generator import Generator
from lmql_lite.engine.segment import Lookahead
from lmql_lite.engine.state import State, ended
from lmql_lite.engine.tools.call_text import CLOSING, MARK, CallText, FreeText
from lmql_lite.engine.tools.toolbox import Toolbox
from lmql_lite.errors import ConstraintError
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole

MIN_CALL = 64
"""Maximum number of tokens of a call that has begun, even if the hole may have fewer."""


class ToolText(NamedTuple):
    """The whole text of a hole with tools so far, its value, the number of its bytes that are certain, and its
    ending."""

    text: bytes
    value: bytes
    certain: int
    ending: Ending | None


class ToolCalls:
    """The calls in one hole. Each piece of the hole's text is filled like a hole of its own."""

    def __init__(
        self, op: Hole, term: Term, toolbox: Toolbox, sampling: Sampling, limit: int, generator: Generator
    ) -> None:
        self._op = op
        self._term = term
        self._toolbox = toolbox
        self._sampling = sampling
        self._limit = limit
        self._generator = generator
        parts = term.terms if isinstance(term, And) else (term,)
        ends = [part for part in parts if isinstance(part, Stop)]
        result = Stop(MARK.strip().encode(), inclusive=True)
        self._lookahead = Lookahead((conjunction((*ends, result)),), goes_on=True)
        """The lookahead for a server in free text, which ends where a result is inserted."""
        self._before = b""
        """The text of all pieces before the open one."""
        self._used = 0
        """Number of their tokens."""
        self._free: FreeText | None = None
        """The free text before the call that is open."""
        self._calls = 0

    def begin(self, state: State, matcher: Matcher) -> tuple[Fill, State]:
        """The filling of the first piece, and the state at its beginning. Raises ConstraintError if the hole's value is
        not plain text."""
        if not isinstance(matcher, HoleMatcher):
            raise ConstraintError(
                f"[{self._op.name}] has tools, and its value is not free text",
                span=self._op.span,
                hint="give the tools a hole of their own, without a type",
            )
        calls = self._toolbox.calls(held=not self._generator.spells_freely)
        return self._next(state, FreeText(matcher, calls), self._op, self._limit)

    def whole(self, piece: Matcher) -> ToolText:
        """The text of the hole up to its open piece."""
        before, ending = self._before, None if self._is_inside(piece) else piece.ending
        return ToolText(before + piece.text, before + piece.value, len(before) + piece.certain, ending)

    async def go_on(self, fill: Fill, state: State) -> tuple[Fill, State]:
        """The filling of the piece after all complete calls and their results, and its state."""
        while self._is_inside(piece := matcher_of(state)) and piece.ending is not None:
            used, state = state.used, self._closed(fill, state)
            if isinstance(piece, FreeText):
                assert piece.call is not None, "a call ends this piece"
                self._free, self._before, self._used = piece, self._before + piece.value, self._used + used
                if piece.call["begun"] is not None:
                    fill, state = self._call(state)
                    continue
                call, used, name, arguments = b"", 0, piece.call["name"].decode(), piece.call["arguments"].decode()
            else:
                assert isinstance(piece, CallText) and self._free is not None and self._free.call is not None
                name = self._free.call["begun"].decode()
                if piece.call is None:
                    what = f"a call of {name} that is broken off"
                    fill, state = self._go_free(state, piece.value, used, what, continues=True)
                    continue
                call, arguments = piece.call, piece.call.decode().removesuffix(MARK)
                rest = call[len(piece.value) :]
                state = self._generator.path.force(state, rest, self._op.name)
                state = state._replace(text=state.text + rest.decode())
            # no drafts meanwhile, unlike for other awaited Python: models seldom predict the answer of a tool
            output = await self._toolbox.output(name, arguments, made=self._calls)
            self._calls += 1
            self._generator.record.tell(events.ToolCalled(name, arguments, output.removesuffix(CLOSING)))
            added, what = call + output.encode(), f"the result of {name}"
            fill, state = self._go_free(state.say(output), added, used, what, continues=False)
        return fill, state

    def _is_inside(self, piece: Matcher) -> bool:
        """True if a call has begun, so that the hole goes on after this piece."""
        return self._free is not None or (isinstance(piece, FreeText) and piece.call is not None)

    def _next(self, state: State, piece: Matcher, op: Hole, left: int) -> tuple[Fill, State]:
        lookahead = self._lookahead
        fill = self._generator.fill(op, self._term, state, self._sampling, left, lambda: lookahead)
        return fill, fill.open(state, piece)

    def _closed(self, fill: Fill, state: State) -> State:
        """The state after a piece. The hole goes on, and counts the tokens of pending forced text."""
        state = fill.close(state)
        held, pending = (ended(pieces, self._op.name, is_ended=False) for pieces in (state.held, state.pending))
        return state._replace(held=held, pending=pending)

    def _call(self, state: State) -> tuple[Fill, State]:
        """The beginning of a call, which may have more tokens than the hole."""
        left, op = max(self._limit, MIN_CALL), self._op
        matcher = self._generator.engine.matcher(Constant(True), b"", left, op.name, op.span)
        op = replace(op, continues_segment=True, conditions=(), type=None, following=b"")
        return self._next(state, CallText(matcher), op, left)

    def _go_free(self, state: State, added: bytes, used: int, what: str, *, continues: bool) -> tuple[Fill, State]:
        """The beginning of free text after a call of `used` tokens. Raises ConstraintError if the hole's condition does
        not allow it."""
        assert self._free is not None, "a call is open"
        try:
            piece = self._free.after_call(added, used)
        except ValueError:
            raise ConstraintError(
                f"the condition of [{self._op.name}] does not allow {what}: {added.decode()!r}",
                span=self._op.span,
                hint="let the condition allow calls and results, which are part of the hole's text, "
                "or give the tools a hole of their own",
            ) from None
        self._free, self._before, self._used = None, self._before + added, self._used + used
        return self._next(state, piece, replace(self._op, continues_segment=continues), self._limit - self._used)
