"""Interface of decoders. Each decoder is a file of its name, whose `DECODING` decides which branches of a run go on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Protocol

from lmql_lite.engine import events
from lmql_lite.engine.branch import Branch
from lmql_lite.engine.generate.generator import Generator
from lmql_lite.engine.generate.local_fill import Way
from lmql_lite.engine.result import Result
from lmql_lite.engine.settings import Settings


class Stepping(Protocol):
    """The part of a run that decoders use."""

    settings: Settings
    generator: Generator
    seed: int

    def begin(self) -> tuple[events.Started, Branch]:
        """The first event, and the first branch."""
        ...

    def step(self, branch: Branch, ahead: int = 0) -> Awaitable[None]:
        """Executes one op or generates one token."""
        ...

    def ways(self, branch: Branch, most: int) -> Awaitable[list[Way]]:
        """At most `most` next tokens of a branch, best first."""
        ...

    def take(self, branch: Branch, way: Way) -> Awaitable[None]:
        """Takes one of the next tokens."""
        ...

    def close_branch(self, branch: Branch) -> Awaitable[None]:
        """Ends an unfinished branch."""
        ...

    def result(self, branch: Branch) -> Result:
        """The result of a branch at its end."""
        ...


class Reading(ABC):
    """One run or several, for one reader of their events. The reader calls `begin`, and then repeats `advance` and
    `take_events` until the run `is_over`."""

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


@dataclass(eq=False)
class Decoding(Reading):
    """Decoder with the branches of one run."""

    run: Stepping


@cache
def decoding(name: str) -> Callable[[Stepping], Decoding]:
    """The decoder with this name in the table of decoders."""
    found: Callable[[Stepping], Decoding] = import_module(f"lmql_lite.engine.decode.{name}").DECODING
    return found


def numbered(event: events.Event, number: int) -> events.Event:
    """The event with the number of its branch."""
    match event:
        case events.Started() | events.Notice() | events.Forked() | events.Pruned() | events.Finished():
            return event
    return replace(event, state=number)
