"""Decoders of runs. Each decoder is a file of its name, whose `DECODING` decides which branches of a run go on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import cache
from importlib import import_module

from lmql_lite.engine import events
from lmql_lite.engine.run import Run


class Decoder(ABC):
    """The branches of one run or of several, for one reader of their events.

    The reader calls `begin`, and then repeats `advance` and `take_events` until the run `is_over`.
    """

    @abstractmethod
    def begin(self) -> events.Started:
        """The first event."""

    @property
    @abstractmethod
    def is_over(self) -> bool: ...

    @abstractmethod
    def advance(self) -> Awaitable[None]: ...

    @abstractmethod
    def take_events(self) -> list[events.Event]:
        """The events since the last call."""

    @abstractmethod
    def finished(self) -> events.Finished:
        """The last event. Results are best first."""

    @abstractmethod
    async def close(self, error: BaseException | None) -> None:
        """Closes the run; with an `error`, before its end."""


@cache
def decoding(name: str) -> Callable[[Run], Decoder]:
    """The decoder with this name in the table of decoders."""
    found: Callable[[Run], Decoder] = import_module(f"lmql_lite.engine.decode.{name}").DECODING
    return found
