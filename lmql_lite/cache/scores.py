"""Scores of one place in the tree, and the reading of them: argmax and a repeatable draw.

Facts are stored raw; penalties, mask, temperature and the rest are applied here, while reading (law 2). Nothing here
depends on what else is cached: the same scores, penalties, mask, sampling and path give the same token (law 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.head import MISS, Head, head_of
from lmql_lite.cache.penalties import NO_PENALTIES, Penalties
from lmql_lite.cache.sampling import REST, gumbel, is_greedy, is_truncated, log_sum_exp, survivors
from lmql_lite.cache.sampling import Mask as Mask
from lmql_lite.cache.sampling import mix as mix
from lmql_lite.tokens import Sampling


@dataclass(frozen=True, eq=False)
class Scores:
    """Raw natural log-probabilities, float32, shape (vocabulary,), as the model's side normalised them (S2)."""

    logprobs: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        return self.logprobs.nbytes

    def logprob(self, token: int) -> float:
        return float(self.logprobs[token])

    def head(self) -> Head:
        """What is kept of these scores when they are cold. Made once: 150 µs for 128k tokens, 40 µs for 4k."""
        return self._head

    @cached_property
    def _head(self) -> Head:
        return head_of(self.logprobs)

    def best(self, mask: Mask, penalties: Penalties = NO_PENALTIES) -> int | None:
        """The allowed token with the highest score, ties to the lowest id (S2). None where nothing is allowed."""
        scores = penalties.row(self.logprobs)
        first = int(scores.argmax())
        if mask[first]:  # the usual case, without touching the whole vocabulary twice
            return first
        masked = np.where(mask, scores, -np.inf)
        token = int(masked.argmax())
        return token if mask[token] else _first_allowed(mask)

    def draw(self, mask: Mask, sampling: Sampling, path_hash: int, penalties: Penalties = NO_PENALTIES) -> int | None:
        """A token drawn from the allowed ones under `sampling` (S3). None where nothing is allowed.

        Gumbel noise over the head and one bucket for the rest, then, where the bucket wins, inside it. The noise is a
        pure function of (seed, index, path, token), so that a draw repeats, and is the same for an entry of which
        only the head is known: mostly the head alone decides, and the whole row is not looked at.
        """
        token = self.head().draw(mask, sampling, path_hash, penalties)
        return self.draw_from_all(mask, sampling, path_hash, penalties) if token is MISS else token

    def draw_from_all(
        self, mask: Mask, sampling: Sampling, path_hash: int, penalties: Penalties = NO_PENALTIES
    ) -> int | None:
        """What `draw` draws, decided by the whole row in every case: what `Head.draw` is measured by."""
        if is_greedy(sampling):
            return self.best(mask, penalties)
        scores, temperature = penalties.row(self.logprobs), np.float32(sampling.temperature)
        tokens = np.flatnonzero(mask)
        if not tokens.size:
            return None
        if is_truncated(sampling):
            tokens = tokens[np.argsort(-scores[tokens], kind="stable")]
            heat = scores[tokens] / temperature
            if not np.isneginf(heat[0]):
                tokens = tokens[: survivors(heat.astype(np.float64) - float(heat[0]), sampling)]
        in_head = np.zeros(mask.size, np.bool_)
        in_head[self.head().ids] = True
        known, others = tokens[in_head[tokens]], tokens[~in_head[tokens]]
        known = known[np.lexsort((known, -scores[known]))]
        noisy = scores[known] / temperature + gumbel(sampling, path_hash, known)
        if others.size:
            rest = scores[others] / temperature
            bucket = log_sum_exp(rest) + gumbel(sampling, path_hash, np.array([REST]))[0]
            if not known.size or bucket > noisy.max():
                return int(others[(rest + gumbel(sampling, path_hash, others)).argmax()])
        return int(known[noisy.argmax()])


def _first_allowed(mask: Mask) -> int | None:
    """Every allowed token has score minus infinity: the lowest id is as good as any."""
    allowed = np.flatnonzero(mask)
    return int(allowed[0]) if allowed.size else None
