"""Sampling of a token: penalties for earlier tokens, truncation, and the noise of the draw (S2, S3).

Stored scores stay raw. A penalty is applied on reading, and is part of the question of an answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lmql_lite.options import Sampling

Mask = NDArray[np.bool_]
"""True for allowed tokens, shape (vocabulary,)."""

REST = 2**40
"""Id that stands for all tokens outside the top k in a draw, above every token id."""

COLDEST = 1e-30
"""Minimum temperature of a draw. Below it a divided score exceeds float32, and the draw is an argmax anyway."""


def is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature < COLDEST


def survivors(below: NDArray[np.float64], sampling: Sampling) -> slice:
    """Slice, in the order of best first, of the tokens that survive truncation (S2), if no others compete.

    `below`: tempered log-probabilities minus the best one, shape (n,).
    """
    count = beginning(below, sampling)
    return typical(below[:count], sampling.typical_p) if sampling.typical_p < 1 else slice(count)


def typical(below: NDArray[np.float64], share: float) -> slice:
    """Slice of the tokens with the surprise nearest to the entropy that hold `share` (Meister et al. 2022).

    Surprise is minus the log-probability among these tokens, and grows along the order, so the slice is contiguous.
    Ties with the last token needed are kept. The slice has at least one token.
    """
    held = below[below > -np.inf]
    surprise = np.log(np.exp(held).sum()) - held
    chances = np.exp(-surprise)
    distance = np.abs(surprise - (chances * surprise).sum())
    nearest = np.argsort(distance, kind="stable")
    last = int(np.searchsorted(np.cumsum(chances[nearest]), share))
    (places,) = np.nonzero(distance <= distance[nearest[min(last, held.size - 1)]])
    return slice(int(places[0]), int(places[-1]) + 1)


def beginning(below: NDArray[np.float64], sampling: Sampling, total: float | None = None) -> int:
    """Number of best tokens that top_k, top_p and min_p keep, at least 1. Each keeps a beginning of the order.

    `below`: tempered log-probabilities minus the best one, shape (n,), best first. `total`: the sum of exponentials if
    more tokens than these compete; by default that of the tokens which top_k keeps.
    """
    count = below.size if sampling.top_k is None else min(below.size, max(sampling.top_k, 1))
    if sampling.top_p < 1:
        running = np.cumsum(np.exp(below[:count]))
        # a token survives if those before it hold less than top_p
        nucleus = 1 + int(np.searchsorted(running, sampling.top_p * (running[-1] if total is None else total)))
        count = min(count, nucleus)
    if sampling.min_p > 0:
        count = min(count, int(np.searchsorted(-below, -math.log(sampling.min_p), side="right")))
    return max(count, 1)


def log_sum_exp(values: NDArray[np.float32]) -> np.float32:
    wide = values.astype(np.float64)
    top = wide.max()
    if np.isneginf(top):
        return np.float32(top)
    return np.float32(top + np.log(np.exp(wide - top).sum()))


def gumbel(sampling: Sampling, path_hash: int, tokens: NDArray[np.integer]) -> NDArray[np.float32]:
    """Gumbel noise per token, computed in float64 and rounded: in float32 alone a uniform number can round to 1 and
    its noise to infinity."""
    stream = mix(mix(sampling.seed & _WORD, sampling.index & _WORD), path_hash)
    bits = _scramble(tokens.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(stream))
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return cast("NDArray[np.float32]", (-np.log(-np.log(uniform))).astype(np.float32))


# splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words whose output passes the usual test batteries.
_WORD = 2**64 - 1


def _scramble(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def mix(first: int, second: int) -> int:
    """A 64-bit word that depends on both arguments; for the hash of a path, `mix(hash of the parent, token)`."""
    word = (first * 0x9E3779B97F4A7C15 + second + 0x632BE59BD9B4E019) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def seeds(seed: int, count: int) -> tuple[int, ...]:
    """Distinct seeds of `count` samples of one run: the run's own seed, and others derived from it.

    A run with one of these seeds repeats that sample. Seeds have 53 bits, so that JSON keeps them.
    """
    found = {seed: None}
    number = 0
    while len(found) < count:
        number += 1
        found[mix(seed & _WORD, number) >> 11] = None
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Penalties:
    """Penalties at one place of a path. The score of a token in `ids` is `logprob * factor - loss`, in float32.

    `ids`: int32[n], ascending. `factors`, above 0, and `losses`: float32[n]. Scores increase with log-probabilities, so
    that a bound on log-probabilities gives a bound on scores.

    Penalties apply to log-probabilities, because logits are defined only up to a constant.
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
        """The penalties for counts of `ids`: `in_text` in the whole text so far, `said` in generated text of holes."""
        factors = np.where(in_text > 0, np.float32(sampling.repetition_penalty), np.float32(1))
        frequency, presence = np.float32(sampling.frequency_penalty), np.float32(sampling.presence_penalty)
        losses = said.astype(np.float32) * frequency + np.where(said > 0, presence, np.float32(0))
        (places,) = np.nonzero((factors != 1) | (losses != 0))
        places = places[np.argsort(ids[places])]
        return Penalties(ids[places], factors[places], losses[places])

    def row(self, logprobs: NDArray[np.float32]) -> NDArray[np.float32]:
        """The scores of a whole row; the row itself if there is no penalty."""
        if not self:
            return logprobs
        scores = logprobs.copy()
        scores[self.ids] = logprobs[self.ids] * self.factors - self.losses
        return scores

    def scores(self, ids: NDArray[np.int32], logprobs: NDArray[np.float32]) -> NDArray[np.float32]:
        """The scores of these tokens, given their log-probabilities."""
        places, met = self._places(ids)
        return np.where(met, logprobs * self.factors[places] - self.losses[places], logprobs)

    def among(self, mask: Mask) -> Penalties:
        """Penalties of allowed tokens, the only ones that are part of a question."""
        allowed = mask[self.ids]
        return Penalties(self.ids[allowed], self.factors[allowed], self.losses[allowed])

    def without(self, ids: NDArray[np.int32]) -> Penalties:
        """Penalties of all tokens except `ids`."""
        places, met = self._places(ids)
        others = np.ones(self.ids.size, np.bool_)
        others[places[met]] = False
        return Penalties(self.ids[others], self.factors[others], self.losses[others])

    def _places(self, ids: NDArray[np.int32]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Index of each of these tokens among those with a penalty, and True for those that have one."""
        places = np.minimum(np.searchsorted(self.ids, ids), self.ids.size - 1)
        return places, self.ids[places] == ids

    @property
    def data(self) -> bytes:
        """Penalties as bytes, equal in every process; 12 bytes per token."""
        return b"".join(
            column.astype(kind).tobytes()
            for column, kind in ((self.ids, "<i4"), (self.factors, "<f4"), (self.losses, "<f4"))
        )


_NOTHING = np.zeros(0, np.float32)
NO_PENALTIES = Penalties(np.zeros(0, np.int32), _NOTHING, _NOTHING)
