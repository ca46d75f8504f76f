"""Fill: the filling of a hole, by a model in this process (`local_fill.py`) or by a server (`remote_fill.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from operator import is_
from typing import NamedTuple, NoReturn

import numpy as np

from lmql_lite.cache.tokens.draws import NO_PENALTIES, Mask, Penalties
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.path import Path
from lmql_lite.engine.state import State, Step, TokenChoice, noted, steps_since
from lmql_lite.errors import AuthenticationError, BrokenOff, ConstraintError, ModelError, RateLimitError
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole

NOTHING: Mask = np.zeros(0, np.bool_)
"""The mask of a hole at its token limit."""
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
    untried: Mask = NOTHING
    penalties: Penalties = NO_PENALTIES
    draft: tuple[int, ...] = ()


class Fill(ABC):
    """The filling of one hole. `state.matcher` is the position in the condition; the hole is full when that has an
    ending.

    For each token the run calls `pick`, `choose` and `take`, or `force` if the condition leaves no choice. After Python
    rejects a value, `go_back` starts another attempt.
    """

    thinks: bool = False
    """True if no token was chosen because the model is still reasoning; its thoughts are emitted meanwhile."""

    def __init__(self, op: Hole, path: Path, ledger: Ledger, sampling: Sampling, limit: int) -> None:
        self.op = op
        self.path = path
        self.ledger = ledger
        self.sampling = sampling
        self.limit = limit
        """Maximum number of tokens."""
        self.opened: State | None = None
        self.made: list[Step] = []
        """Every token of every attempt."""

    @abstractmethod
    def open(self, state: State, matcher: Matcher) -> State:
        """The state at the beginning of the hole."""

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
    def choose(self, pick: Pick) -> Awaitable[TokenChoice | None]:
        """One of the candidates: known in the tree, in flight for another run, or asked of the model. None if nothing
        is generated here."""

    @abstractmethod
    def take(self, pick: Pick, choice: TokenChoice | None) -> State:
        """The state after the choice."""

    @abstractmethod
    async def go_back(self) -> State | None:
        """A state from which the hole gets another value (S21); None if all values were tried."""

    def known(self, state: State) -> State | None:
        """The state after the next token if it is known and follows another token of the hole, else None."""
        return None

    def fork(self, path: Path, ledger: Ledger) -> Fill:
        """A copy for another branch, with its path and its ledger."""
        raise AssertionError(f"[{self.op.name}] is never in two branches")

    def close(self, state: State) -> State:
        """The state after the filled hole. Tokens of other attempts are recorded as rejected."""
        rejected = self.give_up(state)
        assert self.opened is not None, "a hole is opened first"
        state = self.path.close(self.opened, state)
        return noted(state, rejected) if rejected else state

    def give_up(self, state: State) -> list[Step]:
        """Records tokens that are not on the path to `state` as rejected, and returns them."""
        assert self.opened is not None, "a hole is opened first"
        steps = steps_since(self.opened, state)
        if len(steps) == len(self.made) and all(map(is_, steps, self.made)):
            return []
        kept = set(map(id, steps))
        return self.ledger.reject(step for step in self.made if id(step) not in kept)

    def note(self, before: State, after: State) -> State:
        """The state `after`. Its new tokens are recorded as made by this filling."""
        if after.history is not before.history:
            self.made += steps_since(before, after)
        return after

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
