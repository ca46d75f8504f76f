"""Penalties: what was said before changes the scores of the same tokens, before anything else is read from them (S2).

Scores stay facts: a penalty is applied while reading, and is part of the question that a verdict or a draw answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.sampling import Mask
from lmql_lite.tokens import Sampling


@dataclass(frozen=True, slots=True, eq=False)
class Penalties:
    """At one place of a path: the score of a token is `logprob * factor - loss`, in float32; all others keep theirs.

    `ids`: int32[n], ascending. `factors`, above 0, and `losses`: float32[n]. A score grows with its log-probability
    whatever they are, so that a bound on log-probabilities gives one on scores.

    On log-probabilities, since a logit says as much with any constant added to it.
    """

    ids: NDArray[np.int32]
    factors: NDArray[np.float32]
    losses: NDArray[np.float32]

    def __bool__(self) -> bool:
        return self.ids.size > 0

    @staticmethod
    def of(
        sampling: Sampling, ids: NDArray[np.int32], in_text: NDArray[np.int32], said: NDArray[np.int32]
    ) -> Penalties:
        """`in_text`: how often each of `ids` stands in the text so far; `said`: how often it was said in holes."""
        factors = np.where(in_text > 0, np.float32(sampling.repetition_penalty), np.float32(1))
        frequency, presence = np.float32(sampling.frequency_penalty), np.float32(sampling.presence_penalty)
        losses = said.astype(np.float32) * frequency + np.where(said > 0, presence, np.float32(0))
        (places,) = np.nonzero((factors != 1) | (losses != 0))
        places = places[np.argsort(ids[places])]
        return Penalties(ids[places], factors[places], losses[places])

    def row(self, logprobs: NDArray[np.float32]) -> NDArray[np.float32]:
        """The scores of a whole row; the row itself where there is no penalty."""
        if not self:
            return logprobs
        scores = logprobs.copy()
        scores[self.ids] = logprobs[self.ids] * self.factors - self.losses
        return scores

    def scores(self, ids: NDArray[np.int32], logprobs: NDArray[np.float32]) -> NDArray[np.float32]:
        """The scores of these tokens, given their log-probabilities."""
        places = np.minimum(np.searchsorted(self.ids, ids), self.ids.size - 1)
        met = self.ids[places] == ids
        return np.where(met, logprobs * self.factors[places] - self.losses[places], logprobs)

    def among(self, mask: Mask) -> Penalties:
        """Those of allowed tokens: all that a question sees of them."""
        allowed = mask[self.ids]
        return Penalties(self.ids[allowed], self.factors[allowed], self.losses[allowed])

    def without(self, ids: NDArray[np.int32]) -> Penalties:
        others = ~np.isin(self.ids, ids)
        return Penalties(self.ids[others], self.factors[others], self.losses[others])

    @property
    def data(self) -> bytes:
        """The same bytes for the same penalties, in every process; 12 a token."""
        return b"".join(
            column.astype(kind).tobytes()
            for column, kind in ((self.ids, "<i4"), (self.factors, "<f4"), (self.losses, "<f4"))
        )


_NOTHING = np.zeros(0, np.float32)
NO_PENALTIES = Penalties(np.zeros(0, np.int32), _NOTHING, _NOTHING)
