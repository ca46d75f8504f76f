"""The process of one run, or of checks: a job is a line of JSON on its stdin, and so is each answer on its stdout.

What a query prints, and what the processes print that it starts, goes to stderr. There is no stdin for it. The process
that started this one holds the other end of the jobs: where that is gone, this one and its group end too.
"""

from __future__ import annotations

import asyncio
import io
import json
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from types import FrameType
from typing import Any, NoReturn, TextIO, cast

from lmql_lite.apps.playground import memory
from lmql_lite.apps.playground.checks import check, plan
from lmql_lite.errors import ModelError, did_you_mean
from lmql_lite.models.base import Model
from lmql_lite.models.registry import Access, load
from lmql_lite.runtime.asking import NoMoreInput
from lmql_lite.runtime.events import Failed
from lmql_lite.runtime.failures import failed
from lmql_lite.runtime.session import Session
from lmql_lite.runtime.wire import as_object
from lmql_lite.verbs import Options, compile

MOST_FORKS = 64
"""Children of children count, too."""

Tell = Callable[[Mapping[str, Any]], None]


def main() -> None:
    """The first line says which models there are; then come jobs. One that is a run is the last."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: who started this process hears it, too
    jobs, tell = channels()
    try:
        offer = json.loads(jobs.readline() or "null")
        if offer is None:
            return
        session = Offered(offer["models"], offer["first"], offer["memory_bytes"])
        if offer["first"] == "demo":  # loaded in no time, and then it is there; others cost memory
            session.model(None)
        for line in jobs:
            job = json.loads(line)
            if job["kind"] == "run":
                threading.Thread(target=_end_with, args=(jobs,), daemon=True).start()
                run(job, session, tell)
                return
            tell(check(job["text"]) if job["kind"] == "check" else plan(job, session))
    except KeyboardInterrupt:
        return


def run(job: Mapping[str, Any], session: Offered, tell: Tell) -> None:
    """Tells all that happens; its end is the last thing it tells."""
    try:
        ended = asyncio.run(_told(job, session, tell))
    except MemoryError:
        most = session.memory_bytes >> 20
        ended = as_object(Failed("BudgetError", f"the run needs more memory than it may have ({most:,} MB)"))
    except BaseException as error:  # SystemExit and what a stop raises are ends of a run as well
        ended = as_object(failed(error))
    with suppress(Exception):  # the query may have put anything in their place
        sys.stdout.flush()
        sys.stderr.flush()
    tell(ended)


async def _told(job: Mapping[str, Any], session: Offered, tell: Tell) -> Mapping[str, Any]:
    query = compile_job(job)
    options = cast(Options, {**job["options"], "session": session})
    session.limit()
    ended: Mapping[str, Any] = {}
    async with aclosing(query.stream(job["inputs"], **options)) as stream:
        async for event in stream:
            if ended:
                tell(ended)
            ended = as_object(event)
            if ended["type"] != "done":
                tell(ended)
                ended = {}
    return ended
