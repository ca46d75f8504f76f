"""Collector of requests to one network from threads and event loops. Each pass answers all waiting requests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from lmql_lite.models.base import Row
from lmql_lite.models.live import ScoreJob

Answered = Callable[[Sequence[ScoreJob]], list[list[Row]]]
"""Scores of all jobs, from as few passes as can be. Raises what is raised for each of them."""

_LINGER = 0.1
"""After a pass the network waits for those it has just answered, at most this share of the pass."""
_IDLE_SECONDS = 5.0


@dataclass(eq=False, slots=True)
class _Waiting:
    job: ScoreJob
    answer: Future[list[Row]]


class PassCollector:
    """Request queue of a network, and the thread that works on it while it is not empty."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._turn = threading.Condition()
        self._queue: deque[_Waiting] = deque()
        self._is_working = False

    async def score(self, jobs: Sequence[ScoreJob], answered: Answered, settle: Callable[[], None]) -> list[list[Row]]:
        """Scores of the jobs. A thread computes, so that the event loop stays free. `settle` is called after a pass,
        when everybody has an answer. The functions are the same in every call: they are not part of this object, so
        that a model and its collector do not keep each other alive.
        """
        waiting = [_Waiting(job, Future()) for job in jobs]
        asked = [each for each in waiting if each.job.ends]
        if asked:
            with self._turn:
                self._queue.extend(asked)
                self._turn.notify_all()
                if not self._is_working:
                    self._is_working = True
                    name = f"passes of {self._name}"
                    threading.Thread(target=self._work, args=(answered, settle), name=name, daemon=True).start()
        return [await asyncio.wrap_future(each.answer) if each.job.ends else [] for each in waiting]

    def _work(self, answered: Answered, settle: Callable[[], None]) -> None:
        """Thread that answers requests, a pass at a time, until none has come for a while."""
        seconds, expected = 0.0, 0
        while True:
            with self._turn:
                while not self._queue:
                    if not self._turn.wait(_IDLE_SECONDS) and not self._queue:
                        self._is_working = False
                        return
                # those who were answered last will soon ask again, beside those who asked meanwhile
                deadline = time.monotonic() + _LINGER * seconds
                while len(self._queue) < expected and (left := deadline - time.monotonic()) > 0:
                    self._turn.wait(left)
                asked = [each for each in self._queue if each.answer.set_running_or_notify_cancel()]
                self._queue.clear()
            if asked:
                begin = time.monotonic()
                expected = self._answer(asked, answered)
                seconds = time.monotonic() - begin
                settle()

    def _answer(self, asked: Sequence[_Waiting], answered: Answered) -> int:
        """Answers all, or gives each the error. Returns how many requests are expected if all of them ask again."""
        try:
            answers = answered([each.job for each in asked])
        except BaseException as error:
            for each in asked:
                each.answer.set_exception(error)
            return 0
        expected = len(self._queue) + len(asked)
        for each, rows in zip(asked, answers, strict=True):
            each.answer.set_result(rows)
        return expected
