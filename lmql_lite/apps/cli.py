"""`lq`: results on stdout, everything else on stderr, one exit code per kind of failure.

0 fine    1 a bug, or an exception of the query's own Python    2 wrong usage or input    3 the query does not
compile    4 a constraint or an assertion of the query failed    5 the model failed    6 the cache    7 a budget
130 interrupted
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import click

from lmql_lite import __version__
from lmql_lite.apps.cache_commands import cache
from lmql_lite.apps.chat import chat
from lmql_lite.apps.playground.command import playground
from lmql_lite.apps.replay_command import replay
from lmql_lite.apps.run_command import run
from lmql_lite.apps.terminal import EXIT_CODES, INTERRUPTED, tree_of
from lmql_lite.errors import ConstraintError, InputError, QueryError

SUFFIXES = (".lq", ".lmql", ".lqrun")
INSTEAD = {
    "serve-model": "local:NAME runs a model in this process, openai/NAME with --base-url uses a server",
    "usage": "lq --help",
    "version": "lq --version",
}
"""Commands of LMQL that are not here, and what to write."""


class Commands(click.Group):
    """Says what was meant where a file stands in the place of a command."""

    def list_commands(self, context: click.Context) -> list[str]:
        """In the order in which one comes to need them."""
        return list(self.commands)

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        first = arguments[0]
        if first not in self.commands and first.endswith(SUFFIXES):
            command = "replay" if first.endswith(".lqrun") else "run"
            context.fail(f"{first} is a file and no command. Did you mean: lq {command} {first}")
        if first in INSTEAD:
            context.fail(f"there is no command {first}: {INSTEAD[first]}")
        return super().resolve_command(context, arguments)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="lq COMMAND --help says more. Results go to stdout, all else to stderr. Exit codes: 0 fine, 1 an exception "
    "in the query's own Python, 2 wrong usage or input, 3 the query does not compile, 4 a condition or an assertion "
    "failed, 5 the model failed, 6 the cache, 7 a budget, 130 interrupted.",
)
@click.version_option(__version__, prog_name="lq", message="%(prog)s %(version)s")
def lq() -> None:
    """Run prompt programs: text with holes, and conditions on what may fill them."""


@click.command(short_help="Find mistakes in queries; no model is asked.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
def check(files: tuple[str, ...]) -> None:
    """Find all mistakes in each FILE that can be found without a run; no model is asked.

    What compiles and is hardly meant is a warning, such as a condition that is always true.
    """
    from lmql_lite.lang.doubts import doubts
    from lmql_lite.lang.scope import check as scope_of
    from lmql_lite.program.compiler import compile as compile_program

    worst = 0
    problems = 0
    for file in files:
        try:
            tree = tree_of(file)
            compile_program(tree)
        except (QueryError, ConstraintError, InputError) as error:
            click.echo(error.report())
            worst = max(worst, EXIT_CODES[type(error)])
            problems += len(error.problems)
        else:
            warnings = doubts(tree, scope_of(tree))
            for each in warnings:
                click.echo(type(each)(f"warning: {each.message}", span=each.span, hint=each.hint).report())
            count = f", with {len(warnings)} warning{'s' * (len(warnings) > 1)}" if warnings else ""
            click.echo(f"{file}: ok{count}")
    if problems:
        click.echo(f"{problems} problem{'s' * (problems > 1)} found", err=True)
    sys.exit(worst)


for command in (run, check, playground, chat, replay, cache):
    lq.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """The command, with the process's own arguments unless told. A closed pipe ends it quietly, Ctrl-C with 130."""
    try:
        # asyncio's own handler only asks the task to stop, which Python in a long loop never hears
        signal.signal(signal.SIGINT, interrupt)
        lq(arguments, prog_name="lq", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # the reader left; without this Python complains once more when it flushes stdout at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def interrupt(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
