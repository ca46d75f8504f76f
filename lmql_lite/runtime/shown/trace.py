"""What a run leaves in a file that its caller names (`trace=`): its suffix says what.

`.lqrun`  its events as lines (wire.py), each written as it comes, so that a crash leaves what was told until then.
`.json`   a certificate: every call of a model with what was asked, what came back, how long it took and what it cost.
`.html`   a report to look at (report.py).

The last two are written at the end, however the run ends, and take the place of an old file in one step. No file has
the key of a model; the certificate has nothing that looks like one, also where a query says it (redaction.py).
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Protocol

from lmql_lite.errors import InputError
from lmql_lite.runtime import events
from lmql_lite.runtime.calls import Call, Calls
from lmql_lite.runtime.settings import Settings
from lmql_lite.runtime.shown.failures import failed
from lmql_lite.runtime.shown.fields import public
from lmql_lite.runtime.shown.plain import plain
from lmql_lite.runtime.shown.redaction import without_secrets
from lmql_lite.runtime.shown.report import Moment, report
from lmql_lite.runtime.shown.wire import SCHEMA, Lines, as_object, result_object


class Trace(Protocol):
    """Belongs to one run. What it does with files may raise OSError."""

    @property
    def calls(self) -> Calls | None:
        """Where calls of models are put down; None where nobody asks for them."""
        ...

    def begin(self) -> None:
        """Before anything is asked: finds out whether the file can be written."""
        ...

    def wish(self, wishes: Settings) -> None:
        """What the run is asked to do is known: by its caller and by the header of its query."""
        ...

    def note(self, event: events.Event) -> None: ...

    def end(self, failure: events.Failed | None) -> None:
        """Called once. `failure` is None where the run ended well."""
        ...


def trace_to(path: str) -> Trace:
    """The trace that the suffix names; settings.py knows that it is one of these."""
    kinds: dict[str, Callable[[Path], Trace]] = {".lqrun": Recording, ".json": Certificate, ".html": Report}
    return kinds[Path(path).suffix.lower()](Path(path))


async def traced(
    stream: AsyncGenerator[events.Batch, None], trace: Trace, path: str
) -> AsyncGenerator[events.Batch, None]:
    """The events of a run; each is noted before its watcher sees it, and the file is there before the result is.

    Raises InputError, before anything is asked, where the file cannot be written, and later where it no longer can.
    """
    with _writing(path):
        trace.begin()
    is_over = False
    try:
        async with aclosing(stream):
            async for batch in stream:
                for event in batch:
                    with _writing(path):
                        trace.note(event)
                        if isinstance(event, events.Finished):
                            is_over = True
                            await asyncio.to_thread(trace.end, None)
                    yield [event]
    except BaseException as error:
        if not is_over:
            try:
                trace.end(failed(error))
            except OSError as problem:
                error.add_note(f"its trace could not be written: {problem}")
        raise


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "make its folder first" if isinstance(error, FileNotFoundError) else None
        raise InputError(f"the trace cannot be written to {path!r}: {error.strerror or error}", hint=hint) from None


class Recording:
    """Lines, as they come."""

    calls = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = Lines()
        self._file: IO[str] | None = None

    def begin(self) -> None:
        self._file = open(self._path, "w", encoding="ascii", newline="\n")  # noqa: SIM115  it is closed by `end`

    def wish(self, wishes: Settings) -> None:
        pass

    def note(self, event: events.Event) -> None:
        self._write(event)

    def end(self, failure: events.Failed | None) -> None:
        if failure is not None:
            self._write(failure)
        assert self._file is not None, "it has begun"
        self._file.close()

    def _write(self, record: events.Record) -> None:
        assert self._file is not None, "it has begun"
        self._file.write(self._lines.line(record))
        self._file.flush()


class Report:
    """Everything is kept, and drawn at the end."""

    calls = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = time.perf_counter()
        self._moments: list[Moment] = []

    def begin(self) -> None:
        check_place(self._path)

    def wish(self, wishes: Settings) -> None:
        pass

    def note(self, event: events.Event) -> None:
        self._add(event)

    def end(self, failure: events.Failed | None) -> None:
        if failure is not None:
            self._add(failure)
        replace_text(self._path, report(self._moments))

    def _add(self, record: events.Record) -> None:
        self._moments.append(Moment(int(1000 * (time.perf_counter() - self._began)), record))


class Certificate:
    """One JSON object: schema, run, began (UTC), ms, model, decoder, seed, parameters (what caller and header say),
    ended (`done`, or `error` and what it was), result (as in a `done` line), calls and steps.

    A step is a hole (name, place, value, ending, at_ms, ms) with its own calls, and with the steps of a query that it
    has called. A call has kind, model, at_ms, ms, asked, answered; spent and error where there are any. `scores` of a
    model in this process asks requests (length of the prefix, the text at its end, new tokens, positions); its answer
    is the best token at each position. `stream` and `score` of a server ask a prompt and a wish, or options. While
    several hypotheses are under way a call serves many of them: then it stands with the run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.calls = Calls()
        self._began = datetime.now(UTC)
        self._said: dict[str, Any] = {}
        self._wishes: dict[str, Any] = {}
        self._run = _Step({})
        self._open = [self._run]
        self._is_one = True

    def begin(self) -> None:
        check_place(self._path)

    def wish(self, wishes: Settings) -> None:
        said = {each.name: getattr(wishes, each.name) for each in fields(wishes)}
        self._wishes = {name: _shown(value) for name, value in said.items() if value is not None and name != "trace"}

    def note(self, event: events.Event) -> None:
        self._book()
        if isinstance(event, events.Forked) or getattr(event, "state", None):
            self._is_one, self._open = False, [self._run]
        match event:
            case events.Started():
                self._said = as_object(event)
                del self._said["type"]
            case events.HoleOpened() if self._is_one:
                opened = as_object(event)
                place = {name: opened["span"][name] for name in ("file", "line", "column")}
                step = _Step({"hole": event.name, **place, "at_ms": self.calls.now()})
                self._open[-1].steps.append(step)
                self._open.append(step)
            case events.HoleClosed() if len(self._open) > 1:
                step = self._open.pop()
                took = round(self.calls.now() - step.said["at_ms"], 3)
                step.said |= {"ms": took, "value": event.value, "ending": event.ending}
            case events.Finished():
                self._said["result"] = result_object(event.result)
                if event.results:
                    self._said["results"] = [result_object(each) for each in event.results]

    def end(self, failure: events.Failed | None) -> None:
        self._book()
        how = {"ended": "done"} if failure is None else {"ended": "error", "error": as_object(failure)}
        found = {
            "schema": SCHEMA,
            "began": self._began.isoformat(timespec="milliseconds"),
            "ms": self.calls.now(),
            **self._said,
            **how,
            "parameters": self._wishes,
            **self._run.as_object(),
        }
        replace_text(self._path, json.dumps(without_secrets(found), indent=1) + "\n")

    def _book(self) -> None:
        """Calls that began since the last event."""
        made, self.calls.made = self.calls.made, []
        self._open[-1].calls += made


@dataclass(slots=True)
class _Step:
    """The run, or a hole of it."""

    said: dict[str, Any]
    calls: list[Call] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)

    def as_object(self) -> dict[str, Any]:
        calls = [_without_nothing(plain(call)) for call in self.calls]
        return {**self.said, "calls": calls, "steps": [step.as_object() for step in self.steps]}


def _without_nothing(call: dict[str, Any]) -> dict[str, Any]:
    """Without fields that say nothing."""
    return {name: value for name, value in call.items() if value not in (None, {})}


def _shown(value: Any) -> Any:
    """A wish of a run; of a cache only the file."""
    path = getattr(value, "path", None)
    return public(os.fspath(path)) if path is not None else plain(value)


def check_place(path: Path) -> None:
    """Raises OSError where no file can be made at `path`."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def replace_text(path: Path, text: str) -> None:
    """The whole file, or none: who reads meanwhile sees the old one."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(aside, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
