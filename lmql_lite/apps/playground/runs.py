"""The runs of one server: each in a process of its own, bounded, stopped when asked, and kept for a while."""

from __future__ import annotations

import asyncio
import codecs
import secrets
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from lmql_lite.apps.playground.journal import Journal
from lmql_lite.apps.playground.keys import Scrub
from lmql_lite.apps.playground.limits import Limits
from lmql_lite.apps.playground.process import LONGEST_LINE, TooLong, Worker
from lmql_lite.apps.playground.spares import Spares
from lmql_lite.runtime.events import Failed
from lmql_lite.runtime.shown.failures import STOPPED
from lmql_lite.runtime.shown.redaction import redacted
from lmql_lite.runtime.shown.wire import as_object

LAST = ("done", "error")
LONGEST_LOG = 8192
"""Characters of a line that is told before it has ended."""
CRASHES = {
    "SIGSEGV": "a segmentation fault",
    "SIGABRT": "abort",
    "SIGILL": "an illegal instruction",
    "SIGBUS": "a bus error",
}

State = Literal["running", "done", "error"]


class Run:
    def __init__(self, name: str, limits: Limits, scrub: Scrub) -> None:
        self.id = secrets.token_hex(8)
        self.name = name
        self.state: State = "running"
        self.journal = Journal(self.id, scrub)
        self._limits = limits
        self._worker: Worker | None = None
        self._why: Failed | None = None
        """Why it has to end, once somebody or a limit has said so."""
        self._killing: asyncio.Task[int] | None = None

    def stop(self) -> None:
        self._end(Failed(STOPPED, "the run was stopped"))

    async def drive(self, worker: Worker, job: Mapping[str, Any]) -> None:
        """Until it has ended, whatever happens."""
        self._worker = worker
        loop, last = asyncio.get_running_loop(), None
        seconds = self._limits.seconds
        sentence = f"the run has taken longer than the {seconds:,.0f} seconds that it may take"
        clock = loop.call_later(seconds, self._end, Failed("BudgetError", sentence, "`lq run` has no such limit"))
        printed = asyncio.create_task(self._listen(worker))
        code = 0
        try:
            await worker.send(job)
            while last is None and (found := await worker.answer()) is not None:
                if found.get("type") in LAST:
                    last = found
                elif isinstance(found.get("type"), str):
                    self._add(found)
        except TooLong:
            sentence = f"an event of the run has more than the {LONGEST_LINE:,} bytes that it may have"
            self._end(Failed("BudgetError", sentence, "let it return less"))
        finally:
            clock.cancel()
            code = await worker.kill(patience=1 if last is None else 0)
            with suppress(TimeoutError):  # a process of the query that nobody could end may still hold the pipe
                await asyncio.wait_for(printed, 1)
            if last is None or (last["type"] == "error" and self._why is not None):
                last = as_object(self._why or _crash(code))
            self.state = "done" if last["type"] == "done" else "error"
            self.journal.end(last)

    def _add(self, found: Mapping[str, Any]) -> None:
        journal, limits = self.journal, self._limits
        if len(journal.lines) < limits.events and journal.bytes < limits.event_bytes:
            journal.add(found)
        else:
            sentence = f"the run has told more than the {limits.events:,} lines that are kept of it"
            self._end(Failed("BudgetError", sentence, "`lq run` has no such limit"))

    def _end(self, why: Failed) -> None:
        """It is asked to end, and has a moment to keep what it has learned. The first reason counts."""
        if self._why is None and self._worker is not None:
            self._why = why
            self._worker.interrupt()
            # with all that it has started: they may hold what it tells us through
            self._killing = asyncio.create_task(self._worker.kill(patience=self._limits.grace_seconds))

    async def _listen(self, worker: Worker) -> None:
        """What it prints becomes lines, up to a bound; what is beyond is counted."""
        decoder, rest, told, size = codecs.getincrementaldecoder("utf-8")("replace"), "", 0, 0
        limits = self._limits
        try:
            async for data in worker.printed():
                size += len(data)
                if size > limits.flood_bytes:
                    sentence = f"the run has printed more than the {limits.flood_bytes:,} bytes that it may print"
                    self._end(Failed("BudgetError", sentence, "print less"))
                if told > limits.printed_bytes:
                    continue
                whole, line_end, rest = (rest + decoder.decode(data)).rpartition("\n")
                if len(rest) > LONGEST_LOG:
                    whole, line_end, rest = whole + line_end + rest, "", ""
                said = (whole + line_end)[: limits.printed_bytes - told + 1]
                told += len(said)
                if said:
                    self._log(said)
                if told > limits.printed_bytes:
                    rest = ""
                    self._log(f"\n[no more than {limits.printed_bytes:,} characters are shown of what is printed]\n")
        finally:
            if rest:
                self._log(rest)

    def _log(self, text: str) -> None:
        if not self.journal.is_over:
            self._add({"type": "log", "text": redacted(text)})


class Runs:
    """All of one server."""

    def __init__(
        self, offer: Mapping[str, Any], folder: Path, environment: Mapping[str, str], limits: Limits, scrub: Scrub
    ) -> None:
        self.known: dict[str, Run] = {}
        self.spares = Spares(lambda: Worker.start({**offer, "ready": True}, folder, environment))
        self._limits = limits
        self._scrub = scrub
        self._driving: set[asyncio.Task[None]] = set()

    @property
    def under_way(self) -> list[Run]:
        return [run for run in self.known.values() if run.state == "running"]

    async def start(self, job: Mapping[str, Any]) -> Run:
        """Whether there is room for it is asked before. Raises OSError where there can be no process for it."""
        self._forget()
        run = Run(job["name"], self._limits, self._scrub)
        self.known[run.id] = run
        try:
            worker = await self.spares.take()
        except BaseException:
            del self.known[run.id]
            raise
        task = asyncio.create_task(run.drive(worker, job))
        self._driving.add(task)
        task.add_done_callback(self._driving.discard)
        self.spares.prepare()
        return run

    async def close(self) -> None:
        """Ends all of them."""
        await self.spares.close()
        for run in self.under_way:
            run.stop()
        if self._driving:
            await asyncio.wait(self._driving, timeout=2 * self._limits.grace_seconds)
        for task in self._driving:
            task.cancel()
        await asyncio.gather(*self._driving, return_exceptions=True)

    def _forget(self) -> None:
        """The oldest ones that have ended, where there are too many."""
        ended = [run for run in self.known.values() if run.state != "running"]
        size = sum(run.journal.bytes for run in self.known.values())
        while ended and (len(ended) > self._limits.kept or size > self._limits.kept_bytes):
            size -= ended[0].journal.bytes
            del self.known[ended.pop(0).id]


def _crash(code: int) -> Failed:
    if code >= 0:
        message = f"the interpreter of the run ended before the query did, with exit code {code}"
        return Failed("Crashed", message, "os._exit() and the like end a run without a result")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    what = f"{CRASHES[name]} ({name})" if name in CRASHES else name
    hint = (
        "the system may have run out of memory" if name == "SIGKILL" else "code that is not Python has gone wrong in it"
    )
    return Failed("Crashed", f"the interpreter that ran the query crashed: {what}", hint)
