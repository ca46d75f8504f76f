"""A status line on a terminal: progress of `lq run` and `lq eval`."""

from __future__ import annotations

import contextlib
import shutil
import sys
from typing import Any, TextIO, cast

import click

from lmql_lite.apps.terminal import has_colour


class StatusLine:
    """One line on stderr that is drawn over itself. What the program prints meanwhile appears above it.

    `is_shared`: stdout is the same terminal, so that the line makes room for each line printed there.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self._shared = contextlib.ExitStack()
        self._above = Above(self, sys.stdout) if is_shared else None
        if self._above is not None:
            self._shared.enter_context(contextlib.redirect_stdout(cast("TextIO", self._above)))

    def draw(self, text: str) -> None:
        text = text[: shutil.get_terminal_size().columns - 1]  # a line that wraps is not erased whole
        shown = click.style(text, dim=True) if has_colour() else text
        click.echo(f"\r\x1b[K{shown}", nl=False, err=True, color=True)

    def erase(self) -> None:
        click.echo("\r\x1b[K", nl=False, err=True, color=True)

    def close(self) -> None:
        self.erase()
        self._shared.close()
        if self._above is not None:
            self._above.finish()


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
