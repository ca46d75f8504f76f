"""distribution: which options a hole may be, what the model thinks of each, and the one it becomes (S25)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lmql_lite.cache.sampling import is_greedy, mix
from lmql_lite.cache.scores import Scores
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.engine.environment import Environment, value_of
from lmql_lite.engine.generate.generator import Generator, fail_unfilled, quoted
from lmql_lite.engine.predicates import Judge, Objection
from lmql_lite.engine.result import probabilities
from lmql_lite.engine.state import State
from lmql_lite.errors import ConstraintError, InputError, ModelError, Span
from lmql_lite.options import Sampling
from lmql_lite.program.conditions import All
from lmql_lite.program.json_types import JsonType
from lmql_lite.program.ops import Hole
from lmql_lite.program.values import texts_of

OPTIONS = 2**41
"""Keeps the noise of a draw among options apart from that of a draw among tokens at the same node."""


class Option(NamedTuple):
    """An option that a hole may be: its text, its tokens, and the value that the hole would have."""

    text: str
    ids: tuple[int, ...]
    value: Any


class Refusal(NamedTuple):
    """The reason why a hole may not be an option, as the end of a sentence, and its place."""

    reason: str
    span: Span
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The option that a hole became, the state after it, and (value, probability) of all that it could have been."""

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
        """Leaves out options that the conditions forbid, asks the model about the rest, and takes one, or the `given`.

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
        generator, name = self._generator, self._op.name
        state = generator.begin_options(state)
        left = await self._possible(state, texts, matcher)
        if given is not None and given not in [option.text for option in left]:
            hint = f"it may be {', '.join(quoted(option.text) for option in left)}"
            raise ConstraintError(f"[{name}] cannot be {quoted(given)}: no option", span=self._span, hint=hint)
        if len(left) == 1:  # nothing to decide, nothing to ask
            text, _, value = left[0]
            state = generator.path.force(state, text.encode(), name)
            return Chosen(state._replace(text=state.text + text), text, value, [(value, 1.0)])
        texts, ids, values = zip(*left, strict=True)
        try:
            answers, logprobs = await generator.weigh(state, texts, ids)
        except ModelError as error:
            fail_unfilled(self._op, error)
        drawn = picked(logprobs, self._sampling, generator.tree.path_hash(state.node))
        at = drawn if given is None else texts.index(given)
        state = generator.insert(state, name, texts[at], answers[at])
        distribution = list(zip(values, probabilities(logprobs), strict=True))
        return Chosen(state._replace(text=state.text + texts[at]), texts[at], values[at], distribution)

    async def _possible(self, state: State, texts: tuple[str, ...], matcher: Matcher) -> list[Option]:
        """The options that type, conditions and predicates allow; the model is not asked."""
        left: list[Option] = []
        refusal: Refusal | None = None
        for text in texts:
            ids, tokens = self._generator.spell(state, text)
            after = _filled(matcher, text.encode(), tokens) if tokens <= self._max_tokens else None
            objection = await self._judge.objects(after, self._environment) if after else None
            if after and not objection:
                left.append(Option(text, ids, self._judge.value))
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
            alone = self._generator.engine.matcher(term, b"", self._max_tokens, op.name, op.span)
            if _filled(alone, text.encode(), tokens) is None:
                return condition.span
        return op.type.span if op.type else op.span


def _filled(matcher: Matcher, text: bytes, tokens: int) -> Matcher | None:
    """The end of a hole that is this text, None if it cannot be."""
    if matcher.ending is not None or matcher.longest_valid(text) < len(text):
        return None
    after = matcher.advance(text, tokens)
    if after.ending is None:
        return after.end("forced") if after.may_end else None
    return after if after.value == text else None


def picked(logprobs: Sequence[float], sampling: Sampling, path_hash: int) -> int:
    """The number of the option that is taken: the best, ties to the first; where tokens are drawn, a repeatable draw.

    Temperature, top_k, top_p and min_p are about options here. The noise is a pure function of seed, path and number.
    """
    best = max(logprobs)
    if is_greedy(sampling) or best == -math.inf:
        return logprobs.index(best)
    total = best + math.log(math.fsum(math.exp(logprob - best) for logprob in logprobs))
    row = Scores((np.array(logprobs) - total).astype(np.float32))
    drawn = row.sample(np.ones(len(logprobs), dtype=np.bool_), sampling, mix(path_hash, OPTIONS))
    assert drawn is not None, "every option may be drawn"
    return drawn
