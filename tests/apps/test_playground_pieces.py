"""How the lines of a run are sent, and that a worker is ready when one is wanted."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lmql_lite.apps.playground import runs as journals
from lmql_lite.apps.playground.forking import ForkedProcess, Forks
from lmql_lite.apps.playground.guard import RequestRefused
from lmql_lite.apps.playground.process import Checker, Worker
from lmql_lite.apps.playground.runs import Journal, Scrub

OFFER = {"models": {"demo": {}}, "first": "demo", "memory_bytes": 2**31}
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


def forks_of(folder: Path) -> Forks:
    paths = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    return Forks(OFFER, folder, {**os.environ, **paths})


def test_workers_are_forked_and_each_answers_for_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        forks = forks_of(tmp_path)
        try:
            workers = await asyncio.gather(*(forks.take() for _ in range(5)))
            for worker in workers:
                assert isinstance(worker._process, ForkedProcess)
                answer = await worker.ask({"kind": "check", "text": '"[X]"'})
                assert answer is not None and answer["problems"] == []
            assert len({worker._process.pid for worker in workers}) == 5
            codes = await asyncio.gather(*(worker.kill() for worker in workers))
            assert set(codes) == {-signal.SIGKILL}
        finally:
            await forks.close()

    asyncio.run(scenario())


def test_forked_workers_draw_other_random_numbers_and_bear_a_mark_of_their_own(tmp_path: Path) -> None:
    query = "import os, random, time\nprint(random.random(), os.environ['LMQL_LITE_RUNS'])\ntime.sleep(0.5)\n'a'"

    async def printed(worker: Worker) -> str:
        await worker.send({"kind": "run", "text": query, "name": "q.lq", "inputs": {}, "options": {}, "typed": []})
        said = (await anext(worker.printed())).decode()
        mark = said.split()[-1]
        assert mark == worker._mark
        own = Path(f"/proc/{worker._process.pid}/environ").read_bytes()
        assert f"LMQL_LITE_RUNS={mark}".encode() in own.split(b"\0"), "others find the process by it"
        return said

    async def scenario() -> None:
        forks = forks_of(tmp_path)
        try:
            workers = [await forks.take() for _ in range(2)]
            assert len({await printed(worker) for worker in workers}) == 2
            assert await asyncio.gather(*(worker.kill(patience=9) for worker in workers)) == [0, 0]
        finally:
            await forks.close()

    asyncio.run(scenario())


def test_a_run_that_ends_the_process_that_forks_ends_itself_and_not_the_next_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        forks = forks_of(tmp_path)
        try:
            worker = await forks.take()
            text = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nwhile True:\n    pass\n'a'"
            await worker.send({"kind": "run", "text": text, "name": "q.lq", "inputs": {}, "options": {}, "typed": []})
            while not worker.has_ended:
                await asyncio.sleep(0.01)
            other = await forks.take()
            assert await other.ask({"kind": "check", "text": "'a'"})
            await other.kill()
        finally:
            await forks.close()

    asyncio.run(scenario())


def test_none_is_left_where_the_server_ends_while_it_starts(tmp_path: Path) -> None:
    async def scenario() -> None:
        forks = forks_of(tmp_path)
        forks.prepare()
        await asyncio.sleep(0.05)
        await forks.close()
        forks.prepare()
        assert forks._parent is not None and (await forks._parent)._process.returncode is not None

    asyncio.run(scenario())


def test_a_check_that_comes_while_the_playground_ends_starts_no_process(tmp_path: Path) -> None:
    """It would outlast the time for a shutdown, and the terminal would show a traceback after Ctrl-C."""

    async def ask() -> None:
        checker = Checker({"models": {"demo": {}}, "first": "demo"}, tmp_path, dict(os.environ), 10)
        await checker.close()
        with pytest.raises(RequestRefused, match="the playground is ending"):
            await checker.ask({"kind": "check", "text": '"a"'})

    asyncio.run(ask())
