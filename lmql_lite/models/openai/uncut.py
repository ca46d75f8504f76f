"""Work on connections that is done to its end, whoever leaves meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

Answered = TypeVar("Answered")


async def to_the_end(
    work: Callable[[], Coroutine[Any, Any, Answered]], undo: Callable[[Answered], Awaitable[None]] | None = None
) -> Answered:
    """The work, in a task of its own: it opens and closes connections, and is never cut short in the middle of that.

    The pool shields its clean-up from the cancellation of anyio, not from that of asyncio: a request that is cancelled
    while it closes several connections that have expired leaves the others open. So whoever is cancelled here cancels
    the work as anyio does, and waits for its end. `undo` is for what it gives all the same.
    """
    import anyio

    scope, found = anyio.CancelScope(), list[Answered]()

    async def within() -> None:
        with scope:
            found.append(await work())

    task = asyncio.create_task(within())
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        scope.cancel()
        await asyncio.wait([task])
        if found and undo is not None:
            await undo(found[0])
        raise
    return found[0]
