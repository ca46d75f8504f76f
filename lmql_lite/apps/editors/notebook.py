"""`%load_ext lmql_lite`: the cell magic `%%lq`, which runs a query and shows its output, tree and ledger during the
run."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import Any, cast

import click
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic_arguments import MagicArgumentParser
from IPython.display import HTML, DisplayHandle

from lmql_lite.api import Options, Query
from lmql_lite.apps.run_command import set_options
from lmql_lite.apps.terminal import load, read_inputs
from lmql_lite.engine import events
from lmql_lite.engine.blocking import blocking
from lmql_lite.engine.result import Result
from lmql_lite.html import WITHOUT_BUNDLE, bundle, framed, run_view, shown
from lmql_lite.observe.lines import Line, Lines, failed

REDRAWN_AFTER_S = 0.1


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Adds `%%lq` to the shell."""

    parser = MagicArgumentParser("%%lq", description="Run the cell as a query. Inputs are variables of the notebook.")
    parser.add_argument("-o", "--output", metavar="NAME", help="variable that is bound to the result")
    parser.add_argument("--var", action="append", default=[], metavar="NAME=TEXT", help="an input of the query")
    parser.add_argument("--model", metavar="ID", help="the model, as for lq run")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any option of a header")

    def lq(line: str, cell: str) -> Result | list[Result] | None:
        given = parser.parse_argstring(line)
        query = load("<cell>", cell)
        inputs = {
            name: shell.user_ns[name] for name in (*query.inputs, *query.program.builtins) if name in shell.user_ns
        }
        options = cast("Options", set_options(tuple(given.set)) | ({"model": given.model} if given.model else {}))
        view = CellView() if hasattr(shell, "kernel") else ScreenView()
        finished = blocking(_watched(query, inputs | read_inputs(tuple(given.var), ()), options, view))
        result = list(finished.results) or finished.result
        if given.output:
            shell.user_ns[given.output] = result
            return None
        view.clear()
        return result

    lq.__doc__ = parser.format_help()
    shell.register_magic_function(lq, "cell", "lq")


async def _watched(query: Query, inputs: dict[str, Any], options: Options, view: View) -> events.Finished:
    try:
        async with aclosing(query.stream(inputs, **options)) as stream:
            async for event in stream:
                view.see(event)
                if isinstance(event, events.Finished):
                    return event
    except BaseException as error:
        view.see(failed(error))
        raise
    raise AssertionError("a run ends with Finished or raises")


class ScreenView:
    """View of a run as plain text in a terminal."""

    def see(self, record: events.Record) -> None:
        match record:
            case events.Text(text, state=0):
                click.echo(text, nl=False)
            case events.Finished():
                click.echo()

    def clear(self) -> None:
        """Does nothing: what is written stays."""


class CellView:
    """View of a run below a cell, updated during the run. Each update holds the new lines, and the last one all
    lines."""

    def __init__(self) -> None:
        self._lines, self._told, self._drawn = Lines(), list[Line](), 0.0
        self._sent = 0
        self._text = ""
        self._script = bundle()
        self._handle = DisplayHandle()
        self._handle.display(HTML(f"<script>{self._script}</script>" if self._script else ""))

    def see(self, record: events.Record) -> None:
        self.add(self._lines.line(record))

    def add(self, line: Line) -> None:
        self._told.append(line)
        match line:
            case {"type": "text", "state": 0, "text": text}:
                self._text += text
            case {"type": "done" | "error"}:
                self._sent = 0
                self._draw(f"<script>{self._script}</script>" if self._script else f"<p>{WITHOUT_BUNDLE}</p>")
                return
        if time.monotonic() - self._drawn > REDRAWN_AFTER_S:
            self._draw()

    def _draw(self, more: str = "") -> None:
        self._drawn = time.monotonic()
        plain = f"<pre>{shown(self._text)}</pre>"
        view = run_view(self._told[self._sent :], plain) if self._script else plain
        self._sent = len(self._told)
        self._handle.update(HTML(framed(view + more)))

    def clear(self) -> None:
        """Leaves the place to the result, which is drawn alike."""
        self._handle.update(HTML(""))


View = ScreenView | CellView
