"""Generator: what a branch asks of its model, which runs in this process or on a server."""

from __future__ import annotations

from lmql_lite.cache.tokens.nodes import Answer
from lmql_lite.engine.generate.local import LocalGenerator
from lmql_lite.engine.generate.remote import RemoteGenerator
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.result import OptionScores, Usage, probabilities
from lmql_lite.engine.state import State, data_of
from lmql_lite.tokens import Token

Generator = LocalGenerator | RemoteGenerator


def inserted(generator: Generator, state: State, hole: str, text: str, answers: tuple[Answer, ...]) -> State:
    """The state after a weighed text, as the value of a hole."""
    for choice in generator.choices(state.node, text, answers):
        if choice.data and len(choice.data) <= len(data_of(state.held)):
            state = generator.path.take(state, choice.token)
        else:
            state = generator.path.choose(state, choice, hole, state.matcher)
    return state


async def scored(generator: Generator, state: State, options: tuple[str, ...]) -> OptionScores:
    """The scores of options as the next text. They have a path of their own, whose tokens do not count for the run."""
    generator.begin_options()
    ledger = generator.ledger
    requests, passes = ledger.requests, ledger.meter.forward_passes
    aside = generator.path.fork(Ledger(ledger.run))
    state = aside.settle(aside.answer(state))
    answers, logprobs = await generator.weigh(state, options, [generator.spell(state, each)[0] for each in options])
    tokens = []
    for option, each in zip(options, answers, strict=True):
        found = generator.choices(state.node, option, each)
        tokens.append(tuple(Token(one.token, one.data, None, one.source, "kept", one.logprob) for one in found))
    made = None if ledger.by_server else ledger.meter.forward_passes - passes
    usage = Usage(requests=ledger.requests - requests, forward_passes=made)
    return OptionScores(options, logprobs, probabilities(logprobs), tuple(tokens), usage)
