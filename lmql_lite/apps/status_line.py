"""A status line on a terminal: progress of `lq run` and `lq eval`."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from typing import Any, TextIO, cast

import click

from lmql_lite.apps.terminal import has_colour

FIRST_S = 0.5
"""Time after which something that takes longer shows that it is going on."""
REDRAWN_S = 0.2


class StatusLine:
    """One line on stderr that is drawn over itself, by a thread of its own: loading a model blocks the event loop. What
    the program prints meanwhile appears above it. `text` gives the line for a width in characters."""

    def __init__(self, text: Callable[[int], str]) -> None:
        self._text = text
        self._drawing = threading.RLock()
        self._ended = threading.Event()
        self._is_drawn = False
        self._shared = ExitStack()

    def start(self) -> None:
        """Does nothing where stderr is no terminal."""
        if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            return
        if sys.stdout.isatty():
            above = Above(self, sys.stdout)
            self._shared.callback(above.finish)
            self._shared.enter_context(redirect_stdout(cast("TextIO", above)))
        threading.Thread(target=self._tick, name="lq status line", daemon=True).start()

    def _tick(self) -> None:
        pause = FIRST_S
        while not self._ended.wait(pause):
            pause = REDRAWN_S
            with self._drawing:
                if not self._ended.is_set():
                    self._draw()

    def _draw(self) -> None:
        width = shutil.get_terminal_size().columns - 1  # a line that wraps is not erased whole
        text = self._text(width)[:width]
        shown = click.style(text, dim=True) if has_colour() else text
        click.echo(f"\r\x1b[K{shown}", nl=False, err=True, color=True)
        self._is_drawn = True

    def erase(self) -> None:
        with self._drawing:
            if self._is_drawn:
                click.echo("\r\x1b[K", nl=False, err=True, color=True)
            self._is_drawn = False

    def close(self) -> None:
        """Erases the line for good."""
        self._ended.set()
        self.erase()
        self._shared.close()


class Above:
    """Stdout of a program while a status line is drawn: whole lines are written at once, the rest when it ends."""

    def __init__(self, line: StatusLine, out: TextIO) -> None:
        self._line = line
        self._out = out
        self._begun = ""

    def write(self, text: str) -> int:
        whole, newline, self._begun = (self._begun + text).rpartition("\n")
        if newline:
            self._line.erase()
            self._out.write(whole + newline)
            self._out.flush()
        return len(text)

    def finish(self) -> None:
        self._out.write(self._begun)
        self._begun = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)
