"""How a token is drawn: which of the best survive truncation, and the noise that decides among them (S2, S3)."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lmql_lite.tokens import Sampling

Mask = NDArray[np.bool_]
"""Which tokens are allowed, shape (vocabulary,)."""

REST = 2**40
"""Stands for "some token outside the head" in a draw; no token id is that high."""

COLDEST = 1e-30
"""Below this temperature float32 cannot hold a score divided by it, and a draw is an argmax long before."""


def is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature < COLDEST


def is_truncated(sampling: Sampling) -> bool:
    return sampling.top_k is not None or sampling.top_p < 1 or sampling.min_p > 0


def survivors(below: NDArray[np.float64], sampling: Sampling, total: float | None = None) -> int:
    """How many of the best survive top_k, top_p and min_p (S2): each of the three keeps a beginning of the order.

    `below`: tempered log-probabilities minus the best one, shape (n,), best first. `total`: the sum of their
    exponentials, where more tokens than these compete; without it, that of those which top_k keeps. At least 1.
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
    """One 64-bit word that depends on both: for the hash of a path, `mix(hash of the parent, token)`."""
    word = (first * 0x9E3779B97F4A7C15 + second + 0x632BE59BD9B4E019) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def seeds(seed: int, count: int) -> tuple[int, ...]:
    """The seeds of so many samples of one run: the run's own, and others made from it, all different.

    Each is that of a whole run: a run with it alone says the same. They have 53 bits, so that JSON keeps them.
    """
    found = {seed: None}
    number = 0
    while len(found) < count:
        number += 1
        found[mix(seed & _WORD, number) >> 11] = None
    return tuple(found)
