"""Beams over random programs: law 1, and the best beam scores at least as well as one branch (S24)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmql_lite as lq
from tests.properties.test_law_one import SCRIPT, WORDS, programs, segments

PROGRAMS = st.one_of(programs(), segments())
BEAMS = st.sampled_from(
    [
        {"decoder": "beam", "n": 2},
        {"decoder": "beam", "n": 4},
        {"decoder": "beam", "n": 3, "frequency_penalty": 1.0},
        {"decoder": "beam_sample", "n": 3},
        {"decoder": "beam_sample", "n": 2, "temperature": 0.7, "top_k": 6},
    ]
)
MODELS = st.builds(
    lq.ScriptedModel,
    st.just(SCRIPT),
    seed=st.integers(0, 3),
    certainty=st.sampled_from([0.0, 3.0, 6.0]),
    levels=st.sampled_from([None, None, 3]),
    words=st.just(WORDS),
)
RUNS = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

Seen = tuple[Any, ...]


async def results(query: lq.Query, model: lq.ScriptedModel, session: lq.Session, **options: Any) -> list[lq.Result]:
    found = await query.run(model=model, session=session, max_tokens=8, max_backtracks=20, **options)
    return found if isinstance(found, list) else [found]


async def seen(query: lq.Query, model: lq.ScriptedModel, session: lq.Session, **options: Any) -> list[Seen]:
    """All parts of each result that the cache may not change. Sources of tokens may differ."""
    try:
        found = await results(query, model, session, **options)
    except (lq.ConstraintError, lq.ModelError) as error:
        return [("error", str(error))]
    for result in found:
        result.check_ledger()
    return [
        (
            result.prompt,
            dict(result.variables),
            [(token.id, token.hole, token.fate, token.logprob) for token in result.tokens],
            dict(result.endings),
            result.score,
            result.usage.wasted_tokens,
        )
        for result in found
    ]


@RUNS
@given(source=PROGRAMS, model=MODELS, options=BEAMS)
def test_beams_are_the_same_with_every_cache_and_a_second_process_asks_nothing(
    source: str, model: lq.ScriptedModel, options: dict[str, Any]
) -> None:
    query, chosen = lq.compile(source), {"seed": 5, **options}

    async def ways(folder: Path) -> None:
        file, session = str(folder / "x.tokens"), lq.Session()
        off = await seen(query, model, lq.Session(), cache=False, **chosen)
        assert await seen(query, model, session, **chosen) == off
        calls = model.calls
        assert await seen(query, model, session, **chosen) == off
        assert model.calls == calls, "warm"
        assert await seen(query, model, lq.Session(), cache=lq.TokenCache(max_bytes=3000), **chosen) == off
        assert await seen(query, model, lq.Session(), speculate=False, **chosen) == off
        assert await seen(query, model, lq.Session(), cache=file, **chosen) == off, "the file is new"
        calls = model.calls
        assert await seen(query, model, lq.Session(), cache=file, **chosen) == off, "the file is known"
        assert await seen(query, model, lq.Session(), cache=file, cache_mode="replay", **chosen) == off
        assert model.calls == calls, "the file"

    with TemporaryDirectory() as folder:
        asyncio.run(ways(Path(folder)))


@RUNS
@given(source=PROGRAMS, model=MODELS)
def test_one_beam_is_argmax_and_one_drawn_beam_is_sample(source: str, model: lq.ScriptedModel) -> None:
    query = lq.compile(source)

    async def both() -> None:
        for beam, alone in (("beam", "argmax"), ("beam_sample", "sample")):
            session = lq.Session()
            expected = [each[:4] for each in await seen(query, model, session, decoder=alone, seed=3)]
            calls = model.calls
            found = [each[:4] for each in await seen(query, model, session, decoder=beam, n=1, seed=3)]
            assert found[0][0] == expected[0][0] and found == expected
            assert "error" in expected[0] or model.calls <= calls + 8, "only what is forced has to be weighed"

    asyncio.run(both())


@RUNS
@given(source=PROGRAMS, model=MODELS, width=st.integers(2, 5))
def test_the_best_beam_is_never_worse_than_argmax_and_all_are_in_order(
    source: str, model: lq.ScriptedModel, width: int
) -> None:
    query = lq.compile(source)

    async def both() -> None:
        session = lq.Session()
        try:
            (greedy,) = await results(query, model, session, decoder="beam", n=1)
        except lq.ConstraintError:
            return
        found = await results(query, model, session, decoder="beam", n=width)
        scores = [result.score for result in found]
        assert 1 <= len(found) <= width
        assert scores == sorted(scores, reverse=True)
        assert scores[0] >= greedy.score
        drawn = await results(query, model, session, decoder="beam_sample", n=width, seed=9)
        (alone,) = await results(query, model, session, decoder="beam_sample", n=1, seed=9)
        assert drawn[0].score >= alone.score

    asyncio.run(both())
