"""beam_var: beam search hole by hole. Only branches in the same hole compete, by their score per token.

A score is divided by the number of tokens to the power of `alpha`: 0 compares sums, 1 compares means. Results are
ranked by their sums, as with every decoder (S24).
"""

from __future__ import annotations

from lmql_lite.engine.decode.beam import BeamSearch, Continuation

ALPHA = 0.7


class BeamOfVariables(BeamSearch):
    def kept(self, continuations: list[Continuation]) -> list[Continuation]:
        holes: dict[int, list[Continuation]] = {}
        for each in continuations:
            holes.setdefault(each.beam.branch.filled, []).append(each)
        return [each for inside in holes.values() for each in self._best_of(inside)]

    def _best_of(self, inside: list[Continuation]) -> list[Continuation]:
        best = sorted(inside, key=self._order)[: self.width]
        leading = [each for each in inside if each.leads]
        return best if not leading or leading[0] in best else [*best[:-1], leading[0]]

    def _order(self, continuation: Continuation) -> tuple[float, int, int]:
        tokens = continuation.beam.branch.state.depth + (continuation.way is not None)
        normalised = continuation.score / max(tokens, 1) ** float(self.options.get("alpha", ALPHA))
        return -normalised, continuation.beam.number, continuation.rank


DECODING = BeamOfVariables.decoded
