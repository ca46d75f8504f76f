"""best_k: continues the `k` most likely branches, while the others wait.

Beam search drops a branch that falls behind; best_k may return to it. `budget` bounds the tokens generated this way.
After that the best `n` branches continue to their ends.
"""

from __future__ import annotations

from lmql_lite.engine.decode.beam import Beam, BeamSearch, Continuation

K = 2
BUDGET = 256
WAITING = 64
"""Maximum number of waiting branches."""


class BestK(BeamSearch):
    _asked = 0
    """Number of tokens asked for so far."""

    @property
    def ways(self) -> int:
        return max(self.width, self._k)

    def moving(self) -> list[Beam]:
        """The `k` best branches; the branch that leads is always one of them (S24)."""
        if not self._searches:
            return self.live
        best = sorted(self.live, key=lambda beam: beam.order)[: self._k]
        moving = [beam for beam in self.live if beam in best or beam.leads]
        self._asked += len(moving)
        return moving

    def kept(self, continuations: list[Continuation]) -> list[Continuation]:
        return self.best(continuations, WAITING if self._searches else self.width)

    @property
    def _k(self) -> int:
        return int(self.options.get("k", K))

    @property
    def _searches(self) -> bool:
        return self._asked < int(self.options.get("budget", BUDGET))


DECODING = BestK.decoded
