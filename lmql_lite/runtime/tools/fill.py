"""Filling a hole with tools: the fillings of its pieces one after the other, and the calls between them."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from lmql_lite.constraints.hole import HoleMatcher
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.terms import And, Matches, Stop, StopPattern, Term, conjunction
from lmql_lite.errors import ConstraintError
from lmql_lite.program.ops import Hole
from lmql_lite.runtime import events
from lmql_lite.runtime.state import State, Step
from lmql_lite.runtime.tools.offered import MARK, Toolbox
from lmql_lite.runtime.tools.text import FreeText, ToolText
from lmql_lite.runtime.writer import Filling, Outlook, Writer
from lmql_lite.tokens import Sampling

LEAST_CALL = 64
"""So many tokens a call may have that is begun, also where the hole may have fewer."""


class ToolFill:
    """A `Filling` whose matcher is a `ToolText`."""

    def __init__(self, op: Hole, term: Term, toolbox: Toolbox, sampling: Sampling, limit: int, writer: Writer) -> None:
        self._op = op
        self._toolbox = toolbox
        self._sampling = sampling
        self._limit = limit
        self._writer = writer
        parts = term.terms if isinstance(term, And) else (term,)
        ends = [part for part in parts if isinstance(part, Stop | StopPattern)]
        result = Stop(MARK.strip().encode(), inclusive=True)
        self._outlook = Outlook((conjunction((*ends, result)),), goes_on=True, is_whole=False)
        """What a server may know of free text: it need not go on where a result has to be inserted."""
        self._filling: Filling
        self._piece: ToolText
        """Where the piece under way began."""
        self._news: list[events.ToolCalled] = []

    def open(self, state: State, matcher: Matcher) -> State:
        """Raises ConstraintError for a hole whose value is no plain text."""
        if not isinstance(matcher, HoleMatcher):
            raise ConstraintError(
                f"[{self._op.name}] has tools, and its value is no free text",
                span=self._op.span,
                hint="let the tools have a hole of their own, without a type",
            )
        calls = self._toolbox.calls(held=not self._writer.spells_freely)
        return self._next(state, ToolText(FreeText(matcher, calls)), self._op, self._outlook)

    async def step(self, state: State, matcher: Matcher) -> State:
        """The state after the next token, or after a stretch of forced text; where that ends a call it is made."""
        text = _text_of(matcher)
        state = await self._filling.step(state._replace(matcher=text.piece), text.piece)
        state = state._replace(matcher=replace(text, piece=_matcher_of(state)))
        while (text := _text_of(state.matcher)).is_inside and text.piece.ending is not None:
            free, piece = text.free, text.piece
            if isinstance(piece, FreeText):
                state = await self._called(state, text, piece)
            elif free is not None and free.call is not None:
                arguments = piece.value.decode().removesuffix(MARK)
                state = await self._answered(state, text, free, free.call["begun"].decode(), arguments)
        return state

    async def go_back(self) -> State | None:
        """Within the piece under way: what was called stays called."""
        state = await self._filling.go_back()
        return state and state._replace(matcher=replace(self._piece, piece=_matcher_of(state)))

    def close(self, state: State, matcher: Matcher) -> State:
        """The hole has its value."""
        piece = _text_of(matcher).piece
        return self._filling.close(state._replace(matcher=piece), piece)

    def give_up(self, state: State) -> list[Step]:
        """Of the piece under way."""
        return self._filling.give_up(state)

    def told(self) -> list[events.ToolCalled]:
        """The calls that were made since this was last asked."""
        told, self._news = self._news, []
        return told

    def fork(self, writer: Writer) -> ToolFill:
        """The same filling, for a hypothesis that goes another way from here."""
        fork = copy(self)
        fork._writer, fork._filling, fork._news = writer, self._filling.fork(writer), []
        return fork

    @property
    def _most_of_a_call(self) -> int:
        """Whatever was said before it: a call that is begun is said to its end."""
        return max(self._limit, LEAST_CALL)

    def _next(self, state: State, text: ToolText, op: Hole, outlook: Outlook) -> State:
        """The piece of `text` begins."""
        left = self._most_of_a_call if text.free else self._limit - text.used
        self._filling = self._writer.fill(op, state, self._sampling, left, lambda: outlook)
        state = self._filling.open(state, text.piece)
        self._piece = replace(text, piece=_matcher_of(state))
        return state._replace(matcher=self._piece)

    async def _called(self, state: State, text: ToolText, free: FreeText) -> State:
        """Free text has come to a call."""
        assert free.call is not None, "a call ends this piece"
        used = text.used + state.used
        state = self._filling.close(state._replace(matcher=free), free)
        text = replace(text, before=text.before + free.value, free=free, used=used)
        if free.call["begun"] is None:
            name, arguments = free.call["name"].decode(), free.call["arguments"].decode()
            return await self._answered(state, text, free, name, arguments)
        pattern = Matches(self._toolbox.tools[free.call["begun"].decode()].arguments)
        matcher = self._writer.engine.matcher(pattern, b"", self._most_of_a_call, self._op.name, self._op.span)
        op = replace(self._op, continues_segment=True, predicates=(), type=None, following=b"")
        return self._next(state, replace(text, piece=matcher), op, Outlook((pattern,), goes_on=True, is_whole=False))

    async def _answered(self, state: State, text: ToolText, free: FreeText, name: str, arguments: str) -> State:
        """A call is complete: its result is inserted, and free text goes on."""
        call, used = b"", 0
        if not isinstance(text.piece, FreeText):
            call, used = text.piece.value, state.used
            state = self._filling.close(state._replace(matcher=text.piece), text.piece)
        # no guessing meanwhile, as for other Python that is awaited: what a tool answers is seldom what was expected
        output = await self._toolbox.output(name, arguments, made=text.calls)
        self._news.append(events.ToolCalled(name, arguments, output.removesuffix("`")))
        inserted = call + output.encode()
        try:
            piece = free.after_call(inserted, used)
        except ValueError:
            raise ConstraintError(
                f"the condition of [{self._op.name}] does not allow what {name} was called for: {inserted.decode()!r}",
                span=self._op.condition.span,
                hint="conditions are on the whole text of the hole, calls and results included: leave room for them, "
                "or let the tools have a hole of their own",
            ) from None
        text = ToolText(piece, text.before + inserted, None, text.used + used, text.calls + 1)
        return self._next(state.say(output), text, replace(self._op, continues_segment=False), self._outlook)


def _text_of(matcher: Matcher | None) -> ToolText:
    assert isinstance(matcher, ToolText), "a hole with tools is open"
    return matcher


def _matcher_of(state: State) -> Matcher:
    assert state.matcher is not None, "a hole is open"
    return state.matcher
