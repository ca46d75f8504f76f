"""var: `b` branches compete within each hole, and the `n` best values of the hole go on to the next one.

A branch that has filled its hole waits for the others, so that whole values are compared.
"""

from __future__ import annotations

from lmql_lite.engine.decode.beam import Beam, BeamSearch, Continuation

WITHIN = 2


class VariableSearch(BeamSearch):
    _filled = 0
    """Number of holes that every branch has filled."""

    @property
    def ways(self) -> int:
        return self._within

    def moving(self) -> list[Beam]:
        return [beam for beam in self.live if beam.branch.filled == self._least(self.live)]

    def kept(self, continuations: list[Continuation]) -> list[Continuation]:
        if not continuations:
            return []
        least = self._least([each.beam for each in continuations])
        inside = [each for each in continuations if each.beam.branch.filled == least]
        done = [each for each in continuations if each.beam.branch.filled > least]
        if least > self._filled:  # all branches have filled the hole
            self._filled = least
            best = sorted({each.beam for each in inside}, key=lambda beam: beam.order)[: self.width]
            inside = [each for each in inside if each.beam in best or each.beam.leads]
        return self.best(inside, self._within) + (self.best(done, self._within) if done else [])

    @property
    def _within(self) -> int:
        return max(self.width, int(self.options.get("b", WITHIN)))

    @staticmethod
    def _least(beams: list[Beam]) -> int:
        return min((beam.branch.filled for beam in beams), default=0)


DECODING = VariableSearch.decoded
