"""Generators produce the text of holes: from a model in this process (`local.py`) or from a server (`remote.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from lmql_lite.cache.token_tree import TokenTree
from lmql_lite.constraints.hole_matcher import Engine
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.terms import Term
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.result import OptionScores
from lmql_lite.engine.settings import Settings
from lmql_lite.engine.state import State, Step, noted, steps_since
from lmql_lite.errors import AuthenticationError, BrokenOff, ConstraintError, ModelError, RateLimitError, Span
from lmql_lite.media import Media
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole, Jump, Next, Op, PromptText
from lmql_lite.tokens import Role

SHOWN = 60
"""Characters of a text that an error quotes."""

Candidates = TypeVar("Candidates")
"""The tokens that may come next at one place of a hole, in the form of the generator."""
Choice = TypeVar("Choice")
"""The candidate that is taken."""


class HoleFill(ABC, Generic[Candidates, Choice]):
    """The filling of one hole. `state.matcher` is the position in the condition; the hole is full when that has an
    ending.

    For each token the run calls `settle`, `candidates`, `choose` and `commit`, or `force` if the condition leaves no
    choice. After Python rejects a value, `go_back` starts another attempt.
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
    def settle(self, state: State) -> State:
        """The state with all text on the path, before the model is asked for the next token."""

    @abstractmethod
    def candidates(self, state: State) -> Candidates:
        """The tokens that may come next. Raises ConstraintError or ModelError if there are none."""

    @abstractmethod
    def choose(self, candidates: Candidates) -> Awaitable[Choice | None]:
        """One of the candidates: known, in flight, or asked for. None if nothing is generated here."""

    @abstractmethod
    def commit(self, candidates: Candidates, choice: Choice | None) -> State:
        """The state after the choice."""

    @abstractmethod
    async def go_back(self) -> State | None:
        """A state from which the hole gets another value (S21); None if all values were tried."""

    def known(self, state: State) -> State | None:
        """The state after the next token if it is known and follows another token of the hole, else None."""
        return None

    @abstractmethod
    def fork(self, generator: Any) -> HoleFill[Candidates, Choice]:
        """A copy for another branch."""

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


class Path(Protocol):
    """Text and tokens that lead to a node of the tree. The ledger records them as they join or leave."""

    def start(self) -> State:
        """The state of an empty text."""
        ...

    def force(self, state: State, data: bytes, hole: str) -> State:
        """The state with text of a hole that a condition forces, pending."""
        ...

    def close(self, opened: State, state: State) -> State:
        """The end of a hole that began in `opened`."""
        ...


class Generator(Protocol):
    """Generator of one branch of a run."""

    @property
    def ledger(self) -> Ledger: ...

    @property
    def model(self) -> str:
        """The id of the model."""
        ...

    @property
    def engine(self) -> Engine: ...

    @property
    def tree(self) -> TokenTree: ...

    @property
    def path(self) -> Path: ...

    @property
    def spells_freely(self) -> bool:
        """True if the model chooses the white space in JSON."""
        ...

    def fork(self) -> Generator:
        """A copy for another branch. Runs with a server have one branch, for want of scores."""
        ...

    def turn(self, state: State, role: Role, span: Span) -> State:
        """The state at the beginning of a turn of a chat. Raises ModelError if the model has no turns."""
        ...

    def show(self, state: State, item: Media) -> State:
        """The state after a picture, video or clip. Raises ModelError if the model takes none."""
        ...

    def fill(
        self, op: Hole, term: Term, state: State, sampling: Sampling, limit: int, lookahead: Callable[[], Lookahead]
    ) -> HoleFill[Any, Any]:
        """The filling of a hole under the condition `term`, with at most `limit` tokens."""
        ...

    def begin_call(self, state: State) -> State:
        """The state in which a query begins that a hole calls (S26)."""
        ...

    # Options scored as whole texts (S25) ----------------------------------------------------------------------------

    def begin_options(self, state: State) -> State:
        """The state after which options are scored."""
        ...

    def spell(self, state: State, text: str) -> tuple[tuple[int, ...], int]:
        """The tokens of an option, and the number of them that belong to the hole (S15). A server does not report
        tokens, so an option counts as one."""
        ...

    def count(self, text: str) -> int:
        """Number of tokens of a text by itself; for a server, four characters count as one (S15)."""
        ...

    async def weigh(
        self, state: State, texts: Sequence[str], ids: Sequence[tuple[int, ...]]
    ) -> tuple[list[Any], tuple[float, ...]]:
        """The answer for each option, and its log-probability. Raises ModelError if an option exceeds the context."""
        ...

    def insert(self, state: State, hole: str, text: str, answer: Any) -> State:
        """The state after a scored option."""
        ...

    async def score(self, state: State, options: tuple[str, ...]) -> OptionScores:
        """The scores of options as the next text; path and ledger do not change."""
        ...

    async def logprobs(self, steps: Sequence[Step]) -> list[float]:
        """The raw log-probabilities of consecutive tokens that the model did not choose."""
        ...

    # The course of a run --------------------------------------------------------------------------------------------

    async def waiting(self, answer: Awaitable[Any], state: State, span: Span) -> Any:
        """The answer that the query's own Python awaits; the model may generate meanwhile."""
        ...

    def leave(self) -> None:
        """Ends the current generation, which nobody will read."""
        ...

    async def finish(self, state: State) -> State:
        """The state at the end of the query, with all text on the path."""
        ...

    async def close(self) -> None:
        """Waits until the model does nothing more for the run."""
        ...


@dataclass(frozen=True, slots=True)
class Lookahead:
    """Terms of the holes of a segment, and the texts between and after them, as far as they are known (S16).

    `goes_on`: another hole may follow. `is_whole`: the parts are the whole segment. `schema` is the JSON Schema of its
    only hole; the hole's term then does not constrain its text.
    """

    parts: tuple[Term | bytes, ...]
    goes_on: bool
    is_whole: bool
    schema: str | None = None

    @property
    def holes(self) -> int:
        return sum(not isinstance(part, bytes) for part in self.parts)

    def beginnings(self) -> Iterator[Lookahead]:
        """The lookahead, and the shorter ones that end with a hole, longest first."""
        yield self
        ends = [at for at, part in enumerate(self.parts, start=1) if not isinstance(part, bytes)]
        for end in reversed(ends):
            if end < len(self.parts):
                yield Lookahead(self.parts[:end], goes_on=True, is_whole=False)


def lookahead_at(ops: Sequence[Op], at: int, term: Callable[[int], Term], schema: str | None = None) -> Lookahead:
    """Lookahead from the hole at `at` to the end of its segment (S16), or to the first text that needs Python.

    `term` returns the condition on the text of the hole at a place; `schema` is that of the first hole.
    """
    parts: list[Term | bytes] = [term(at)]
    end, is_whole = at + 1, True
    while isinstance(ops[end], PromptText | Hole):
        op = ops[end]
        if isinstance(op, PromptText):
            literal = [part for part in op.parts if isinstance(part, str)]
            is_whole = len(literal) == len(op.parts)
            if not is_whole:
                break
            parts.append("".join(literal).encode())
        elif isinstance(op, Hole):
            if not op.continues_segment:
                break
            parts.append(term(end))
        end += 1
    goes_on = any(isinstance(op, Hole | Jump | Next) for op in ops[end:])
    return Lookahead(tuple(parts), goes_on=goes_on, is_whole=is_whole, schema=schema)


Scheduling = TypeVar("Scheduling")


class SharedModel(Protocol[Scheduling]):
    """A model, with everything that its runs share."""

    @property
    def fingerprint(self) -> str: ...

    def scheduler(self, tree: TokenTree, *, speculate: bool, replay: bool) -> Scheduling:
        """The scheduler of one event loop, on a tree."""
        ...

    def generator(self, scheduler: Scheduling, ledger: Ledger, settings: Settings, sampling: Sampling) -> Generator:
        """The generator of one run."""
        ...
