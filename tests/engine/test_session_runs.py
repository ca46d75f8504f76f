"""A session runs queries itself: the same as naming it at the query, and its trees and models are its own."""

from __future__ import annotations

import asyncio

import lmql_lite as lq

MODEL = lq.ScriptedModel("Say Rome: hi.")
QUERY = lq.compile('"Say {place}:[X]" where STOPS_AT(X, ".")')


@lq.query
def said(place: str) -> str:
    """lq
    "Say {place}:[X]" where STOPS_AT(X, ".")
    return X
    """
    raise NotImplementedError


def test_a_session_runs_a_compiled_query_and_a_function_on_one_tree() -> None:
    async def work() -> None:
        async with lq.Session(MODEL) as session:
            first = await session.run(QUERY, {"place": "Rome"}, seed=7)
            second = await session.run(said, "Rome")
            assert (first["X"], first.seed, second.value) == (" hi.", 7, " hi.")
            assert first.usage.forward_passes and second.usage.forward_passes == 0

    asyncio.run(work())


def test_a_session_maps_rows() -> None:
    async def work() -> None:
        async with lq.Session(MODEL) as session:
            found = await session.map(QUERY, [{"place": "Rome"}, {"place": "Rome"}], concurrency=1)
            assert [each["X"] for each in found] == [" hi.", " hi."]
            assert found[1].usage.forward_passes == 0
            assert [each.value for each in await session.map(said, ["Rome"])] == [" hi."]

    asyncio.run(work())


def test_a_session_that_is_closed_asks_again() -> None:
    session = lq.Session(MODEL)
    asyncio.run(session.run(QUERY, {"place": "Rome"}))
    session.close()
    assert asyncio.run(session.run(QUERY, {"place": "Rome"})).usage.forward_passes
