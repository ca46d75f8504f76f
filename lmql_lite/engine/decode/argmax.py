"""argmax: one branch, in which each token is the most likely one that the condition allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from lmql_lite.engine import events
from lmql_lite.engine.branch import Branch
from lmql_lite.engine.decode.decoding import Stepping
from lmql_lite.engine.result import Result

AHEAD = 64
"""Maximum number of known tokens before a watcher sees them: a millisecond or two."""


class OneBranch:
    """A run that never branches."""

    def __init__(self, run: Stepping, first: Branch) -> None:
        self._run = run
        self._branch = first

    @property
    def is_over(self) -> bool:
        return self._branch.is_over

    def advance(self) -> Awaitable[None]:
        return self._run.step(self._branch, AHEAD)

    def take_events(self) -> list[events.Event]:
        return self._branch.take_events()

    def results(self, result: Callable[[Branch], Result]) -> list[Result]:
        return [result(self._branch)]

    async def close(self) -> None:
        await self._run.close_branch(self._branch)

    def leave(self) -> None:
        self._branch.leave()


DECODING = OneBranch
