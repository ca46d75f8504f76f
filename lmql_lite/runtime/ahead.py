"""While a query waits for its own Python, the model goes on writing: where a tool answers what the model expected, the
next hole finds its scores in the tree. A guess that is wrong is a branch that nobody walks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from lmql_lite.constraints.hole import Engine
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.terms import Constant
from lmql_lite.errors import LmqlLiteError, Span
from lmql_lite.program.conditions import All
from lmql_lite.program.ops import Hole
from lmql_lite.runtime.fill import Fill
from lmql_lite.runtime.frontier import Frontier
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.path import Path
from lmql_lite.runtime.state import State, steps_since
from lmql_lite.tokens import Sampling

MOST = 64
"""Tokens that are written during one wait."""


class Ahead:
    """The guesses of one run. They cost forward passes of its ledger, and stop where they do not come true."""

    def __init__(self, frontier: Frontier, engine: Engine, sampling: Sampling, ledger: Ledger) -> None:
        self._frontier = frontier
        self._engine = engine
        self._sampling = sampling
        self._ledger = ledger

    def fork(self, ledger: Ledger) -> Ahead:
        return Ahead(self._frontier, self._engine, self._sampling, ledger)

    async def waiting(self, answer: Awaitable[Any], state: State, span: Span) -> Any:
        """What is awaited. Meanwhile the text of `state` is gone on with, as if a free hole came next."""
        if not self._frontier.speculates or not self._ledger.guesses_pay:
            return await answer
        writing = asyncio.create_task(self._write(state, span))
        try:
            return await answer
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError, LmqlLiteError):
                await writing

    async def _write(self, state: State, span: Span) -> None:
        # a path with books of its own: what it says is no token of the run
        tree, tokenizer = self._frontier.tree, self._frontier.scorer.tokenizer
        path = Path(tree, tokenizer, self._engine.vocabulary, Ledger(self._ledger.run))
        hole = Hole(span, "ahead", All(span, ()))
        fill = Fill(hole, path, self._frontier, self._engine, self._ledger, self._sampling, MOST)
        matcher: Matcher = self._engine.matcher(Constant(True), b"", MOST, hole.name, span)
        state = fill.open(state._replace(matcher=None, hole=None, used=0), matcher)
        while matcher.ending is None:
            before, state = state, await fill.step(state, matcher)
            asked = (step.parent for step in steps_since(before, state) if step.token.logprob is not None)
            self._ledger.guess(tuple(asked))
            matcher = state.matcher or matcher
