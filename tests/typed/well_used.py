"""The package's types as a caller meets them: nothing here is an error to mypy --strict or pyright, and it all runs."""

import asyncio
from collections.abc import Coroutine
from typing import Any, assert_type

import lmql_lite as lq

MODEL = lq.ScriptedModel("Things to pack for Rome:\n- Hat\n")


@lq.query(model=MODEL)
def packing(place: str, count: int = 1) -> str:
    """lq
    "Things to pack for {place}:\n-[THING]" where STOPS_AT(THING, "\n")
    return THING.strip()
    """
    raise NotImplementedError


@lq.query(model=MODEL)
async def list_of(place: str) -> list[str]:
    """lq
    "Things to pack for {place}:\n-[THING]" where STOPS_AT(THING, "\n")
    return [THING.strip()]
    """
    raise NotImplementedError


@lq.query
def default(place: str) -> str:
    """lq
    return place
    """
    raise NotImplementedError


class Trip:
    place = "Rome"

    @lq.query(model=MODEL)
    def pack(self, count: int) -> str:
        """lq
        "Things to pack for {self.place}:\n-[THING]" where STOPS_AT(THING, "\n")
        return THING.strip() * count
        """
        raise NotImplementedError

    @lq.query(model=MODEL)
    @classmethod
    def named(cls, place: str) -> str:
        """lq
        "Things to pack for {place}:\n-[THING]" where STOPS_AT(THING, "\n")
        return THING.strip()
        """
        raise NotImplementedError


async def main() -> None:
    coroutine: Coroutine[Any, Any, list[str]] = list_of("Rome")
    assert_type(await coroutine, list[str])
    assert_type(await list_of.run("Rome"), lq.Result[list[str]])
    assert_type(list_of.query.run_sync({"place": "Rome"}, model=MODEL), lq.Result)
    assert_type((await packing.run("Rome")).value, str)
    assert_type(await packing.map(["Rome"], concurrency=2), list[lq.Result[str]])
    assert_type(await packing.map(["Rome"], on_error="keep"), list[lq.Result[str] | Exception])
    async for event in packing.stream("Rome"):
        if isinstance(event, lq.events.Finished):
            assert_type(event.result["THING"], Any)


asyncio.run(main())
assert_type(packing("Rome"), str)
assert_type(packing("Rome", count=2), str)
assert_type(default("Rome"), str)
assert_type(packing.run_sync("Rome"), lq.Result[str])
assert_type(packing.map_sync(["Rome"]), list[lq.Result[str]])
assert_type(packing.with_options(seed=7, decoder="best_k", k=1)("Rome"), str)
assert_type(Trip().pack(3), str)
assert_type(Trip().pack.run_sync(3).value, str)
assert_type(Trip.named("Rome"), str)
assert_type(Trip().named("Rome"), str)
