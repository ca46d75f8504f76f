"""Tracebacks of a query: its own lines and what they called, without the frames of the engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType

from lmql_lite.errors import LmqlLiteError

MACHINERY = tuple(str(folder) for folder in (Path(__file__).parent.parent, Path(asyncio.__file__).parent))
"""Folders whose code brings a run to the query's own Python."""


def from_query(trace: TracebackType | None, file: str) -> TracebackType | None:
    """The part of a traceback that begins in the query's source, without what lies between its own lines; all of it
    where nothing of that took part."""
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename != file:
        part = part.tb_next
    if part is None:
        return trace
    last = part
    while last.tb_next is not None:
        following = _beyond(last.tb_next)
        if following is None or _is_machinery(following):  # it ends there
            break
        last.tb_next = following
        last = following
    return part


def shorten(error: BaseException) -> None:
    """Removes the frames of the engine from the traceback of an exception that the query's own Python raised. An error
    of this package states its own place, and keeps none of them."""
    error.__traceback__ = None if isinstance(error, LmqlLiteError) else _beyond(error.__traceback__)


def _beyond(trace: TracebackType | None) -> TracebackType | None:
    part = trace
    while part is not None and _is_machinery(part):
        part = part.tb_next
    return part or trace


def _is_machinery(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(MACHINERY)


def unwrapped(error: BaseException) -> BaseException:
    """The exception of the query's Python: no coroutine lets a StopIteration pass as it is."""
    cause = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(cause, StopIteration) and "StopIteration" in str(error):
        return cause
    return error
