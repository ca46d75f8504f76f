"""Fill: the filling of a hole, by a model in this process (`local_fill.py`) or by a server (`remote_fill.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from operator import is_
from typing import NoReturn

from lmql_lite.constraints.matcher import Matcher
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.path import Path
from lmql_lite.engine.state import State, Step, noted, steps_since
from lmql_lite.errors import AuthenticationError, BrokenOff, ConstraintError, ModelError, RateLimitError
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole

SHOWN = 60
"""Characters of a text that an error quotes."""


class Fill(ABC):
    """The filling of one hole. `state.matcher` is the position in the condition; the hole is full when that has an
    ending.

    The run calls `next` for each token, or `force` if the condition leaves no choice. After Python rejects a value,
    `go_back` starts another attempt.
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
    async def next(self, state: State) -> State:
        """The state after the next token: one of the candidates that the condition allows, which is known in the tree,
        in flight for another run, or asked of the model. Raises ConstraintError or ModelError if there is none."""

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
