"""Reading of scores: ties, masks, truncation, and draws that repeat and have the right distribution (S2, S3)."""

from __future__ import annotations

import dataclasses
from collections import Counter

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


def test_ties_go_to_the_lowest_id_S2() -> None:
    scores = scores_of(0, 3, 1, 3, 3)
    mask = all_of(scores)
    assert scores.best(mask) == 1
    mask[1] = False
    assert scores.best(mask) == 3


def test_nothing_allowed_is_none_not_a_token() -> None:
    scores = scores_of(1, 2)
    nothing = np.zeros(2, dtype=np.bool_)
    assert scores.best(nothing) is None
    assert scores.sample(nothing, Sampling(temperature=1), 0) is None


def test_an_allowed_token_without_any_probability_can_still_be_chosen() -> None:
    scores = Scores(np.array([0, -np.inf, -np.inf], dtype=np.float32))
    mask = np.array([False, False, True])
    assert scores.best(mask) == 2
    assert scores.sample(mask, Sampling(temperature=1, seed=1), 5) == 2


def test_temperature_zero_is_argmax() -> None:
    scores = scores_of(0, 1, 2)
    assert scores.sample(all_of(scores), Sampling(temperature=0, seed=3), 9) == 2


@given(seed=st.integers(0, 2**64 - 1), path=st.integers(0, 2**64 - 1), index=st.integers(0, 5))
@settings(deadline=None, derandomize=True)
def test_a_draw_repeats(seed: int, path: int, index: int) -> None:
    scores = scores_of(*np.linspace(0, 3, 50))
    sampling = Sampling(temperature=1.3, seed=seed, index=index)
    assert scores.sample(all_of(scores), sampling, path) == scores.sample(all_of(scores), sampling, path)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_renormalised_distribution_head_and_rest_alike(temperature: float) -> None:
    # 60 tokens: the head has 32, so that the bucket and the second stage are drawn too
    scores = scores_of(*np.linspace(2, 0, 60))
    mask = all_of(scores)
    mask[::7] = False
    draws = 20_000
    seen = Counter(scores.sample(mask, Sampling(temperature=temperature, seed=seed), 17) for seed in range(draws))
    heat = scores.logprobs.astype(np.float64) / temperature
    wanted = np.where(mask, np.exp(heat), 0)
    wanted /= wanted.sum()
    counts = np.array([seen[token] for token in range(60)])
    assert counts[~mask].sum() == 0
    # chi-square with 50 degrees of freedom: 112 is passed by chance once in a million
    expected = wanted[mask] * draws
    assert ((counts[mask] - expected) ** 2 / expected).sum() < 112


def test_noise_is_finite_and_differs_by_seed_index_path_and_token_S3() -> None:
    tokens = np.arange(200_000)
    noise = gumbel(Sampling(seed=1), 2, tokens)
    assert noise.dtype == np.float32
    assert np.isfinite(noise).all()
    assert abs(float(noise.mean()) - 0.5772) < 0.01
    others = [
        gumbel(Sampling(seed=2), 2, tokens),
        gumbel(Sampling(seed=1, index=1), 2, tokens),
        gumbel(Sampling(seed=1), 3, tokens),
        gumbel(Sampling(seed=1), 2, tokens + 1),
        gumbel(Sampling(seed=1), 2, tokens + REST),
    ]
    for other in others:
        assert abs(np.corrcoef(noise, other)[0, 1]) < 0.02


@pytest.mark.parametrize(
    ("sampling", "possible"),
    [
        (Sampling(temperature=1, top_k=2), {3, 1}),
        (Sampling(temperature=1, top_k=1), {3}),
        (Sampling(temperature=1, top_p=0.5), {3}),
        (Sampling(temperature=1, top_p=0.7), {3, 1}),
        (Sampling(temperature=1, min_p=0.2), {3, 1}),
        (Sampling(temperature=1, top_p=0.0), {3}),
    ],
)
def test_truncation_keeps_the_best(sampling: Sampling, possible: set[int]) -> None:
    scores = Scores(np.log(np.array([0.05, 0.2, 0.1, 0.65], dtype=np.float32)))
    mask = all_of(scores)
    seen = {
        scores.sample(mask, Sampling(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, seed), 3)
        for seed in range(300)
    }
    assert seen == possible


@pytest.mark.parametrize(
    ("sampling", "possible"),
    [
        # the entropy is 1.75 nats; the best token surprises by 0.92, the six others by 2.30 each and are nearer
        (Sampling(temperature=1, typical_p=0.5), {1, 2, 3, 4, 5, 6}),
        (Sampling(temperature=1, typical_p=0.05), {1, 2, 3, 4, 5, 6}),
        (Sampling(temperature=1, typical_p=0.7), {0, 1, 2, 3, 4, 5, 6}),
        # of the two that top_k keeps, the better one is nearer to their entropy
        (Sampling(temperature=1, top_k=2, typical_p=0.5), {0}),
    ],
)
def test_typical_p_keeps_tokens_whose_surprise_is_near_the_entropy(sampling: Sampling, possible: set[int]) -> None:
    scores = Scores(np.log(np.array([0.4, *[0.1] * 6], dtype=np.float32)))
    mask = all_of(scores)
    assert {scores.sample(mask, dataclasses.replace(sampling, seed=seed), 3) for seed in range(300)} == possible


def test_truncation_looks_at_what_the_mask_allows_S2() -> None:
    scores = scores_of(5, 4, 3, 2)
    mask = np.array([False, False, True, True])
    assert scores.sample(mask, Sampling(temperature=1, top_k=1, seed=4), 1) == 2


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
