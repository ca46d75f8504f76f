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
from lmql_lite.engine.branch import Branch
from lmql_lite.engine.fill import fail_unfilled, quoted
from lmql_lite.engine.generator import inserted, logprob_of
from lmql_lite.engine.predicates import Objection, valued
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


@dataclass(frozen=True, slots=True)
class Chosen:
    """The chosen option, the state after it, and (value, probability) of every allowed option."""

    state: State
    text: str
    value: Any
    distribution: list[tuple[Any, float]]


async def choose(branch: Branch, op: Hole, options: Any, matcher: Matcher, given: str | None = None) -> Chosen:
    """Removes options of a hole that its conditions forbid, asks the model about the rest, and takes one: the `given`,
    if any.

    `matcher` is the beginning of the hole. Raises ConstraintError if no option is left, and ModelError if an option
    exceeds the model's context.
    """
    assert op.distribution is not None, "there are options to choose from"
    span, generator, name = op.distribution.span, branch.generator, op.name
    try:
        texts = texts_of(options)
    except InputError as error:
        sentence = f"the distribution of [{name}] cannot be made: {error.message}"
        raise ConstraintError(sentence, span=span, hint=error.hint) from None
    state = generator.path.settle(generator.path.answer(branch.state))
    left = await _possible(branch, op, state, texts, matcher)
    if given is not None and given not in [option.text for option in left]:
        hint = f"the allowed options are {', '.join(quoted(option.text) for option in left)}"
        raise ConstraintError(f"[{name}] cannot be {quoted(given)}: no option", span=span, hint=hint)
    if len(left) == 1:  # no choice, so no question
        text, value = left[0]
        state = generator.path.force(state, text.encode(), name)
        return Chosen(state._replace(text=state.text + text), text, value, [(value, 1.0)])
    texts, values = zip(*left, strict=True)
    try:
        weighed = await generator.weigh(state, texts)
    except ModelError as error:
        fail_unfilled(op, error)
    logprobs = [logprob_of(option) for option in weighed]
    drawn = picked(logprobs, branch.frame.sampling, generator.tree.path_hash(state.node))
    at = drawn if given is None else texts.index(given)
    state = inserted(generator, state, name, weighed[at])
    distribution = list(zip(values, probabilities(logprobs), strict=True))
    return Chosen(state._replace(text=state.text + texts[at]), texts[at], values[at], distribution)


async def _possible(branch: Branch, op: Hole, state: State, texts: tuple[str, ...], matcher: Matcher) -> list[Option]:
    """The options that type, conditions and predicates allow; the model is not asked."""
    left: list[Option] = []
    refusal: ConstraintError | None = None
    limit = branch.frame.settings.limit
    for text in texts:
        tokens = branch.generator.count(text, data_of(state.held))
        after, value, broken = None, None, None
        if tokens <= limit and (after := _filled(matcher, text.encode(), tokens)):
            value, broken = await valued(op, text, branch.frame.environment)
        if after and not broken:
            left.append(Option(text, value))
        elif refusal is None:
            one = f"the only option of [{op.name}]"
            if len(texts) > 1:
                one = f"no option of [{op.name}] is left: the first of {len(texts)}"
            refusal = _refusal(branch, op, f"{one}, {quoted(text)},", text, tokens, broken)
    if refusal is not None and not left:
        raise refusal
    return left


def _refusal(
    branch: Branch, op: Hole, option: str, text: str, tokens: int, broken: Objection | None
) -> ConstraintError:
    """The error of an option that is forbidden, if all others are too."""
    limit = branch.frame.settings.limit
    if tokens > limit and op.distribution is not None:
        sentence = f"{option} has {tokens} tokens, more than max_tokens={limit}"
        return ConstraintError(sentence, span=op.distribution.span, hint="raise max_tokens")
    broken = broken or Objection(_broken(branch, op, text, tokens))
    because = f" ({broken.reason})" if broken.reason else ""
    return ConstraintError(f"{option} is ruled out by `{broken.span.source}`{because}", span=broken.span)


def _broken(branch: Branch, op: Hole, text: str, tokens: int) -> Span:
    """The first part of type and conditions that an option breaks, given that it breaks some part."""
    if op.type and isinstance(op.type.spec, JsonType):  # its conditions are about a value, and part of its grammar
        return op.span if op.conditions else op.type.span
    for condition in op.conditions:
        term, engine = condition.bind(branch.frame.now), branch.generator.engine
        alone = engine.matcher(term, b"", branch.frame.settings.limit, op.name, op.span)
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
