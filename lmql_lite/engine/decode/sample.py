"""sample: one branch, in which each token is drawn; `n` results are `n` runs at once, each with a seed of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lmql_lite.engine import events
from lmql_lite.engine.decode.argmax import OneBranch
from lmql_lite.engine.decode.decoding import Reading, numbered
from lmql_lite.engine.result import Result

DECODING = OneBranch
AHEAD = 64
"""Maximum number of events that wait for their reader before the runs go on."""


class SeveralRuns(Reading):
    """Runs of one query that are read as one: events are numbered by `state`, and the last one has all results.

    An exception of one run ends those after it. If several raise, the exception of the first by number is raised,
    whichever was known sooner: a cache decides when a run ends, not how. Not `at_once`: one after the other.
    """

    def __init__(self, runs: Sequence[Reading], *, at_once: bool) -> None:
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
        """Waits for events of any run. Raises the exception of the runs when all before it have ended."""
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
        while not self._queue.empty():  # nobody reads it any more, and each run still puts its number in
            self._queue.get_nowait()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for run in self._runs:  # one that was cancelled before its first step has not been closed
            await run.close(None)

    async def _drive(self, number: int, run: Reading) -> None:
        """Puts the events of a run into the queue, and its number after the last one or its exception."""
        try:
            async with self._turns:
                while not run.is_over:
                    await run.advance()
                    for event in run.take_events():
                        await self._queue.put(numbered(event, number))
                self._results[number] = run.finished().result
        except BaseException as error:
            await run.close(error)
            raise
        else:
            await run.close(None)
        finally:
            await self._queue.put(number)
