"""Statistics against independent computations: published tables, and definitions solved or counted out."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from lmql_lite.data.statistics import mean_interval, paired, sign_flips, wilson
from tests.tables import cases


@pytest.mark.parametrize(("right", "n"), [(13, 40), (1, 7), (199, 200)])
def test_the_ends_of_wilson_are_the_shares_that_a_score_test_just_does_not_refuse(right: int, n: int) -> None:
    for end in wilson(right, n):
        assert abs(right / n - end) / math.sqrt(end * (1 - end) / n) == pytest.approx(1.959964, rel=1e-6)


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [  # Newcombe 1998, table I, method 3; the last two by the same formula with a computer algebra system
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 0.8389, 1.0),
        (200, 200, 0.9812, 1.0),
    ],
)
def test_wilson_agrees_with_published_intervals(right: int, n: int, low: float, high: float) -> None:
    assert wilson(right, n) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (5, 0), (3, 9), (10, 10), (10, 2), (40, 61), (0, 1030)])
def test_flips_of_terms_of_one_size_are_mcnemars_test_and_the_same_for_both_sides(wins: int, losses: int) -> None:
    n = wins + losses
    share = sum(Fraction(math.comb(n, k), 2**n) for k in range(min(wins, losses) + 1))
    found = sign_flips(np.array([0.5] * wins + [-0.5] * losses))
    assert found == pytest.approx(float(min(Fraction(1), 2 * share)), abs=1e-12)
    assert found == sign_flips(np.array([-2.0] * wins + [2.0] * losses))


@pytest.mark.parametrize(
    "terms",
    [
        [1.0, -0.5, 2.0, 0.25, 1.5, 0.0],
        [1.0],
        [-1.0, -1.0, -1.0],
        [0.5, -0.5],
        [3.0, 0.1, 0.1, 0.1],
        [1.0] * 8 + [-1.0] * 3,
    ],
)
def test_sign_flips_of_few_terms_are_counted_out(terms: list[float]) -> None:
    signs = itertools.product((-1, 1), repeat=len(terms))
    sums = [abs(sum(sign * term for sign, term in zip(each, terms, strict=True))) for each in signs]
    wanted = sum(each >= abs(sum(terms)) - 1e-9 for each in sums) / len(sums)
    assert sign_flips(np.array(terms)) == pytest.approx(wanted)
    assert sign_flips(-np.array(terms)) == pytest.approx(wanted)


@pytest.mark.parametrize(("more", "fewer"), [(60, 40), (1_300, 1_200), (20, 0)])
def test_draws_of_many_flips_are_near_those_that_are_counted_out(more: int, fewer: int) -> None:
    """One small term more, so that not all have one size."""
    equal = np.array([1.0] * more + [-1.0] * fewer)
    assert sign_flips(np.append(equal, 1e-6)) == pytest.approx(sign_flips(equal), abs=0.02)


@pytest.mark.parametrize("terms", [[], [0.0], [0.0, 0.0]])
def test_nothing_that_differs_is_no_evidence(terms: list[float]) -> None:
    assert sign_flips(np.array(terms)) == 1.0


def names(count: int, groups: int | None = None) -> list[str]:
    return [str(each % (groups or count)) for each in range(count)]


def test_a_bootstrap_is_near_the_normal_interval_and_clusters_make_it_wider() -> None:
    rng = random.Random(3)
    scores = [rng.gauss(0.5, 0.2) for _ in range(400)]
    found = mean_interval(scores, names(400))
    half = 1.96 * float(np.std(scores)) / 20
    assert found.low is not None and found.high is not None
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.06)
    assert found == mean_interval(scores, names(400))
    copies = mean_interval(scores[:100] * 4, names(400, 100))
    assert copies.low is not None and copies.high is not None
    assert (copies.high - copies.low) > 1.7 * (found.high - found.low)


BINARY = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("scores", "groups", "mean", "n"),
    [  # groups of independent scores do not change Wilson's interval, and copies count once
        (BINARY, names(8), 5 / 8, 8),
        (BINARY * 2, names(16, 8), 5 / 8, 8),
        (BINARY * 5, names(40, 8), 5 / 8, 8),
        ([1.0] * 20, names(20), 1.0, 20),
        ([0.0] * 20, names(20), 0.0, 20),
        ([1.0] * 20, names(20, 5), 1.0, 5),
    ],
)
def test_scores_of_nought_and_one_have_the_interval_of_their_independent_number(
    scores: Sequence[float], groups: Sequence[str], mean: float, n: int
) -> None:
    found = mean_interval(scores, groups)
    low, high = wilson(mean * n, n)
    factor = n / (n - 1) if 0 < mean < 1 and len(scores) > n else 1  # of the variance between groups
    number = n / factor
    low, high = wilson(mean * number, number)
    assert (found.mean, found.groups) == (mean, len(set(groups)))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


@cases("data/statistics", "the interval of a mean is never a point")
def test_the_interval_of_a_mean_is_never_a_point(
    scores: Sequence[float], groups: Sequence[str], mean: float, ends: bool
) -> None:
    found = mean_interval(scores, groups)
    assert found.mean == pytest.approx(mean) and (found.low is not None) == (found.high is not None) == ends
    if found.low is not None and found.high is not None:
        assert found.low < found.high and found.low <= mean <= found.high


@pytest.mark.parametrize(("rate", "n"), [(0.1, 30), (0.5, 30), (0.9, 100)])
def test_an_interval_covers_the_true_share_about_nineteen_times_in_twenty(rate: float, n: int) -> None:
    rng = random.Random(11)
    hits = 0
    for _ in range(400):
        found = mean_interval([float(rng.random() < rate) for _ in range(n)], names(n))
        assert found.low is not None and found.high is not None
        hits += found.low <= rate <= found.high
    assert 0.92 < hits / 400 < 0.99


def test_pairs_are_compared_row_by_row() -> None:
    found = paired([0, 0, 1, 1, 0], [1, 1, 1, 0, 0], list("abcde"))
    assert (found.first, found.second, round(found.delta.mean, 3)) == (0.4, 0.6, 0.2)
    assert (found.wins, found.ties, found.losses) == (2, 2, 1)
    assert found.p_sign_flips == 1.0


@pytest.mark.parametrize(
    ("first", "second", "groups", "has_ends"),
    [
        ([0.5, 0.2], [0.7, 0.1], "ab", True),
        ([0.0, 1.0], [1.0, 1.0], "ab", True),
        ([1.0, 1.0], [1.0, 1.0], "ab", True),  # equal, between known bounds
        ([0.0, 0.0], [1.0, 1.0], "aa", False),  # one group
        ([2.0, 3.0], [3.0, 4.0], "ab", False),  # equal, and others unknown
    ],
)
def test_a_difference_has_an_interval_where_its_scores_allow_it(
    first: list[float], second: list[float], groups: str, has_ends: bool
) -> None:
    found = paired(first, second, list(groups))
    back = paired(second, first, list(groups))
    assert (found.delta.low is not None) == has_ends
    assert (back.delta.mean, back.wins, back.losses) == (-found.delta.mean, found.losses, found.wins)
    assert back.p_sign_flips == found.p_sign_flips


def test_groups_are_flipped_together() -> None:
    first, second = [0.0] * 12, [1.0] * 12
    assert paired(first, second, names(12)).p_sign_flips == pytest.approx(2 / 2**12)
    assert paired(first, second, names(12, 3)).p_sign_flips == pytest.approx(2 / 2**3)
