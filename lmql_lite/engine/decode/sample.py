"""sample: one branch whose tokens are drawn; `n` results are `n` concurrent runs, each with a seed of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from lmql_lite.engine import events
from lmql_lite.engine.decode.argmax import one_branch
from lmql_lite.engine.decode.decoder import Batches
from lmql_lite.engine.result import Result

DECODING = one_branch
AHEAD = 64
"""Maximum number of events that wait for their reader before the runs go on."""


async def together(runs: Sequence[Batches], *, at_once: bool) -> Batches:
    """Several runs of one query, read as one: events have the number of their run, and the last event has all results.

    An exception of one run ends those after it. If several raise, the exception of the lowest number counts, not the
    earliest: a cache may change when a run ends, but not how. Unless `at_once`, the runs follow one another.
    """
    queue: asyncio.Queue[events.Event | int] = asyncio.Queue(AHEAD + len(runs))
    turns = asyncio.Semaphore(len(runs) if at_once else 1)
    results: dict[int, Result] = {}

    async def drive(number: int, run: Batches) -> None:
        """Puts the events of a run into the queue, and after the last event or an exception its number."""
        try:
            async with turns, aclosing(run):
                async for batch in run:
                    for event in batch:
                        if isinstance(event, events.Finished):
                            results[number] = event.result
                        elif not number or not isinstance(event, events.Started):
                            await queue.put(event)
        finally:
            await queue.put(number)

    tasks = [asyncio.create_task(drive(number, run)) for number, run in enumerate(runs)]
    awaited, failure = set(range(len(runs))), None
    try:
        while awaited:
            event = await queue.get()
            if not isinstance(event, int):
                yield [event]
            elif event in awaited:
                awaited.remove(event)
                (raised,) = await asyncio.gather(tasks[event], return_exceptions=True)
                if raised is not None:
                    failure = raised
                    for task in tasks[event + 1 :]:
                        task.cancel()
                    awaited = {number for number in awaited if number < event}
        if failure is not None:
            raise failure
        best = sorted(results.items(), key=lambda pair: (-pair[1].score, pair[0]))
        yield [events.Finished(best[0][1], tuple(result for _, result in best))]
    finally:
        for task in tasks:
            task.cancel()
        while not queue.empty():  # the queue has no reader now, and each run still puts its number in
            queue.get_nowait()
        await asyncio.gather(*tasks, return_exceptions=True)
