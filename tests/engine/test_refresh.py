"""`cache_mode="refresh"`: all is asked again, and what the model says then takes the place of what was known (S4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import lmql_lite as lq
from lmql_lite.cache.tokens.inspect import read_file
from lmql_lite.models.base import ScoreRequest

SCRIPT = "a\n- Option A.\nthe end?\na\n\n\nb\n\nOption, a, a: ab.Q:abc12a"


class Fickle(lq.ScriptedModel):
    """A model that keeps its fingerprint when it changes its mind; `fails_after` calls it is out of order."""

    fails_after: int | None = None
    pause = 0.0

    def change_its_mind(self, seed: int) -> None:
        self._seed, self.calls = seed, 0

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
        if self.fails_after is not None and self.calls >= self.fails_after:
            raise lq.ModelError("out of order")
        await asyncio.sleep(self.pause)
        return await super().score(requests)


def fickle(seed: int = 0) -> Fickle:
    return Fickle(SCRIPT, seed=seed, certainty=0)


Seen = tuple[Any, ...]
PLENTY = 2**30
"""Bytes that no run here needs."""


async def seen(program: lq.Query, session: lq.Session, model: Fickle, **options: Any) -> Seen:
    """All of a run but where its tokens came from."""
    try:
        result = await program.run(session=session, model=model, max_tokens=12, **options)
    except (lq.ConstraintError, lq.ModelError) as error:
        return ("error", str(error))
    path = [(token.id, token.hole, token.fate, token.logprob) for token in result.tokens]
    return (result.prompt, dict(result.variables), path, dict(result.endings), result.seed)


PROMPTS = st.lists(
    st.sampled_from(
        [
            '"Q:[{H}]" where STOPS_AT({H}, "\\n") and len({H}) < 12',
            '"[{H}]- " where len({H}) > 2 and len({H}) <= 5',
            '"a[{H}]\\n" where {H} in ["Option A", "Option B", "Another"]',
            '"[{H}], " where len({H}) == 2 and sum({H}.encode()) % 3 != 0',
            '"[{H}]" where "12" in {H} and STOPS_AT({H}, ".")',
            '"so [{H}]" distribution {H} in ["a", "the end", "é"]',
        ]
    ),
    min_size=1,
    max_size=3,
)
DECODERS = st.sampled_from(
    [{"decoder": "argmax"}, {"decoder": "sample"}, {"decoder": "sample", "temperature": 0.7, "top_k": 5}]
)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(prompts=PROMPTS, decoder=DECODERS, seed=st.integers(0, 3), bound=st.sampled_from([PLENTY, 1, 4000]))
def test_a_refresh_says_what_no_cache_says_and_all_later_runs_say_it_too(
    prompts: list[str], decoder: dict[str, Any], seed: int, bound: int
) -> None:
    program = lq.compile("\n".join(text.replace("{H}", f"H{number}") for number, text in enumerate(prompts)))
    options = {"seed": seed, **decoder}

    async def go(folder: Path) -> None:
        model, here, elsewhere = fickle(seed), lq.Session(), lq.Session()
        file = lq.TokenCache(folder / "x.tokens", max_bytes=bound)
        caches = [file, True] if bound == PLENTY else [file]
        old = await seen(program, lq.Session(), model, cache=False, **options)
        for cache in caches:
            assert await seen(program, here, model, cache=cache, **options) == old
        assert await seen(program, elsewhere, model, cache=file, **options) == old

        model.change_its_mind(seed + 100)
        new = await seen(program, lq.Session(), model, cache=False, **options)
        for cache in caches:
            model.calls = 0
            assert await seen(program, here, model, cache=cache, **options) == old, "rw keeps what was said"
            assert not model.calls
            assert await seen(program, here, model, cache=cache, cache_mode="refresh", **options) == new
            assert model.calls
            model.calls = 0
            assert await seen(program, here, model, cache=cache, **options) == new, "rw sees what is new"
            assert not model.calls
        for session in (elsewhere, lq.Session()):
            assert await seen(program, session, model, cache=file, **options) == new, "other processes see it"
            assert await seen(program, session, model, cache=file, cache_mode="replay", **options) == new
        assert not model.calls

    with TemporaryDirectory() as folder:
        asyncio.run(go(Path(folder)))


COUNT = '"Say:[A]" where len(A) == 6\n"Then:[B]" where len(B) == 6'


def run(model: Fickle, session: lq.Session | None = None, **options: Any) -> lq.Result:
    return lq.run_sync(COUNT, model=model, session=session or lq.Session(), speculate=False, **options)


@pytest.mark.parametrize("cache", ["x.tokens", True], ids=["file", "memory"])
def test_a_refresh_that_fails_keeps_what_it_learned_so_far(cache: str | bool) -> None:
    model, session = fickle(), lq.Session()
    old = run(model, session, cache=cache)
    model.change_its_mind(1)
    new = run(model, cache=False)
    model.calls, model.fails_after = 0, 3
    with pytest.raises(lq.ModelError, match="out of order"):
        run(model, session, cache=cache, cache_mode="refresh")
    model.fails_after = None
    mixed = run(model, session, cache=cache)
    assert mixed["A"][:3] == new["A"][:3] != old["A"][:3]
    assert [token.source for token in mixed.tokens if token.hole == "A"][:3] == ["cache"] * 3
    if cache != True:  # noqa: E712
        assert run(model, cache=cache).prompt == mixed.prompt


def test_a_refresh_that_is_cancelled_keeps_what_it_learned_so_far() -> None:
    model = fickle()
    run(model, cache="x.tokens")
    model.change_its_mind(1)
    new = run(model, cache=False)

    async def impatient() -> None:
        model.calls, model.pause = 0, 0.01
        refresh = asyncio.create_task(
            lq.run(COUNT, model=model, cache="x.tokens", cache_mode="refresh", session=lq.Session(), speculate=False)
        )
        while model.calls < 3:
            await asyncio.sleep(0.005)
        refresh.cancel()
        with pytest.raises(asyncio.CancelledError):
            await refresh

    asyncio.run(impatient())
    model.pause = 0.0
    assert run(model, cache="x.tokens")["A"][:2] == new["A"][:2]


def test_what_a_refresh_learns_itself_is_not_asked_twice() -> None:
    model = fickle()
    source = 'sample(seed=2)\n"Say:[A]" where len(A) == 3 and sum(A.encode()) % 11 == 0'
    cold = lq.run_sync(source, model=model, session=lq.Session())
    asked, model.calls = model.calls, 0
    refreshed = lq.run_sync(source, model=model, session=lq.Session(), cache_mode="refresh")
    assert refreshed.usage.wasted_tokens, "values were rejected, and the next one began where they did"
    assert (refreshed.prompt, model.calls) == (cold.prompt, asked)


def test_tokens_of_a_refresh_are_the_models_and_later_the_caches_S31(session: lq.Session) -> None:
    model = fickle()
    run(model, session)
    refreshed, later = run(model, session, cache_mode="refresh"), run(model, session)
    assert refreshed.usage.tokens_from_cache == 0 and refreshed.usage.tokens_from_model
    assert later.usage.tokens_from_cache == refreshed.usage.tokens_from_model


def test_only_what_was_asked_again_is_replaced() -> None:
    model = fickle()
    other = lq.run_sync('"Other:[X]" where len(X) == 4', model=model, session=lq.Session(), cache="x.tokens")
    run(model, cache="x.tokens")
    model.change_its_mind(1)
    run(model, cache="x.tokens", cache_mode="refresh")
    again = lq.run_sync('"Other:[X]" where len(X) == 4', model=model, session=lq.Session(), cache="x.tokens")
    assert again.prompt == other.prompt and again.usage.forward_passes == 0


def test_the_later_of_two_refreshes_wins() -> None:
    model, first, second = fickle(), lq.Session(), lq.Session()
    results = []
    for mind, session in ((1, first), (2, second), (3, first)):
        model.change_its_mind(mind)
        results.append(run(model, session, cache="x.tokens", cache_mode="refresh"))
    assert len({result.prompt for result in results}) == 3
    for session in (first, second, lq.Session()):
        assert run(model, session, cache="x.tokens").prompt == results[-1].prompt


def test_what_a_refresh_writes_says_when() -> None:
    model, before = fickle(), int(time.time())
    run(model, cache="x.tokens")
    run(model, cache="x.tokens", cache_mode="refresh")
    times = [written for _, written, _ in read_file("x.tokens").rows]
    assert times and all(written >= before for written in times)


def test_a_refresh_needs_something_to_replace() -> None:
    with pytest.raises(
        lq.InputError, match=r"cache_mode=.refresh. needs a cache file, but cache=False disables the cache"
    ):
        lq.run_sync('"[X]"', cache=False, cache_mode="refresh")
