"""One hole with a `distribution`: which options it may be, what the model thinks of them, which it becomes (S25)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from lmql_lite.cache.tree import Answer
from lmql_lite.constraints.hole import Engine
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.errors import ConstraintError, InputError, ModelError, Span
from lmql_lite.program.conditions import All
from lmql_lite.program.ops import Hole
from lmql_lite.program.options import texts_of
from lmql_lite.program.schemas import JsonType
from lmql_lite.runtime.environment import Environment, value_of
from lmql_lite.runtime.frontier import Frontier
from lmql_lite.runtime.judge import Judge, Objection
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.path import Path
from lmql_lite.runtime.score import encoded, picked, probabilities, shown, weigh
from lmql_lite.runtime.state import State, data_of
from lmql_lite.tokens import Sampling


class Candidate(NamedTuple):
    """An option that a hole may be: its text, its tokens behind what was held back, and the value it would have.

    A server does not tell the tokens: there are none.
    """

    text: str
    ids: tuple[int, ...]
    value: Any


class Weighing(Protocol):
    """How options are spelled, weighed and put on the path: by tokens, or by a server."""

    def settle(self, state: State) -> State:
        """The state at which options are weighed."""
        ...

    def spelled(self, state: State, texts: tuple[str, ...]) -> list[tuple[tuple[int, ...], int]]:
        """The tokens of each option behind a settled state, and how many of them are the hole's own (S15)."""
        ...

    async def weigh(self, state: State, left: list[Candidate]) -> tuple[float, ...]:
        """The log-probability of each (S25). Raises ModelError where one does not fit, or none can be told."""
        ...

    def path_hash(self, state: State) -> int: ...

    def insert(self, state: State, at: int, text: str) -> State:
        """The state after the option of that number, of those that were weighed last."""
        ...

    def force(self, state: State, text: str) -> State:
        """The state after the only option."""
        ...


class Refusal(NamedTuple):
    """Why a hole may not be an option, as the end of a sentence, and what says so."""

    reason: str
    span: Span
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The option that a hole became, the state after it, and (value, probability) of each that it could have been."""

    state: State
    text: str
    value: Any
    distribution: list[tuple[Any, float]]


class Choosing:
    """The choice of one `distribution` hole among its options."""

    def __init__(
        self,
        op: Hole,
        environment: Environment,
        weighing: Weighing,
        engine: Engine,
        sampling: Sampling,
        max_tokens: int,
    ) -> None:
        assert op.distribution is not None, "there are options to choose from"
        self._op = op
        self._span = op.distribution.span
        self._environment = environment
        self._judge = Judge(op)
        self._weighing = weighing
        self._engine = engine
        self._sampling = sampling
        self._max_tokens = max_tokens

    async def choose(self, state: State, options: Any, matcher: Matcher) -> Chosen:
        """Leaves out what the conditions forbid, asks the model about the rest, and takes one.

        `matcher` is the beginning of the hole. Raises ConstraintError where no option is left, or there were none,
        and ModelError where one does not fit.
        """
        try:
            texts = texts_of(options)
        except InputError as error:
            raise ConstraintError(
                f"the distribution of [{self._op.name}] cannot be made: {error.message}",
                span=self._span,
                hint=error.hint,
            ) from None
        state = self._weighing.settle(state)
        left = await self._possible(state, texts, matcher)
        if len(left) == 1:  # nothing to decide, nothing to ask
            text, _, value = left[0]
            state = self._weighing.force(state, text)
            return Chosen(state._replace(text=state.text + text), text, value, [(value, 1.0)])
        logprobs = await self._weigh(state, left)
        at = picked(logprobs, self._sampling, self._weighing.path_hash(state))
        chosen = left[at]
        state = self._weighing.insert(state, at, chosen.text)
        values = [candidate.value for candidate in left]
        distribution = list(zip(values, probabilities(logprobs), strict=True))
        return Chosen(state._replace(text=state.text + chosen.text), chosen.text, chosen.value, distribution)

    async def _possible(self, state: State, texts: tuple[str, ...], matcher: Matcher) -> list[Candidate]:
        """The options that type, conditions and predicates let the hole be; nothing is asked for this."""
        left: list[Candidate] = []
        refusal: Refusal | None = None
        for text, (ids, tokens) in zip(texts, self._weighing.spelled(state, texts), strict=True):
            after = _said(matcher, text.encode(), tokens) if tokens <= self._max_tokens else None
            objection = await self._judge.objects(after, self._environment) if after else None
            if after and not objection:
                left.append(Candidate(text, ids, self._judge.value))
            elif refusal is None:
                refusal = self._refusal(text, tokens, objection)
        if refusal is not None and not left:
            one = f"no option of [{self._op.name}] is left: the first of {len(texts)}"
            which = one if len(texts) > 1 else f"the only option of [{self._op.name}]"
            sentence = f"{which}, {shown(texts[0])}, {refusal.reason}"
            raise ConstraintError(sentence, span=refusal.span, hint=refusal.hint)
        return left

    def _refusal(self, text: str, tokens: int, objection: Objection | None) -> Refusal:
        if tokens > self._max_tokens:
            reason = f"has {tokens} tokens, more than the {self._max_tokens} that it may have"
            return Refusal(reason, self._span, "raise max_tokens")
        objection = objection or Objection(self._broken(text, tokens))
        because = f" ({objection.reason})" if objection.reason else ""
        return Refusal(f"is ruled out by `{objection.span.source}`{because}", objection.span)

    def _broken(self, text: str, tokens: int) -> Span:
        """The part of type and conditions that an option does not meet which does not meet all of them together."""
        op = self._op
        conditions = op.condition.conditions if isinstance(op.condition, All) else ()
        if op.type and isinstance(op.type.spec, JsonType):  # its conditions are about a value, and part of its grammar
            return op.span if conditions else op.type.span
        for condition in conditions:
            term = condition.bind(lambda code: value_of(code, self._environment))
            alone = self._engine.matcher(term, b"", self._max_tokens, op.name, op.span)
            if _said(alone, text.encode(), tokens) is None:
                return condition.span
        return op.type.span if op.type else op.span

    async def _weigh(self, state: State, left: list[Candidate]) -> tuple[float, ...]:
        try:
            return await self._weighing.weigh(state, left)
        except ModelError as error:
            sentence = f"[{self._op.name}] could not be filled: {error.message}"
            raise ModelError(sentence, span=self._op.span, hint=error.hint) from error


class TokenWeighing:
    """By a model in this process: the tokens of all options are scored in one pass."""

    def __init__(self, hole: str, path: Path, frontier: Frontier, engine: Engine, ledger: Ledger) -> None:
        self._hole = hole
        self._path = path
        self._frontier = frontier
        self._tokens = engine.vocabulary.tokens
        self._ledger = ledger
        self._answers: list[tuple[Answer, ...]] = []

    def settle(self, state: State) -> State:
        return self._path.settle(state)

    def spelled(self, state: State, texts: tuple[str, ...]) -> list[tuple[tuple[int, ...], int]]:
        held = len(data_of(state.held))
        return [(ids, self._own(ids, held)) for ids in encoded(state, texts, self._frontier)]

    def _own(self, ids: tuple[int, ...], held: int) -> int:
        """Number of tokens that are the hole's: all that say more than what was held back before it (S15)."""
        end, own = 0, 0
        for token in ids:
            end += len(self._tokens[token] or b"")
            own += end > held
        return own

    async def weigh(self, state: State, left: list[Candidate]) -> tuple[float, ...]:
        texts, ids, _ = zip(*left, strict=True)
        weighed = await weigh(state, texts, ids, self._frontier, self._ledger)
        self._answers = weighed.answers
        return weighed.logprobs

    def path_hash(self, state: State) -> int:
        return self._frontier.tree.path_hash(state.node)

    def force(self, state: State, text: str) -> State:
        return self._path.force(state, text.encode(), self._hole)

    def insert(self, state: State, at: int, text: str) -> State:
        """Those of its tokens that only say what was held back are nobody's choice."""
        for answer in self._answers[at]:
            if len(self._tokens[answer.token] or b"") <= len(data_of(state.held)):
                state = self._path.take(state, answer.token)
            else:
                source = self._ledger.source(state.node, answer.run)
                state = self._path.choose(state, answer.token, self._hole, source, answer.logprob, state.matcher)
        return state


def _said(matcher: Matcher, text: bytes, tokens: int) -> Matcher | None:
    """The end of a hole that is this text, None where it cannot be."""
    if matcher.ending is not None or matcher.longest_valid(text) < len(text):
        return None
    after = matcher.advance(text, tokens)
    if after.ending is None:
        return after.end("forced") if after.may_end else None
    return after if after.value == text else None
