"""Scores of one place in the tree, and the reading of them: argmax and a repeatable draw.

Facts are stored raw; mask, temperature and the rest are applied here, while reading (law 2). Nothing here depends on
what else is cached: the same scores, mask, sampling and path give the same token (law 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lmql_lite.tokens import Sampling

HEAD_TOKENS = 32
"""The head of an entry: its best tokens until the rest has less than `HEAD_REST` of the mass, at most so many (S1)."""
HEAD_REST = 1e-3

REST = 2**40
"""Stands for "some token outside the head" in a draw; no token id is that high."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Raw natural log-probabilities, float32, shape (vocabulary,), as the model's side normalised them (S2)."""

    logprobs: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        return self.logprobs.nbytes

    def logprob(self, token: int) -> float:
        return float(self.logprobs[token])

    def best(self, mask: Mask) -> int | None:
        """The allowed token with the highest score, ties to the lowest id (S2). None where nothing is allowed."""
        first = int(self.logprobs.argmax())
        if mask[first]:  # the usual case, without touching the whole vocabulary twice
            return first
        masked = np.where(mask, self.logprobs, -np.inf)
        token = int(masked.argmax())
        return token if mask[token] else _first_allowed(mask)

    def draw(self, mask: Mask, sampling: Sampling, path_hash: int) -> int | None:
        """A token drawn from the allowed ones under `sampling` (S3). None where nothing is allowed.

        Gumbel noise over the head and one bucket for the rest, then, where the bucket wins, inside it. The noise is a
        pure function of (seed, index, path, token), so that a draw repeats, and is the same for an entry of which
        only the head is known.
        """
        allowed = np.flatnonzero(mask)
        if allowed.size == 0:
            return None
        if sampling.temperature <= 0:
            return self.best(mask)
        heat = self.logprobs[allowed] / np.float32(sampling.temperature)
        keep = _truncate(heat, sampling)
        allowed, heat = allowed[keep], heat[keep]
        in_head = np.isin(allowed, self._head(), assume_unique=True)
        # best first, ties to the lowest id: the first maximum below is then the right one
        head, rest = allowed[in_head], allowed[~in_head]
        noisy = heat[in_head] + gumbel(sampling, path_hash, head)
        if rest.size:
            rest_heat = heat[~in_head]
            bucket = _log_sum_exp(rest_heat) + gumbel(sampling, path_hash, np.array([REST]))[0]
            if head.size == 0 or bucket > noisy.max():
                return int(rest[(rest_heat + gumbel(sampling, path_hash, rest)).argmax()])
        return int(head[noisy.argmax()])

    def _head(self) -> NDArray[np.intp]:
        k = min(HEAD_TOKENS, self.logprobs.size)
        # all tokens at least as good as the k-th, then sorted by (-score, id): argpartition alone breaks ties anyhow
        border = np.partition(self.logprobs, -k)[-k]
        best = np.flatnonzero(self.logprobs >= border)
        best = best[np.argsort(-self.logprobs[best], kind="stable")][:k]
        mass = np.cumsum(np.exp(self.logprobs[best].astype(np.float64)))
        return best[: int(np.searchsorted(mass, 1 - HEAD_REST)) + 1]


def _first_allowed(mask: Mask) -> int | None:
    """Every allowed token has score minus infinity: the lowest id is as good as any."""
    allowed = np.flatnonzero(mask)
    return int(allowed[0]) if allowed.size else None


def _truncate(heat: NDArray[np.float32], sampling: Sampling) -> NDArray[np.intp]:
    """Which of the allowed tokens survive top_k, top_p and min_p, in ascending order of id."""
    if sampling.top_k is None and sampling.top_p >= 1 and sampling.min_p <= 0:
        return np.arange(heat.size)
    order = np.argsort(-heat, kind="stable")
    if sampling.top_k is not None:
        order = order[: max(sampling.top_k, 1)]
    chances = np.exp(heat[order].astype(np.float64) - _log_sum_exp(heat[order]))
    before = np.cumsum(chances) - chances
    survives = (before < sampling.top_p) & (chances >= sampling.min_p * chances[0])
    survives[0] = True
    return np.sort(order[survives])


def _log_sum_exp(values: NDArray[np.float32]) -> np.float32:
    wide = values.astype(np.float64)
    top = wide.max()
    if np.isneginf(top):
        return np.float32(top)
    return np.float32(top + np.log(np.exp(wide - top).sum()))


def gumbel(sampling: Sampling, path_hash: int, tokens: NDArray[np.intp]) -> NDArray[np.float32]:
    """Gumbel noise per token, computed in float64 and rounded: in float32 alone a uniform number can round to 1 and
    its noise to infinity."""
    stream = mix(mix(sampling.seed & _WORD, sampling.index & _WORD), path_hash)
    with np.errstate(over="ignore"):
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
    """One 64-bit word that depends on both: for the hash of a path, `mix(hash of the parent, token)`."""
    word = (first * 0x9E3779B97F4A7C15 + second + 0x632BE59BD9B4E019) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
