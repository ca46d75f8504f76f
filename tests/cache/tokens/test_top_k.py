"""Cold entries: what is read from a head equals what the whole row says, or is a miss (S1, S2, S3)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmql_lite.cache.tokens.draws import Mask, gumbel
from lmql_lite.cache.tokens.scores import MISS, TOP_K_REST, TOP_K_TOKENS, Miss, Scores, TopK, question, top_k_of
from lmql_lite.options import Sampling

Row = NDArray[np.float32]


def normalised(logits: NDArray[np.float64]) -> Row:
    """Log-probabilities, as a model's side makes them; minus infinity stays."""
    wide = logits - logits.max()
    return (wide - np.log(np.exp(wide).sum())).astype(np.float32)


def peaked(random: np.random.Generator, size: int, peak: float) -> Row:
    """Like a model's: scores that fall as the logarithm of the rank does, in a random order of ids."""
    return normalised(-peak * np.log(random.permutation(size) + 1.0) + random.gumbel(size=size) * 0.5)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.sampled_from([1, 2, 5, 31, 32, 33, 60, 300, 1056, 1100, 3000]))
    shape = draw(st.sampled_from(["peaked", "flat", "ties", "steps", "all equal", "one certain"]))
    if shape == "peaked":
        row = peaked(random, size, draw(st.floats(0.5, 6)))
    elif shape == "all equal":
        row = normalised(np.zeros(size))
    elif shape == "one certain":
        row = np.full(size, -np.inf, dtype=np.float32)
        row[random.integers(size)] = 0
    else:
        logits = random.normal(size=size) * (0.01 if shape == "flat" else 3)
        row = normalised(logits.round(0 if shape == "ties" else 1) if shape != "flat" else logits)
    if draw(st.booleans()) and size > 1:
        gone = random.random(size) < draw(st.sampled_from([0.1, 0.5, 0.97]))
        gone[row.argmax()] = False
        row = normalised(np.where(gone, -np.inf, row))
    return row


@st.composite
def masks(draw: st.DrawFn, row: Row) -> Mask:
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    mask = np.zeros(row.size, dtype=np.bool_)
    match draw(st.sampled_from(["all", "most", "few", "one", "none", "outside", "one outside", "border"])):
        case "all":
            mask[:] = True
        case "most":
            mask = random.random(row.size) < 0.9
        case "few":
            mask = random.random(row.size) < 10 / row.size
        case "one":
            mask[random.integers(row.size)] = True
        case "outside":
            mask[:] = True
            mask[top_k_of(row).ids] = False
        case "one outside":
            mask[top_k_of(row).ids[1:]] = True
            mask[random.integers(row.size)] = True
        case "border":
            mask = random.random(row.size) < 0.5
            mask[top_k_of(row).ids[:-1]] = False
    return mask


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([1e-32, 1e-9, 0.01, 0.3, 0.7, 1.0, 1.0, 1.3, 2.0, 30.0]),
    top_k=st.sampled_from([None, None, None, 0, 1, 3, 20, 32, 40, 2000]),
    top_p=st.sampled_from([1.0, 1.0, 1.0, 0.0, 0.2, 0.5, 0.9, 0.95, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 0.0, 0.001, 0.05, 0.5, 1.0, 2.0]),
    typical_p=st.sampled_from([1.0, 1.0, 1.0, 1.0, 0.0, 0.3, 0.9, 0.99]),
    seed=st.integers(0, 2**64 - 1),
    index=st.integers(0, 9),
)


@given(row=rows())
@settings(deadline=None, derandomize=True, max_examples=300)
def test_a_head_is_the_beginning_of_the_row_best_first_S1(row: Row) -> None:
    head = top_k_of(row)
    order = np.lexsort([np.arange(row.size), -row])
    assert head.ids.dtype == np.int32
    assert head.logprobs.dtype == np.float32
    assert head.ids.tolist() == order[: head.ids.size].tolist()
    assert head.logprobs.tolist() == row[head.ids].tolist()
    assert head.vocabulary == row.size
    chances = np.exp(row.astype(np.float64))
    held = np.cumsum(chances[head.ids])
    assert head.ids.size == min(TOP_K_TOKENS, row.size) or held[-1] >= 1 - TOP_K_REST
    assert head.ids.size == 1 or held[-2] < 1 - TOP_K_REST
    outside = np.delete(chances, head.ids).sum()
    assert outside <= head.rest <= outside * (1 + 1e-5) + 1e-32
    assert np.float32(head.rest) == head.rest


def test_the_rest_is_nothing_where_the_head_is_everything_and_never_rounded_to_nothing() -> None:
    assert top_k_of(normalised(np.zeros(7))).rest == 0
    sure = np.full(2000, -200, dtype=np.float32)
    sure[9] = 0
    assert 0 < top_k_of(sure).rest < 1e-30


@given(data=st.data(), row=rows(), sampling=samplings, path=st.integers(0, 2**64 - 1))
@settings(deadline=None, derandomize=True, max_examples=2000)
def test_a_head_answers_as_the_whole_row_or_misses_S2_S3(
    data: st.DataObject, row: Row, sampling: Sampling, path: int
) -> None:
    scores, mask = Scores(row), data.draw(masks(row))
    before = row.copy(), mask.copy()
    best, drawn = top_k_of(row).best(mask), top_k_of(row).sample(mask, sampling, path)
    assert best is MISS or best == scores.best(mask)
    assert drawn is MISS or drawn == scores.sample_from_all(mask, sampling, path)
    assert scores.sample(mask, sampling, path) == scores.sample_from_all(mask, sampling, path)
    assert (row.tolist(), mask.tolist()) == (before[0].tolist(), before[1].tolist())
    if mask.sum() <= 1 or row.size == top_k_of(row).ids.size:
        assert MISS not in (best, drawn)


@pytest.mark.parametrize("temperature", [0.4, 0.7, 1.0, 1.3, 3.0])
@pytest.mark.parametrize(
    "policy", [Sampling(), Sampling(top_p=0.9), Sampling(min_p=0.02), Sampling(top_k=40, top_p=0.97)]
)
def test_draws_of_many_seeds_equal_those_of_the_whole_row(temperature: float, policy: Sampling) -> None:
    random = np.random.default_rng(11)
    for number in range(12):
        row = peaked(random, 500, random.uniform(0.8, 3))
        scores, head = Scores(row), top_k_of(row)
        mask = random.random(500) < (1, 0.9, 0.3)[number % 3]
        for seed in range(60):
            sampling = dataclasses.replace(policy, temperature=temperature, seed=seed)
            drawn = head.sample(mask, sampling, number)
            assert drawn is MISS or drawn == scores.sample_from_all(mask, sampling, number)


def test_ties_at_the_border_never_decide_otherwise_than_the_row_S2() -> None:
    row = normalised(np.zeros(100))
    head = top_k_of(row)
    assert head.ids.tolist() == list(range(TOP_K_TOKENS))
    mask = np.ones(100, dtype=np.bool_)
    mask[: TOP_K_TOKENS - 1] = False
    assert head.best(mask) == TOP_K_TOKENS - 1 == Scores(row).best(mask)
    mask[TOP_K_TOKENS - 1] = False
    assert head.best(mask) is MISS
    top = Sampling(temperature=0.7, top_k=TOP_K_TOKENS, seed=4)
    everything = np.ones(100, dtype=np.bool_)
    assert head.sample(everything, top, 1) == Scores(row).sample_from_all(everything, top, 1)


def test_a_miss_is_neither_a_token_nor_nothing() -> None:
    head = TopK(np.array([3], dtype=np.int32), np.array([-0.1], dtype=np.float32), 0.1, 5)
    assert isinstance(head.best(np.array([True, True, False, False, False])), Miss)
    assert head.best(np.zeros(5, dtype=np.bool_)) is None
    assert head.sample(np.zeros(5, dtype=np.bool_), Sampling(temperature=1), 1) is None
    assert head.best(np.array([False, True, False, False, False])) == 1
    assert head.logprob(3) == pytest.approx(-0.1)
    assert head.logprob(0) is None


def test_the_head_of_scores_is_made_once() -> None:
    scores = Scores(normalised(np.arange(50.0)))
    assert scores.top_k() is scores.top_k()


def model_like() -> Iterator[tuple[Row, int]]:
    """Rows of a vocabulary of 1,536, of about 0.5 nats on average: most nearly sure, some open."""
    random = np.random.default_rng(5)
    for path in range(400):
        yield peaked(random, 1536, random.choice([2.0, 3.0, 4.0, 6.0], p=[0.1, 0.2, 0.3, 0.4])), path


# Shares of misses that may not be passed, for argmax and three temperatures.
AT_MOST = {
    "none": (0.0, 0.03, 0.06, 0.2),
    "one banned": (0.0, 0.05, 0.1, 0.25),
    "one in five": (0.35, 0.5, 0.6, 0.8),
}


@pytest.mark.parametrize("kind", AT_MOST)
def test_most_questions_are_decided_by_the_head(kind: str) -> None:
    random = np.random.default_rng(8)
    shares = []
    for temperature in (0, 0.7, 1.0, 1.5):
        missed = []
        for row, path in model_like():
            mask = random.random(row.size) < 0.2 if kind == "one in five" else np.ones(row.size, dtype=np.bool_)
            if kind == "one banned":
                mask[row.argmax()] = random.random() < 0.8
            missed.append(top_k_of(row).sample(mask, Sampling(temperature=temperature, seed=path), path) is MISS)
        shares.append(sum(missed) / len(missed))
    assert all(share <= limit for share, limit in zip(shares, AT_MOST[kind], strict=True)), shares


@pytest.mark.parametrize(
    "policy",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.6),
        Sampling(temperature=1.5),
        Sampling(temperature=1.0, top_p=0.8),
        Sampling(temperature=1.2, top_k=36),
        Sampling(temperature=1.0, min_p=0.05),
    ],
)
def test_cold_draws_follow_the_distribution_where_misses_are_asked_again(policy: Sampling) -> None:
    row = normalised(np.linspace(2.5, 0, 60))
    scores, head = Scores(row), top_k_of(row)
    mask = np.ones(60, dtype=np.bool_)
    mask[::7] = False
    draws, misses, seen = 10_000, 0, Counter[int | None]()
    for seed in range(draws):
        sampling = dataclasses.replace(policy, seed=seed)
        token = head.sample(mask, sampling, 23)
        if token is MISS:
            misses += 1
            token = scores.sample_from_all(mask, sampling, 23)
        seen[token] += 1
    wanted = np.where(mask, np.exp(row.astype(np.float64) / policy.temperature), 0)
    order = np.argsort(-wanted, kind="stable")
    if policy.top_k is not None:
        wanted[order[policy.top_k :]] = 0
    wanted /= wanted.sum()
    before = np.cumsum(wanted[order]) - wanted[order]
    wanted[order[(before >= policy.top_p) | (wanted[order] < policy.min_p * wanted.max())]] = 0
    wanted /= wanted.sum()
    counts = np.array([seen[token] for token in range(60)])
    assert 0 < misses < draws or policy.min_p
    assert counts[wanted == 0].sum() == 0
    possible = wanted > 0
    # chi-square with at most 50 degrees of freedom: 112 is passed by chance once in a million
    assert ((counts - wanted * draws)[possible] ** 2 / (wanted * draws)[possible]).sum() < 112


@given(seed=st.integers(0, 2**64 - 1), path=st.integers(0, 2**64 - 1))
@settings(deadline=None, derandomize=True, max_examples=30)
def test_the_noise_of_a_token_does_not_depend_on_its_company_S3(seed: int, path: int) -> None:
    tokens = np.random.default_rng(seed % 2**32).integers(0, 2**40, 67)
    sampling = Sampling(seed=seed)
    together = gumbel(sampling, path, tokens)
    for start in range(0, 67, 5):
        assert gumbel(sampling, path, tokens[start:]).tolist() == together[start:].tolist()
    assert [gumbel(sampling, path, tokens[[place]])[0] for place in range(67)] == together.tolist()


def test_a_question_is_its_mask_and_its_policy_without_seed_and_index_S1() -> None:
    mask = np.arange(1000) % 3 == 0
    other = mask.copy()
    other[999] = not other[999]
    policy = Sampling(temperature=0.8, top_k=5, top_p=0.9, min_p=0.1)
    asked = [
        question(mask, None),
        question(other, None),
        question(mask[:-1], None),
        question(np.append(mask, False), None),
        question(mask, policy),
        *(question(mask, dataclasses.replace(policy, **{name: 2})) for name in ("temperature", "top_k", "min_p")),
        question(mask, dataclasses.replace(policy, top_p=0.5)),
        question(mask, dataclasses.replace(policy, top_k=None)),
    ]
    assert len(set(asked)) == len(asked)
    assert {len(digest) for digest in asked} == {16}
    assert question(mask, dataclasses.replace(policy, seed=9, index=4)) == question(mask, policy)
    assert question(mask, Sampling(temperature=0, seed=3)) == question(mask, None)
    assert question(mask.copy(), Sampling(1.0, top_p=1.0)) == question(mask, Sampling(1.0, top_p=3, min_p=-1))
