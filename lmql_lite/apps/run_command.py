"""`lq run`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any, cast

import click

from lmql_lite.apps.interruption import until_interrupted
from lmql_lite.apps.progress import streaming, watching
from lmql_lite.apps.results import as_object, as_shown, usage_line
from lmql_lite.apps.terminal import (
    ACCESS,
    INTERRUPTED,
    QueryCommand,
    counted,
    input_options,
    load,
    model_named,
    model_options,
    note,
    read_inputs,
    reporting,
    write,
    write_error,
    write_object,
)
from lmql_lite.errors import InputError
from lmql_lite.options import OPTIONS, option_problem

if TYPE_CHECKING:
    from lmql_lite.api import Options, Query
    from lmql_lite.apps.progress import Watcher
    from lmql_lite.engine.events import Finished


Command = Callable[..., None]


def option_flags(command: Command) -> Command:
    """Adds the flags of the table of options."""
    for name, row in reversed(tuple(OPTIONS.items())):
        flag = f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}"
        if row.flag == "":
            off = f"Switch off {row.help[0].lower()}{row.help[1:]}"
            command = click.option(flag.replace("--", "--no-"), name, is_flag=True, default=None, help=off)(command)
        elif row.flag is not None:
            kind = row.type if row.type in (int, float) else None
            reads = {"cache": _cache, "prices": two_prices}.get(name)
            help = row.help
            command = click.option(flag, name, type=kind, metavar=row.flag, callback=reads, help=help)(command)
    return command


def _cache(context: click.Context, option: click.Parameter, given: str | None) -> str | bool | None:
    return {"on": True, "off": False}.get(given, given) if given else None


def two_prices(context: click.Context, option: click.Parameter, given: str | None) -> tuple[float, ...] | None:
    """`0.15,0.60`, or `0.15,0.60,0.075` with the price of cached prompts."""
    if given is None:
        return None
    try:
        prompts, answers, *cached = map(float, given.split(","))
    except ValueError:
        problem = f"{given!r} is not two numbers with a comma between them, such as 0.15,0.60"
        raise click.BadParameter(problem, context, option) from None
    return prompts, answers, *cached


@click.command(cls=QueryCommand, short_help="Run a query and print its result.")
@click.argument("file", required=False, type=click.Path(allow_dash=True))
@click.option("-e", "text", metavar="QUERY", help="The query itself, instead of FILE.")
@input_options
@click.option("--vars", "inputs_file", metavar="FILE", help="Inputs, as one JSON object.", type=click.Path())
@model_options
@option_flags
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Any option of a header, such as top_p=0.9.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Run nothing. Show for each hole how its conditions would be enforced.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "events"]),
    default="text",
    show_default=True,
    help="json: one object with value, vars, prompt, usage, seed, model. events: a line of JSON for each event, when "
    "it happens.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "-u", "--usage", is_flag=True, help="Print a line on stderr: where the tokens came from, and what they cost."
)
def run(
    file: str | None,
    text: str | None,
    texts: tuple[str, ...],
    values: tuple[str, ...],
    inputs_file: str | None,
    model: str | None,
    sets: tuple[str, ...],
    dry_run: bool,
    form: str,
    as_json: bool,
    usage: bool,
    **flags: Any,
) -> None:
    """Run the query in FILE (- reads it from stdin), or the query after -e.

    Prints the value that the query returns. If it returns nothing, prints its whole text, followed by the probabilities
    of each hole with a distribution.
    """
    if (file is None) == (text is None):
        raise click.UsageError("name the FILE of a query, or give its text with -e QUERY, and not both")
    if form == "events" and (as_json or dry_run):
        raise click.UsageError("--format events cannot be combined with --json or --dry-run")
    if flags["trace"] and dry_run:
        raise click.UsageError("--trace cannot be combined with --dry-run, which calls no model")
    as_json = as_json or form == "json"
    streams = form == "text" and not as_json and sys.stdout.isatty()
    with reporting(as_json), streaming() if form == "events" else watching(streams=streams) as watcher:
        query = load(file or "<-e>", text)
        _refuse_cost_without_prices(query, flags["max_cost"], flags["prices"])
        inputs = read_inputs(texts, values, inputs_file)
        if "input(" not in query.program.span.text:  # a line that is typed must not be drawn over
            watcher.start(model or os.environ.get("LQ_MODEL") or "the model")
        off = {name: False for name, given in flags.items() if given and name in OPTIONS and OPTIONS[name].flag == ""}
        own = {name: given for name, given in flags.items() if name not in ACCESS}
        options = cast("Options", {**own, **off, **set_options(sets), "model": model_named(model, flags)})
        if dry_run:
            from lmql_lite.apps.plan_view import plan_lines, plan_object

            plan = query.plan(inputs, **options)
            write_object(plan_object(plan)) if as_json else write("\n".join(plan_lines(plan)))
            return
        began = time.monotonic()
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            finished = interruptible(watched(query, inputs, options, watcher), watcher)
        watcher.end()
        if as_json:
            write(json.dumps(as_object(finished), ensure_ascii=False))
        elif form == "text":
            rest = as_shown(finished, returns=query.returns)[len(watcher.written) :]
            if rest or not watcher.written.endswith("\n"):
                write(rest)
            if not query.returns and not finished.result.prompt:
                note("the prompt of the query is empty: only a string that stands alone is part of it")
        if usage:
            for result in finished.results or (finished.result,):
                click.echo(usage_line(result, time.monotonic() - began), err=True)


def interruptible(run: Coroutine[Any, Any, Finished], watcher: Watcher) -> Finished:
    """Runs to the end. Where Ctrl-C ends it, the files that keep what was answered are named."""
    try:
        return until_interrupted(run)
    except KeyboardInterrupt:
        from lmql_lite.engine.session import default_session

        if watcher.answered and (files := default_session().written_files):
            kept = f"{counted(watcher.answered, 'token')} kept in {', '.join(map(os.path.relpath, files))}"
            watcher.close(failed=True)
            write_error(f"interrupted; {kept}; run the same command to continue")
            sys.exit(INTERRUPTED)
        raise


async def watched(query: Query, inputs: Mapping[str, Any], options: Options, watcher: Watcher) -> Finished:
    """Runs the query; gives its last event."""
    from lmql_lite.engine import events

    async with aclosing(query.stream(inputs, **options)) as stream:
        async for event in stream:
            watcher.see(event)
            if isinstance(event, events.Finished):
                return event
    raise AssertionError("a run ends with Finished or raises")


def set_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Options of --set: a value is read as JSON where it is some, and else as text. Raises InputError."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--set takes NAME=VALUE; this is {pair!r}", hint="for example --set top_p=0.9")
        if problem := None if name in OPTIONS else option_problem(name, None):
            raise InputError(problem.sentence, hint=problem.hint)
        if OPTIONS[name].type is None and name != "decoder":
            raise InputError(f"--set cannot say {name}", hint=f"--{name} can" if OPTIONS[name].flag else None)
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = {"True": True, "False": False}.get(value, value)
    return found


def _refuse_cost_without_prices(query: Query, max_cost: float | None, prices: tuple[float, ...] | None) -> None:
    """Refusal before anything is asked. The header of the query may have the prices."""
    if max_cost is not None and prices is None and "prices" not in {option.name for option in query.program.options}:
        raise InputError(
            "--max-cost needs --prices, because servers do not report them",
            hint="--prices 0.15,0.60, for a million prompt tokens and a million answer tokens",
        )
