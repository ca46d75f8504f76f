"""Runs of one server: each has a process, and a journal of its lines without keys."""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import secrets
import signal
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lmql_lite.apps.playground.process import MAX_LINE_BYTES, TooLong, Worker, Workers
from lmql_lite.engine.events import Failed
from lmql_lite.observe.lines import SCHEMA, STOPPED, as_object
from lmql_lite.redaction import HIDDEN, redacted


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a run. `memory_bytes` does not include its model. The first `printed_bytes` of its output are shown;
    after `flood_bytes` it is stopped. `kept` runs can be read after their end."""

    seconds: float = 600
    memory_bytes: int = 2**31
    printed_bytes: int = 2**18
    flood_bytes: int = 2**26
    events: int = 500_000
    event_bytes: int = 2**27
    at_once: int = 4
    kept: int = 20
    kept_bytes: int = 2**28
    grace_seconds: float = 2
    """From the request to stop until it is killed."""


MIN_SECRET_LENGTH = 8
"""Characters of a secret that is looked for in texts: "1234" stands in many of them."""

_NAME = re.compile(r"(?:^|_)\w*(?:KEY|TOKEN|SECRET|PASS(?:WORD|WD|PHRASE)?|CREDENTIALS?)(?:_|$)", re.I)


def secrets_of(environment: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in environment.items() if _NAME.search(name)}


class Scrub:
    """Removes secrets from JSON lines."""

    def __init__(self, values: Iterable[str]) -> None:
        written = sorted(
            {json.dumps(value)[1:-1] for value in values if len(value) >= MIN_SECRET_LENGTH}, key=len, reverse=True
        )
        self._any = re.compile("|".join(map(re.escape, written))) if written else None

    def __call__(self, line: str) -> str:
        return line if self._any is None else self._any.sub(HIDDEN, line)


QUIET_SECONDS = 10
"""Seconds of silence after which an empty line shows that the connection stands."""

MAX_LINES_AT_ONCE = 1000
"""Lines; a long run is not held in memory once more for each of its readers."""

PAUSE_SECONDS = 0.02
"""Between two pieces: what comes token by token is sent, and drawn, some lines at a time."""


class Journal:
    """Lines of a run, with one writer and any number of readers."""

    def __init__(self, run: str, scrub: Scrub) -> None:
        self.lines: list[bytes] = []
        self.bytes = 0
        self.is_over = False
        self._run = run
        self._scrub = scrub
        self._began = 0.0
        self._changed = asyncio.Event()

    def add(self, found: Mapping[str, Any]) -> None:
        """Appends a line with these fields; its number and time are added here."""
        now = time.monotonic()
        self._began = self._began or now
        envelope = {"schema": SCHEMA, "run": self._run, "seq": len(self.lines), "ms": int(1000 * (now - self._began))}
        line = self._scrub(json.dumps({**envelope, **found, **envelope}, separators=(",", ":")))
        self.lines.append(f"{line}\n".encode())
        self.bytes += len(line) + 1
        self._wake()

    def end(self, found: Mapping[str, Any]) -> None:
        """Appends the last line."""
        self.is_over = True
        self.add(found)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def after(self, seq: int) -> AsyncGenerator[bytes, None]:
        """The lines after this number, many at a time, until the last one."""
        sent = seq + 1
        while True:
            changed = self._changed
            if sent < len(self.lines):
                lines = self.lines[sent : sent + MAX_LINES_AT_ONCE]
                sent += len(lines)
                yield b"".join(lines)
                await asyncio.sleep(0 if self.is_over else PAUSE_SECONDS)
            elif self.is_over:
                return
            else:
                try:
                    await asyncio.wait_for(changed.wait(), QUIET_SECONDS)
                except TimeoutError:
                    yield b"\n"


LAST = ("done", "error")
MAX_UNFINISHED = 8192
"""Characters of an unfinished line of output that are sent without its end."""
CRASHES = {
    "SIGSEGV": "a segmentation fault",
    "SIGABRT": "abort",
    "SIGILL": "an illegal instruction",
    "SIGBUS": "a bus error",
}

State = Literal["running", "done", "error"]


class PageRun:
    def __init__(self, name: str, limits: Limits, scrub: Scrub) -> None:
        self.id = secrets.token_hex(8)
        self.name = name
        self.state: State = "running"
        self.journal = Journal(self.id, scrub)
        self._limits = limits
        self._worker: Worker | None = None
        self._why: Failed | None = None
        """Reason for which the run is being ended."""
        self._killing: asyncio.Task[int] | None = None

    def stop(self) -> None:
        self._end(Failed(STOPPED, "the run was stopped"))

    async def drive(self, worker: Worker, job: Mapping[str, Any]) -> None:
        """Follows the run to its end, in any case."""
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
            sentence = f"an event of the run has more than the {MAX_LINE_BYTES:,} bytes that it may have"
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
            sentence = f"the run has emitted more than {limits.events:,} events"
            self._end(Failed("BudgetError", sentence, "`lq run` has no such limit"))

    def _end(self, why: Failed) -> None:
        """Asks the worker to end, with a moment to keep what it has learned. The first reason counts."""
        if self._why is None and self._worker is not None:
            self._why = why
            self._worker.interrupt()
            # with all that it has started: they may hold what it tells us through
            self._killing = asyncio.create_task(self._worker.kill(patience=self._limits.grace_seconds))

    async def _listen(self, worker: Worker) -> None:
        """Makes lines of the output, up to a bound; the rest is counted."""
        decoder, rest, shown, size = codecs.getincrementaldecoder("utf-8")("replace"), "", 0, 0
        limits = self._limits
        try:
            async for data in worker.printed():
                size += len(data)
                if size > limits.flood_bytes:
                    sentence = f"the run has printed more than the {limits.flood_bytes:,} bytes that it may print"
                    self._end(Failed("BudgetError", sentence, "print less"))
                if shown > limits.printed_bytes:
                    continue
                whole, line_end, rest = (rest + decoder.decode(data)).rpartition("\n")
                if len(rest) > MAX_UNFINISHED:
                    whole, line_end, rest = whole + line_end + rest, "", ""
                text = (whole + line_end)[: limits.printed_bytes - shown + 1]
                shown += len(text)
                if text:
                    self._log(text)
                if shown > limits.printed_bytes:
                    rest = ""
                    self._log(f"\n[no more than {limits.printed_bytes:,} characters are shown of what is printed]\n")
        finally:
            if rest:
                self._log(rest)

    def _log(self, text: str) -> None:
        if not self.journal.is_over:
            self._add({"type": "log", "text": redacted(text)})


class Runs:
    """All runs of one server. One process is started before there is a run for it: a click waits for no import."""

    def __init__(self, workers: Workers, folder: Path, limits: Limits, scrub: Scrub) -> None:
        self.known: dict[str, PageRun] = {}
        self._workers = workers
        self._folder = folder
        self._spare: asyncio.Task[Worker] | None = None
        self._limits = limits
        self._scrub = scrub
        self._driving: set[asyncio.Task[None]] = set()

    @property
    def under_way(self) -> list[PageRun]:
        return [run for run in self.known.values() if run.state == "running"]

    async def start(self, job: Mapping[str, Any]) -> PageRun:
        """Starts a run; the caller checks that there is room. Raises OSError if no process can be started."""
        self._forget()
        run = PageRun(job["name"], self._limits, self._scrub)
        self.known[run.id] = run
        try:
            worker = await self._take()
        except BaseException:
            del self.known[run.id]
            raise
        task = asyncio.create_task(run.drive(worker, job))
        self._driving.add(task)
        task.add_done_callback(self._driving.discard)
        return run

    def prepare(self) -> None:
        """Starts the process of the next run."""
        self._spare = asyncio.create_task(self._ready())

    async def _take(self) -> Worker:
        """The spare process, or a new one where that one has failed. Raises OSError."""
        spare = self._spare or asyncio.create_task(self._ready())
        self.prepare()
        with suppress(OSError):
            if not (worker := await spare).has_ended:
                return worker
        return await self._ready()

    async def _ready(self) -> Worker:
        worker = await self._workers.start(self._folder)
        await worker.send({"kind": "ready"})
        return worker

    async def close(self) -> None:
        """Ends all of them."""
        if self._spare is not None:
            with suppress(OSError):
                await (await self._spare).kill()
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
