"""What the model thinks of tokens of values that it did not choose, since a condition forced or a query gave them: they
count for the score of a hypothesis as if they were chosen (S24). What stands in the place of a token that was cut is
not among them: that was chosen, and counts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

from lmql_lite.runtime.hypothesis import Hypothesis
from lmql_lite.runtime.state import Step


class Weights:
    """Of one hypothesis; `known` is what is known of steps, by their identity, to all that come from it."""

    def __init__(self, known: dict[int, tuple[Step, float]] | None = None) -> None:
        self.sum = 0.0
        self._known = {} if known is None else known
        self._newest: Step | None = None
        """The newest step that the sum has."""

    def fork(self) -> Weights:
        fork = Weights(self._known)
        fork.sum, fork._newest = self.sum, self._newest
        return fork

    async def weigh(self, hypothesis: Hypothesis, history: Step | None) -> None:
        """Asks about those that joined the path up to there, with what other hypotheses ask in this tick."""
        steps, is_all = _new(history, self._newest)
        runs = list(_runs([step for step in steps if id(step) not in self._known]))
        logprobs = await asyncio.gather(*(hypothesis.logprobs(run) for run in runs))
        for run, answers in zip(runs, logprobs, strict=True):
            self._known.update((id(step), (step, answer)) for step, answer in zip(run, answers, strict=True))
        added = [self._known[id(step)][1] for step in steps]
        self.sum = math.fsum(added if is_all else [self.sum, *added])
        self._newest = history


def _new(history: Step | None, newest: Step | None) -> tuple[list[Step], bool]:
    """Forced tokens on the path that are not behind `newest`, oldest first; all of them, where the history was
    rewritten since."""
    steps, step = [], history
    while step is not None and step is not newest:
        token = step.token
        if token.source == "forced" and token.fate == "kept" and token.logprob is None:
            steps.append(step)
        step = step.before
    return steps[::-1], step is None


def _runs(steps: list[Step]) -> Iterator[list[Step]]:
    """Those that follow one another on the path."""
    run: list[Step] = []
    for step in steps:
        if run and run[-1].node != step.parent:
            yield run
            run = []
        run.append(step)
    if run:
        yield run
