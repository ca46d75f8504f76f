"""Display of a run in progress: notes and a counter on stderr, text as it is generated, or each event as a line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from lmql_lite.apps.status_line import StatusLine
from lmql_lite.apps.terminal import counted, note, printable, put
from lmql_lite.options import DECODERS

if TYPE_CHECKING:
    from lmql_lite.engine.events import Record
    from lmql_lite.observe.lines import Lines


class Watcher:
    """Reader of a run's events. `start` draws a status line on a terminal: what the run waits for, then the number of
    generated tokens, and for how long.

    `streams`: instead, the text of a query that returns nothing is written to stdout as it is generated.
    """

    def __init__(self, streams: bool = False) -> None:
        self.written = ""
        """Text of the result that is on stdout already."""
        self.answered = 0
        """Number of tokens that a model answered with, those included that were rejected later."""
        self._streams = streams
        self._generated = 0
        self._began = time.monotonic()
        self._notes: list[str] = []
        self._waiting = ""
        self._line = StatusLine(self._status)

    def start(self, model: str) -> None:
        self._waiting = f"{'waiting for' if '/' in model.partition(':')[0] else 'loading'} {model}"
        self._line.start()

    def _status(self, width: int) -> str:
        text = counted(self._generated, "token") if self._generated else self._waiting
        return f"{text} · {time.monotonic() - self._began:.0f} s"

    def see(self, record: Record) -> None:
        from lmql_lite.engine import events

        match record:
            case events.Started(decoder=decoder):
                is_one = record.results == 1 and not DECODERS[decoder].branches
                self._streams = self._streams and not record.returns and is_one
                self._waiting = f"waiting for {record.model}"
            case events.Notice(message) if self.written:
                self._notes.append(message)
            case events.Notice(message):
                self._line.erase()
                note(message)
            case events.Text(text) if self._streams:
                self.end()
                self.written += text
                put(printable(text))
            case events.TokenMoved(token) if token.hole is not None:
                self._generated += 1 if token.fate == "kept" else -1
                self.answered += token.fate == "kept" and token.source in ("model", "draft")

    def end(self) -> None:
        """Erases the status line for good."""
        self._line.close()

    def close(self, *, failed: bool) -> None:
        """Ends the line of an unfinished text, and writes the notes that came in it."""
        self.end()
        if self.written and failed and not self.written.endswith("\n"):
            put("\n")
        for each in self._notes:
            note(each)


class EventLines(Watcher):
    """Writer of events as lines on stdout, unbuffered."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._lines, self._out = lines, sys.stdout

    def start(self, model: str) -> None:
        """Nothing: every line is an event."""

    def see(self, record: Record) -> None:
        from lmql_lite.observe.lines import written

        put(written(self._lines.line(record)), self._out)


@contextmanager
def watching(*, streams: bool = False) -> Iterator[Watcher]:
    """Notes and a counter on stderr; with `streams`, text on stdout."""
    watcher = Watcher(streams)
    try:
        yield watcher
    except BaseException:
        watcher.close(failed=True)
        raise
    watcher.close(failed=False)


@contextmanager
def streaming() -> Iterator[Watcher]:
    """Each event is a line on stdout at once; an error is the last one. What the query prints goes to stderr."""
    from lmql_lite.apps.terminal import Unwritable
    from lmql_lite.observe.lines import Lines, failed

    emitter = EventLines(Lines())
    try:
        with redirect_stdout(sys.stderr):
            yield emitter
    except (BrokenPipeError, Unwritable):
        raise
    except BaseException as error:
        emitter.see(failed(error))
        raise
