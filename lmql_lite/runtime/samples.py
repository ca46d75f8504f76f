"""Several runs of one query at once, each with a seed of its own: `sample(n=5)`. Their questions are put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from lmql_lite.runtime import events
from lmql_lite.runtime.interpreter import Run
from lmql_lite.runtime.result import Result

AHEAD = 64
"""So many events of one run wait for their reader before it goes on."""


def together(runs: Sequence[Run], *, at_once: bool = True) -> AsyncGenerator[events.Batch, None]:
    """All events of the runs, numbered by `state`, as they come; the last one has all results, best first.

    What one of them raises ends those after it. Of several that raise it is the first by number whose exception this
    raises, whichever was known sooner: a cache decides when a run ends, not how. Not `at_once`: one after the other.
    """
    return runs[0].stream() if len(runs) == 1 else _several(runs, at_once=at_once)


async def _several(runs: Sequence[Run], *, at_once: bool) -> AsyncGenerator[events.Batch, None]:
    news: asyncio.Queue[events.Event | int] = asyncio.Queue(AHEAD + len(runs))
    results: list[Result] = []
    turns = asyncio.Semaphore(len(runs) if at_once else 1)
    running = [asyncio.create_task(_tell(number, run, news, turns)) for number, run in enumerate(runs)]
    failure: BaseException | None = None
    try:
        awaited = set(range(len(runs)))
        while awaited:
            told = await news.get()
            if isinstance(told, events.Finished):
                results.append(told.result)
            elif not isinstance(told, int):
                yield [told]
            elif told in awaited:
                awaited.remove(told)
                (raised,) = await asyncio.gather(running[told], return_exceptions=True)
                if raised is not None:
                    failure = raised
                    for task in running[told + 1 :]:
                        task.cancel()
                    awaited = {number for number in awaited if number < told}
        if failure is not None:
            raise failure
        order = {run.seed: number for number, run in enumerate(runs)}
        results.sort(key=lambda result: (-result.score, order[result.seed]))
        yield [events.Finished(results[0], tuple(results))]
    finally:
        for task in running:
            task.cancel()
        while not news.empty():  # nobody reads it any more, and each run still says that it has ended
            news.get_nowait()
        await asyncio.gather(*running, return_exceptions=True)


async def _tell(number: int, run: Run, news: asyncio.Queue[events.Event | int], turns: asyncio.Semaphore) -> None:
    """Passes on the events of a run, and its number at its end, however that comes."""
    try:
        async with turns, aclosing(run.stream()) as stream:
            async for batch in stream:
                for event in batch:
                    match event:
                        case events.Started():
                            if number == 0:
                                await news.put(event)
                        case events.Notice() | events.Finished() | events.Forked() | events.Pruned():
                            await news.put(event)
                        case _:
                            await news.put(replace(event, state=number))
    finally:
        await news.put(number)
