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
import selectors
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from types import FrameType
from typing import Any, BinaryIO, NoReturn, cast

from lmql_lite.apps.playground.answers import check, plan, query_of
from lmql_lite.apps.playground.memory import limit, without_core_dumps
from lmql_lite.apps.playground.offer import Offered
from lmql_lite.apps.playground.told import told
from lmql_lite.runtime import events
from lmql_lite.runtime.asking import NoMoreInput
from lmql_lite.runtime.shown.failures import failed
from lmql_lite.runtime.shown.wire import as_object
from lmql_lite.verbs import Options

MOST_FORKS = 64
"""Of a run; children of children count, too."""

Tell = Callable[[Mapping[str, Any]], None]


def main() -> None:
    """The first line says which models there are; then come jobs. One that is a run is the last."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: who started this process hears it, too
    without_core_dumps()
    jobs, tell = channels()
    with suppress(KeyboardInterrupt):
        offer = json.loads(jobs.readline())
        session = Offered(offer["models"], offer["first"], offer["memory_bytes"])
        if offer["ready"]:
            _make_ready(session, offer["first"])
            tell({})
        for line in jobs:
            job = json.loads(line)
            if job["kind"] == "run":
                threading.Thread(target=_end_with, args=(jobs,), daemon=True).start()
                run(job, session, tell)
                return
            limit(session.memory_bytes)
            tell(check(job["text"]) if job["kind"] == "check" else plan(job, session))


def _make_ready(session: Offered, first: str) -> None:
    """What every run needs, while nobody waits: the grammars, and the model if it is small."""
    query_of({"name": "ready.lq", "text": '"[X]" where len(X) < 2'})
    if first == "demo":
        session.model(None)


def run(job: Mapping[str, Any], session: Offered, tell: Tell) -> None:
    """Tells all that happens; its end is the last thing it tells."""
    try:
        with asyncio.Runner(loop_factory=_loop) as runner:
            runner.run(_told(job, session, tell))
    except BaseException as error:  # SystemExit and what a stop raises are ends of a run as well
        _flush()
        tell(as_object(_ended(error, session.memory_bytes)))


def _loop() -> asyncio.AbstractEventLoop:
    """An event loop that ends in every child of the run: what a query forks would wake up in its place."""
    if not hasattr(os, "fork"):
        return asyncio.new_event_loop()
    selector = selectors.DefaultSelector()
    os.register_at_fork(after_in_child=selector.close)
    return asyncio.SelectorEventLoop(selector)


async def _told(job: Mapping[str, Any], session: Offered, tell: Tell) -> None:
    query = query_of(job)
    limit(session.memory_bytes)
    options = cast(Options, {**job["options"], "session": session})
    async with aclosing(query.stream(job["inputs"], **options)) as stream:
        async for event in stream:
            if isinstance(event, events.Finished):
                _flush()
            tell(told(event))


def _ended(error: BaseException, memory_bytes: int) -> events.Failed:
    if isinstance(error, MemoryError):
        sentence = f"the run needs more memory than the {memory_bytes >> 20:,} MB that it may have"
        return events.Failed("BudgetError", sentence, "let it hold less at a time")
    if isinstance(error, SystemExit):
        return events.Failed("Crashed", f"the query ended its own interpreter: sys.exit({error.code!r})", "use return")
    return failed(error)


# What surrounds a query ------------------------------------------------------------------------------------------


def channels() -> tuple[BinaryIO, Tell]:
    """Where jobs come from, and where answers go; from here on stdin is empty, and stdout is stderr."""
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdin = NoKeyboard()
    for stream in (sys.stdout, sys.stderr):
        cast(io.TextIOWrapper, stream).reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    if hasattr(os, "fork"):
        forks = mmap.mmap(-1, 8)  # all children share it

        def in_child() -> None:
            os.dup2(nothing, answers)  # the run is told by one process
            count = int.from_bytes(forks[:8], "little") + 1
            forks[:8] = count.to_bytes(8, "little")
            if count > MOST_FORKS:
                os._exit(1)

        os.register_at_fork(after_in_child=in_child)

    def tell(found: Mapping[str, Any]) -> None:
        rest = memoryview(json.dumps(found, separators=(",", ":")).encode() + b"\n")
        while rest:
            rest = rest[os.write(answers, rest) :]

    return jobs, tell


class NoKeyboard(io.TextIOBase):
    """Says so instead of waiting for a line that nobody can type."""

    def readable(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        raise NoMoreInput(
            "a query in the playground cannot read what somebody types",
            hint="read an input instead: a name that the query does not bind, such as {question}",
        )

    def read(self, size: int | None = -1, /) -> str:
        return self.readline()


def _flush() -> None:
    with suppress(Exception):  # the query may have put anything in their place
        sys.stdout.flush()
        sys.stderr.flush()


def _end_with(jobs: BinaryIO) -> None:
    """Nobody waits for the run any more."""
    with suppress(Exception):
        while jobs.read(1):
            pass
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _stop(signal_number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
