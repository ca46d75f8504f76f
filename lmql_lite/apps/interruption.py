"""Ctrl-C of a command."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

Answer = TypeVar("Answer")
MAX_WAIT = 2.0
"""Seconds that the event loop has to hear that it is to stop."""


def interrupt(signal_number: int, frame: FrameType | None) -> None:
    """Breaks off what runs. Nothing is printed about where a task or a coroutine was."""
    import logging

    logging.getLogger("asyncio").disabled = True
    sys.unraisablehook = _unraisable
    raise KeyboardInterrupt


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    """Interrupts again where Python dropped the exception: in a callback of an import or of the garbage collector."""
    if issubclass(found.exc_type, KeyboardInterrupt):
        timer = threading.Timer(0.1, _send)
        timer.daemon = True
        timer.start()


def _send() -> None:
    if hasattr(signal, "pthread_kill"):  # ends a `sleep` as well
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)


def until_interrupted(work: Coroutine[Any, Any, Answer]) -> Answer:
    """`asyncio.run`, but Ctrl-C cancels the work. An exception raised anywhere in an event loop may lose the step of a
    task, and the end would wait for that task for ever. Python that gives the loop no turn is broken off where it is,
    and so is everything at a second Ctrl-C."""
    import asyncio  # --version does without

    async def cancellable() -> Answer:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "asyncio.run makes one"
        is_heard = threading.Event()
        asked = 0

        def stop() -> None:
            is_heard.set()
            if asked == 1:  # else the work is ending already, and what it writes last must not be cancelled
                task.cancel()

        def ask(signal_number: int, frame: FrameType | None) -> None:
            nonlocal asked
            asked += 1
            if asked > 1:
                interrupt(signal_number, frame)
            loop.call_soon_threadsafe(stop)
            threading.Thread(target=_insist, args=(is_heard,), daemon=True).start()

        signal.signal(signal.SIGINT, ask)
        try:
            return await work
        except asyncio.CancelledError:
            if not asked:
                raise
            raise KeyboardInterrupt from None
        finally:
            is_heard.set()
            signal.signal(signal.SIGINT, interrupt)

    return asyncio.run(cancellable())


def _insist(is_heard: threading.Event) -> None:
    if not is_heard.wait(MAX_WAIT):
        _send()
