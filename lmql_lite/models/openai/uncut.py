"""Runs connection set-up and tear-down to completion even if the caller is cancelled (D48)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

Answered = TypeVar("Answered")


async def to_the_end(
    work: Callable[[], Coroutine[Any, Any, Answered]], undo: Callable[[Answered], Awaitable[None]] | None = None
) -> Answered:
    """Result of `work`, which opens or closes connections in a task of its own and is never interrupted midway.

    The connection pool shields its clean-up from anyio's cancellation, but not from asyncio's. A request that is
    cancelled while the pool closes several expired connections would leave the rest open. On cancellation this function
    therefore cancels the work as anyio does, and waits for its end. If the work returned a result anyway, `undo` gets
    it.
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
