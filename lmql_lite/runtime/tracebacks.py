"""What a traceback shows of a query: its own lines, and what they called; not how the run came there."""

from __future__ import annotations

from types import TracebackType


def from_query(trace: TracebackType | None, file: str) -> TracebackType | None:
    """The part of a traceback that begins in the query's source; all of it where nothing of that took part."""
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename != file:
        part = part.tb_next
    return part or trace


def unwrapped(error: BaseException) -> BaseException:
    """What the query's Python raised: no coroutine lets a StopIteration through as it is."""
    cause = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(cause, StopIteration) and "StopIteration" in str(error):
        return cause
    return error
