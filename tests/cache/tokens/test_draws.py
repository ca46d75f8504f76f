"""Penalties: a head reads as the whole row does, or misses; a question is what they do to allowed tokens (S1-S3)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmql_lite.cache.tokens.draws import NO_PENALTIES, Mask, Penalties
from lmql_lite.cache.tokens.scores import MISS, Scores, question, top_k_of
from lmql_lite.options import Sampling
from tests.cache.tokens.test_top_k import Row, masks, normalised, peaked, rows, samplings

STRENGTHS = st.builds(
    Sampling,
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.2, 2.0, 100.0, 0.7, 0.01]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4, 2.0, -0.5, -2.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.3, 2.0, -0.3, -2.0]),
)


@st.composite
def penalties(draw: st.DrawFn, row: Row) -> Penalties:
    """Of tokens that were said: some of the best, some of all, the last one of the head among them."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    ids = np.flatnonzero(random.random(row.size) < draw(st.sampled_from([0.0, 0.01, 0.3, 1.0])))
    if draw(st.booleans()):
        ids = np.union1d(ids, top_k_of(row).ids[: draw(st.integers(1, 32))])
    ids = random.permutation(ids).astype(np.int32)
    said = random.integers(0, 4, ids.size).astype(np.int32)
    return Penalties.of(draw(STRENGTHS), ids, said + random.integers(0, 2, ids.size).astype(np.int32), said)


def by_hand(row: Row, mask: Mask, said: Penalties) -> int | None:
    """Token by token, as the definition reads."""
    changes = {
        int(token): (factor, loss) for token, factor, loss in zip(said.ids, said.factors, said.losses, strict=True)
    }
    best: tuple[np.float32, int] | None = None
    for token in np.flatnonzero(mask).tolist():
        factor, loss = changes.get(token, (np.float32(1), np.float32(0)))
        score = row[token] * factor - loss
        if best is None or score > best[0]:
            best = (score, token)
    return best[1] if best else None


@given(data=st.data(), row=rows(), sampling=samplings, path=st.integers(0, 2**64 - 1))
@settings(deadline=None, derandomize=True, max_examples=1000, suppress_health_check=list(HealthCheck))
def test_a_head_with_penalties_answers_as_the_whole_row_or_misses_S2_S3(
    data: st.DataObject, row: Row, sampling: Sampling, path: int
) -> None:
    scores, mask, said = Scores(row), data.draw(masks(row)), data.draw(penalties(row))
    before = row.tobytes()
    best, drawn = top_k_of(row).best(mask, said), top_k_of(row).sample(mask, sampling, path, said)
    assert scores.best(mask, said) == by_hand(row, mask, said)
    assert best is MISS or best == scores.best(mask, said)
    assert drawn is MISS or drawn == scores.sample_from_all(mask, sampling, path, said)
    assert scores.sample(mask, sampling, path, said) == scores.sample_from_all(mask, sampling, path, said)
    assert row.tobytes() == before, "facts stay as they are"
    if mask.sum() <= 1 or row.size == top_k_of(row).ids.size:
        assert MISS not in (best, drawn)


@pytest.mark.parametrize("temperature", [0.4, 0.7, 1.0, 1.3])
@pytest.mark.parametrize(
    "policy",
    [Sampling(), Sampling(top_p=0.9), Sampling(min_p=0.02), Sampling(top_k=40, top_p=0.97)],
    ids=["plain", "top_p", "min_p", "top_k"],
)
def test_draws_of_many_seeds_equal_those_of_the_whole_row(temperature: float, policy: Sampling) -> None:
    random = np.random.default_rng(12)
    for number in range(12):
        row = peaked(random, 500, random.uniform(0.8, 3))
        scores, head = Scores(row), top_k_of(row)
        mask = random.random(500) < (1, 0.9, 0.3)[number % 3]
        ids = np.union1d(head.ids[random.random(head.ids.size) < 0.5], random.integers(0, 500, 40)).astype(np.int32)
        counts = random.integers(0, 3, ids.size).astype(np.int32)
        strengths = Sampling(
            repetition_penalty=(1, 1.3, 0.8)[number % 3],
            frequency_penalty=(0.5, 0, -0.3)[number // 4],
            presence_penalty=0.2,
        )
        said = Penalties.of(strengths, ids, counts, counts)
        for seed in range(60):
            sampling = dataclasses.replace(policy, temperature=temperature, seed=seed)
            drawn = head.sample(mask, sampling, number, said)
            assert drawn is MISS or drawn == scores.sample_from_all(mask, sampling, number, said)


def test_penalised_draws_have_the_distribution_of_the_penalised_scores() -> None:
    row = normalised(np.linspace(2.5, 0, 60))
    ids, counts = np.arange(0, 60, 3, dtype=np.int32), np.arange(20, dtype=np.int32) % 3
    said = Penalties.of(Sampling(repetition_penalty=1.2, frequency_penalty=0.5), ids, counts + 1, counts)
    mask = np.arange(60) % 7 > 0
    draws = 10_000
    counted: NDArray[np.int64] = np.zeros(60, np.int64)
    for seed in range(draws):
        token = Scores(row).sample(mask, Sampling(temperature=0.9, seed=seed), 23, said)
        assert token is not None
        counted[token] += 1
    wanted = np.where(mask, np.exp(said.row(row).astype(np.float64) / 0.9), 0)
    wanted *= draws / wanted.sum()
    assert counted[~mask].sum() == 0
    # chi-square with 50 degrees of freedom: 112 is passed by chance once in a million
    assert ((counted - wanted)[mask] ** 2 / wanted[mask]).sum() < 112


def test_a_token_that_is_nearly_sure_loses_to_another_one_of_the_head_without_a_miss() -> None:
    logits = np.full(1000, -9.0)
    logits[3], logits[5] = 5, 3
    row = normalised(logits)
    said = Penalties.of(Sampling(presence_penalty=2), *(np.array([each], np.int32) for each in (3, 1, 1)))
    everything = np.ones(1000, np.bool_)
    assert top_k_of(row).best(everything, said) == 3 == Scores(row).best(everything, said)
    twice = Penalties.of(
        Sampling(presence_penalty=2, frequency_penalty=1), *(np.array([each], np.int32) for each in (3, 1, 1))
    )
    assert top_k_of(row).best(everything, twice) == 5 == Scores(row).best(everything, twice)


def said_once(sampling: Sampling, *ids: int) -> Penalties:
    column = np.array(ids, np.int32)
    return Penalties.of(sampling, column, np.ones_like(column), np.ones_like(column))


def test_a_token_that_falls_to_the_border_may_come_after_one_outside_the_head_S2() -> None:
    row = np.full(100, -5, np.float32)
    row[90] = -4
    said, mask = said_once(Sampling(presence_penalty=1), 90), np.zeros(100, np.bool_)
    mask[[40, 90]] = True
    assert Scores(row).best(mask, said) == 40
    assert top_k_of(row).best(mask, said) is MISS
    best = Sampling(temperature=1, top_k=1)
    assert Scores(row).sample_from_all(mask, best, 1, said) == 40
    assert top_k_of(row).sample(mask, best, 1, said) is MISS


def test_a_token_that_falls_below_all_that_is_left_of_a_sure_head_S2() -> None:
    row = np.log(np.array([0.9995, 0.0005], np.float32))
    everything = np.ones(2, np.bool_)
    said = Penalties(np.array([0], np.int32), np.ones(1, np.float32), np.array([0.1 - row[1]], np.float32))
    assert top_k_of(row).ids.tolist() == [0]
    assert Scores(row).best(everything, said) == 1
    assert top_k_of(row).best(everything, said) is MISS


@pytest.mark.parametrize(
    "policy",
    [Sampling(1.0), Sampling(1.0, top_k=1), Sampling(1.0, top_k=0), Sampling(1.0, top_p=0.5)],
    ids=["plain", "top_k", "top_k that keeps one in any case", "top_p"],
)
def test_tokens_outside_the_head_that_penalties_raise_are_not_overlooked(policy: Sampling) -> None:
    row = peaked(np.random.default_rng(4), 500, 2.0)
    outside = np.argsort(-row)[60:90]
    said = said_once(Sampling(presence_penalty=-2, frequency_penalty=-2), *outside.tolist())
    everything, missed = np.ones(500, np.bool_), 0
    for seed in range(300):
        sampling = dataclasses.replace(policy, seed=seed)
        drawn = top_k_of(row).sample(everything, sampling, 1, said)
        missed += drawn is MISS
        assert drawn is MISS or drawn == Scores(row).sample_from_all(everything, sampling, 1, said)
    raised = Penalties(outside[:1].astype(np.int32), np.ones(1, np.float32), np.array([-30], np.float32))
    assert Scores(row).best(everything, raised) == outside[0]
    assert top_k_of(row).best(everything, raised) is MISS
    for seed in range(50):
        sampling = dataclasses.replace(policy, seed=seed)
        assert Scores(row).sample_from_all(everything, sampling, 1, raised) == outside[0]
        assert top_k_of(row).sample(everything, sampling, 1, raised) is MISS
    assert missed or policy.top_k is not None, "what is raised so far may be drawn, and still is not the best"


def test_most_penalised_questions_are_decided_by_the_head() -> None:
    """Heads of one sure token and little rest would miss each time if only their last token were known as a border."""
    random = np.random.default_rng(5)
    missed = []
    for _ in range(300):
        row = peaked(random, 1536, random.choice([2.0, 3.0, 4.0, 6.0]))
        ids = np.union1d(row.argmax(), random.integers(0, 1536, 60)).astype(np.int32)
        ones = np.ones(ids.size, np.int32)
        said = Penalties.of(Sampling(frequency_penalty=0.5, presence_penalty=0.5), ids, ones, ones)
        missed.append(top_k_of(row).best(np.ones(1536, np.bool_), said) is MISS)
    assert sum(missed) / len(missed) < 0.05


def test_no_penalty_leaves_nothing_behind() -> None:
    ids = np.array([4, 2], np.int32)
    assert not Penalties.of(Sampling(), ids, ids, ids)
    assert not Penalties.of(Sampling(frequency_penalty=1), ids, ids, np.zeros(2, np.int32))
    assert NO_PENALTIES.row(row := normalised(np.arange(5.0))) is row


def test_a_question_holds_what_penalties_do_to_allowed_tokens_and_nothing_else_S1() -> None:
    mask = np.arange(40) % 2 == 0

    def of(sampling: Sampling, **counts: int) -> Penalties:
        ids = np.array([int(name[1:]) for name in counts], np.int32)
        said = np.array(list(counts.values()), np.int32)
        return Penalties.of(sampling, ids, said, said)

    once, drawing = Sampling(frequency_penalty=1), Sampling(temperature=0.8)
    asked = [
        question(mask, None),
        question(mask, drawing),
        *(
            question(mask, sampling, said)
            for sampling in (None, drawing)
            for said in (of(once, t2=1), of(once, t2=2), of(once, t4=1), of(once, t2=1, t4=1), of(once, t2=1, t4=2))
        ),
        question(mask, None, of(Sampling(repetition_penalty=1.5), t2=1)),
    ]
    assert len(set(asked)) == len(asked)
    assert question(mask, None, of(once, t2=1, t4=1)) == question(mask, None, of(once, t4=1, t2=1))
    assert question(mask, None, of(once, t2=1, t3=1)) == question(mask, None, of(once, t2=1)), "3 is not allowed"
    assert question(mask, drawing, of(once, t3=5)) == question(mask, drawing)
    assert question(mask, None, of(Sampling(presence_penalty=1), t2=3)) == question(mask, None, of(once, t2=1))
