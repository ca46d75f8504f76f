"""Outcomes of a place: the next tokens that a condition allows, of which an unbiased choice keeps a few (S36)."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.tokens.draws import Mask, log_sum_exp, mix

OUTCOMES = 2**42
"""Number that separates the noise of a choice among outcomes from that of a draw at the same place."""
_WORD = 2**64 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """The outcomes that were kept at one place.

    `ids`: int32[n], the token of each. `logprobs`: float32[n], the raw log-probability of the token. `weights`:
    float32[n], the logarithm of the mass that the outcome stands for.
    """

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    weights: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.logprobs.nbytes + self.weights.nbytes


class Thinned(NamedTuple):
    """Places and new weights of the weights that were kept. `margin`: relative change of weights, in nats, below which
    the choice stays the same."""

    places: NDArray[np.intp]
    weights: NDArray[np.float64]
    margin: float = math.inf


def uniform(seed: int, what: int, number: int) -> float:
    """A number between 0 and 1, a pure function of the arguments."""
    return ((mix(mix(seed & _WORD, what), number & _WORD) >> 11) + 0.5) * 2.0**-53


def thinned(weights: NDArray[np.float64], most: int, noise: float) -> Thinned:
    """At most `most` of the weights, in their order. The expectation of each new weight is the old one, and their sum
    stays (Fearnhead and Clifford 2003).

    The largest keep their weights. Of the others some are drawn, in proportion to their weights, and all of these get
    the same weight. `noise` is between 0 and 1.
    """
    (held,) = np.nonzero(weights)
    if held.size <= most:
        return Thinned(held, weights[held])
    order = held[np.argsort(-weights[held], kind="stable")]
    ranked = weights[order]
    rest = np.cumsum(ranked[::-1])[::-1][:most]
    shares = rest / np.arange(most, 0, -1)
    large = int(np.argmax(ranked[:most] <= shares * (1 + 1e-12)))
    small = np.sort(order[large:])
    ends = np.cumsum(weights[small]) / shares[large]
    marks = np.arange(most - large) + noise
    at = np.minimum(np.searchsorted(ends, marks), small.size - 1)
    drawn = small[np.unique(at)]
    new = weights.copy()
    new[drawn] = shares[large]
    kept = np.sort(np.concatenate([order[:large], drawn]))
    borders = np.concatenate([ends[at], ends[np.maximum(at - 1, 0)]])
    margin = float(np.min(np.abs(borders - np.tile(marks, 2)) / borders)) / 2
    return Thinned(kept, new[kept], margin)


def outcomes_of(
    ids: NDArray[np.integer], logprobs: NDArray[np.float32], ends: NDArray[np.bool_], most: int, noise: float
) -> tuple[Outcomes, float]:
    """At most `most` outcomes of the allowed tokens `ids`, ascending, and the margin of their choice. Tokens that end
    the hole at once (`ends`) are one outcome, for which the best of them stands."""
    tokens, raw = ids[~ends], logprobs[~ends]
    masses = raw.astype(np.float64)
    if ends.any():
        best = int(logprobs[ends].argmax())
        tokens, raw = np.append(tokens, ids[ends][best]), np.append(raw, logprobs[ends][best])
        masses = np.append(masses, np.float64(log_sum_exp(logprobs[ends])))
    top = masses.max(initial=-np.inf)
    if np.isneginf(top):
        nothing = np.zeros(0, np.float32)
        return Outcomes(np.zeros(0, np.int32), nothing, nothing), math.inf
    kept = thinned(np.exp(masses - top), most, noise)
    weights = (np.log(kept.weights) + top).astype(np.float32)
    return Outcomes(tokens[kept.places].astype(np.int32), raw[kept.places], weights), kept.margin


def outcomes_question(mask: Mask, ends: Mask, most: int) -> bytes:
    """Key of the answer that has these outcomes (S1): a digest of 16 bytes."""
    digest = hashlib.blake2b(b"outcomes" + struct.pack("<qq", mask.size, most), digest_size=16)
    digest.update(np.packbits(mask).data)
    digest.update(np.packbits(ends).data)
    return digest.digest()
