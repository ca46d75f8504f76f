"""smc: draws a text from the model's own distribution given the conditions, with the weights of others (S36).

Masks alone distort: a token counts as likely even if it leads where the condition lets little follow. Here all next
tokens of all branches compete by the probabilities of their whole texts, and an unbiased choice keeps at most
`particles` different ones in each round. All questions of a round are one pass of the model.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Hashable
from dataclasses import replace

import numpy as np

from lmql_lite.cache.tokens.outcomes import Thinned, thinned, uniform
from lmql_lite.engine import events
from lmql_lite.engine.decode.beam import Beam, BeamSearch, Continuation, are_equal, place_of
from lmql_lite.engine.fill import CUT, matcher_of
from lmql_lite.engine.local import LocalGenerator
from lmql_lite.engine.result import Posterior, Result, WeightedText
from lmql_lite.engine.run import Run
from lmql_lite.engine.state import data_of
from lmql_lite.errors import ConstraintError

PARTICLES = 16
POOR = 0.25
"""Share of the particles below which an effective sample size is reported."""
ROUND, FINAL = 2**43, 2**44
"""Numbers that separate the noise of a round from that of the last draw."""


class Particles(BeamSearch):
    """The weighted branches of a run. None leads: a branch whose value Python rejects has weight 0."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, observes=True)
        self._particles = int(self.options.get("particles", PARTICLES))
        self._weights: dict[Beam, float] = {}
        """Logarithms of the weights, without the text that was forced or given."""
        self._cut: dict[Beam, tuple[str, ...]] = {}
        """Names of the holes that `max_tokens` cut."""
        self._rounds = self._rejected = 0
        self._is_exact = True
        self._result: Result | None = None

    def begin(self, first: Beam) -> None:
        super().begin(first)
        first.branch.leads = False
        self._weights[first], self._cut[first] = 0.0, ()

    async def advance(self) -> None:
        """Each moving branch takes a token, or is given up. Exceptions of the query pass through, and a ConstraintError
        is raised only if no branch is left."""
        moving = self.moving()
        filled = moving[0].branch.filled
        await self._to_questions(moving)
        await self._give_up_lost()
        moving = [beam for beam in self.live if beam in moving]
        await self._all(question for beam in moving for question in self._questions(beam, filled))
        await self._give_up_lost()
        await self._give_up(*(beam for beam in self.live if self._total(beam) == -math.inf))
        self.best_beams += [beam for beam in self.live if beam.branch.is_over]
        self.live = [beam for beam in self.live if not beam.branch.is_over]
        await self._merge()
        if self.live or self.best_beams:
            await self._thin()
        await self._give_up_lost()
        if not self.live:
            self._conclude()

    def moving(self) -> list[Beam]:
        """The branches that have filled the fewest holes. The others wait, because they have paid for the text between
        the holes, and would lose against branches that have not."""
        least = min(beam.branch.filled for beam in self.live)
        return [beam for beam in self.live if beam.branch.filled == least]

    def finished(self) -> events.Finished:
        assert self._result is not None, "the run is over"
        return events.Finished(self._result)

    # A round --------------------------------------------------------------------------------------------------------

    def _questions(self, beam: Beam, filled: int) -> list[Awaitable[None]]:
        """The questions of a branch. Those of all branches are asked in one tick, and so in one pass. A branch that has
        filled more than the holes of this round only pays for the text before its next hole."""
        is_here = not beam.branch.is_over and beam.branch.filled == filled
        looks = [self._tried(beam, self._look_ahead(beam))] if is_here else []
        return [*looks, self._weigh(beam)]

    async def _look_ahead(self, beam: Beam) -> None:
        asking = self.run.ways(beam.branch, self._particles, weighed=True)
        beam.ways = await self.run.guarded(beam.branch, asking) or []

    def _total(self, beam: Beam) -> float:
        """Logarithm of the probability that the branch stands for."""
        return self._weights[beam] + self.forced.of(beam.branch.state.newest)

    def _reweigh(self, beam: Beam, total: float) -> None:
        self._weights[beam] = total - self.forced.of(beam.branch.state.newest)

    async def _merge(self) -> None:
        """Makes one branch of those with equal texts and answers, with the sum of their weights. Branches that go on
        must have equal tokens too, because the model's next scores depend on them."""
        here: dict[Hashable, list[Beam]] = {}
        for beam in (*self.live, *self.best_beams):
            state = beam.branch.state
            tokens = None
            if not beam.branch.is_over:
                tokens = state.node, data_of(state.pending), data_of(state.held), state.used
            others = here.setdefault((place_of(beam.branch), tokens), [])
            twin = next((other for other in others if are_equal(beam.branch, other.branch)), None)
            if twin is None:
                others.append(beam)
            else:
                self._reweigh(twin, float(np.logaddexp(self._total(twin), self._total(beam))))
                await self._give_up(beam)

    async def _thin(self) -> None:
        """Keeps at most as many continuations as there are particles, with their new weights."""
        self._rounds += 1
        beams = (*self.best_beams, *self.live)
        candidates = [Continuation(beam) for beam in beams if not beam.ways]
        candidates += [Continuation(beam, way, rank) for beam in beams for rank, way in enumerate(beam.ways)]
        totals = np.array([self._total(each.beam) + (each.way.weight if each.way else 0.0) for each in candidates])
        top = totals.max()
        chosen = thinned(np.exp(totals - top), self._particles, uniform(self.run.seed, ROUND, self._rounds))
        self._is_exact &= chosen.places.size == totals.size and all(way.is_whole for beam in beams for way in beam.ways)
        kept = [
            self._reweighed(candidates[place], math.log(weight) + top, chosen)
            for place, weight in zip(chosen.places.tolist(), chosen.weights.tolist(), strict=True)
        ]
        stay = {continuation.beam for continuation in kept}
        await self._give_up(*(beam for beam in self.best_beams if beam not in stay))
        await self._go([continuation for continuation in kept if continuation.beam in self.live])

    def _reweighed(self, continuation: Continuation, total: float, chosen: Thinned) -> Continuation:
        """The continuation with a new weight; `chosen` tells if noise might have changed the choice (S5)."""
        way = continuation.way
        if way is None:
            self._reweigh(continuation.beam, total)
            return continuation
        choice = way.choice
        if choice.is_close is not None:
            choice = choice._replace(is_close=choice.is_close or self._is_close(chosen.margin))
        return replace(continuation, way=way._replace(choice=choice, weight=total))

    def _is_close(self, margin: float) -> bool:
        """True if the noise of the scores of all rounds together reaches the margin of a choice."""
        generator = self.run.generator
        assert isinstance(generator, LocalGenerator), "only a model that scores has several branches"
        return margin < (generator.scheduler.scorer.epsilon or 0.0) * self._rounds

    async def _take(self, beam: Beam, continuation: Continuation) -> None:
        way, hole = continuation.way, beam.branch.hole
        assert way is not None and hole is not None, "the branch goes on in a hole"
        self._reweigh(beam, way.weight)
        if way.choice is CUT:
            self._cut[beam] = (*self._cut[beam], hole.op.name)
        await super()._take(beam, continuation)

    def _fork(self, beam: Beam) -> Beam:
        fork = super()._fork(beam)
        self._weights[fork], self._cut[fork] = self._weights[beam], self._cut[beam]
        return fork

    async def _give_up_lost(self) -> None:
        """Gives up branches without a value that meets the conditions, and keeps the last reason."""
        for beam in self.live:
            if beam.branch.rejection is not None:
                assert beam.branch.hole is not None, "a value of a hole was rejected"
                beam.branch.hole.rejections = self._rejected
                self._rejected += 1
                beam.error = beam.branch.hole.rejected(beam.branch.rejection, matcher_of(beam.branch.state))
            self._failure = beam.error or self._failure
        await super()._give_up_lost()

    # The end --------------------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        """Draws the result. Raises ConstraintError if no branch is left."""
        if not self.best_beams:
            raise self._failure or ConstraintError("every text that meets the conditions has probability 0")
        totals = np.array([self._total(beam) for beam in self.best_beams])
        evidence = float(np.logaddexp.reduce(totals))
        weights = np.exp(totals - evidence)
        ends = np.cumsum(weights) / weights.sum()
        drawn = self.best_beams[int(np.searchsorted(ends, uniform(self.run.seed, FINAL, 0)))]
        texts = [self._weighted(beam, weight) for beam, weight in zip(self.best_beams, weights.tolist(), strict=True)]
        best_first = tuple(sorted(texts, key=lambda text: -text.weight))
        posterior = Posterior(best_first, evidence, self._particles, self._is_exact)
        notices = self._notices(posterior, dict(zip(self.best_beams, weights.tolist(), strict=True)))
        self._events += map(events.Notice, notices)
        result = self.run.result(drawn.branch, self.pruned([drawn]))
        chances = {f"P({name})": posterior.p(name) for name in result.variables}
        self._result = replace(
            result, variables={**result.variables, **chances}, score=drawn.score, posterior=posterior, notices=notices
        )

    @staticmethod
    def _weighted(beam: Beam, weight: float) -> WeightedText:
        frame = beam.branch.frames[0]
        return WeightedText(beam.branch.state.text, dict(frame.variables), dict(frame.endings), weight)

    def _notices(self, posterior: Posterior, weights: dict[Beam, float]) -> tuple[str, ...]:
        """Sentences about values that were cut, and about a posterior that rests on few texts."""
        notices = []
        for name in dict.fromkeys(name for beam in weights for name in self._cut[beam]):
            share = math.fsum(weight for beam, weight in weights.items() if name in self._cut[beam])
            limit = self.run.settings.limit
            notices.append(f"[{name}] was cut at max_tokens={limit} in {share:.0%} of the posterior's weight")
        if not posterior.is_exact and posterior.effective < POOR * self._particles:
            size = f"{posterior.effective:.1f} of {self._particles} particles"
            notices.append(f"the posterior rests on an effective {size}: raise particles= for a surer one")
        return tuple(notices)


DECODING = Particles.decoded
