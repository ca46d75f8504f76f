"""Fill: the filling of a hole. The steps of a token are the same for every model. A model in this process
(`local.py`) answers a pick from rows of scores under a mask; a server (`server.py`) from a stream of text, which is
checked as it arrives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, NoReturn

import numpy as np

from lmql_lite.cache.tokens.draws import NO_PENALTIES, Mask, Penalties
from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.constraints.matcher import Matcher, matcher_after
from lmql_lite.engine.events import Choosable
from lmql_lite.engine.path import Path
from lmql_lite.engine.record import Record
from lmql_lite.engine.state import NO_ID, State, TokenChoice
from lmql_lite.errors import AuthenticationError, BrokenOff, ConstraintError, ModelError, RateLimitError
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole

NO_MASK: Mask = np.zeros(0, np.bool_)
CUT = TokenChoice(NO_ID, b"", None, "forced")
"""The choice at a hole's token limit: the hole ends."""
SHOWN = 60
"""Characters of a text that an error quotes."""


class Pick(NamedTuple):
    """A place where a token is chosen, with `left` more tokens, or bytes of a server.

    For a model in this process, `untried` are the allowed tokens that were not taken yet, and `draft` are the tokens of
    the text that is `held` back there.
    """

    state: State
    matcher: Matcher
    left: int
    held: bytes = b""
    untried: Mask = NO_MASK
    penalties: Penalties = NO_PENALTIES
    draft: tuple[int, ...] = ()


@dataclass(slots=True)
class Tried:
    """A pick of an attempt at which the bytes `taken` were chosen. `others` are choices that were not taken there yet,
    best first; they are all of them if they are `known`."""

    pick: Pick
    taken: bytes
    others: list[TokenChoice] = field(default_factory=list)
    known: bool = False


class Fill(ABC):
    """The filling of one hole. `state.matcher` is the position in the condition; the hole is full when that has an
    ending.

    For each token the run calls `pick`, `choose` and `take`, or `force` if the condition leaves no choice. After Python
    rejects a value, `go_back` starts another attempt.
    """

    tokens_of_choice = 1
    """Number of tokens of a choice; 0 for a server, whose tokens are counted by their bytes."""

    def __init__(self, op: Hole, path: Path, record: Record, sampling: Sampling, limit: int) -> None:
        self.op = op
        self.path = path
        self.record = record
        self.sampling = sampling
        self.limit = limit
        """Maximum number of tokens."""
        self.opened: State | None = None
        self._tried: list[Tried] = []
        """Picks of all attempts, or of the current draw if values are drawn."""
        self._choosable: Callable[[Node, Matcher, bytes, Mask], Choosable] | None = None
        """Makes the alternatives at a pick, for whoever shows them."""

    def fork(self, path: Path) -> Fill:
        """A copy for another branch, with its path."""
        fork = copy(self)
        fork.path, fork.record = path, path.record
        fork._tried = [replace(tried, others=list(tried.others)) for tried in self._tried]
        return fork

    def open(self, state: State, matcher: Matcher) -> State:
        """The state at the beginning of the hole. In a segment, the token before it may contain its beginning (S14)."""
        state = self.path.answer(state)._replace(hole=self.op.name, matcher=matcher)
        if state.overhang is not None:
            if not self.op.continues_segment:
                state = self.path.resolve(state)
            elif matcher.ending is None:  # before a hole that can only be empty, it belongs to the text after that
                state = self.path.run_on(state, partial(self._begun, matcher))
        self.opened = state
        return state

    def _begun(self, matcher: Matcher, data: bytes, tokens: int) -> Matcher | None:
        """The matcher after `tokens` tokens generated before the hole; None if they cannot begin a value."""
        after, left = matcher_after(matcher, data, tokens), self.limit - tokens
        if after is None:
            return None
        fits = after.ending or after.may_end or (left > 0 and after.allowed(b"", left).any())
        return after if fits else None

    # One token ------------------------------------------------------------------------------------------------------

    def forced(self, state: State) -> bytes:
        """The text that must come next; b"" if there is a choice, or if the model is asked anyway."""
        return matcher_of(state).forced()

    def force(self, state: State, data: bytes) -> State:
        """The state after forced text, which is pending, like the program's own."""
        matcher = matcher_of(state).advance(data, tokens=0)
        return self.path.force(state, data, self.op.name)._replace(matcher=matcher)

    @abstractmethod
    def pick(self, state: State) -> Pick:
        """The place after all text that is not on the path yet, with the candidates that the condition allows there.
        Raises ConstraintError or ModelError if there are none."""

    @abstractmethod
    async def choose(self, pick: Pick) -> TokenChoice | None:
        """One of the candidates: known in the tree, in flight for another run, or asked of the model; `CUT` at the
        limit of the hole. None if the run has to look again, as after thoughts of a model."""

    def known(self, pick: Pick) -> TokenChoice | None:
        """The candidate that `choose` returns at once; None if it is not known. The text of a server is always read."""
        return None

    def take(self, pick: Pick, choice: TokenChoice, *, again: bool = False) -> State:
        """The state after the choice, `again` at a pick of an earlier attempt."""
        if self.op.may_reject and choice is not CUT:
            pick = self._kept(pick, choice, again=again)
        state, matcher, data = pick.state, pick.matcher, choice.data
        if choice.is_close is not None:
            self.path.record.ledger.count_close_call(choice.is_close)
        if not data:
            score = state.score + (choice.logprob or 0.0)
            return state._replace(matcher=matcher.end("bound" if choice is CUT else "end-of-text"), score=score)
        if len(data) <= len(pick.held):
            return self.path.take(state, choice.token, choice.logprob)
        # a token that begins with held text and goes beyond it belongs to this hole (S15)
        matcher = matcher.advance(data[len(pick.held) :], self.tokens_of_choice)
        choosable = self._choosable and self._choosable(state.node, pick.matcher, pick.held, pick.untried)
        return self.path.choose(state, choice, self.op.name, matcher, choosable)

    def _kept(self, pick: Pick, choice: TokenChoice, *, again: bool) -> Pick:
        """The pick, kept for other attempts."""
        return pick

    # Another value --------------------------------------------------------------------------------------------------

    @abstractmethod
    async def go_back(self, state: State) -> State | None:
        """A state from which the hole gets another value than that of `state` (S21); None if all values were tried."""

    async def _other(self) -> tuple[Pick, TokenChoice] | None:
        """The best choice of all attempts that was not taken yet, and its pick."""
        for tried in self._tried:
            if not (tried.others or tried.known):
                await self._find_others(tried)
        left = [tried for tried in self._tried if tried.others]
        if not left:
            return None
        best = max(left, key=lambda tried: tried.pick.state.score + (tried.others[0].logprob or 0.0))
        return best.pick, best.others.pop(0)

    @abstractmethod
    async def _find_others(self, tried: Tried) -> None:
        """Finds choices that were not taken at a pick, if there are any."""

    # The end --------------------------------------------------------------------------------------------------------

    def close(self, state: State) -> State:
        """The state after the filled hole. Tokens of other attempts are rejected."""
        assert self.opened is not None, "a hole is opened first"
        if self.op.may_reject:
            self.path.record.reject(self.opened.newest, state.newest)
        return self.path.close(state)

    def incomplete(self, matcher: Matcher, hint: str) -> ConstraintError:
        return ConstraintError(
            f"[{self.op.name}] is not complete within its limit of {self.limit} tokens: {shown(matcher)!r}",
            span=self.op.span,
            hint=hint,
        )


def fail_unfilled(op: Hole, error: ModelError) -> NoReturn:
    """Raises the model's error with the place of the hole."""
    if error.span is not None:
        raise error
    kinds = (BrokenOff, AuthenticationError, RateLimitError)
    kind = next((each for each in kinds if isinstance(error, each)), ModelError)
    placed = kind(f"[{op.name}] could not be filled: {error.message}", span=op.span, hint=error.hint)
    if isinstance(placed, RateLimitError) and isinstance(error, RateLimitError):
        placed.retry_after = error.retry_after
    raise placed from error


def matcher_of(state: State) -> Matcher:
    assert state.matcher is not None, "a hole is open"
    return state.matcher


def shown(matcher: Matcher) -> str:
    """The end of an unfinished value, for an error."""
    text = matcher.text.decode("utf-8", "replace")
    return text if len(text) <= SHOWN else f"..{text[-SHOWN:]}"


def quoted(text: str) -> str:
    """The beginning of a text, for an error."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}..")
