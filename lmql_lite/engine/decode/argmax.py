"""argmax: one branch that takes the most likely token that the condition allows."""

from __future__ import annotations

from collections.abc import Awaitable

from lmql_lite.engine import events
from lmql_lite.engine.decode.decoder import Decoder
from lmql_lite.engine.run import Run

AHEAD = 64
"""Maximum number of known tokens taken before their events are emitted: a millisecond or two."""


class OneBranch(Decoder):
    """A run that never branches."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def begin(self) -> events.Started:
        started, self._branch = self.run.begin()
        return started

    @property
    def is_over(self) -> bool:
        return self._branch.is_over

    def advance(self) -> Awaitable[None]:
        return self.run.step(self._branch, AHEAD)

    def take_events(self) -> list[events.Event]:
        return self._branch.take_events()

    def finished(self) -> events.Finished:
        return events.Finished(self.run.result(self._branch))

    async def close(self, error: BaseException | None) -> None:
        try:
            if error is not None:
                await self.run.close_branch(self._branch)
        finally:
            self._branch.leave()
            await self.run.generator.close()


DECODING = OneBranch
