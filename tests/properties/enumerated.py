"""Enumeration of every token sequence that a template with finite holes allows: the exact posterior, and the law of
draws under masks alone. It knows no weights, no particles and no outcomes: each token that ends a hole is a way of its
own."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.constraints.terms import Term
from lmql_lite.engine.fill import CUT, matcher_of
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.local import LocalModel
from lmql_lite.engine.record import steps_between
from lmql_lite.engine.segment import Lookahead
from lmql_lite.engine.settings import checked
from lmql_lite.engine.state import State, TokenChoice
from lmql_lite.errors import Span
from lmql_lite.models.base import Row, Scorer, ScoreRequest
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole


class Slot(NamedTuple):
    """A hole of a template."""

    name: str
    term: Term
    limit: int = 1024


@dataclass
class Law:
    """Probabilities of the values of all holes together: exact ones, not normalised, and those of masked draws."""

    exact: Counter[tuple[str, ...]] = field(default_factory=Counter)
    masked: Counter[tuple[str, ...]] = field(default_factory=Counter)
    longest: int = 0
    """Number of tokens of the longest text after the prompt."""

    @property
    def evidence(self) -> float:
        return math.fsum(self.exact.values())

    @property
    def posterior(self) -> dict[tuple[str, ...], float]:
        return {values: chance / self.evidence for values, chance in self.exact.items()}


def distance(one: dict[tuple[str, ...], float], other: dict[tuple[str, ...], float]) -> float:
    """Total variation."""
    return math.fsum(abs(one.get(each, 0.0) - other.get(each, 0.0)) for each in one.keys() | other.keys()) / 2


class Walk:
    def __init__(self, model: Scorer, parts: tuple[str | Slot, ...]) -> None:
        self.model, self.parts, self.law = model, parts, Law()
        self.tree = TokenTree(2**34)
        here = LocalModel(model)
        self.scheduler = here.scheduler(self.tree)
        self.generator = here.generator(self.scheduler, Ledger(1), checked({}), Sampling())
        self.rows: dict[tuple[int, ...], Row] = {}

    def row(self, ids: tuple[int, ...]) -> Row:
        if ids not in self.rows:
            ((self.rows[ids],),) = asyncio.run(self.model.score([ScoreRequest(ids, (), (0,))]))
        return self.rows[ids]

    def run(self) -> Law:
        path = self.generator.path
        self.onward(path.start(), 0, (), 0.0, 0.0)
        return self.law

    def onward(self, state: State, at: int, values: tuple[str, ...], exact: float, masked: float) -> None:
        """Walks from a part of the template to the end. `exact` and `masked` are logarithms."""
        if at == len(self.parts):
            state = self.generator.path.settle(state, last=True)
            self.law.exact[values] += math.exp(exact + self.forced(state))
            self.law.masked[values] += math.exp(masked)
            tokens = [step.token for step in steps_between(None, state.newest)]
            begun = next(number for number, token in enumerate(tokens) if token.hole is not None)
            self.law.longest = max(self.law.longest, len(tokens) - begun)
            return
        part = self.parts[at]
        if isinstance(part, str):
            self.onward(state.say(part), at + 1, values, exact, masked)
            return
        following = self.parts[at + 1] if at + 1 < len(self.parts) else ""
        assert isinstance(following, str)
        span = Span("template", part.name, 0, len(part.name))
        op = Hole(span, part.name, following=following.encode(), continues_segment=bool(values))
        here = Lookahead((part.term,), goes_on=False)
        fill = self.generator.fill(op, part.term, state, Sampling(), part.limit, lambda: here)
        matcher = self.generator.engine.matcher(part.term, op.following, part.limit, part.name, span)

        def inside(state: State, exact: float, masked: float) -> None:
            matcher = matcher_of(state)
            if matcher.ending is not None:
                self.onward(fill.close(state), at + 1, (*values, matcher.value.decode()), exact, masked)
            elif forced := fill.forced(state):
                inside(fill.force(state, forced), exact, masked)
            else:
                pick = fill.pick(state)
                if pick.left <= 0:
                    inside(fill.take(pick, CUT), exact, masked)
                    return
                row, tokens = self.row(self.tree.path(pick.state.node)), np.flatnonzero(pick.untried)
                mass = float(np.logaddexp.reduce(row[tokens].astype(np.float64)))
                for token in tokens.tolist():
                    logprob = float(row[token])
                    if logprob < -60:
                        continue
                    eos = token in self.model.tokenizer.eos
                    data = b"" if eos else self.model.tokenizer.vocabulary[token] or b""
                    inside(
                        fill.take(pick, TokenChoice(token, data, logprob, "model")),
                        exact + logprob,
                        masked + logprob - mass,
                    )

        inside(fill.open(state, matcher), exact, masked)

    def forced(self, state: State) -> float:
        """Log-probability of what was forced, or said after the first hole."""
        begun, total = False, 0.0
        for step in steps_between(None, state.newest):
            token = step.token
            begun = begun or token.hole is not None
            if begun and token.logprob is None:
                total += float(self.row(self.tree.path(step.parent))[token.id])
        return total
