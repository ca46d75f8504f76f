"""A worker is ready when one is wanted, and none is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lmql_lite.apps.playground.guard import RequestRefused
from lmql_lite.apps.playground.process import Checker, Workers
from lmql_lite.apps.playground.runs import Limits, Runs, Scrub

OFFER = {"models": {"demo": {}}, "first": "demo", "memory_bytes": 2**31}


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
