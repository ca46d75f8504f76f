"""Law 1 on servers of text: equal results if a server's answer is a function of the prompt's bytes (S6)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmql_lite as lq
from tests.properties.test_law_one import SCRIPT, programs, segments
from tests.servers.scored import ScoredCompleter

Seen = tuple[Any, ...]


def server(seed: int, certainty: float, able: dict[str, Any]) -> ScoredCompleter:
    """Server whose tokens are bytes: its answer to a text does not depend on how the text was made."""
    return ScoredCompleter(lq.ScriptedModel(SCRIPT, seed=seed, certainty=certainty, words=()), **able)


async def seen(program: lq.Query, session: lq.Session, model: ScoredCompleter, **options: Any) -> Seen:
    try:
        result = await program.run(session=session, model=model, max_tokens=12, **options)
    except (lq.ConstraintError, lq.ModelError) as error:
        return (type(error).__name__,)
    return (result.prompt, dict(result.variables), dict(result.endings))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    source=st.one_of(programs(), segments()),
    seed=st.integers(0, 3),
    certainty=st.sampled_from([0.0, 3.0, 20.0]),
    able=st.sampled_from([{"alternatives": 5}, {"alternatives": 20, "stops": 4}, {}]),
)
def test_cache_off_on_warm_filed_and_replayed_give_the_same_text(
    source: str, seed: int, certainty: float, able: dict[str, Any]
) -> None:
    program = lq.compile(source)

    async def all_ways(folder: Path) -> None:
        model, session, file = server(seed, certainty, able), lq.Session(), str(folder / "x.tokens")
        off = await seen(program, lq.Session(), model, cache=False)
        ways = {
            "cold": await seen(program, session, model),
            "warm": await seen(program, session, model),
            "without guesses": await seen(program, lq.Session(), model, speculate=False),
            "file new": await seen(program, lq.Session(), model, cache=file),
        }
        asked = model.requests
        ways["file known"] = await seen(program, lq.Session(), model, cache=file)
        if len(off) > 1:
            assert model.requests == asked, "a second process asks for nothing"
            ways["replay"] = await seen(program, lq.Session(), model, cache=file, cache_mode="replay")
        little = lq.TokenCache(folder / "little.tokens", max_bytes=1)
        for way, cache in {"evicted": lq.TokenCache(max_bytes=1), "evicted, with a file": little}.items():
            ways[way] = await seen(program, session, model, cache=cache)
            ways[f"{way}, again"] = await seen(program, session, model, cache=cache)
        if len(off) > 1:
            ways["evicted, replayed"] = await seen(program, session, model, cache=little, cache_mode="replay")
        together = await asyncio.gather(*(seen(program, crowded, model) for crowded in [lq.Session()] * 3))
        ways |= {f"{number} of three at once": run for number, run in enumerate(together)}
        for way, run in ways.items():
            assert run == off, way

    with TemporaryDirectory() as folder:
        asyncio.run(all_ways(Path(folder)))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    sources=st.lists(st.one_of(programs(), segments()), min_size=2, max_size=4),
    seed=st.integers(0, 3),
    able=st.sampled_from([{"alternatives": 5}, {"takes_languages": True}, {}]),
    filed=st.booleans(),
)
def test_runs_at_once_in_a_memory_that_loses_texts_say_what_they_say_alone(
    sources: list[str], seed: int, able: dict[str, Any], filed: bool
) -> None:
    """Nodes and entries that no run pins are evicted a moment after any run has read them."""
    programs = [lq.compile(source) for source in sources]

    async def crowd(folder: Path) -> None:
        model, session = server(seed, 3.0, able), lq.Session()
        alone = [await seen(program, lq.Session(), model) for program in programs]
        cache = lq.TokenCache(folder / "x.tokens" if filed else None, max_bytes=1)
        for _ in range(2):
            together = await asyncio.gather(*(seen(program, session, model, cache=cache) for program in programs * 2))
            assert together == alone * 2

    with TemporaryDirectory() as folder:
        asyncio.run(crowd(Path(folder)))


@pytest.mark.parametrize("temperature", [0.7, 1.5])
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(source=st.one_of(programs(), segments()), seed=st.integers(0, 3))
def test_draws_under_a_seed_repeat_from_a_file(temperature: float, source: str, seed: int) -> None:
    program = lq.compile(source)
    options = {"decoder": "sample", "temperature": temperature, "seed": seed}

    async def processes(folder: Path) -> None:
        model, file = server(seed, 3.0, {"alternatives": 20}), str(folder / "x.tokens")
        first = await seen(program, lq.Session(), model, cache=file, **options)
        asked = model.requests
        assert await seen(program, lq.Session(), model, cache=file, **options) == first
        if len(first) > 1:
            assert model.requests == asked

    with TemporaryDirectory() as folder:
        asyncio.run(processes(Path(folder)))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(source=segments(), seed=st.integers(0, 3))
def test_conditions_hold_on_servers_with_grammars_without_and_with_alternatives(source: str, seed: int) -> None:
    """Runs on a grammar server finish without an error, with and without a cache (law 3)."""
    program = lq.compile(source)

    async def both() -> None:
        held = await seen(program, lq.Session(), server(seed, 3.0, {"takes_languages": True}))
        off = await seen(program, lq.Session(), server(seed, 3.0, {"takes_languages": True}), cache=False)
        assert len(held) > 1, held
        assert len(off) > 1, off

    asyncio.run(both())
