"""The process of one run, or of checks. Jobs are JSON lines on its stdin, answers are JSON lines on its stdout. Output
of a query, and of the processes that it starts, goes to stderr. The query has no stdin. The process that started this
one holds the other end of stdin; when that closes, this process and its group end too.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import selectors
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from types import FrameType
from typing import Any, BinaryIO, NoReturn, cast

from lmql_lite.api import Options
from lmql_lite.apps.playground.checks import check, query_of
from lmql_lite.engine import events
from lmql_lite.engine.session import Session
from lmql_lite.engine.user_input import NoMoreInput
from lmql_lite.errors import ModelError, did_you_mean
from lmql_lite.models.base import Model
from lmql_lite.models.registry import Access, load
from lmql_lite.observe.lines import as_object, choice_of, failed


class Offered(Session):
    """The models on offer, loaded by id. A model's memory does not count as memory of the run."""

    def __init__(self, models: Mapping[str, Access], first: str, memory_bytes: int) -> None:
        super().__init__(first)
        self.memory_bytes = memory_bytes
        self._offered = models
        self.first = first
        self._ready: dict[str, Model] = {}

    def model(self, model: str | Model | None) -> Model:
        """Raises ModelError for a name that is not offered."""
        wanted = self.first if model is None else model
        if not isinstance(wanted, str):
            return wanted
        if wanted not in self._offered:
            hint = did_you_mean(wanted, self._offered) or f"start it with --model {wanted}"
            raise ModelError(f"this playground was started without the model {wanted!r}", hint=hint)
        if wanted not in self._ready:
            with unlimited(self.memory_bytes):
                self._ready[wanted] = load(wanted, **self._offered[wanted])
        return self._ready[wanted]


Send = Callable[[Mapping[str, Any]], None]


def main() -> None:
    """Reads the models from the first line, then jobs. A run is the last one."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: who started this process hears it, too
    without_core_dumps()
    jobs, send = channels()
    with suppress(KeyboardInterrupt):
        offer = json.loads(jobs.readline())
        _work(jobs, send, Offered(offer["models"], offer["first"], offer["memory_bytes"]))


def _work(jobs: BinaryIO, send: Send, session: Offered) -> None:
    for line in jobs:
        job = json.loads(line)
        if job["kind"] == "ready":
            _make_ready(session)
            continue
        if job["kind"] == "run":
            threading.Thread(target=_end_with, args=(jobs,), daemon=True).start()
            run(job, session, send)
            return
        limit(session.memory_bytes)
        send(check(job["text"]))


def _make_ready(session: Offered) -> None:
    """Loads what every run needs while nobody waits: the parser, and a small model."""
    query_of({"name": "ready.lq", "text": '"[X]" where len(X) < 2'})
    if session.first == "demo":
        session.model(None)


def run(job: Mapping[str, Any], session: Offered, send: Send) -> None:
    """Sends all events of a run, and its end last."""
    try:
        with asyncio.Runner(loop_factory=_loop) as runner:
            runner.run(_send_events(job, session, send))
    except BaseException as error:  # SystemExit and what a stop raises are ends of a run as well
        _flush()
        send(as_object(_ended(error, session.memory_bytes)))


def _loop() -> asyncio.AbstractEventLoop:
    """An event loop that ends in every child of the run: what a query forks would wake up in its place."""
    if not hasattr(os, "fork"):
        return asyncio.new_event_loop()
    selector = selectors.DefaultSelector()
    os.register_at_fork(after_in_child=selector.close)
    return asyncio.SelectorEventLoop(selector)


async def _send_events(job: Mapping[str, Any], session: Offered, send: Send) -> None:
    query = query_of(job)
    limit(session.memory_bytes)
    sys.stdin = TypedLines(job["typed"])
    options = cast(Options, {**job["options"], "session": session})
    async with aclosing(query.stream(job["inputs"], **options)) as stream:
        async for event in stream:
            if isinstance(event, events.Finished):
                _flush()
            send(as_object(event) | choice_of(event))


def _ended(error: BaseException, memory_bytes: int) -> events.Failed:
    if isinstance(error, MemoryError):
        sentence = f"the run needs more memory than the {memory_bytes >> 20:,} MB that it may have"
        return events.Failed("BudgetError", sentence, "let it hold less at a time")
    if isinstance(error, SystemExit):
        return events.Failed("Crashed", f"the query ended its own interpreter: sys.exit({error.code!r})", "use return")
    return failed(error)


# Memory --------------------------------------------------------------------------------------------------------


def limit(more_bytes: int) -> None:
    """Besides what is taken already. Processes that this one starts inherit the bound."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm", encoding="ascii") as pages:
            taken = int(pages.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = taken + more_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def without_core_dumps() -> None:
    """Switches off core dumps: a crash is reported in a sentence."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


@contextmanager
def unlimited(more_bytes: int) -> Iterator[None]:
    """Context in which memory does not count."""
    if sys.platform == "linux":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    try:
        yield
    finally:
        limit(more_bytes)


# What surrounds a query ------------------------------------------------------------------------------------------


def channels() -> tuple[BinaryIO, Send]:
    """Pipes of jobs and answers; from here on stdin is empty, and stdout is stderr."""
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdin = TypedLines([])
    for stream in (sys.stdout, sys.stderr):
        cast(io.TextIOWrapper, stream).reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    if hasattr(os, "fork"):
        # one process reports the run
        os.register_at_fork(after_in_child=lambda: os.dup2(nothing, answers))

    def send(found: Mapping[str, Any]) -> None:
        rest = memoryview(json.dumps(found, separators=(",", ":")).encode() + b"\n")
        while rest:
            rest = rest[os.write(answers, rest) :]

    return jobs, send


class TypedLines(io.TextIOBase):
    """Standard input with the lines of the page's box. After the last one it raises instead of waiting for a line that
    nobody can type."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._rest = list(lines)

    def readable(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        if self._rest:
            return f"{self._rest.pop(0)}\n"
        raise NoMoreInput(
            "input() has no line to read in the playground",
            hint="write one line for each call into the box below the query, or use `lq chat FILE` in a terminal",
        )

    def read(self, size: int | None = -1, /) -> str:
        return self.readline() + "".join(f"{self._rest.pop(0)}\n" for _ in range(len(self._rest)))


def _flush() -> None:
    with suppress(Exception):  # the query may have put anything in their place
        sys.stdout.flush()
        sys.stderr.flush()


def _end_with(jobs: BinaryIO) -> None:
    """Ends the process when the server is gone."""
    with suppress(Exception):
        while jobs.read(1):
            pass
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _stop(signal_number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
