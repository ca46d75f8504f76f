"""Scores of one place in the tree, and how a token is read from them: argmax and a repeatable draw.

Scores are stored raw; penalties, mask, temperature and the rest are applied here, on reading (law 2). Nothing here
depends on other cached entries: equal scores, penalties, mask, sampling and path give the same token (law 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.sampling import NO_PENALTIES, REST, Penalties, gumbel, is_greedy, log_sum_exp, survivors
from lmql_lite.cache.sampling import Mask as Mask
from lmql_lite.cache.sampling import mix as mix
from lmql_lite.cache.top_k import MISS, Drawn, TopK, top_k_of
from lmql_lite.options import Sampling


@dataclass(frozen=True, eq=False)
class Scores:
    """Raw natural log-probabilities, float32, shape (vocabulary,), normalised by the model (S2)."""

    logprobs: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        return self.logprobs.nbytes

    def logprob(self, token: int) -> float:
        return float(self.logprobs[token])

    def top_k(self) -> TopK:
        """The part of these scores kept after eviction. Made once: 150 µs for 128k tokens, 40 µs for 4k."""
        return self._top_k

    @cached_property
    def _top_k(self) -> TopK:
        return top_k_of(self.logprobs)

    def best(self, mask: Mask, penalties: Penalties = NO_PENALTIES) -> int | None:
        """The allowed token with the highest score, ties to the lowest id (S2). None if no token is allowed."""
        scores = self.logprobs if penalties is NO_PENALTIES else penalties.row(self.logprobs)
        first = int(scores.argmax())
        if mask[first]:  # the usual case, which reads the whole vocabulary only once
            return first
        masked = np.where(mask, scores, -np.inf)
        token = int(masked.argmax())
        return token if mask[token] else _first_allowed(mask)

    def sample(self, mask: Mask, sampling: Sampling, path_hash: int, penalties: Penalties = NO_PENALTIES) -> int | None:
        """A token drawn from the allowed ones under `sampling` (S3). None if no token is allowed.

        Gumbel noise decides among the top k and one bucket for the rest, and if the bucket wins, inside it. The noise
        is a pure function of (seed, index, path, token), so that a draw is repeatable. Mostly the top k decides alone,
        with the same result, and the whole row is not read.
        """
        token = self.top_k().sample(mask, sampling, path_hash, penalties)
        return self.sample_from_all(mask, sampling, path_hash, penalties) if token is MISS else token

    def sample_from_all(
        self, mask: Mask, sampling: Sampling, path_hash: int, penalties: Penalties = NO_PENALTIES
    ) -> int | None:
        """The token of `sample`, always decided by the whole row: the reference for tests of `TopK.sample`."""
        if is_greedy(sampling):
            return self.best(mask, penalties)
        drawn = self._drawn_from_all(mask, sampling, path_hash, penalties)
        return None if drawn is None else drawn.token

    def is_close(self, epsilon: float, mask: Mask, sampling: Sampling, path_hash: int, penalties: Penalties) -> bool:
        """True if scores that differ by `epsilon` might choose another token (S5)."""
        if not self.top_k().is_close(epsilon, mask, sampling, path_hash, penalties):
            return False
        if not is_greedy(sampling):
            drawn = self._drawn_from_all(mask, sampling, path_hash, penalties)
            return drawn is not None and drawn.margin < epsilon
        scores = np.where(mask, penalties.row(self.logprobs), -np.inf)
        near = scores > scores.max() - epsilon
        return int(np.count_nonzero(near)) != 1 and int(np.count_nonzero(mask)) > 1

    def _drawn_from_all(self, mask: Mask, sampling: Sampling, path_hash: int, penalties: Penalties) -> Drawn | None:
        scores, temperature = penalties.row(self.logprobs), np.float32(sampling.temperature)
        tokens = np.flatnonzero(mask)
        if not tokens.size:
            return None
        if sampling.truncates:
            tokens = tokens[np.argsort(-scores[tokens], kind="stable")]
            heat = scores[tokens] / temperature
            if not np.isneginf(heat[0]):
                tokens = tokens[survivors(heat.astype(np.float64) - float(heat[0]), sampling)]
        in_head = np.zeros(mask.size, np.bool_)
        in_head[self.top_k().ids] = True
        known, others = tokens[in_head[tokens]], tokens[~in_head[tokens]]
        known = known[np.lexsort((known, -scores[known]))]
        noisy = scores[known] / temperature + gumbel(sampling, path_hash, known)
        bucket = np.float32(-np.inf)
        if others.size:
            rest = scores[others] / temperature
            bucket = log_sum_exp(rest) + gumbel(sampling, path_hash, np.array([REST]))[0]
            highest = noisy.max(initial=-np.inf)
            if not known.size or bucket > highest:
                within = rest + gumbel(sampling, path_hash, others)
                lead = min(_lead(within), float(bucket) - float(highest))
                return Drawn(int(others[within.argmax()]), sampling.temperature * lead)
        lead = min(_lead(noisy), float(noisy.max()) - float(bucket))
        return Drawn(int(known[noisy.argmax()]), sampling.temperature * lead)


def _lead(values: NDArray[np.float32]) -> float:
    """Distance between the highest value and the second one."""
    if values.size < 2:
        return float("inf")
    second, first = np.partition(values, -2)[-2:]
    return float(first - second) if first > second else 0.0


def _first_allowed(mask: Mask) -> int | None:
    """The lowest allowed id, for when every allowed token scores minus infinity; None if no token is allowed."""
    allowed = np.flatnonzero(mask)
    return int(allowed[0]) if allowed.size else None
