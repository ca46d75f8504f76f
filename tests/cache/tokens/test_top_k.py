"""Cold entries: what is read from a head, with and without penalties, equals what the whole row says, or is a miss
(S1, S2, S3)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmql_lite.cache.tokens.draws import NO_PENALTIES, Mask, Penalties, gumbel
from lmql_lite.cache.tokens.scores import MISS, TOP_K_REST, TOP_K_TOKENS, Scores, TopK, question, top_k_of
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


STRENGTHS = st.builds(
    Sampling,
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.2, 2.0, 100.0, 0.7, 0.01]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4, 2.0, -0.5, -2.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.3, 2.0, -0.3, -2.0]),
)


@st.composite
def penalties(draw: st.DrawFn, row: Row) -> Penalties:
    """None, or those of tokens that were said: some of the best, some of all, the last one of the head among them."""
    if draw(st.booleans()):
        return NO_PENALTIES
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    ids = np.flatnonzero(random.random(row.size) < draw(st.sampled_from([0.0, 0.01, 0.3, 1.0])))
    if draw(st.booleans()):
        ids = np.union1d(ids, top_k_of(row).ids[: draw(st.integers(1, 32))])
    ids = random.permutation(ids).astype(np.int32)
    said = random.integers(0, 4, ids.size).astype(np.int32)
    return Penalties.of(draw(STRENGTHS), ids, said + random.integers(0, 2, ids.size).astype(np.int32), said)


def said_once(sampling: Sampling, *ids: int) -> Penalties:
    column = np.array(ids, np.int32)
    return Penalties.of(sampling, column, np.ones_like(column), np.ones_like(column))


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
@settings(deadline=None, derandomize=True, max_examples=3000, suppress_health_check=list(HealthCheck))
def test_a_head_answers_as_the_whole_row_or_misses_S2_S3(
    data: st.DataObject, row: Row, sampling: Sampling, path: int
) -> None:
    scores, head, mask, said = Scores(row), top_k_of(row), data.draw(masks(row)), data.draw(penalties(row))
    before = row.tobytes(), mask.tobytes()
    best, drawn = head.best(mask, said), head.sample(mask, sampling, path, said)
    assert row.size > 400 or scores.best(mask, said) == by_hand(row, mask, said)
    assert best is MISS or best == scores.best(mask, said)
    assert drawn is MISS or drawn == scores.sample_from_all(mask, sampling, path, said)
    assert scores.sample(mask, sampling, path, said) == scores.sample_from_all(mask, sampling, path, said)
    assert (row.tobytes(), mask.tobytes()) == before, "facts stay as they are"
    if mask.sum() <= 1 or row.size == head.ids.size:
        assert MISS not in (best, drawn)


TWO_PENALTIES = Penalties.of(
    Sampling(repetition_penalty=1.2, frequency_penalty=0.5),
    np.arange(0, 60, 3, dtype=np.int32),
    np.arange(20, dtype=np.int32) % 3 + 1,
    np.arange(20, dtype=np.int32) % 3,
)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Sampling(temperature=1.0), NO_PENALTIES),
        (Sampling(temperature=0.6), NO_PENALTIES),
        (Sampling(temperature=1.5), NO_PENALTIES),
        (Sampling(temperature=1.0, top_p=0.8), NO_PENALTIES),
        (Sampling(temperature=1.2, top_k=36), NO_PENALTIES),
        (Sampling(temperature=1.0, min_p=0.05), NO_PENALTIES),
        (Sampling(temperature=0.9), TWO_PENALTIES),
    ],
)
def test_cold_draws_follow_the_distribution_where_misses_are_asked_again(policy: Sampling, said: Penalties) -> None:
    row = normalised(np.linspace(2.5, 0, 60))
    scores, head, mask = Scores(row), top_k_of(row), np.arange(60) % 7 > 0
    draws, misses, seen = 10_000, 0, Counter[int | None]()
    for seed in range(draws):
        sampling = dataclasses.replace(policy, seed=seed)
        token = head.sample(mask, sampling, 23, said)
        if token is MISS:
            misses += 1
            token = scores.sample_from_all(mask, sampling, 23, said)
        seen[token] += 1
    wanted = np.where(mask, np.exp(said.row(row).astype(np.float64) / policy.temperature), 0)
    order = np.argsort(-wanted, kind="stable")
    wanted[order[policy.top_k or 60 :]] = 0
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


@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        ("all", (0.0, 0.03, 0.06, 0.2)),
        ("one banned", (0.0, 0.05, 0.1, 0.25)),
        ("one in five", (0.35, 0.5, 0.6, 0.8)),
        ("penalised", (0.05, 0.1, 0.2, 0.5)),
    ],
)
def test_most_questions_are_decided_by_the_head(kind: str, limits: tuple[float, ...]) -> None:
    """The share of misses, for argmax and three temperatures, with rows as a model has: most are nearly sure."""
    random = np.random.default_rng(5)
    missed = np.zeros(4)
    for path in range(400):
        row, said = peaked(random, 1536, random.choice([2.0, 3.0, 4.0, 6.0], p=[0.1, 0.2, 0.3, 0.4])), NO_PENALTIES
        mask = random.random(row.size) < 0.2 if kind == "one in five" else np.ones(row.size, dtype=np.bool_)
        if kind == "one banned":
            mask[row.argmax()] = random.random() < 0.8
        elif kind == "penalised":
            strengths = Sampling(frequency_penalty=0.5, presence_penalty=0.5)
            said = said_once(strengths, *np.union1d(row.argmax(), random.integers(0, 1536, 60)))
        for place, temperature in enumerate((0, 0.7, 1.0, 1.5)):
            sampling = Sampling(temperature=temperature, seed=path)
            missed[place] += top_k_of(row).sample(mask, sampling, path, said) is MISS
    assert (missed / 400 <= limits).all(), missed / 400


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


def test_a_miss_is_neither_a_token_nor_nothing() -> None:
    head = TopK(np.array([3], dtype=np.int32), np.array([-0.1], dtype=np.float32), 0.1, 5)
    asked = np.array(["11000", "00000", "01000"], dtype="U5")
    found = [head.best(np.array([each == "1" for each in mask])) for mask in asked.tolist()]
    assert found == [MISS, None, 1]
    assert head.sample(np.zeros(5, dtype=np.bool_), Sampling(temperature=1), 1) is None
    assert (head.logprob(3), head.logprob(0)) == (pytest.approx(-0.1), None)


@given(seed=st.integers(0, 2**64 - 1), path=st.integers(0, 2**64 - 1))
@settings(deadline=None, derandomize=True, max_examples=30)
def test_the_noise_of_a_token_does_not_depend_on_its_company_S3(seed: int, path: int) -> None:
    tokens = np.random.default_rng(seed % 2**32).integers(0, 2**40, 67)
    sampling = Sampling(seed=seed)
    together = gumbel(sampling, path, tokens)
    for start in range(0, 67, 5):
        assert gumbel(sampling, path, tokens[start:]).tolist() == together[start:].tolist()
    assert [gumbel(sampling, path, tokens[[place]])[0] for place in range(67)] == together.tolist()


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


def test_no_penalty_leaves_nothing_behind() -> None:
    ids = np.array([4, 2], np.int32)
    assert not Penalties.of(Sampling(), ids, ids, ids)
    assert not Penalties.of(Sampling(frequency_penalty=1), ids, ids, np.zeros(2, np.int32))
    assert NO_PENALTIES.row(row := normalised(np.arange(5.0))) is row


@pytest.mark.parametrize(
    "policy",
    [Sampling(1.0), Sampling(1.0, top_k=1), Sampling(1.0, top_k=0), Sampling(1.0, top_p=0.5)],
    ids=["plain", "top_k", "top_k that keeps one in any case", "top_p"],
)
def test_tokens_outside_the_head_that_penalties_raise_are_not_overlooked(policy: Sampling) -> None:
    row = peaked(np.random.default_rng(4), 500, 2.0)
    outside, everything = np.argsort(-row)[60:90].astype(np.int32), np.ones(500, np.bool_)
    raised = Penalties(outside[:1], np.ones(1, np.float32), np.array([-30], np.float32))
    assert Scores(row).best(everything, raised) == outside[0]
    assert top_k_of(row).best(everything, raised) is MISS
    said, missed = said_once(Sampling(presence_penalty=-2, frequency_penalty=-2), *outside), 0
    for seed in range(300):
        sampling = dataclasses.replace(policy, seed=seed)
        assert Scores(row).sample_from_all(everything, sampling, 1, raised) == outside[0]
        assert top_k_of(row).sample(everything, sampling, 1, raised) is MISS
        drawn = top_k_of(row).sample(everything, sampling, 1, said)
        missed += drawn is MISS
        assert drawn is MISS or drawn == Scores(row).sample_from_all(everything, sampling, 1, said)
    assert missed or policy.top_k is not None, "what is raised so far may be drawn, and still is not the best"


def test_a_question_is_what_is_allowed_with_its_penalties_and_its_policy_without_seed_and_index_S1() -> None:
    mask = np.arange(40) % 2 == 0
    other = mask.copy()
    other[39] = not other[39]
    policy, once = Sampling(temperature=0.8, top_k=5, top_p=0.9, min_p=0.1), Sampling(frequency_penalty=1)
    changes: list[dict[str, Any]] = [{name: 2} for name in ("temperature", "top_k", "min_p")]
    changes += [{}, {"top_k": None}, {"top_p": 0.5}]

    def of(sampling: Sampling, **counts: int) -> Penalties:
        ids = np.array([int(name[1:]) for name in counts], np.int32)
        said = np.array(list(counts.values()), np.int32)
        return Penalties.of(sampling, ids, said, said)

    said = [of(once, t2=1), of(once, t2=2), of(once, t4=1), of(once, t2=1, t4=1), of(once, t2=1, t4=2)]
    asked = [
        *(question(allowed, None) for allowed in (mask, other, mask[:-1], np.append(mask, False))),
        *(question(mask, dataclasses.replace(policy, **change)) for change in changes),
        *(question(mask, sampling, penalised) for sampling in (None, policy) for penalised in said),
        question(mask, None, of(Sampling(repetition_penalty=1.5), t2=1)),
    ]
    assert len(set(asked)) == len(asked) and {len(digest) for digest in asked} == {16}
    assert question(mask, dataclasses.replace(policy, seed=9, index=4)) == question(mask, policy)
    assert question(mask, Sampling(temperature=0, seed=3)) == question(mask, None)
    assert question(mask.copy(), Sampling(1.0, top_p=1.0)) == question(mask, Sampling(1.0, top_p=3, min_p=-1))
    assert question(mask, None, of(once, t4=1, t2=1)) == question(mask, None, said[3])
    assert question(mask, None, of(once, t2=1, t3=1)) == question(mask, None, said[0]), "3 is not allowed"
    assert question(mask, policy, of(once, t3=5)) == question(mask, policy)
    assert question(mask, None, of(Sampling(presence_penalty=1), t2=3)) == question(mask, None, said[0])
