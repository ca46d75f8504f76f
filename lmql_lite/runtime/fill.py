"""One hole, token by token: what is forced is said without asking, the rest is picked from scores under the mask.

Where Python rejects a value, the hole is filled otherwise (S21): argmax takes the best way not yet gone, sample draws
again with the next index. What was executed before is never undone.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from lmql_lite.cache.head import Miss
from lmql_lite.cache.penalties import NO_PENALTIES, Penalties
from lmql_lite.cache.scores import Mask
from lmql_lite.constraints.hole import Engine
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.errors import ConstraintError, ModelError
from lmql_lite.program.ops import Hole
from lmql_lite.runtime.alternatives import Choosable
from lmql_lite.runtime.frontier import Choice, Frontier
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.path import Path
from lmql_lite.runtime.state import State, Step, data_of, noted, steps_since
from lmql_lite.runtime.turns import read
from lmql_lite.tokens import Sampling

DRAWS_APART = 2**22
"""The indices of draws at one place are so far from each other that no other try of the hole has them."""
NOTHING: Mask = np.zeros(0, np.bool_)
UNLIMITED = 2**31
"""More tokens than any value has."""
SHOWN = 60
"""Characters of an unfinished value that an error quotes."""


class Crossroads(NamedTuple):
    """A choice that could have been another: `untried` are the allowed tokens that were not taken yet."""

    state: State
    matcher: Matcher
    held: bytes
    untried: Mask
    penalties: Penalties


class Way(NamedTuple):
    """A token that may come next at a crossroads; `choice` is None where the hole ends there, at its bound."""

    crossroads: Crossroads
    choice: Choice | None

    @property
    def score(self) -> float:
        """What it adds to the score of who goes it."""
        return self.choice.logprob if self.choice else 0.0


class Books(Protocol):
    """What belongs to one hypothesis."""

    path: Path
    ledger: Ledger


class Fill:
    """The filling of one hole. `state.matcher` is where it stands; it is done when that has an ending."""

    def __init__(
        self,
        op: Hole,
        path: Path,
        frontier: Frontier,
        engine: Engine,
        ledger: Ledger,
        sampling: Sampling,
        max_tokens: int,
    ) -> None:
        self._op = op
        self._may_reject = op.may_reject
        self._path = path
        self._frontier = frontier
        self._engine = engine
        self._ledger = ledger
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._opened: State | None = None
        self._crossroads: list[Crossroads] = []
        self._made: list[Step] = []
        """Every token of every attempt."""

    def open(self, state: State, matcher: Matcher) -> State:
        """The state in which the hole is filled; in a segment the token before it may have said some of it (S14)."""
        state = state._replace(hole=self._op.name, matcher=matcher)
        if not self._op.continues_segment:
            state = self._path.resolve(state)
        elif matcher.ending is None:  # a hole that can only be empty leaves the surplus to what follows it
            state = self._path.run_on(state, partial(self._begin, matcher))
        self._opened = state
        return state

    def _begin(self, matcher: Matcher, data: bytes, tokens: int) -> Matcher | None:
        """After bytes that were said already, `tokens` tokens of them; None where they cannot begin a value."""
        if matcher.longest_valid(data) < len(data):
            return None
        matcher, left = matcher.advance(data, tokens), self._max_tokens - tokens
        fits = matcher.ending or matcher.may_end or (left > 0 and matcher.allowed(b"", left).any())
        return matcher if fits else None

    async def step(self, state: State, matcher: Matcher) -> State:
        """The state after the next token, or after a stretch of forced text."""
        forced = matcher.forced()
        if forced:
            state = self._path.force(state, forced, self._op.name)
            return state._replace(matcher=matcher.advance(forced, tokens=0))
        way, *_ = await self.ways(self.settle(state), matcher, 1)
        return self.take(way)

    def known(self, state: State, matcher: Matcher) -> State | None:
        """What `step` gives, where that is a token behind another one of the hole, and stands in scores that are
        known; else None."""
        if not state.used or state.pending or state.held or state.overhang or matcher.forced():
            return None  # then text is put on the path first
        left = min(self._max_tokens - state.used, self._room(state))
        if left <= 0:
            return None
        crossroads = self._crossroads_at(state, matcher, b"", left)
        mask, penalties = crossroads.untried, crossroads.penalties
        choice = self._frontier.known(state.node, mask, self._sampling, self._ledger, penalties)
        return None if choice is None or isinstance(choice, Miss) else self.take(Way(crossroads, choice))

    def settle(self, state: State) -> State:
        """The state in which the model is asked what comes next. Raises ModelError for a text that cannot fit."""
        if not state.used and self._least_tokens(state) >= self._frontier.scorer.context_length:
            raise self._too_long()
        return self._noted(state, self._path.settle(state))

    def _least_tokens(self, state: State) -> int:
        """Tokens below which the text before the hole cannot be encoded, found without encoding it.

        White space is left out, which a template may strip; a text that the hole itself forces counts as 0.
        """
        if any(piece.hole == self._op.name for piece in state.pending):
            return 0
        black = sum(map(len, read(state.pending).split()))
        return -(-black // self._engine.vocabulary.longest)

    def close(self, state: State, matcher: Matcher) -> State:
        """The hole has its value; what other attempts said is put on record as rejected."""
        rejected = self.give_up(state)
        return noted(self._path.close(state, matcher), rejected)

    def give_up(self, state: State) -> list[Step]:
        """What was said and is not on the way to `state` is put on record as rejected."""
        assert self._opened is not None, "a hole is opened first"
        kept = {id(step) for step in steps_since(self._opened, state)}
        return self._ledger.reject(step for step in self._made if id(step) not in kept)

    def fork(self, books: Books) -> Fill:
        """The same filling, for a hypothesis that goes another way from here."""
        fork = copy(self)
        fork._path, fork._ledger = books.path, books.ledger
        fork._crossroads, fork._made = list(self._crossroads), list(self._made)
        return fork

    async def go_back(self) -> State | None:
        """A state from which the hole is filled otherwise; None where every way was gone."""
        assert self._opened is not None, "a hole is opened first"
        if self._sampling.temperature > 0:
            self._sampling = replace(self._sampling, index=self._sampling.index + 1)
            return self._opened
        best: tuple[float, Crossroads, Choice] | None = None
        for crossroads in self._crossroads:
            choice = await self._choice(crossroads.state, (), crossroads.untried, crossroads.penalties)
            if choice is not None:
                score = crossroads.state.score + choice.logprob
                if best is None or score > best[0]:
                    best = (score, crossroads, choice)
        if best is None:
            return None
        _, crossroads, choice = best
        return self._noted(crossroads.state, self._take(crossroads, choice))

    def _noted(self, before: State, after: State) -> State:
        if after.history is not before.history:
            self._made += steps_since(before, after)
        return after

    async def ways(self, state: State, matcher: Matcher, most: int) -> list[Way]:
        """How the hole may go on behind a settled state: at least one way, at most so many, best first, or as they are
        drawn without those before. The first is what the hole goes if it goes alone."""
        held = data_of(state.held)
        draft = self._frontier.scorer.tokenizer.encode(held) if held else ()
        room = self._room(state) - len(draft)
        left = min(self._max_tokens - state.used, room)
        if left <= 0:
            if matcher.may_end and (room > 0 or state.used):
                return [Way(Crossroads(state, matcher, held, NOTHING, NO_PENALTIES), None)]
            raise self._dead_end(state, matcher, held, room)
        crossroads = self._crossroads_at(state, matcher, held, left)
        left_over = crossroads.untried
        ways: list[Way] = []
        while len(ways) < most:
            choice = await self._choice(state, draft, left_over, crossroads.penalties, drawn=len(ways))
            if choice is None:
                break
            ways.append(Way(crossroads, choice))
            if len(ways) < most:
                left_over = left_over.copy()
                self._cross_out(left_over, choice.token)
        if not ways:
            raise self._dead_end(state, matcher, held, room)
        return ways

    def _room(self, state: State) -> int:
        """How many tokens the model can read behind the path."""
        return self._frontier.scorer.context_length - state.depth

    def _crossroads_at(self, state: State, matcher: Matcher, held: bytes, left: int) -> Crossroads:
        """Where the hole may have so many more tokens, and none was tried."""
        penalties = self._path.counts.penalties(state.history, self._sampling)
        return Crossroads(state, matcher, held, matcher.allowed(held, left), penalties)

    def take(self, way: Way) -> State:
        """The state at the end of the way."""
        crossroads, choice = way.crossroads, way.choice
        if choice is None:
            return crossroads.state._replace(matcher=crossroads.matcher.end("bound"))
        if self._may_reject:
            crossroads = crossroads._replace(untried=crossroads.untried.copy())
            if self._sampling.temperature <= 0:
                self._crossroads.append(crossroads)
        return self._noted(crossroads.state, self._take(crossroads, choice))

    def _cross_out(self, mask: Mask, token: int) -> None:
        """All ends of the text are one."""
        mask[self._engine.vocabulary.eos if token in self._frontier.scorer.tokenizer.eos else token] = False

    async def _choice(
        self, state: State, draft: tuple[int, ...], mask: Mask, penalties: Penalties, drawn: int = 0
    ) -> Choice | None:
        """What is chosen, so many having been drawn before here: another draw has noise of its own."""
        sampling = self._sampling
        if drawn and sampling.temperature > 0:
            sampling = replace(sampling, index=sampling.index + drawn * DRAWS_APART)
        try:
            return await self._frontier.choose(state.node, draft, mask, sampling, self._ledger, penalties)
        except ModelError as error:
            sentence = f"[{self._op.name}] could not be filled: {error.message}"
            raise ModelError(sentence, span=self._op.span, hint=error.hint) from error

    def _take(self, crossroads: Crossroads, choice: Choice) -> State:
        state, matcher, token = crossroads.state, crossroads.matcher, choice.token
        if self._may_reject:
            self._cross_out(crossroads.untried, token)
        if token in self._frontier.scorer.tokenizer.eos:
            return state._replace(matcher=matcher.end("end-of-text"), score=state.score + choice.logprob)
        data = self._engine.vocabulary.tokens[token] or b""
        if len(data) <= len(crossroads.held):
            return self._path.take(state, token, choice.logprob)
        # a token that begins with held text and goes beyond is shown as this hole's, and counts as one of it (S15)
        after = matcher.advance(data[len(crossroads.held) :])
        state = self._path.choose(state, token, self._op.name, choice.source, choice.logprob, after)
        self._ledger.choosable[state.node] = Choosable(
            self._frontier.tree,
            crossroads.state.node,
            self._engine,
            self._op,
            matcher,
            crossroads.held,
            crossroads.untried,
        )
        return state

    def _dead_end(self, state: State, matcher: Matcher, held: bytes, room: int) -> ConstraintError | ModelError:
        model, name = self._frontier.scorer, self._op.name
        said = matcher.text.decode("utf-8", "replace")
        if room <= 0 or matcher.allowed(held, UNLIMITED).any():
            if room >= self._max_tokens - state.used:
                shown = said if len(said) <= SHOWN else f"..{said[-SHOWN:]}"
                return ConstraintError(
                    f"[{name}] is not complete within the {self._max_tokens} tokens that it may have: {shown!r}",
                    span=self._op.span,
                    hint="raise max_tokens, or bound what the type lets be long (max_length)",
                )
            return self._too_long()
        return ConstraintError(
            f"[{name}] cannot go on after {said!r}: no token of {model.name} fits its condition", span=self._op.span
        )

    def _too_long(self) -> ModelError:
        model = self._frontier.scorer
        return ModelError(
            f"[{self._op.name}] does not fit: {model.name} reads at most {model.context_length} tokens",
            span=self._op.span,
            hint="shorten the prompt, lower max_tokens or use a model with a longer context",
        )
