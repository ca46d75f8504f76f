"""Statistics against independent computations: definitions solved or counted out, not the formulas of the module."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest

from lmql_lite.data.intervals import mcnemar, mean_interval, paired, pass_at, sign_flips, wilson


@pytest.mark.parametrize(("right", "n"), [(13, 40), (1, 7), (199, 200)])
def test_the_ends_of_wilson_are_the_shares_that_a_score_test_just_does_not_refuse(right: int, n: int) -> None:
    for end in wilson(right, n):
        assert abs(right / n - end) / math.sqrt(end * (1 - end) / n) == pytest.approx(1.959964, rel=1e-6)


def test_two_hundred_of_two_hundred_is_not_certain() -> None:
    low, high = wilson(200, 200)
    assert (round(low, 3), high) == (0.981, 1.0)


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (3, 9), (10, 10), (40, 61)])
def test_mcnemar_is_the_binomial_counted_out(wins: int, losses: int) -> None:
    n = wins + losses
    share = sum(Fraction(math.comb(n, k), 2**n) for k in range(min(wins, losses) + 1))
    assert mcnemar(wins, losses) == pytest.approx(float(min(Fraction(1), 2 * share)), abs=1e-12)


def test_sign_flips_are_counted_out_for_few_terms_and_close_for_many() -> None:
    terms = [1.0, -0.5, 2.0, 0.25, 1.5, 0.0]
    sums = [abs(sum(sign * term for sign, term in zip(signs, terms, strict=True)))
            for signs in itertools.product((-1, 1), repeat=len(terms))]  # fmt: skip
    wanted = sum(each >= abs(sum(terms)) - 1e-9 for each in sums) / len(sums)
    assert sign_flips(np.array(terms)) == pytest.approx(wanted)
    ones = np.array([1.0] * 60 + [-1.0] * 40)
    assert sign_flips(ones) == pytest.approx(mcnemar(60, 40), abs=0.01)


def test_a_bootstrap_is_near_the_normal_interval_and_clusters_make_it_wider() -> None:
    rng = random.Random(3)
    scores = [rng.gauss(0.5, 0.2) for _ in range(400)]
    names = [str(each) for each in range(400)]
    found = mean_interval(scores, [1.0] * 400, names)
    half = 1.96 * float(np.std(scores)) / 20
    assert found.low is not None and found.high is not None
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.06)
    copies = mean_interval(scores[:100] * 4, [1.0] * 400, names[:100] * 4)
    assert copies.low is not None and copies.high is not None
    assert (copies.high - copies.low) > 1.7 * (found.high - found.low)


def test_fewer_than_two_ids_have_no_interval() -> None:
    assert mean_interval([1.0, 0.0], [1.0, 1.0], ["a", "a"]).low is None


def test_pairs_are_compared_row_by_row() -> None:
    found = paired([0, 0, 1, 1, 0], [1, 1, 1, 0, 0], list("abcde"))
    assert (found.wins, found.ties, found.losses, round(found.delta.mean, 3)) == (2, 2, 1, 0.2)
    assert found.p_mcnemar == 1.0
    assert paired([0.5, 0.2], [0.7, 0.1], ["a", "b"]).p_mcnemar is None


@pytest.mark.parametrize(("k", "n", "right"), [(1, 5, 2), (3, 6, 1), (2, 4, 4), (2, 4, 0)])
def test_pass_at_k_is_the_share_of_choices_with_a_right_one(k: int, n: int, right: int) -> None:
    choices = list(itertools.combinations([True] * right + [False] * (n - right), k))
    assert pass_at(k, n, right) == pytest.approx(sum(map(any, choices)) / len(choices))
