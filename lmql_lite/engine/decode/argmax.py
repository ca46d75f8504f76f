"""argmax: one branch that takes the most likely token that the condition allows."""

from __future__ import annotations

from lmql_lite.engine import events
from lmql_lite.engine.decode.decoder import Batches
from lmql_lite.engine.run import Run

AHEAD = 64
"""Maximum number of known tokens taken before their events are emitted: a millisecond or two."""


async def one_branch(run: Run) -> Batches:
    """The events of a run that never branches."""
    started, branch = run.begin()
    try:
        yield [started]
        while not branch.is_over:
            await run.guarded(branch, run.step(branch, AHEAD))
            batch, branch.record.events = branch.record.events, []
            if batch:
                yield batch
        yield [events.Finished(run.result(branch))]
    except BaseException:
        await run.close_branch(branch)
        raise
    finally:
        branch.leave()
        await run.generator.close()


DECODING = one_branch
