"""Tracebacks of a query: its own lines and the functions that they call, without the frames of the engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType

from lmql_lite.errors import LmqlLiteError

MACHINERY = tuple(str(folder) for folder in (Path(__file__).parent.parent, Path(asyncio.__file__).parent))
"""Folders of the code between the user's call and the query's own Python."""


def from_query(trace: TracebackType | None, file: str) -> TracebackType | None:
    """The traceback from the query's source on, without the engine's frames between its lines. The whole traceback if
    no line of the query is in it."""
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename != file:
        part = part.tb_next
    if part is None:
        return trace
    last = part
    while last.tb_next is not None:
        following = _beyond(last.tb_next)
        if following is None or _is_machinery(following):  # the query's own frames end there
            break
        last.tb_next = following
        last = following
    return part


def shorten(error: BaseException) -> None:
    """Removes the frames of the engine from the traceback of an exception of the query's own Python. An error of this
    package loses all frames, because it states its place itself."""
    error.__traceback__ = None if isinstance(error, LmqlLiteError) else _beyond(error.__traceback__)


def _beyond(trace: TracebackType | None) -> TracebackType | None:
    part = trace
    while part is not None and _is_machinery(part):
        part = part.tb_next
    return part or trace


def _is_machinery(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(MACHINERY)


def unwrapped(error: BaseException) -> BaseException:
    """The exception of the query's own Python. Coroutines replace a StopIteration by a RuntimeError."""
    cause = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(cause, StopIteration) and "StopIteration" in str(error):
        return cause
    return error
