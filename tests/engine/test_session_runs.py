"""A session has trees and models of its own, which the runs that name it share."""

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
            first = await QUERY.run({"place": "Rome"}, session=session, seed=7)
            second = await said.run("Rome", session=session)
            assert (first["X"], first.seed, second.value) == (" hi.", 7, " hi.")
            assert first.usage.forward_passes and second.usage.forward_passes == 0

    asyncio.run(work())


def test_a_session_maps_rows() -> None:
    async def work() -> None:
        async with lq.Session(MODEL) as session:
            found = await QUERY.map([{"place": "Rome"}, {"place": "Rome"}], session=session, concurrency=1)
            assert [each["X"] for each in found] == [" hi.", " hi."]
            assert found[1].usage.forward_passes == 0
            assert [each.value for each in await said.map(["Rome"], session=session)] == [" hi."]

    asyncio.run(work())


def test_a_session_that_is_closed_asks_again() -> None:
    session = lq.Session(MODEL)
    asyncio.run(QUERY.run({"place": "Rome"}, session=session))
    session.close()
    assert asyncio.run(QUERY.run({"place": "Rome"}, session=session)).usage.forward_passes
