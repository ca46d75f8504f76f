"""How the lines of a run are sent, and that a worker is ready when one is wanted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lmql_lite.apps.playground import runs as journals
from lmql_lite.apps.playground.guard import RequestRefused
from lmql_lite.apps.playground.process import Checker, Workers
from lmql_lite.apps.playground.runs import Journal, Limits, Runs, Scrub

OFFER = {"models": {"demo": {}}, "first": "demo", "memory_bytes": 2**31}


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


def test_the_first_line_is_sent_at_once_and_the_next_ones_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "PAUSE_SECONDS", 0.5)
    assert asyncio.run(told(100)) == [1, 100]


def test_a_reader_who_comes_late_gets_pieces_of_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MOST_AT_ONCE", 10)

    async def pieces() -> list[int]:
        journal = Journal("r1", Scrub(()))
        for _ in range(35):
            journal.add({"type": "token"})
        journal.end({"type": "done"})
        return [each async for each in sent(journal)]

    assert asyncio.run(pieces()) == [10, 10, 10, 6]


@asynccontextmanager
async def spare_of(folder: Path) -> AsyncIterator[Runs]:
    """Runs whose first process has been started."""
    workers = Workers(OFFER, os.environ, folder / "own")
    runs = Runs(workers, folder, Limits(), Scrub(()))
    runs.prepare()
    try:
        yield runs
    finally:
        await runs.close()
        workers.close()


def test_a_spare_process_that_was_killed_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with spare_of(tmp_path) as runs:
            assert runs._spare is not None
            await (await runs._spare).kill()
            other = await runs._take()
            assert await other.ask({"kind": "check", "text": "'a'"})
            await other.kill()

    asyncio.run(scenario())


def test_none_is_left_where_the_server_ends_while_it_starts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with spare_of(tmp_path) as runs:
            pass
        assert runs._spare is not None and (await runs._spare).has_ended

    asyncio.run(scenario())


def test_a_check_that_comes_while_the_playground_ends_starts_no_process(tmp_path: Path) -> None:
    """It would outlast the time for a shutdown, and the terminal would show a traceback after Ctrl-C."""

    async def ask() -> None:
        workers = Workers(OFFER, os.environ, tmp_path / "own")
        checker = Checker(workers, tmp_path, 10)
        await checker.close()
        workers.close()
        with pytest.raises(RequestRefused, match="the playground is ending"):
            await checker.ask({"kind": "check", "text": '"a"'})

    asyncio.run(ask())
