"""`lq`: results on stdout, everything else on stderr, one exit code per kind of failure.

0 fine    1 a bug, or an exception of the query's own Python    2 wrong usage or input    3 the query does not
compile    4 a constraint or an assertion of the query failed    5 the model failed    6 the cache    7 a budget
130 interrupted
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from lmql_lite import __version__
from lmql_lite.apps.cache_commands import cache
from lmql_lite.apps.terminal import (
    BASE_URL,
    EXIT_CODES,
    INTERRUPTED,
    RUN_MODEL,
    counted,
    load,
    model_named,
    money,
    read_inputs,
    reporting,
    tree_of,
    write,
    write_object,
)
from lmql_lite.errors import InputError, QueryError

if TYPE_CHECKING:
    from lmql_lite.apps.metering import Cost
    from lmql_lite.runtime.result import Result
    from lmql_lite.verbs import Options, Query

PROGRESS_AFTER_S = 0.5


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


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="lq", message="%(prog)s %(version)s")
def lq() -> None:
    """Run prompt programs: text with holes, and conditions on what may fill them."""


@lq.command()
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
@click.option("--json", "as_json", is_flag=True, help="One JSON object: value, vars, prompt, usage, seed, model.")
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
    as_json: bool,
    usage: bool,
) -> None:
    """Run the query in FILE (- reads it from stdin).

    Prints what the query returns; one that returns nothing prints its whole text, and below it the probabilities of
    each hole with a distribution.
    """
    with reporting(as_json):
        query = load(file)
        _refuse_cost_without_prices(query, max_cost, prices)
        inputs = read_inputs(texts, values)
        from lmql_lite.apps.metering import MeteredSession  # after the query was read: mistakes in it come quickly

        session = MeteredSession() if prices else None
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
            "session": session,
        }
        if dry_run:
            show_plan(query, inputs, options, as_json=as_json)
            return
        began = time.monotonic()
        result = asyncio.run(watched(query, inputs, options))
        cost = session.cost(prices) if session and prices else None
        if as_json:
            write(json.dumps(as_object(result, cost), ensure_ascii=False, default=as_plain))
        else:
            write(as_text(result.value) if query.returns else with_distributions(result))
        if usage:
            click.echo(usage_line(result, cost, time.monotonic() - began), err=True)


def _refuse_cost_without_prices(query: Query, max_cost: float | None, prices: tuple[float, float] | None) -> None:
    """Before anything is asked. The header of the query may have them."""
    if max_cost is not None and prices is None and "prices" not in {option.name for option in query.program.options}:
        raise InputError(
            "--max-cost needs --prices: no server tells them",
            hint="--prices 0.15,0.60 are those of a million tokens of prompts and of answers",
        )


@lq.command()
@click.argument("files", nargs=-1, required=True)
def check(files: tuple[str, ...]) -> None:
    """Look for mistakes in FILES without asking any model."""
    from lmql_lite.program.compiler import compile as compile_program

    worst = 0
    problems = 0
    for file in files:
        try:
            compile_program(tree_of(file))
        except (QueryError, InputError) as error:
            click.echo(error.report())
            worst = max(worst, EXIT_CODES[type(error)])
            problems += len(error.problems) if isinstance(error, QueryError) else 1
        else:
            click.echo(f"{file}: ok")
    if problems:
        click.echo(f"{problems} problem{'s' * (problems > 1)} found", err=True)
    sys.exit(worst)


lq.add_command(cache)


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


# Running ---------------------------------------------------------------------------------------------------------


async def watched(query: Query, inputs: Mapping[str, Any], options: Options) -> Result:
    """Runs the query; on a terminal a line on stderr counts the tokens and is gone at the end."""
    from lmql_lite.runtime import events

    live = sys.stderr.isatty()
    began, tokens, drawn = time.monotonic(), 0, False
    try:
        async for event in query.stream(inputs, **options):
            match event:
                case events.Finished(result):
                    return result
                case events.Notice(message):
                    click.echo(f"note: {message}", err=True)
                case events.TokenMoved(token):
                    tokens += 1 if token.fate == "kept" else -1
                    if live and time.monotonic() - began > PROGRESS_AFTER_S:
                        click.echo(f"\r{tokens} tokens", nl=False, err=True)
                        drawn = True
    finally:
        if drawn:
            click.echo("\r\x1b[K", nl=False, err=True)
    raise AssertionError("a run ends with Finished or raises")


def show_plan(query: Query, inputs: Mapping[str, Any], options: Options, *, as_json: bool) -> None:
    from lmql_lite.apps.plan_view import plan_lines, plan_object

    plan = query.plan(inputs, **options)
    if as_json:
        write_object(plan_object(plan))
    else:
        write("\n".join(plan_lines(plan)))


# Writing ---------------------------------------------------------------------------------------------------------


def with_distributions(result: Result) -> str:
    """The whole text, and below it a line for each option that was weighed for one of its holes."""
    text = result.prompt
    for name, pairs in result.variables.items():
        if name.startswith("P("):  # the name of a hole has no such character
            lines = [
                f"{share:.4f}  {json.dumps(option, ensure_ascii=False, default=as_plain)}" for option, share in pairs
            ]
            text = "\n".join([text.removesuffix("\n"), name, *lines]) + "\n"
    return text


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=as_plain)


def as_plain(value: Any) -> Any:
    """What JSON does not know, as what it knows: a value of a typed hole as its parts, anything else as its text."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)


def as_object(result: Result, cost: Cost | None = None) -> dict[str, Any]:
    """What a server did not tell is null. `cost` is of a run with prices; where it is not told, it is no more."""
    return {
        "ok": True,
        "value": result.value,
        "vars": dict(result.variables),
        "prompt": result.prompt,
        "endings": dict(result.endings),
        "usage": result.usage.as_dict(),
        "cost": None if cost is None else {"amount": cost.amount, "told": cost.is_told},
        "seed": result.seed,
        "model": result.model,
        "schema": 1,
    }


def usage_line(result: Result, cost: Cost | None, seconds: float) -> str:
    usage = result.usage
    if usage.forward_passes is None:
        return _server_usage_line(result, cost, seconds)
    out = [
        f"{usage.tokens_from_cache} cache",
        f"{usage.tokens_from_model} model",
        f"{usage.draft_accepted} draft",
        f"{usage.tokens_forced} forced",
    ]
    kept = (usage.completion_tokens or 0) - (usage.wasted_tokens or 0)
    wasted = f" + {usage.wasted_tokens} wasted" if usage.wasted_tokens else ""
    return (
        f"tokens in {usage.prompt_tokens} out {kept} ({', '.join(out)}){wasted}"
        f" · {usage.requests} requests · {usage.forward_passes} forward passes · {seconds:.1f} s"
    )


def _server_usage_line(result: Result, cost: Cost | None, seconds: float) -> str:
    """In the server's own tokens, as far as it tells. Counted here is what arrived, and what became of it."""
    usage = result.usage
    told = {name: "?" if count is None else f"{count}" for name, count in usage.as_dict().items()}
    kept = ", ".join(
        f"{told[name]} {source}"
        for source, name in (
            ("cache", "tokens_from_cache"),
            ("model", "tokens_from_model"),
            ("forced", "tokens_forced"),
        )
    )
    parts = [
        counted(usage.requests or 0, "request"),
        f"tokens in {told['prompt_tokens']} ({told['provider_cached_tokens']} cached by the server)"
        f" out {told['completion_tokens']}",
        f"received {told['received_tokens']} ({told['wasted_tokens']} wasted)",
        f"kept {kept}",
    ]
    if cost is not None:
        parts.append(f"cost {'' if cost.is_told else 'at most '}{money(cost.amount)}")
    return " · ".join([*parts, f"{seconds:.1f} s"])
