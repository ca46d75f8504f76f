"""The only way from synchronous code into coroutines."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from typing import Any, ParamSpec, TypeVar

from lmql_lite.engine.tracebacks import shorten

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


def blocking(work: Coroutine[Any, Any, Answer]) -> Answer:
    """The result of a coroutine. Inside a running event loop, which is blocked meanwhile, the coroutine runs on another
    thread with an event loop of its own. Ctrl-C ends it there too."""
    __tracebackhide__ = True  # pytest shows the caller's line
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        return _in_thread(work)
    kept: list[Answer] = []

    async def keep() -> None:  # returns nothing: asyncio builds the repr of the task when it restores SIGINT
        kept.append(await work)

    try:
        asyncio.run(keep())
    except BaseException as error:
        shorten(error)
        raise
    return kept[0]


def _in_thread(work: Coroutine[Any, Any, Answer]) -> Answer:
    __tracebackhide__ = True
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
        while not wait([done], timeout=1).done:  # a signal just before the wait is seen after it
            pass
    except BaseException:
        for cancel in cancels:
            with suppress(RuntimeError):  # the loop is closed already
                cancel()
        wait([done])
        raise
    if error := done.exception():
        shorten(error)
        raise error
    return done.result()


def blocked(work: Callable[Arguments, Coroutine[Any, Any, Answer]], example: str = "") -> Callable[Arguments, Answer]:
    """Synchronous version `NAME_sync` of an async function or method NAME. A call inside a running event loop blocks
    the loop. `example` ends the docstring."""

    @functools.wraps(work)
    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        __tracebackhide__ = True
        return blocking(work(*arguments, **named))

    call.__name__, call.__qualname__ = f"{work.__name__}_sync", f"{work.__qualname__}_sync"
    call.__doc__ = (
        f"`{work.__name__}` for code that is not async. A call inside a running event loop blocks the loop.\n{example}"
    )
    return call
