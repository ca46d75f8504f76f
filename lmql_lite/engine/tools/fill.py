"""Filling of a hole with tools: its pieces are filled in order, with calls of tools between them."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.matcher import HoleMatcher, Matcher, matcher_after
from lmql_lite.constraints.terms import And, Ending, Length, Stop, StopPattern, Term, conjunction
from lmql_lite.engine import events
from lmql_lite.engine.generate.generator import Generator
from lmql_lite.engine.generate.hole_fill import Fill, Pick, matcher_of
from lmql_lite.engine.segment import Lookahead
from lmql_lite.engine.state import State, Step, TokenChoice, ended
from lmql_lite.engine.tools.call_text import MARK, CallText
from lmql_lite.engine.tools.toolbox import CLOSING, Toolbox
from lmql_lite.errors import ConstraintError
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole

OPENING = CLOSING.encode()
"""Beginning of a call."""
LEAST_CALL = 64
"""Maximum number of tokens of a call that has begun, even if the hole may have fewer."""


class ToolFill(Fill):
    """The filling of one hole, whose matcher is a `ToolText`. Its pieces are filled in order."""

    def __init__(
        self, op: Hole, term: Term, toolbox: Toolbox, sampling: Sampling, limit: int, generator: Generator
    ) -> None:
        super().__init__(op, generator.path, generator.ledger, sampling, limit)
        self._toolbox = toolbox
        self._term = term
        self._generator = generator
        parts = term.terms if isinstance(term, And) else (term,)
        ends = [part for part in parts if isinstance(part, Stop | StopPattern)]
        result = Stop(MARK.strip().encode(), inclusive=True)
        self._lookahead = Lookahead((conjunction((*ends, result)),), goes_on=True)
        """The lookahead for a server in free text, which ends where a result is inserted."""
        self._piece: Fill
        """The filling of the current piece."""
        self._began: ToolText
        """The text at the beginning of the current piece."""
        self._text: ToolText
        """The text before the next token."""

    def open(self, state: State, matcher: Matcher) -> State:
        """The state at the beginning of the hole. Raises ConstraintError if its value is not plain text."""
        if not isinstance(matcher, HoleMatcher):
            raise ConstraintError(
                f"[{self.op.name}] has tools, and its value is not free text",
                span=self.op.span,
                hint="give the tools a hole of their own, without a type",
            )
        calls = self._toolbox.calls(held=not self._generator.spells_freely)
        return self._next(state, ToolText(FreeText(matcher, calls)), self.op, self._lookahead)

    def forced(self, state: State) -> bytes:
        return self._piece.forced(_inside(state))

    def force(self, state: State, data: bytes) -> State:
        return _outside(self._piece.force(_inside(state), data), _text_of(state))

    def pick(self, state: State) -> Pick:
        self._text = _text_of(state)
        return self._piece.pick(_inside(state))

    def choose(self, pick: Pick) -> Awaitable[TokenChoice | None]:
        return self._piece.choose(pick)

    def take(self, pick: Pick, choice: TokenChoice | None) -> State:
        self.thinks = self._piece.thinks
        return _outside(self._piece.take(pick, choice), self._text)

    async def go_back(self) -> State | None:
        """A state from which the current piece gets another text. Tool calls are not undone."""
        state = await self._piece.go_back()
        return state and _outside(state, self._began)

    def close(self, state: State) -> State:
        return self._piece.close(_inside(state))

    def give_up(self, state: State) -> list[Step]:
        return self._piece.give_up(state)

    async def call_tools(self, state: State) -> State:
        """The state after all complete calls and their results."""
        while (text := _text_of(state)).is_inside and text.piece.ending is not None:
            free, piece = text.free, text.piece
            if isinstance(piece, FreeText):
                state = await self._called(state, text, piece)
            elif isinstance(piece, CallText) and free is not None and free.call is not None:
                name = free.call["begun"].decode()
                if piece.call is None:
                    state = self._broken_off(state, text, free, name)
                else:
                    arguments = piece.call.decode().removesuffix(MARK)
                    state = await self._answered(state, text, free, name, arguments)
        return state

    @property
    def _most_of_a_call(self) -> int:
        """Token limit of a call, which may go beyond that of the hole."""
        return max(self.limit, LEAST_CALL)

    def _next(self, state: State, text: ToolText, op: Hole, lookahead: Lookahead) -> State:
        """The beginning of the next piece of `text`."""
        left = self._most_of_a_call if text.free else self.limit - text.used
        self._piece = self._generator.fill(op, self._term, state, self.sampling, left, lambda: lookahead)
        state = _outside(self._piece.open(state, text.piece), text)
        self._began = _text_of(state)
        return state

    def _closed(self, state: State) -> State:
        """The state after a piece. The hole goes on, and counts the tokens of pending forced text."""
        state = self._piece.close(state)
        held, pending = (ended(pieces, self.op.name, is_ended=False) for pieces in (state.held, state.pending))
        return state._replace(held=held, pending=pending)

    async def _called(self, state: State, text: ToolText, free: FreeText) -> State:
        """The state after free text, at the beginning or the end of a call."""
        assert free.call is not None, "a call ends this piece"
        used = text.used + state.used
        state = self._closed(state._replace(matcher=free))
        text = replace(text, before=text.before + free.value, free=free, used=used)
        if free.call["begun"] is None:
            name, arguments = free.call["name"].decode(), free.call["arguments"].decode()
            return await self._answered(state, text, free, name, arguments)
        left = conjunction(_left(self._term, text.before))
        matcher = self._generator.engine.matcher(left, b"", self._most_of_a_call, self.op.name, self.op.span)
        op = replace(self.op, continues_segment=True, conditions=(), type=None, following=b"")
        return self._next(state, replace(text, piece=CallText(matcher)), op, self._lookahead)

    async def _answered(self, state: State, text: ToolText, free: FreeText, name: str, arguments: str) -> State:
        """The state after a complete call and its result, where free text goes on."""
        call, used = b"", 0
        if isinstance(text.piece, CallText) and text.piece.call is not None:
            call, used = text.piece.call, state.used
            rest = call[len(text.piece.value) :]
            state = self._generator.path.force(self._closed(_inside(state)), rest, self.op.name)
            state = state._replace(text=state.text + rest.decode())
        # no drafts meanwhile, unlike for other awaited Python: models seldom predict the answer of a tool
        output = await self._toolbox.output(name, arguments, made=text.calls)
        self.ledger.events.append(events.ToolCalled(name, arguments, output.removesuffix("`")))
        text = self._after(text, free, call + output.encode(), used, f"the result of {name}")
        text = replace(text, calls=text.calls + 1)
        return self._next(state.say(output), text, replace(self.op, continues_segment=False), self._lookahead)

    def _broken_off(self, state: State, text: ToolText, free: FreeText, name: str) -> State:
        """The state after a call that is not complete. It is text like any other, and free text goes on."""
        call, used = text.piece.value, state.used
        state = self._closed(_inside(state))
        text = self._after(text, free, call, used, f"a call of {name} that is broken off")
        return self._next(state, text, replace(self.op, continues_segment=True), self._lookahead)

    def _after(self, text: ToolText, free: FreeText, added: bytes, used: int, what: str) -> ToolText:
        """The text after a call of `used` tokens. Raises ConstraintError if the hole's condition does not allow it."""
        try:
            piece = free.after_call(added, used)
        except ValueError:
            raise ConstraintError(
                f"the condition of [{self.op.name}] does not allow {what}: {added.decode()!r}",
                span=self.op.span,
                hint="let the condition allow calls and results, which are part of the hole's text, "
                "or give the tools a hole of their own",
            ) from None
        return ToolText(piece, text.before + added, None, text.used + used, text.calls)


def _left(term: Term, said: bytes) -> tuple[Term, ...]:
    """Limit on the characters left to a hole, without the one that closes a call; () if there is no limit."""
    parts = term.terms if isinstance(term, And) else (term,)
    bounds = [part.at_most for part in parts if isinstance(part, Length) and part.unit == "characters"]
    most = min((bound for bound in bounds if bound is not None), default=None)
    return () if most is None else (Length(0, most - len(said.decode()) - len(CLOSING)),)


def _text_of(state: State) -> ToolText:
    assert isinstance(state.matcher, ToolText), "a hole with tools is open"
    return state.matcher


def _inside(state: State) -> State:
    """The state with the matcher of the piece, for the piece's filling."""
    return state._replace(matcher=_text_of(state).piece)


def _outside(state: State, text: ToolText) -> State:
    """The state with the matcher of the hole, whose text before the piece is that of `text`."""
    return state._replace(matcher=replace(text, piece=matcher_of(state)))


@dataclass(frozen=True, slots=True)
class FreeText:
    """A piece between calls. It ends at the end of the hole or at the beginning of a call.

    `own` is the matcher of the hole's condition, which has read all text of the hole; this piece begins at `start`.
    `begins` finds a call, `call` is the found one, and `beyond` is the text of its last token after the call (S14).
    """

    own: HoleMatcher
    begins: re.Pattern[bytes]
    start: int = 0
    call: re.Match[bytes] | None = None
    beyond: bytes = b""

    @property
    def text(self) -> bytes:
        return self.own.text[self.start :] + self.beyond

    @property
    def ending(self) -> Ending | None:
        return "stop" if self.call else self.own.ending

    @property
    def value(self) -> bytes:
        return self.own.value[self.start :]

    @property
    def certain(self) -> int:
        return max(self.own.certain - self.start, 0)

    @property
    def may_end(self) -> bool:
        return self.own.may_end

    def allowed(self, held: bytes, tokens_left: int) -> NDArray[np.bool_]:
        """The tokens that the condition allows, without those that begin a call for which it has no room."""
        mask, vocabulary = self.own.allowed(held, tokens_left), self.own.masks.vocabulary
        said = self.own.text[max(self.own.text.rfind(OPENING), self.start) :]
        tokens = vocabulary.containing(b"(")
        if OPENING not in said:
            tokens = np.intersect1d(tokens, vocabulary.containing(OPENING))
        crowded = [token for token in tokens[mask[tokens]].tolist() if not self._has_room(said, held, token)]
        if crowded:
            mask = mask.copy()
            mask[crowded] = False
        return mask

    def _has_room(self, said: bytes, held: bytes, token: int) -> bool:
        """False if the token begins a call and not even the shortest call fits. `said` is the end of the text."""
        data = self.own.masks.vocabulary.tokens[token] or b""
        call = self.begins.search(said + data[len(held) :]) if data.startswith(held) else None
        if call is None or call["begun"] is None:
            return True
        begun = data[len(held) :][: call.end() - len(said)]
        after = matcher_after(self.own, begun, 1)
        if after is None:
            return False
        shortest = MARK + CLOSING
        return after.ending is not None or after.longest_valid(shortest.encode()) == len(shortest)

    def advance(self, data: bytes, tokens: int = 1) -> FreeText:
        after = self.own.advance(data, tokens)
        call = self.begins.search(after.text, self.start)
        if call is None or (after.ending is not None and call.end() > after.length):
            return replace(self, own=after)
        said = call.end() - len(self.own.text)
        before = self.own.advance(data[:said], tokens)
        if before.ending is not None:  # the hole ends before the call would begin
            return replace(self, own=after)
        return replace(self, own=before, call=call, beyond=data[said:])

    def end(self, ending: Ending) -> FreeText:
        return replace(self, own=self.own.end(ending))

    def forced(self) -> bytes:
        return self.own.forced()

    def longest_valid(self, data: bytes) -> int:
        return self.own.longest_valid(data)

    def after_call(self, text: bytes, tokens: int) -> FreeText:
        """The next piece, after the rest of the call and its result. Stops are not searched for in these.

        Raises ValueError if the condition of the hole does not allow them.
        """
        own = self.own
        for byte in text:
            own = own.advance(bytes([byte]), tokens)
            if own.ending == "end-of-text":
                raise ValueError(f"{text!r} is not allowed")
            if own.ending == "stop":
                own = replace(own, ending=None, length=len(own.text))
            tokens = 0
        if not own.lives:
            raise ValueError(f"nothing can follow {text!r}")
        return FreeText(own, self.begins, len(own.text))


@dataclass(frozen=True, slots=True)
class ToolText:
    """The whole text of the hole: its complete pieces, and the current `piece`.

    If the current piece is a call, `free` is the free text before it. Complete pieces have `used` tokens and `calls`
    calls.
    """

    piece: Matcher
    before: bytes = b""
    free: FreeText | None = None
    used: int = 0
    calls: int = 0

    @property
    def text(self) -> bytes:
        return self.before + self.piece.text

    @property
    def ending(self) -> Ending | None:
        return None if self.is_inside else self.piece.ending

    @property
    def is_inside(self) -> bool:
        """True if a call has begun, so that the hole goes on after this piece."""
        return self.free is not None or (isinstance(self.piece, FreeText) and self.piece.call is not None)

    @property
    def value(self) -> bytes:
        return self.before + self.piece.value

    @property
    def certain(self) -> int:
        return len(self.before) + self.piece.certain

    @property
    def may_end(self) -> bool:
        return not self.is_inside and self.piece.may_end

    def allowed(self, held: bytes, tokens_left: int) -> NDArray[np.bool_]:
        return self.piece.allowed(held, tokens_left)

    def advance(self, data: bytes, tokens: int = 1) -> ToolText:
        return replace(self, piece=self.piece.advance(data, tokens))

    def end(self, ending: Ending) -> ToolText:
        return replace(self, piece=self.piece.end(ending))

    def forced(self) -> bytes:
        return self.piece.forced()

    def longest_valid(self, data: bytes) -> int:
        return self.piece.longest_valid(data)
