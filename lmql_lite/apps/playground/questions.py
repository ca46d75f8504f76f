"""Checks and plans: one worker answers them, one after the other, and another takes its place where it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmql_lite.apps.playground.process import TooLong, Worker
from lmql_lite.apps.playground.replies import Refused


class Questions:
    """Started with the first question. Its answers come within `seconds`, or not at all."""

    def __init__(self, offer: Mapping[str, Any], folder: Path, environment: Mapping[str, str], seconds: float) -> None:
        self._offer = {**offer, "ready": False}
        self._folder = folder
        self._environment = environment
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._worker: Worker | None = None
        self._hearing: asyncio.Task[None] | None = None

    async def ask(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raises Refused where there is no answer."""
        async with self._turn:
            if self._worker is None:
                try:
                    self._worker = await Worker.start(self._offer, self._folder, self._environment)
                except OSError as error:
                    raise Refused(503, f"no process can be started to read it: {error.strerror or error}") from None
                self._hearing = asyncio.create_task(_hear(self._worker))
            try:
                answer = await asyncio.wait_for(self._worker.ask(job), self._seconds)
            except BaseException as error:
                await self._end()
                if isinstance(error, TimeoutError):
                    raise Refused(422, f"this query cannot be read within {self._seconds:.0f} seconds") from None
                if isinstance(error, TooLong):
                    raise Refused(422, "there is more to be said of this query than can be told") from None
                raise
            if answer is None:
                await self._end()
                raise Refused(422, "the interpreter crashed while it read this query", "it may be nested too deeply")
            return answer

    async def close(self) -> None:
        """Whoever waits for an answer gets none."""
        await self._end()

    async def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.kill()
        if self._hearing is not None:
            self._hearing.cancel()


async def _hear(worker: Worker) -> None:
    """What it says besides is of no interest, but has to be taken."""
    async for _ in worker.printed():
        pass
