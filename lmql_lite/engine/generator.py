"""Generator: what a branch asks of its model, which runs in this process or on a server."""

from __future__ import annotations

import math

from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.local import LocalGenerator
from lmql_lite.engine.record import Record
from lmql_lite.engine.result import OptionScores, Usage, probabilities
from lmql_lite.engine.server import ServerGenerator
from lmql_lite.engine.state import State, TokenChoice, data_of
from lmql_lite.tokens import Token

Generator = LocalGenerator | ServerGenerator


def inserted(generator: Generator, state: State, hole: str, option: list[TokenChoice]) -> State:
    """The state after a weighed option, as the value of a hole."""
    for choice in option:
        if choice.data and len(choice.data) <= len(data_of(state.held)):
            state = generator.path.take(state, choice.token)
        else:
            state = generator.path.choose(state, choice, hole, state.matcher)
    return state


def logprob_of(option: list[TokenChoice]) -> float:
    """Log-probability of a weighed option; exact, so that it does not depend on the order of the tokens."""
    return math.fsum(choice.logprob or 0.0 for choice in option)


async def scored(generator: Generator, state: State, options: tuple[str, ...]) -> OptionScores:
    """The scores of options as the next text. They have a path of their own, whose tokens do not count for the run."""
    ledger = generator.record.ledger
    requests, passes = ledger.requests, ledger.forward_passes
    aside = generator.path.fork(Record(Ledger(ledger.run)))
    weighed = await generator.weigh(aside.settle(aside.answer(state)), options)
    logprobs = tuple(map(logprob_of, weighed))
    tokens = tuple(
        tuple(Token(one.token, one.data, None, one.source, "kept", one.logprob) for one in option) for option in weighed
    )
    made = None if ledger.by_server else ledger.forward_passes - passes
    usage = Usage(requests=ledger.requests - requests, forward_passes=made)
    return OptionScores(options, logprobs, probabilities(logprobs), tokens, usage)
