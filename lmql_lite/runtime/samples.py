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

    What one of them raises ends them all. Not `at_once`: one after the other.
    """
    return runs[0].stream() if len(runs) == 1 else _several(runs, at_once=at_once)


async def _several(runs: Sequence[Run], *, at_once: bool) -> AsyncGenerator[events.Batch, None]:
    news: asyncio.Queue[events.Event | None] = asyncio.Queue(AHEAD + len(runs))
    results: list[Result] = []
    turns = asyncio.Semaphore(len(runs) if at_once else 1)
    running = [asyncio.create_task(_tell(number, run, news, turns)) for number, run in enumerate(runs)]
    try:
        left = len(running)
        while left:
            told = await news.get()
            if told is None:
                left -= 1
            elif isinstance(told, events.Finished):
                results.append(told.result)
            else:
                yield [told]
            for task in running:
                if task.done() and (error := task.exception()) is not None:
                    raise error
        order = {run.seed: number for number, run in enumerate(runs)}
        results.sort(key=lambda result: (-result.score, order[result.seed]))
        yield [events.Finished(results[0], tuple(results))]
    finally:
        for task in running:
            task.cancel()
        while not news.empty():  # nobody reads it any more, and each run still says that it has ended
            news.get_nowait()
        await asyncio.gather(*running, return_exceptions=True)


async def _tell(number: int, run: Run, news: asyncio.Queue[events.Event | None], turns: asyncio.Semaphore) -> None:
    """Passes on what a run tells, and None at its end, however that comes."""
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
        await news.put(None)
