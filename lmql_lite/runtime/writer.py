"""How the text of a run comes about: the seam between the interpreter and the two kinds of model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

from lmql_lite.cache.tree import Node, TokenTree
from lmql_lite.constraints.hole import Engine
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.terms import Term
from lmql_lite.errors import ModelError, Span
from lmql_lite.program.ops import Hole
from lmql_lite.runtime.ahead import Ahead
from lmql_lite.runtime.choosing import Choosing, Chosen, TokenWeighing
from lmql_lite.runtime.environment import Environment
from lmql_lite.runtime.fill import Fill
from lmql_lite.runtime.frontier import Frontier
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.path import Path
from lmql_lite.runtime.result import OptionScores
from lmql_lite.runtime.score import scored
from lmql_lite.runtime.state import State, Step
from lmql_lite.tokens import Role, Sampling


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of a segment when it begins (S16): the terms of its holes, and the texts between and after them.

    `goes_on`: another hole may follow after it. `is_whole`: the parts are all of it, not only what could be foreseen.
    `schema`: the JSON Schema of its only hole, whose term then says nothing of the text.
    """

    parts: tuple[Term | bytes, ...]
    goes_on: bool
    is_whole: bool
    schema: str | None = None

    def beginnings(self) -> Iterator[Outlook]:
        """The outlook, and all shorter ones that end with a hole, the longest first."""
        yield self
        ends = [at for at, part in enumerate(self.parts, start=1) if not isinstance(part, bytes)]
        for end in reversed(ends):
            if end < len(self.parts):
                yield Outlook(self.parts[:end], goes_on=True, is_whole=False)


class Filling(Protocol):
    """The filling of one hole. `state.matcher` is where it stands; it is done when that has an ending."""

    def open(self, state: State, matcher: Matcher) -> State:
        """The state in which the hole is filled; `matcher` is its beginning."""
        ...

    async def step(self, state: State, matcher: Matcher) -> State:
        """The state after the next token, or after a stretch of forced text."""
        ...

    async def go_back(self) -> State | None:
        """A state from which the hole is filled otherwise (S21); None where every way was gone."""
        ...

    def close(self, state: State, matcher: Matcher) -> State:
        """The hole has its value."""
        ...

    def give_up(self, state: State) -> list[Step]:
        """The hole gets no value. What was said in it and is not on the way to `state` is put on record as rejected."""
        ...

    def fork(self, writer: Any) -> Filling:
        """The same filling, for a hypothesis that goes another way from here."""
        ...


class Writer(Protocol):
    """Belongs to one hypothesis of a run."""

    @property
    def ledger(self) -> Ledger:
        """Its books."""
        ...

    def fork(self) -> Writer:
        """For another hypothesis that goes its own way from here. Not with a server, which has no scores to go by."""
        ...

    async def logprobs(self, steps: Sequence[Step]) -> list[float]:
        """The raw log-probabilities of tokens that follow one another, of which none was asked for."""
        ...

    @property
    def model(self) -> str:
        """The id of the model."""
        ...

    @property
    def engine(self) -> Engine: ...

    @property
    def spells_freely(self) -> bool:
        """Whether white space in JSON is the model's own matter."""
        ...

    def start(self) -> State:
        """An empty text."""
        ...

    def turn(self, state: State, role: Role, span: Span) -> State:
        """A turn of a chat begins. Raises ModelError where the model knows no turns."""
        ...

    def fill(self, op: Hole, state: State, sampling: Sampling, limit: int, outlook: Callable[[], Outlook]) -> Filling:
        """`limit`: the most tokens of the hole."""
        ...

    def begin_call(self, state: State) -> State:
        """A query goes on from here, for a hole (S26)."""
        ...

    async def choose(
        self,
        op: Hole,
        environment: Environment,
        state: State,
        options: Any,
        sampling: Sampling,
        matcher: Matcher,
        limit: int,
    ) -> Chosen:
        """One hole with a distribution."""
        ...

    async def score(self, state: State, options: tuple[str, ...]) -> OptionScores:
        """What the model thinks of each option as the text that comes next."""
        ...

    async def waiting(self, answer: Awaitable[Any], state: State, span: Span) -> Any:
        """What is awaited, by the query's own Python."""
        ...

    def stand(self, before: Node | None, after: Node | None) -> None:
        """A hypothesis moves: the facts that lead to `after` stay in memory, those to `before` need not (S9)."""
        ...

    def leave(self) -> None:
        """What the model is saying now, nobody will read."""
        ...

    async def close(self) -> None:
        """The run is over: returns when nothing of it goes on."""
        ...

    async def finish(self, state: State) -> State:
        """Nothing more will be asked for."""
        ...


class TokenWriter:
    """With a model in this process, token by token. `isolated`: each hole asks anew (S7)."""

    spells_freely = False

    def __init__(
        self, frontier: Frontier, engine: Engine, ledger: Ledger, sampling: Sampling, *, isolated: bool
    ) -> None:
        self.model = frontier.scorer.name
        self.engine = engine
        self.ledger = ledger
        self._frontier = frontier
        self._isolated = isolated
        self.path = Path(frontier.tree, frontier.scorer.tokenizer, engine.vocabulary, ledger)
        self._ahead = Ahead(frontier, engine, sampling, ledger)

    def fork(self) -> TokenWriter:
        fork = copy(self)
        fork.ledger = self.ledger.fork()
        fork.path = self.path.fork(fork.ledger)
        fork._ahead = self._ahead.fork(fork.ledger)
        return fork

    def start(self) -> State:
        return self.path.start()

    def turn(self, state: State, role: Role, span: Span) -> State:
        if self.path.chat is None:
            raise ModelError(
                f"{self.model} is not asked in turns, so that {{:{role}}} means nothing to it",
                span=span,
                hint="leave the role tags out, or use a model with a chat template",
            )
        try:
            return self.path.begin(state, role, self.path.chat)
        except ModelError as error:
            raise ModelError(error.message, span=span, hint=error.hint) from error

    def fill(self, op: Hole, state: State, sampling: Sampling, limit: int, outlook: Callable[[], Outlook]) -> Fill:
        self._begin()
        return Fill(op, self.path, self._frontier, self.engine, self.ledger, sampling, limit)

    def begin_call(self, state: State) -> State:
        return self.path.resolve(state)

    async def choose(
        self,
        op: Hole,
        environment: Environment,
        state: State,
        options: Any,
        sampling: Sampling,
        matcher: Matcher,
        limit: int,
    ) -> Chosen:
        self._begin()
        weighing = TokenWeighing(op.name, self.path, self._frontier, self.engine, self.ledger)
        choosing = Choosing(op, environment, weighing, self.engine, sampling, limit)
        return await choosing.choose(state, options, matcher)

    async def score(self, state: State, options: tuple[str, ...]) -> OptionScores:
        self._begin()
        return await scored(state, options, self._frontier, self.engine.vocabulary, self.ledger)

    async def logprobs(self, steps: Sequence[Step]) -> list[float]:
        ids = tuple(step.token.id for step in steps)
        (answers,) = await self._frontier.logprobs(steps[0].parent, [ids], self.ledger)
        return [answer.logprob for answer in answers]

    async def waiting(self, answer: Awaitable[Any], state: State, span: Span) -> Any:
        return await self._ahead.waiting(answer, state, span)

    def stand(self, before: Node | None, after: Node | None) -> None:
        pinned(self._frontier.tree, before, after)

    def leave(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def finish(self, state: State) -> State:
        return self.path.settle(state, last=True)

    def _begin(self) -> None:
        if self._isolated:
            self._frontier.tree.forget_scores()


def pinned(tree: TokenTree, before: Node | None, after: Node | None) -> None:
    """Pins where a hypothesis stands in place of where it stood."""
    if before == after:
        return
    if after is not None:
        tree.pin(after)
    if before is not None:
        tree.unpin(before)
