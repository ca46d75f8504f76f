"""What is seen of a run while it goes on, whether it happens now or was recorded."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout

import click

from lmql_lite.apps.terminal import note
from lmql_lite.runtime import events
from lmql_lite.runtime.shown.failures import failed
from lmql_lite.runtime.shown.wire import Lines

PROGRESS_AFTER_S = 0.5

Seen = Callable[[events.Record], None]


@contextmanager
def watching() -> Iterator[Seen]:
    """Notes on stderr; on a terminal a line there counts the tokens, and is gone at the end."""
    live = sys.stderr.isatty()
    began, tokens, drawn = time.monotonic(), 0, False

    def see(record: events.Record) -> None:
        nonlocal tokens, drawn
        match record:
            case events.Notice(message):
                note(message)
            case events.TokenMoved(token):
                tokens += 1 if token.fate == "kept" else -1
                if live and time.monotonic() - began > PROGRESS_AFTER_S:
                    click.echo(f"\r{tokens} tokens", nl=False, err=True)
                    drawn = True

    try:
        yield see
    finally:
        if drawn:
            click.echo("\r\x1b[K", nl=False, err=True)


@contextmanager
def telling() -> Iterator[Seen]:
    """Each event is a line on stdout at once; an error is the last one. What the query prints goes to stderr."""
    lines, out = Lines(), sys.stdout

    def tell(record: events.Record) -> None:
        out.write(lines.line(record))
        out.flush()

    try:
        with redirect_stdout(sys.stderr):
            yield tell
    except (BrokenPipeError, click.ClickException):
        raise
    except BaseException as error:
        tell(failed(error))
        raise
