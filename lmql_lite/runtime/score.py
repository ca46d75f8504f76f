"""What the model thinks of whole texts: the options of a `distribution` hole, and of `context.score` (S25).

The score of an option is the sum of the raw log-probabilities of its tokens, long or short, without an end-of-text. All
options are weighed from the same node: text that was held back there and the option are encoded as one text, so that
the first token of an option may begin in the text before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmql_lite.cache.sampling import is_greedy, mix
from lmql_lite.cache.scores import Scores
from lmql_lite.cache.tree import Answer
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ModelError
from lmql_lite.runtime.frontier import Frontier
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.path import Path
from lmql_lite.runtime.result import OptionScores, Usage
from lmql_lite.runtime.state import State, data_of
from lmql_lite.tokens import Sampling, Token

OPTIONS = 2**41
"""Keeps the noise of a draw among options apart from that of a draw among tokens at the same node."""
SHOWN = 60
"""Characters of an option that an error quotes."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """Options at one place: the tokens of each, from the node of that place on, and the sum of what they have."""

    answers: list[tuple[Answer, ...]]
    logprobs: tuple[float, ...]
    probabilities: tuple[float, ...]


async def weigh(
    state: State, options: Sequence[str], ids: Sequence[tuple[int, ...]], frontier: Frontier, ledger: Ledger
) -> Weighed:
    """What the model thinks of the options, whose tokens from `state.node` on are `ids`.

    Raises ModelError where one does not fit, before anything is asked, and whatever the frontier raises.
    """
    scorer = frontier.scorer
    longest = max(range(len(ids)), key=lambda at: len(ids[at]))
    length = state.depth + len(ids[longest])
    if length > scorer.context_length:
        raise ModelError(
            f"the option {shown(options[longest])} does not fit: with it the text has {length} tokens, and "
            f"{scorer.name} reads at most {scorer.context_length}",
            hint="shorten the prompt or the option, or use a model with a longer context",
        )
    answers = await frontier.logprobs(state.node, ids, ledger)
    # exact sums: the order of the tokens and the version of Python make no difference
    logprobs = tuple(math.fsum(answer.logprob for answer in tokens) for tokens in answers)
    return Weighed(answers, logprobs, probabilities(logprobs))


def encoded(state: State, options: Sequence[str], frontier: Frontier) -> list[tuple[int, ...]]:
    """The tokens of each option behind a settled state, those of the text that it held back included."""
    held = data_of(state.held)
    return [frontier.scorer.tokenizer.encode(held + option.encode()) for option in options]


def probabilities(logprobs: Sequence[float]) -> tuple[float, ...]:
    """The softmax. Where no option has any probability at all, one is as good as the other."""
    best = max(logprobs)
    if best == -math.inf:
        return (1 / len(logprobs),) * len(logprobs)
    shares = [math.exp(logprob - best) for logprob in logprobs]
    total = math.fsum(shares)
    return tuple(share / total for share in shares)


def picked(logprobs: Sequence[float], sampling: Sampling, path_hash: int) -> int:
    """Which option is taken: the best, ties to the first; where tokens are drawn, a draw that repeats as theirs do.

    Temperature, top_k, top_p and min_p are about options here. The noise is a pure function of seed, path and number.
    """
    best = max(logprobs)
    if is_greedy(sampling) or best == -math.inf:
        return logprobs.index(best)
    total = best + math.log(math.fsum(math.exp(logprob - best) for logprob in logprobs))
    row = Scores((np.array(logprobs) - total).astype(np.float32))
    drawn = row.draw(np.ones(len(logprobs), dtype=np.bool_), sampling, mix(path_hash, OPTIONS))
    assert drawn is not None, "every option may be drawn"
    return drawn


async def scored(
    state: State, options: tuple[str, ...], frontier: Frontier, vocabulary: Vocabulary, ledger: Ledger
) -> OptionScores:
    """What the model thinks of each option as the text that comes next. Nothing is put on the path, or on the books.

    Raises as `weigh` does.
    """
    before = ledger.forward_passes
    # a path of its own, whose tokens nobody counts
    aside = Path(frontier.tree, frontier.scorer.tokenizer, vocabulary, Ledger(ledger.run))
    state = aside.settle(state)
    weighed = await weigh(state, options, encoded(state, options, frontier), frontier, ledger)
    tokens = []
    for answers in weighed.answers:
        node, way = state.node, []
        for answer in answers:
            data = vocabulary.tokens[answer.token] or b""
            way.append(Token(answer.token, data, None, ledger.source(node, answer.run), "kept", answer.logprob))
            node = frontier.tree.extend(node, answer.token)
        tokens.append(tuple(way))
    usage = Usage(forward_passes=ledger.forward_passes - before)
    return OptionScores(options, weighed.logprobs, weighed.probabilities, tuple(tokens), usage)


def shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}..")
