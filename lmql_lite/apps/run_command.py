"""`lq run`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from lmql_lite.apps.results import as_object, as_shown, usage_line
from lmql_lite.apps.terminal import (
    BASE_URL,
    RUN_MODEL,
    QueryCommand,
    load,
    model_named,
    note,
    read_inputs,
    reporting,
    write,
    write_object,
)
from lmql_lite.errors import InputError

if TYPE_CHECKING:
    from lmql_lite.apps.watcher import Seen
    from lmql_lite.runtime.events import Finished
    from lmql_lite.verbs import Options, Query


def two_prices(context: click.Context, option: click.Parameter, given: str | None) -> tuple[float, float] | None:
    """`0.15,0.60`: of a million tokens of prompts, and of answers."""
    if given is None:
        return None
    try:
        prompts, answers = map(float, given.split(","))
    except ValueError:
        problem = f"{given!r} is not two numbers with a comma between them, such as 0.15,0.60"
        raise click.BadParameter(problem, context, option) from None
    return prompts, answers


@click.command(cls=QueryCommand, short_help="Run a query: what it says is printed.")
@click.argument("file")
@click.option(
    "--var", "texts", multiple=True, metavar="NAME=TEXT", help="An input; NAME=@FILE reads the text of a file."
)
@click.option(
    "--var-json", "values", multiple=True, metavar="NAME=JSON", help="An input that is no text: a number, a list..."
)
@RUN_MODEL
@BASE_URL
@click.option("--cache", metavar="on|off|FILE", help="off asks the model anew; FILE keeps what it says (x.tokens).")
@click.option(
    "--cache-mode",
    metavar="MODE",
    help="rw (unless told), ro: FILE is only read, refresh: all is asked anew and replaces what FILE knows, replay: "
    "the model is never asked, or off.",
)
@click.option("--seed", type=int, metavar="N", help="Makes sampling repeatable; every result names its seed.")
@click.option("--max-tokens", type=int, metavar="N", help="The most tokens of one hole (1024 unless told).")
@click.option(
    "--max-requests", type=int, metavar="N", help="Ends a run with exit code 7 before it asks a server more often."
)
@click.option("--max-total-tokens", type=int, metavar="N", help="The same for tokens of prompts and answers together.")
@click.option("--max-cost", type=float, metavar="SUM", help="The same for what they cost; needs --prices.")
@click.option(
    "--prices",
    metavar="IN,OUT",
    callback=two_prices,
    help="Of a million tokens of prompts, and of answers: 0.15,0.60. -u then tells the cost.",
)
@click.option("--no-speculate", is_flag=True, help="The model writes nothing ahead of the run.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Runs nothing: says hole by hole what the model would be held to, and the most that a run may cost.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "events"]),
    default="text",
    show_default=True,
    help="json: one object with value, vars, prompt, usage, seed, model. events: a line of JSON for everything that "
    "happens, when it happens.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--trace",
    metavar="FILE",
    help="Writes what the run told to FILE.json (every call of the model), FILE.lqrun (for lq replay) or FILE.html (a "
    "report).",
)
@click.option("-u", "--usage", is_flag=True, help="One line on stderr: where the tokens came from, and what they cost.")
def run(
    file: str,
    texts: tuple[str, ...],
    values: tuple[str, ...],
    model: str | None,
    base_url: str | None,
    cache: str | None,
    cache_mode: str | None,
    seed: int | None,
    max_tokens: int | None,
    max_requests: int | None,
    max_total_tokens: int | None,
    max_cost: float | None,
    prices: tuple[float, float] | None,
    no_speculate: bool,
    dry_run: bool,
    form: str,
    as_json: bool,
    trace: str | None,
    usage: bool,
) -> None:
    """Run the query in FILE (- reads it from stdin).

    Prints what the query returns; one that returns nothing prints its whole text, and below it the probabilities of
    each hole with a distribution.
    """
    if form == "events" and (as_json or dry_run):
        raise click.UsageError("--format events is of a run, and not of --json or --dry-run")
    if trace and dry_run:
        raise click.UsageError("a dry run tells nothing that --trace could write down")
    as_json = as_json or form == "json"
    with reporting(as_json), shown(form) as see:
        query = load(file)
        _refuse_cost_without_prices(query, max_cost, prices)
        inputs = read_inputs(texts, values)
        options: Options = {
            "model": model_named(model, base_url),
            "cache": {"on": True, "off": False}.get(cache, cache) if cache else None,
            "cache_mode": cache_mode,
            "seed": seed,
            "max_tokens": max_tokens,
            "max_requests": max_requests,
            "max_total_tokens": max_total_tokens,
            "max_cost": max_cost,
            "prices": prices,
            "speculate": False if no_speculate else None,
            "trace": trace,
        }
        if dry_run:
            show_plan(query, inputs, options, as_json=as_json)
            return
        began = time.monotonic()
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            finished = asyncio.run(watched(query, inputs, options, see))
        if as_json:
            write(json.dumps(as_object(finished), ensure_ascii=False))
        elif form == "text":
            write(as_shown(finished, returns=query.returns))
            if not query.returns and not finished.result.prompt:
                note("the query has said nothing: only a string that stands alone is part of its prompt")
        if usage:
            for result in finished.results or (finished.result,):
                click.echo(usage_line(result, time.monotonic() - began), err=True)


def shown(form: str) -> AbstractContextManager[Seen]:
    """How a run is seen while it goes on."""
    from lmql_lite.apps.watcher import telling, watching  # what they load is not needed to find mistakes in options

    return telling() if form == "events" else watching()


async def watched(query: Query, inputs: Mapping[str, Any], options: Options, see: Seen) -> Finished:
    """Runs the query; gives its last event."""
    from lmql_lite.runtime import events

    async with aclosing(query.stream(inputs, **options)) as stream:
        async for event in stream:
            see(event)
            if isinstance(event, events.Finished):
                return event
    raise AssertionError("a run ends with Finished or raises")


def _refuse_cost_without_prices(query: Query, max_cost: float | None, prices: tuple[float, float] | None) -> None:
    """Before anything is asked. The header of the query may have them."""
    if max_cost is not None and prices is None and "prices" not in {option.name for option in query.program.options}:
        raise InputError(
            "--max-cost needs --prices: no server tells them",
            hint="--prices 0.15,0.60 are those of a million tokens of prompts and of answers",
        )


def show_plan(query: Query, inputs: Mapping[str, Any], options: Options, *, as_json: bool) -> None:
    from lmql_lite.apps.plan_view import plan_lines, plan_object

    plan = query.plan(inputs, **options)
    if as_json:
        write_object(plan_object(plan))
    else:
        write("\n".join(plan_lines(plan)))
