"""Equal work that is asked for at the same time is done once, whoever fails or leaves."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lmql_lite.store.flight import SingleFlight


def test_where_the_first_caller_fails_one_of_those_who_wait_works() -> None:
    flight, calls = SingleFlight[int](), []
    begun, release = threading.Event(), threading.Event()

    def fail() -> int:
        begun.set()
        release.wait(10)
        raise OSError("broken")

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(flight.call, "key", fail)
        assert begun.wait(10)
        others = [threads.submit(flight.call, "key", lambda: calls.append(1) or 5) for _ in range(3)]
        release.set()
        with pytest.raises(OSError, match="broken"):
            first.result(10)
        assert [other.result(10) for other in others] == [5, 5, 5]
    assert 1 <= len(calls) <= 3
    assert flight.call("key", lambda: 8) == 8, "nothing is kept"


def test_two_hundred_tasks_work_once_per_key() -> None:
    async def main() -> None:
        flight, calls = SingleFlight[str](), []

        async def work(key: str) -> str:
            calls.append(key)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return key

        keys = [f"key {n % 50}" for n in range(200)]
        assert await asyncio.gather(*(flight.acall(key, lambda key=key: work(key)) for key in keys)) == keys
        assert len(calls) == 50

    asyncio.run(main())


def test_a_cancelled_first_caller_takes_nobody_along() -> None:
    async def main() -> None:
        flight, begun = SingleFlight[int](), asyncio.Event()

        async def endless() -> int:
            begun.set()
            await asyncio.sleep(3600)
            return 0

        async def quick() -> int:
            return 3

        first = asyncio.create_task(flight.acall("key", endless))
        await begun.wait()
        second, third = (asyncio.create_task(flight.acall("key", quick)) for _ in range(2))
        await asyncio.sleep(0)
        third.cancel()
        first.cancel()
        assert await second == 3
        for cancelled in (first, third):
            with pytest.raises(asyncio.CancelledError):
                await cancelled

    asyncio.run(main())


def test_a_thread_and_a_loop_share_work() -> None:
    flight, begun, release = SingleFlight[int](), threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        release.wait(10)
        return 9

    async def ask() -> int:
        asyncio.get_running_loop().call_later(0.05, release.set)
        return await flight.acall("key", never)

    async def never() -> int:
        raise AssertionError("somebody works on it already")

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(flight.call, "key", work)
        assert begun.wait(10)
        assert asyncio.run(ask()) == first.result(10) == 9
