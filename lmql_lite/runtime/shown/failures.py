"""An exception as what a record of its run says of it."""

from __future__ import annotations

import asyncio
import traceback

from lmql_lite.errors import LmqlLiteError, Span
from lmql_lite.runtime.events import Failed
from lmql_lite.runtime.shown.redaction import redacted

STOPPED = "Stopped"


def failed(error: BaseException) -> Failed:
    if isinstance(error, LmqlLiteError):
        others = tuple(failed(other) for other in error.others)
        return Failed(_kind(error), redacted(error.message), error.hint, error.span, others)
    if isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt):
        return Failed(STOPPED, "the run was stopped")
    return Failed(type(error).__name__, redacted(str(error)), None, _place(error))


def _kind(error: LmqlLiteError) -> str:
    """The class that users know, where the error is of a narrower one."""
    return next(kind.__name__ for kind in type(error).__mro__ if LmqlLiteError in (kind, *kind.__bases__))


def _place(error: BaseException) -> Span | None:
    """The line of the query in which its own Python raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.endswith(".py") and not frame.filename.startswith("<frozen")]
    if not own or own[-1].lineno is None:
        return None
    line = own[-1].line or ""
    return Span(own[-1].filename, line, 0, len(line), own[-1].lineno)
