"""Reading of scores: ties, masks, truncation, and draws that repeat and have the right distribution (S2, S3)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmql_lite.cache.tokens.draws import NO_PENALTIES, REST, Penalties, gumbel, seeds
from lmql_lite.cache.tokens.scores import Scores
from lmql_lite.options import Sampling
from tests.conftest import examples


def scores_of(*logits: float) -> Scores:
    values = np.array(logits, dtype=np.float64)
    return Scores((values - np.log(np.exp(values).sum())).astype(np.float32))


def all_of(scores: Scores) -> NDArray[np.bool_]:
    return np.ones(scores.logprobs.size, dtype=np.bool_)


def test_what_is_chosen_where_there_is_little_to_choose_S2() -> None:
    tied = scores_of(0, 3, 1, 3, 3)
    assert tied.best(all_of(tied)) == 1 == tied.sample(all_of(tied), Sampling(temperature=0, seed=3), 9)
    assert tied.best(np.arange(5) > 1) == 3, "ties go to the lowest id"
    nothing = np.zeros(5, dtype=np.bool_)
    assert tied.best(nothing) is tied.sample(nothing, Sampling(temperature=1), 0) is None
    impossible = Scores(np.array([0, -np.inf, -np.inf], dtype=np.float32))
    only = np.array([False, False, True])
    assert impossible.best(only) == impossible.sample(only, Sampling(temperature=1, seed=1), 5) == 2


FOUR, SEVEN = (0.05, 0.2, 0.1, 0.65), (0.4, *[0.1] * 6)


@pytest.mark.parametrize(
    ("chances", "mask", "sampling", "possible"),
    [
        (FOUR, "1111", Sampling(temperature=1, top_k=2), {3, 1}),
        (FOUR, "1111", Sampling(temperature=1, top_k=1), {3}),
        (FOUR, "1110", Sampling(temperature=1, top_k=1), {1}),
        (FOUR, "1111", Sampling(temperature=1, top_p=0.5), {3}),
        (FOUR, "1111", Sampling(temperature=1, top_p=0.7), {3, 1}),
        (FOUR, "1111", Sampling(temperature=1, top_p=0.0), {3}),
        (FOUR, "1111", Sampling(temperature=1, min_p=0.2), {3, 1}),
        # the entropy is 1.75 nats; the best token surprises by 0.92, the six others by 2.30 each and are nearer
        (SEVEN, "1111111", Sampling(temperature=1, typical_p=0.5), {1, 2, 3, 4, 5, 6}),
        (SEVEN, "1111111", Sampling(temperature=1, typical_p=0.05), {1, 2, 3, 4, 5, 6}),
        (SEVEN, "1111111", Sampling(temperature=1, typical_p=0.7), {0, 1, 2, 3, 4, 5, 6}),
        # of the two that top_k keeps, the better one is nearer to their entropy
        (SEVEN, "1111111", Sampling(temperature=1, top_k=2, typical_p=0.5), {0}),
    ],
)
def test_truncation_keeps_the_best_of_what_is_allowed_S2(
    chances: tuple[float, ...], mask: str, sampling: Sampling, possible: set[int]
) -> None:
    scores, allowed = Scores(np.log(np.array(chances, dtype=np.float32))), np.array([each == "1" for each in mask])
    assert {scores.sample(allowed, dataclasses.replace(sampling, seed=seed), 3) for seed in range(300)} == possible


def test_noise_is_finite_and_differs_by_seed_index_path_and_token_S3() -> None:
    tokens = np.arange(200_000)
    noise = gumbel(Sampling(seed=1), 2, tokens)
    assert noise.dtype == np.float32
    assert np.isfinite(noise).all()
    assert abs(float(noise.mean()) - 0.5772) < 0.01
    one, two, third = Sampling(seed=1), Sampling(seed=2), Sampling(seed=1, index=1)
    for others in (
        (two, 2, tokens),
        (third, 2, tokens),
        (one, 3, tokens),
        (one, 2, tokens + 1),
        (one, 2, tokens + REST),
    ):
        assert abs(np.corrcoef(noise, gumbel(*others))[0, 1]) < 0.02


def test_seeds_of_many_samples_begin_with_the_runs_own_and_are_all_different() -> None:
    assert seeds(7, 1) == (7,)
    assert seeds(7, 1024)[:5] == seeds(7, 5)
    assert len(set(seeds(7, 1024))) == 1024
    assert all(0 <= seed < 2**53 for seed in seeds(7, 1024))
    of_neighbours = {seed for own in range(50) for seed in seeds(own, 50)[1:]}
    assert len(of_neighbours) == 50 * 49, "runs with seeds side by side share no sample"


def test_bits_of_derived_seeds_are_even() -> None:
    bits = np.array([[seed >> bit & 1 for bit in range(53)] for own in range(40) for seed in seeds(own, 101)[1:]])
    # 4,000 throws: 6 standard deviations are 190
    assert (abs(bits.sum(axis=0) - 2000) < 190).all()
    changes = (bits[1:] != bits[:-1]).sum(axis=0)
    assert (abs(changes - 2000) < 190).all()


@given(data=st.data())
@settings(deadline=None, derandomize=True, max_examples=examples(150))
def test_what_is_no_close_call_is_chosen_under_any_noise_below_epsilon_S5(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 60))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    epsilon = data.draw(st.sampled_from([1e-4, 0.05, 1.0]))
    row = rng.normal(0, data.draw(st.sampled_from([0.05, 1.0, 4.0])), size).astype(np.float32)
    mask = rng.random(size) < data.draw(st.sampled_from([0.2, 0.9, 1.1]))
    penalties = NO_PENALTIES
    if data.draw(st.booleans()):
        ids = np.unique(rng.integers(0, size, 5)).astype(np.int32)
        losses = rng.normal(0, 1, ids.size).astype(np.float32)
        penalties = Penalties(ids, np.ones(ids.size, np.float32), losses)
    temperature = data.draw(st.sampled_from([0.0, 0.7, 1.5])) if size <= 32 else 0.0
    sampling, scores = Sampling(temperature=temperature, seed=5), scores_of(*row)
    if temperature and scores.top_k().ids.size < size:
        return  # which tokens are the top k is another question
    chosen = scores.sample(mask, sampling, 9, penalties)
    is_close = scores.is_close(epsilon, mask, sampling, 9, penalties)
    assert is_close <= scores.top_k().is_close(epsilon, mask, sampling, 9, penalties)
    changed = False
    for _ in range(20):
        noise = rng.uniform(-0.49 * epsilon, 0.49 * epsilon, size).astype(np.float32)
        other = scores_of(*(scores.logprobs + noise))
        if not temperature or other.top_k().ids.size == size:
            changed |= other.sample_from_all(mask, sampling, 9, penalties) != chosen
    assert is_close or not changed


def test_two_of_a_kind_are_a_close_call_and_a_sure_token_is_none_S5() -> None:
    greedy, free = Sampling(temperature=0), Sampling(temperature=1, seed=1)
    tie, sure = scores_of(*[0.0] * 40), scores_of(20, *[0.0] * 40)
    for sampling in (greedy, free):
        assert tie.is_close(1e-3, all_of(tie), sampling, 1, NO_PENALTIES) == (sampling is greedy)
        assert not sure.is_close(1e-3, all_of(sure), sampling, 1, NO_PENALTIES)
        assert not sure.top_k().is_close(1e-3, all_of(sure), sampling, 1, NO_PENALTIES)
    only = np.arange(41) == 40
    assert not sure.is_close(1e9, only, greedy, 1, NO_PENALTIES)
    assert not sure.is_close(1e9, only, free, 1, NO_PENALTIES)
