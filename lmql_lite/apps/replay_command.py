"""`lq replay`: a recorded run, shown as it was shown; no model is asked and no query is read."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from lmql_lite.apps.results import as_shown
from lmql_lite.apps.terminal import EXIT_CODES, INTERRUPTED, note, reporting, tell, write
from lmql_lite.errors import InputError, LmqlLiteError

if TYPE_CHECKING:
    from lmql_lite.runtime.events import Failed, Finished

KINDS = {kind.__name__: kind for kind in EXIT_CODES}


@click.command(short_help="Show a recorded run again.")
@click.argument("file", metavar="FILE.lqrun")
def replay(file: str) -> None:
    """Show a run that `lq run --trace FILE.lqrun` has recorded, and end as it did."""
    with reporting(as_json=False):
        ended, text, returns = shown(file)
        from lmql_lite.runtime import events

        match ended:
            case events.Finished(result):
                write(as_shown(ended, returns=returns or result.value is not None))
            case events.Failed():
                sys.exit(report(ended))
            case None:
                note(f"{file} ends before its run did; this is the text so far")
                write(text)


def shown(file: str) -> tuple[Finished | Failed | None, str, bool]:
    """How the run ended, None where the recording does not say; its text; whether its query returns a value."""
    from lmql_lite.apps.watcher import watching
    from lmql_lite.runtime import events
    from lmql_lite.runtime.shown.wire import read

    ended: Finished | Failed | None = None
    said: list[str] = []
    returns = False
    try:
        with open(file, "rb") as lines, watching() as see:
            for told in read(lines, file):
                record = told.record
                if record is None:
                    continue
                see(record)
                match record:
                    case events.Started():
                        returns = record.returns
                    case events.Text(text, state=0):
                        said.append(text)
                    case events.Finished() | events.Failed():
                        ended = record
    except OSError as error:
        hint = "lq run QUERY --trace x.lqrun records one" if isinstance(error, FileNotFoundError) else None
        raise InputError(f"{file!r} cannot be read: {error.strerror or error}", hint=hint) from None
    return ended, "".join(said), returns


def report(failed: Failed) -> int:
    """What the run said on stderr; gives its exit code."""
    from lmql_lite.runtime.shown.failures import STOPPED

    if failed.kind == STOPPED:
        tell("interrupted")
        return INTERRUPTED
    if failed.kind in KINDS:
        tell(error_of(failed).report())
        return EXIT_CODES[KINDS[failed.kind]]
    place = f"{failed.span.name}:{failed.span.line}: the query's own Python raised " if failed.span else ""
    line = f"\n    {failed.span.source}" if failed.span else ""
    tell(f"{place}{failed.kind}{': ' if failed.message else ''}{failed.message}{line}")
    return 4 if failed.kind == "AssertionError" else 1


def error_of(failed: Failed) -> LmqlLiteError:
    others = tuple(error_of(other) for other in failed.others)
    return KINDS[failed.kind](failed.message, span=failed.span, hint=failed.hint, others=others)
