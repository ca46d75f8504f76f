"""`lq`: results on stdout, everything else on stderr, one exit code per kind of failure.

0 fine    1 a bug, or an exception of the query's own Python    2 wrong usage or input    3 the query does not
compile    4 a constraint or an assertion of the query failed    5 the model failed    6 the cache    7 a budget
130 interrupted
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module

import click

from lmql_lite import __version__
from lmql_lite.apps.interruption import interrupt
from lmql_lite.apps.terminal import COLOUR, INTERRUPTED, write_error
from lmql_lite.errors import did_you_mean

COMMANDS = {
    "run": "run_command",
    "eval": "eval_command",
    "test": "test_command",
    "check": "check_command",
    "playground": "playground.command",
    "chat": "chat_command",
    "cache": "cache_commands",
    "models": "models_command",
    "responses": "responses_command",
    "lsp": "editors.language_server",
    "examples": "first_steps",
    "doctor": "first_steps",
}
"""Commands in the order in which a user needs them, each with its module, which is imported when it is used."""
SUFFIXES = (".lq", ".lmql")
INSTEAD = {
    "completion": 'eval "$(_LQ_COMPLETE=bash_source lq)" in ~/.bashrc, or zsh_source, fish_source',
    "fmt": "lq check finds mistakes; the layout of a query is left to your editor",
    "replay": "lq playground opens recordings",
    "serve-model": "local:NAME runs a model in this process, openai/NAME with --base-url uses a server",
    "usage": "lq --help",
    "version": "lq --version",
}
"""Commands that are not here, most of them of LMQL, and what to do."""


class Commands(click.Group):
    """Group of `COMMANDS`. A file name or a misspelt name instead of a command gets a hint."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS and name not in self.commands:
            module = import_module(f"lmql_lite.apps.{COMMANDS[name]}")
            self.add_command(COLOUR(getattr(module, name)))
        return super().get_command(context, name)

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        first = arguments[0]
        if first not in COMMANDS and first.endswith(SUFFIXES):
            context.fail(f"{first} is a file, not a command. Did you mean: lq run {first}")
        if first in INSTEAD:
            context.fail(f"there is no command {first}: {INSTEAD[first]}")
        if first not in COMMANDS and not first.startswith("-") and (hint := did_you_mean(first, COMMANDS)):
            context.fail(f"there is no command {first}: {hint}")
        return super().resolve_command(context, arguments)


@COLOUR
@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="lq COMMAND --help describes a command. Results go to stdout, everything else to stderr. Exit codes: 0 "
    "success, 1 an exception in the query's own Python, 2 wrong usage or input, 3 the query does not compile, 4 a "
    "condition or an assertion failed, 5 the model failed, 6 the cache failed, 7 a budget was spent, 130 "
    "interrupted.",
)
@click.version_option(__version__, prog_name="lq", message="%(prog)s %(version)s")
def lq() -> None:
    """Run prompt programs: text with holes, and conditions on the text that fills them."""


def main(arguments: list[str] | None = None) -> None:
    """The command, by default with the process's own arguments. A closed pipe ends it quietly, Ctrl-C with 130."""
    try:
        signal.signal(signal.SIGINT, interrupt)
        lq(arguments, prog_name="lq", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        write_error("interrupted")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # the reader left; without this Python complains once more when it flushes stdout at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
