"""The one door from sync to async."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from lmql_lite.runtime.tracebacks import ShortTracebacks

Answer = TypeVar("Answer")


def blocking(work: Coroutine[Any, Any, Answer]) -> Answer:
    """What the work gives. Inside a running loop, which waits for it, it gets a thread and a loop of its own; Ctrl-C
    ends it there, too."""
    if not _inside_a_loop():
        with ShortTracebacks():
            return asyncio.run(work)
    done: Future[Answer] = Future()
    cancels: list[Callable[[], object]] = []

    async def cancellable() -> Answer:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "asyncio.run makes one"
        cancels.append(lambda: loop.call_soon_threadsafe(task.cancel))
        return await work

    def other_thread() -> None:
        try:
            done.set_result(asyncio.run(cancellable()))
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=copy_context().run, args=(other_thread,), name="lmql_lite")
    try:
        thread.start()
        wait([done])
    except BaseException:
        for cancel in cancels:
            with suppress(RuntimeError):  # it is over
                cancel()
        wait([done])
        raise
    with ShortTracebacks():
        if error := done.exception():
            raise error
    return done.result()


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
