"""distribution: the options of a hole, their probabilities, and the choice of one (S25)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lmql_lite.cache.tokens.draws import is_greedy, mix
from lmql_lite.cache.tokens.scores import Scores
from lmql_lite.constraints.matcher import Matcher, matcher_after
from lmql_lite.engine.environment import Environment, value_of
from lmql_lite.engine.fill import fail_unfilled, quoted
from lmql_lite.engine.generator import Generator, inserted, logprob_of
from lmql_lite.engine.predicates import Judge, Objection
from lmql_lite.engine.result import probabilities
from lmql_lite.engine.state import State, data_of
from lmql_lite.errors import ConstraintError, InputError, ModelError, Span
from lmql_lite.options import Sampling
from lmql_lite.program.json_types import JsonType
from lmql_lite.program.ops import Hole
from lmql_lite.program.values import texts_of

OPTIONS = 2**41
"""Index that separates the noise of a draw among options from that of a draw among tokens at the same node."""


class Option(NamedTuple):
    """An option of a hole: its text, and the value of the hole if it is chosen."""

    text: str
    value: Any


class Refusal(NamedTuple):
    """The reason why an option is forbidden, as the end of a sentence, and its place."""

    reason: str
    span: Span
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The chosen option, the state after it, and (value, probability) of every allowed option."""

    state: State
    text: str
    value: Any
    distribution: list[tuple[Any, float]]


class Choosing:
    """The choice of one `distribution` hole among its options."""

    def __init__(
        self, op: Hole, environment: Environment, generator: Generator, sampling: Sampling, max_tokens: int
    ) -> None:
        assert op.distribution is not None, "there are options to choose from"
        self._op = op
        self._span = op.distribution.span
        self._environment = environment
        self._judge = Judge(op)
        self._generator = generator
        self._sampling = sampling
        self._max_tokens = max_tokens

    async def choose(self, state: State, options: Any, matcher: Matcher, given: str | None = None) -> Chosen:
        """Removes options that the conditions forbid, asks the model about the rest, and takes one: the `given`, if
        any.

        `matcher` is the beginning of the hole. Raises ConstraintError if no option is left, and ModelError if an option
        exceeds the model's context.
        """
        try:
            texts = texts_of(options)
        except InputError as error:
            raise ConstraintError(
                f"the distribution of [{self._op.name}] cannot be made: {error.message}",
                span=self._span,
                hint=error.hint,
            ) from None
        generator, name = self._generator, self._op.name
        state = generator.path.settle(generator.path.answer(state))
        left = await self._possible(state, texts, matcher)
        if given is not None and given not in [option.text for option in left]:
            hint = f"the allowed options are {', '.join(quoted(option.text) for option in left)}"
            raise ConstraintError(f"[{name}] cannot be {quoted(given)}: no option", span=self._span, hint=hint)
        if len(left) == 1:  # no choice, so no question
            text, value = left[0]
            state = generator.path.force(state, text.encode(), name)
            return Chosen(state._replace(text=state.text + text), text, value, [(value, 1.0)])
        texts, values = zip(*left, strict=True)
        try:
            weighed = await generator.weigh(state, texts)
        except ModelError as error:
            fail_unfilled(self._op, error)
        logprobs = [logprob_of(option) for option in weighed]
        drawn = picked(logprobs, self._sampling, generator.tree.path_hash(state.node))
        at = drawn if given is None else texts.index(given)
        state = inserted(generator, state, name, weighed[at])
        distribution = list(zip(values, probabilities(logprobs), strict=True))
        return Chosen(state._replace(text=state.text + texts[at]), texts[at], values[at], distribution)

    async def _possible(self, state: State, texts: tuple[str, ...], matcher: Matcher) -> list[Option]:
        """The options that type, conditions and predicates allow; the model is not asked."""
        left: list[Option] = []
        refusal: Refusal | None = None
        for text in texts:
            tokens = self._generator.count(text, data_of(state.held))
            after = _filled(matcher, text.encode(), tokens) if tokens <= self._max_tokens else None
            objection = await self._judge.objects(text, self._environment) if after else None
            if after and not objection:
                left.append(Option(text, self._judge.value))
            elif refusal is None:
                refusal = self._refusal(text, tokens, objection)
        if refusal is not None and not left:
            one = f"no option of [{self._op.name}] is left: the first of {len(texts)}"
            which = one if len(texts) > 1 else f"the only option of [{self._op.name}]"
            sentence = f"{which}, {quoted(texts[0])}, {refusal.reason}"
            raise ConstraintError(sentence, span=refusal.span, hint=refusal.hint)
        return left

    def _refusal(self, text: str, tokens: int, objection: Objection | None) -> Refusal:
        if tokens > self._max_tokens:
            reason = f"has {tokens} tokens, more than max_tokens={self._max_tokens}"
            return Refusal(reason, self._span, "raise max_tokens")
        objection = objection or Objection(self._broken(text, tokens))
        because = f" ({objection.reason})" if objection.reason else ""
        return Refusal(f"is ruled out by `{objection.span.source}`{because}", objection.span)

    def _broken(self, text: str, tokens: int) -> Span:
        """The first part of type and conditions that an option breaks, given that it breaks some part."""
        op = self._op
        if op.type and isinstance(op.type.spec, JsonType):  # its conditions are about a value, and part of its grammar
            return op.span if op.conditions else op.type.span
        for condition in op.conditions:
            term = condition.bind(lambda code: value_of(code, self._environment))
            alone = self._generator.engine.matcher(term, b"", self._max_tokens, op.name, op.span)
            if _filled(alone, text.encode(), tokens) is None:
                return condition.span
        return op.type.span if op.type else op.span


def _filled(matcher: Matcher, text: bytes, tokens: int) -> Matcher | None:
    """The matcher after a hole with this text; None if the hole cannot have it."""
    after = matcher_after(matcher, text, tokens) if matcher.ending is None else None
    if after is None:
        return None
    if after.ending is None:
        return after.end("forced") if after.may_end else None
    return after if after.value == text else None


def picked(logprobs: Sequence[float], sampling: Sampling, path_hash: int) -> int:
    """Index of the chosen option: the most likely one, ties to the first, or a repeatable draw at a temperature.

    Temperature, top_k, top_p and min_p apply to options here. The noise is a pure function of seed, path and index.
    """
    best = max(logprobs)
    if is_greedy(sampling) or best == -math.inf:
        return logprobs.index(best)
    total = best + math.log(math.fsum(math.exp(logprob - best) for logprob in logprobs))
    row = Scores((np.array(logprobs) - total).astype(np.float32))
    drawn = row.sample(np.ones(len(logprobs), dtype=np.bool_), sampling, mix(path_hash, OPTIONS))
    assert drawn is not None, "every option may be drawn"
    return drawn
