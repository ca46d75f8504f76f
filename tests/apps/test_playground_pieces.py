"""How the lines of a run are sent, and that a worker is ready when one is wanted."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from lmql_lite.apps.playground import journal as journals
from lmql_lite.apps.playground.journal import Journal
from lmql_lite.apps.playground.keys import Scrub
from lmql_lite.apps.playground.process import Worker
from lmql_lite.apps.playground.spares import READY, Spares

OFFER = {"models": {"demo": {}}, "first": "demo", "memory_bytes": 2**31, "ready": True}
FOREVER = 3600.0


async def sent(journal: Journal, after: int = -1) -> AsyncIterator[int]:
    """How many lines each piece has."""
    async for piece in journal.after(after):
        yield piece.count(b"\n")


async def told(lines: int) -> list[int]:
    """The pieces of a run that tells its lines one by one, each after whoever reads them had a turn."""
    journal, pieces = Journal("r1", Scrub(())), list[int]()

    async def reading() -> None:
        async for piece in sent(journal):
            pieces.append(piece)

    reader = asyncio.create_task(reading())
    for _ in range(lines):
        journal.add({"type": "token"})
        for _ in range(5):
            await asyncio.sleep(0)
    journal.end({"type": "done"})
    await reader
    return pieces


def test_what_comes_token_by_token_is_sent_many_lines_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "LULL_SECONDS", FOREVER)
    monkeypatch.setattr(journals, "LULL_SHARE", 1e9)
    assert asyncio.run(told(100)) == [1, 100], "the first one at once, and the end waits for nothing"


def test_lines_that_come_first_wait_for_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "LULL_SECONDS", FOREVER)
    monkeypatch.setattr(journals, "LULL_SHARE", 0.0)
    assert asyncio.run(told(20)) == [1] * 21


def test_lines_that_fill_a_piece_wait_for_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "LULL_SECONDS", FOREVER)
    monkeypatch.setattr(journals, "LULL_SHARE", 1e9)
    monkeypatch.setattr(journals, "MOST_AT_ONCE", 10)

    async def pieces() -> list[int]:
        journal = Journal("r1", Scrub(()))
        for _ in range(35):
            journal.add({"type": "token"})
        stream = sent(journal)
        found = [await anext(stream) for _ in range(3)]
        journal.end({"type": "done"})
        return [*found, *[each async for each in stream]]

    assert asyncio.run(pieces()) == [10, 10, 10, 6]


class Started:
    """Real workers, and those of them that were ready when the next one was started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.workers: list[Worker] = []

    async def __call__(self) -> Worker:
        paths = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        worker = await Worker.start(OFFER, self._folder, {**os.environ, **paths})
        self.workers.append(worker)
        return worker


async def ready(spares: Spares, started: Started) -> None:
    """Until as many wait as should."""
    for task in spares._waiting:
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    assert len(started.workers) == READY


def test_two_runs_one_after_the_other_find_a_worker_that_is_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        started = Started(tmp_path)
        spares = Spares(started)
        spares.prepare()
        await asyncio.sleep(0.05)
        assert len(started.workers) <= 1, "they make themselves ready one after the other"
        await ready(spares, started)
        taken = []
        try:
            for _ in range(READY):
                taken.append(await spares.take())
            assert taken == started.workers, "somebody waited for a new one"
            answers = [await worker.ask({"kind": "check", "text": '"[X]"'}) for worker in taken]
            assert all(answer is not None and answer["problems"] == [] for answer in answers)
        finally:
            await asyncio.gather(*(worker.kill() for worker in taken), spares.close())

    asyncio.run(scenario())


def test_a_worker_that_died_while_it_waited_is_passed_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        started = Started(tmp_path)
        spares = Spares(started)
        spares.prepare()
        await ready(spares, started)
        await started.workers[0].kill()
        worker = await spares.take()
        assert worker is started.workers[1] and not worker.has_ended
        await asyncio.gather(worker.kill(), spares.close())

    asyncio.run(scenario())


def test_none_is_left_where_the_server_ends_while_they_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        started = Started(tmp_path)
        spares = Spares(started)
        spares.prepare()
        while not started.workers:
            await asyncio.sleep(0.01)
        await spares.close()
        spares.prepare()
        await asyncio.sleep(0)
        assert [worker.has_ended for worker in started.workers] == [True]

    asyncio.run(scenario())
