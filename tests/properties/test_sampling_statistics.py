"""A cached draw is as good as an uncached one: the same token under the same seed, and the model's own distribution.

Two tokens are drawn in a row, so the counts show a tree in which one of them is frozen, or in which the mass outside
the top-k entries is lost.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

import lmql_lite as lq
from lmql_lite.cache.tokens.draws import NO_PENALTIES
from lmql_lite.cache.tokens.scores import Miss
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.cache.tokens.trees import ModelTrees
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.record import Record
from lmql_lite.engine.scheduler import Scheduler
from lmql_lite.models.base import ScoreRequest
from lmql_lite.options import Sampling

SAY = 'sample\n    "Say:[A]"\nwhere REGEX(A, r"[ -~]{2}")'
PRINTABLE = range(2 + ord(" "), 2 + ord("~") + 1)
"""Token ids of the printable bytes: the vocabulary is two special tokens and all bytes."""
LETTERS = slice(2 + ord("a"), 2 + ord("i"))
POLICIES = [
    pytest.param(Sampling(temperature=1.0), id="temperature 1"),
    pytest.param(Sampling(temperature=0.7, top_p=0.9), id="temperature 0.7 top_p 0.9"),
]
MODES = ["off", "warm", "heads of a file", "evicted"]
DRAWS = 1500
LITTLE = 3000
"""Bytes of memory, too few for two rows of scores."""

Drawn = tuple[int, ...]


class Leaning(lq.ScriptedModel):
    """Eight letters have most of the mass, all other bytes some: top-k entries decide most draws but not all."""

    def __init__(self) -> None:
        super().__init__("", certainty=0, seed=6, words=())

    def _scores(self, ids: tuple[int, ...]) -> NDArray[np.float32]:
        logits = super()._scores(ids).astype(np.float64) * 0.4
        logits[LETTERS] += 4.5
        logprobs: NDArray[np.float32] = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
        return logprobs

    @property
    def prompt(self) -> tuple[int, ...]:
        return (*self.tokenizer.bos, *self.tokenizer.encode(b"Say:"))


# The distribution, from the scores themselves --------------------------------------------------------------------


def chances(row: NDArray[np.float32], policy: Sampling) -> dict[int, float]:
    """Probability of each token after mask, temperature and top_p (S2)."""
    ids = np.array(PRINTABLE)
    weights = np.exp(row[ids].astype(np.float64) / policy.temperature)
    best_first = np.argsort(-weights, kind="stable")
    ids, weights = ids[best_first], weights[best_first]
    before = np.cumsum(weights) - weights
    survives = before < policy.top_p * weights.sum()
    share = weights[survives] / weights[survives].sum()
    return dict(zip(ids[survives].tolist(), share.tolist(), strict=True))


async def distribution(policy: Sampling) -> dict[Drawn, float]:
    model = Leaning()

    async def after(*ids: int) -> dict[int, float]:
        [[row]] = await model.score([ScoreRequest((*model.prompt, *ids))])
        return chances(row, policy)

    return {
        (first, second): share * then
        for first, share in (await after()).items()
        for second, then in (await after(first)).items()
    }


def assert_drawn_from(wanted: Mapping[Drawn, float], drawn: Sequence[Drawn]) -> None:
    """Tests pairs of tokens, and first tokens alone, where the few draws from outside the top-k entries weigh more."""
    for size in (2, 1):
        shares: dict[Drawn, float] = {}
        for value, share in wanted.items():
            shares[value[:size]] = shares.get(value[:size], 0.0) + share
        assert_fits(shares, Counter(value[:size] for value in drawn))


def assert_fits(wanted: Mapping[Drawn, float], seen: Mapping[Drawn, int]) -> None:
    """Chi-square test with a false-alarm rate of 1 in 1,000. Values expected fewer than 5 times are pooled."""
    assert seen.keys() <= wanted.keys(), "nothing is drawn that cannot be"
    total = sum(seen.values())
    often = [value for value, share in wanted.items() if share * total >= 5]
    counts = [seen.get(value, 0) for value in often]
    expected = [wanted[value] * total for value in often]
    counts.append(total - sum(counts))
    expected.append(total - sum(expected))
    statistic = sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True) if mean > 1e-6)
    freedom = len(often)
    # Wilson and Hilferty: the cube root of chi-square over its mean is nearly normal
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit, f"{statistic:.0f} with {freedom} degrees of freedom"


# Draws, as the runtime makes them --------------------------------------------------------------------------------


@asynccontextmanager
async def tree_of(mode: str, model: Leaning) -> AsyncIterator[TokenTree]:
    """The tree that draws read, in the state `mode`. A file has the answers to twenty other seeds."""
    if mode == "heads of a file":
        for seed in range(10_000, 10_020):
            await lq.run(SAY, model=model, seed=seed, cache="known.tokens", session=lq.Session())
        saved = await ModelTrees.open("known.tokens", max_bytes=1)  # rows are evicted at once; stored entries stay
        await saved.follow()
        yield saved.tree(model.fingerprint)
        await saved.close()
        return
    yield TokenTree(LITTLE) if mode == "evicted" else TokenTree()


async def draws(mode: str, policy: Sampling, model: Leaning) -> list[Drawn]:
    """Two tokens for each of many seeds."""
    mask = np.zeros(len(model.tokenizer.vocabulary), dtype=np.bool_)
    mask[list(PRINTABLE)] = True
    drawn = []
    async with tree_of(mode, model) as tree:
        scheduler = Scheduler(model, tree)
        for seed in range(DRAWS):
            if mode == "off":
                scheduler = Scheduler(model, tree := TokenTree())
            sampling = Sampling(policy.temperature, top_p=policy.top_p, seed=seed)
            node, said = tree.root, []
            for token in model.prompt:
                node = tree.extend(node, token)
            for _ in range(2):
                record = Record(Ledger(seed + 1))
                choice = scheduler.known(node, mask, sampling, record, NO_PENALTIES)
                if isinstance(choice, Miss):
                    entry = await scheduler.asked(node, (), mask, record, None)
                    choice = scheduler.known(node, mask, sampling, record, NO_PENALTIES, entry)
                assert choice is not None and not isinstance(choice, Miss)
                said.append(choice.token)
                node = tree.extend(node, choice.token)
            drawn.append(tuple(said))
    return drawn


@pytest.mark.parametrize("policy", POLICIES)
def test_draws_have_the_models_own_distribution_whatever_is_left_of_the_facts(policy: Sampling) -> None:
    async def all_modes() -> None:
        wanted = await distribution(policy)
        calls, drawn = {}, {}
        for mode in MODES:
            model = Leaning()
            drawn[mode] = await draws(mode, policy, model)
            calls[mode] = model.calls
            assert_drawn_from(wanted, drawn[mode])
            assert drawn[mode] == drawn["off"], mode
        assert calls["off"] == 2 * DRAWS
        assert calls["warm"] == 1 + len({first for first, _ in drawn["off"]}), "each place is asked for once"
        assert calls["heads of a file"] < calls["off"] / 3, "most draws are decided by what the file holds"

    asyncio.run(all_modes())


def test_the_test_sees_a_frozen_token_and_a_lost_rest() -> None:
    """LMQL's cache took the first token from the file. Reading top-k entries alone would lose the rest."""
    policy = Sampling(temperature=1.0)

    async def wrong() -> None:
        wanted, model = await distribution(policy), Leaning()
        right = await draws("warm", policy, model)
        with pytest.raises(AssertionError, match="degrees of freedom"):
            assert_drawn_from(wanted, [(right[0][0], second) for _, second in right])
        [[row]] = await model.score([ScoreRequest(model.prompt)])
        best = set(np.argsort(-row)[:32].tolist())
        with pytest.raises(AssertionError, match="degrees of freedom"):
            assert_drawn_from(wanted, [value for value in right if value[0] in best])

    asyncio.run(wrong())


# The same through whole runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_draws_what_the_uncached_run_with_its_seed_draws_S3(policy: Sampling) -> None:
    query, model = lq.compile(SAY), Leaning()
    mode_of: dict[str, lq.TokenCache | bool] = {
        "off": False,
        "warm": lq.TokenCache(),
        "file": lq.TokenCache("x.tokens"),
        "evicted": lq.TokenCache(max_bytes=LITTLE),
    }
    seeds = range(60)

    async def values(cache: lq.TokenCache | bool, session: lq.Session) -> list[str]:
        temperature, top_p = policy.temperature, policy.top_p
        wishes = {"temperature": temperature, "top_p": top_p}
        results = [
            await query.run(model=model, session=session, cache=cache, seed=seed, **wishes)  # type: ignore[arg-type]
            for seed in seeds
        ]
        assert [result.seed for result in results] == list(seeds)
        return [str(result["A"]) for result in results]

    async def all_modes() -> None:
        session = lq.Session()
        seen = {mode: await values(cache, session) for mode, cache in mode_of.items()}
        asked = model.calls
        seen["file, reopened"] = await values(lq.TokenCache("x.tokens", max_bytes=1), lq.Session())
        assert model.calls == asked, "every draw of a known seed is in the file"
        for mode, drawn in seen.items():
            assert drawn == seen["off"], mode
        below = await draws("warm", policy, Leaning())
        assert seen["off"] == ["".join(chr(token - 2) for token in value) for value in below[: len(seeds)]]
        assert len(set(seen["off"])) > 10, "seeds are fresh draws"

    asyncio.run(all_modes())
