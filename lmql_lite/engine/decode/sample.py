"""sample: one branch whose tokens are drawn; `n` results are `n` concurrent runs, each with a seed of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lmql_lite.engine import events
from lmql_lite.engine.decode.argmax import OneBranch
from lmql_lite.engine.decode.decoder import Decoder
from lmql_lite.engine.result import Result

DECODING = OneBranch
AHEAD = 64
"""Maximum number of events that wait for their reader before the runs go on."""


class SeveralRuns(Decoder):
    """Several runs of one query, read as one: events have the number of their run, and the last event has all results.

    An exception of one run ends those after it. If several raise, the exception of the lowest number counts, not the
    earliest: a cache may change when a run ends, but not how. Unless `at_once`, the runs follow one another.
    """

    def __init__(self, runs: Sequence[Decoder], *, at_once: bool) -> None:
        self._runs = runs
        self._queue: asyncio.Queue[events.Event | int] = asyncio.Queue(AHEAD + len(runs))
        self._turns = asyncio.Semaphore(len(runs) if at_once else 1)
        self._tasks: list[asyncio.Task[None]] = []
        self._awaited = set(range(len(runs)))
        self._events: list[events.Event] = []
        self._results: dict[int, Result] = {}
        self._failure: BaseException | None = None

    def begin(self) -> events.Started:
        started, *_ = [run.begin() for run in self._runs]
        self._tasks = [asyncio.create_task(self._drive(number, run)) for number, run in enumerate(self._runs)]
        return started

    @property
    def is_over(self) -> bool:
        return not self._awaited

    async def advance(self) -> None:
        """Waits for events of any run. Raises the exception of a run once all runs before it have ended."""
        event = await self._queue.get()
        if not isinstance(event, int):
            self._events.append(event)
        elif event in self._awaited:
            self._awaited.remove(event)
            (raised,) = await asyncio.gather(self._tasks[event], return_exceptions=True)
            if raised is not None:
                self._failure = raised
                for task in self._tasks[event + 1 :]:
                    task.cancel()
                self._awaited = {number for number in self._awaited if number < event}
        if self._failure is not None and not self._awaited:
            raise self._failure

    def take_events(self) -> list[events.Event]:
        taken, self._events = self._events, []
        return taken

    def finished(self) -> events.Finished:
        results = sorted(self._results.items(), key=lambda pair: (-pair[1].score, pair[0]))
        best = tuple(result for _, result in results)
        return events.Finished(best[0], best)

    async def close(self, error: BaseException | None) -> None:
        for task in self._tasks:
            task.cancel()
        while not self._queue.empty():  # the queue has no reader now, and each run still puts its number in
            self._queue.get_nowait()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for run in self._runs:  # a run that was cancelled before its first step is not closed yet
            await run.close(None)

    async def _drive(self, number: int, run: Decoder) -> None:
        """Puts the events of a run into the queue, and after the last event or an exception its number."""
        try:
            async with self._turns:
                while not run.is_over:
                    await run.advance()
                    for event in run.take_events():
                        await self._queue.put(event)
                self._results[number] = run.finished().result
        except BaseException as error:
            await run.close(error)
            raise
        else:
            await run.close(None)
        finally:
            await self._queue.put(number)
