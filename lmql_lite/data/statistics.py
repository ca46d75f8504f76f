"""Statistics of scores: intervals of means, and differences between two runs. numpy and math only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 10_000
LARGE = 2_000
"""Groups from which on fewer draws do: the mean of so many is nearly normal."""
Z = 1.959963984540054
"""97.5th percentile of the normal distribution."""
EXACT_FLIPS = 16
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval, which is never a point. `low` and `high` are None for fewer than two groups, and
    where equal scores without known bounds do not tell how far others would be apart."""

    mean: float
    low: float | None
    high: float | None
    groups: int
    """Number of groups that are drawn: ids, or clusters."""


def wilson(successes: float, n: float) -> tuple[float, float]:
    """95 % score interval of a share (Wilson 1927).

    Centre (p + z^2/2n) / (1 + z^2/n), half width z sqrt(p(1-p)/n + z^2/4n^2) / (1 + z^2/n).
    """
    share, square = successes / n, Z * Z
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = Z * math.sqrt(share * (1 - share) / n + square / (4 * n * n)) / (1 + square / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(scores: Sequence[float], groups: Sequence[str]) -> Interval:
    """Mean of scores and its interval. Scores of one group (an id with its repeats, a cluster) are drawn together.

    Wilson where all scores are 0 or 1, with the effective number of scores where groups have several; else a percentile
    bootstrap over groups. Scores in [0, 1] have no others outside of it.
    """
    mean, count = math.fsum(scores) / len(scores), len(set(groups))
    if count < 2:
        return Interval(mean, None, None, count)
    sums, sizes = _by_group(scores, groups)
    if _are_equal(sums / sizes):
        if min(scores) < 0 or max(scores) > 1:
            return Interval(mean, None, None, count)
        ends = _of_equal(mean, count, 0.0, 1.0)
    elif set(scores) <= {0.0, 1.0}:
        number = len(scores) if count == len(scores) else _effective(sums, sizes)
        ends = wilson(mean * number, number)
    else:
        ends = _percentiles(sums, sizes)
    return Interval(mean, *ends, count)


def _are_equal(means: Floats) -> bool:
    return bool(np.ptp(means) <= 1e-12 * max(1.0, float(np.abs(means).max())))


def _of_equal(value: float, count: int, lowest: float, highest: float) -> tuple[float, float]:
    """Interval of a mean of which `count` groups have the same value: of all groups, at most the share that Wilson
    allows for none of `count` has others, between the bounds. For values 0 and 1 it is Wilson's interval."""
    share = wilson(0, count)[1]
    return (1 - share) * value + share * lowest, (1 - share) * value + share * highest


def _effective(sums: Floats, sizes: Floats) -> float:
    """Number of independent scores of 0 or 1 whose mean varies like that of the groups, at most the number of scores:
    their design effect (Korn and Graubard 1998, without the factor of t)."""
    total, count = float(sizes.sum()), len(sums)
    mean = float(sums.sum()) / total
    variance = count / (count - 1) * float(np.square(sums - mean * sizes).sum()) / total**2
    return min(total, mean * (1 - mean) / variance)


def _by_group(scores: Sequence[float], groups: Sequence[str]) -> tuple[Floats, Floats]:
    """Sums and sizes of groups."""
    places: dict[str, int] = {}
    at = [places.setdefault(group, len(places)) for group in groups]
    return np.bincount(at, scores).astype(np.float64), np.bincount(at).astype(np.float64)


def _percentiles(sums: Floats, sizes: Floats) -> tuple[float, float]:
    """2.5th and 97.5th percentile of the mean over draws of groups with replacement. The draws are the same each
    time."""
    random, count = np.random.default_rng(0), len(sums)
    draws = DRAWS if count < LARGE else DRAWS // 10
    at_once = max(1, 500_000 // count)
    means: list[Floats] = []
    for start in range(0, draws, at_once):
        chosen = random.integers(0, count, (min(at_once, draws - start), count))
        means.append(sums[chosen].sum(axis=1) / sizes[chosen].sum(axis=1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """A metric in two runs, paired by id. `delta` is the second minus the first. `p_sign_flips` is two-sided; of
    scores 0 and 1 it is McNemar's exact test."""

    first: float
    second: float
    delta: Interval
    wins: int
    ties: int
    losses: int
    p_sign_flips: float


def paired(first: Sequence[float], second: Sequence[float], groups: Sequence[str]) -> PairedDifference:
    """Comparison of two lists of scores, one of each per id; whole groups are drawn and flipped together."""
    count = len(first)
    deltas = [b - a for a, b in zip(first, second, strict=True)]
    sums, sizes = _by_group(deltas, groups)
    mean = math.fsum(deltas) / count
    ends: tuple[float | None, float | None] = (None, None)
    if len(sums) > 1 and not _are_equal(sums / sizes):
        ends = _percentiles(sums, sizes)
    elif len(sums) > 1 and min(*first, *second) >= 0 and max(*first, *second) <= 1:
        ends = _of_equal(mean, len(sums), -1.0, 1.0)
    delta = Interval(mean, *ends, len(sums))
    wins, losses = sum(each > 0 for each in deltas), sum(each < 0 for each in deltas)
    return PairedDifference(
        math.fsum(first) / count,
        math.fsum(second) / count,
        delta,
        wins,
        count - wins - losses,
        losses,
        sign_flips(sums),
    )


def sign_flips(sums: Floats) -> float:
    """Two-sided p of a sum under random signs of its terms: exact for few terms and for terms of one size, else from
    draws that are the same each time (the observed signs count as one of them)."""
    terms = sums[sums != 0]
    if not len(terms):
        return 1.0
    if _are_equal(np.abs(terms)):
        return _equal_flips(len(terms), int(np.count_nonzero(terms > 0)))
    wanted = abs(float(terms.sum())) - 1e-9
    if len(terms) <= EXACT_FLIPS:
        bits = (np.arange(2 ** len(terms))[:, None] >> np.arange(len(terms))) & 1
        return float(np.mean(np.abs((1 - 2 * bits) @ terms) >= wanted))
    random, hits, draws = np.random.default_rng(0), 0, DRAWS if len(terms) < LARGE else DRAWS // 10
    at_once = max(1, 4_000_000 // len(terms))
    for start in range(0, draws, at_once):
        signs = random.integers(0, 2, (min(at_once, draws - start), len(terms))) * 2 - 1
        hits += int(np.count_nonzero(np.abs(signs @ terms) >= wanted))
    return (hits + 1) / (draws + 1)


def _equal_flips(count: int, more: int) -> float:
    """Two-sided p of `more` positive signs among `count`: a binomial with a share of one half, as in McNemar's test."""
    logs = [
        math.lgamma(count + 1) - math.lgamma(each + 1) - math.lgamma(count - each + 1) - count * math.log(2)
        for each in range(min(more, count - more) + 1)
    ]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))
