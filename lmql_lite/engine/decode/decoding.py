"""Decoders: each is a file with the name of the decoder, whose `DECODING` decides which branches of a run go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Protocol

from lmql_lite.engine import events
from lmql_lite.engine.branch import Branch
from lmql_lite.engine.generate.local_fill import Way
from lmql_lite.engine.result import Result
from lmql_lite.engine.settings import Settings


class Stepping(Protocol):
    """The part of a run that decoders use."""

    settings: Settings

    def step(self, branch: Branch, ahead: int = 0) -> Awaitable[None]:
        """Goes on by one op or one token."""
        ...

    def ways(self, branch: Branch, most: int) -> Awaitable[list[Way]]:
        """The ways in which a branch may go on, at most `most`, best first."""
        ...

    def take(self, branch: Branch, way: Way) -> Awaitable[None]:
        """Goes on by one of the ways."""
        ...

    def close_branch(self, branch: Branch) -> Awaitable[None]:
        """Ends a branch before its end."""
        ...


class Decoding(Protocol):
    """The branches of one run. `advance` goes on until there may be events; results are best first."""

    @property
    def is_over(self) -> bool: ...

    def advance(self) -> Awaitable[None]: ...

    def take_events(self) -> list[events.Event]:
        """The events since the last call."""
        ...

    def results(self, result: Callable[[Branch], Result]) -> list[Result]: ...

    async def close(self) -> None:
        """Ends the branches before their end."""
        ...

    def leave(self) -> None:
        """Nothing has to be kept for the branches any more."""
        ...


@cache
def decoding(name: str) -> Callable[[Stepping, Branch], Decoding]:
    """The decoder of a name in the table of decoders."""
    found: Callable[[Stepping, Branch], Decoding] = import_module(f"lmql_lite.engine.decode.{name}").DECODING
    return found


def numbered(event: events.Event, number: int) -> events.Event:
    """The event with the number of its branch."""
    match event:
        case events.Started() | events.Notice() | events.Forked() | events.Pruned() | events.Finished():
            return event
    return replace(event, state=number)
