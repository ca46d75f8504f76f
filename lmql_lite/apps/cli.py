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
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from lmql_lite import __version__
from lmql_lite.errors import (
    BudgetError,
    CacheError,
    ConstraintError,
    InputError,
    LmqlLiteError,
    ModelError,
    QueryError,
)

if TYPE_CHECKING:
    from lmql_lite.cache.verify import Report
    from lmql_lite.runtime.result import Result
    from lmql_lite.verbs import Query

EXIT_CODES: Mapping[type[LmqlLiteError], int] = {
    InputError: 2,
    QueryError: 3,
    ConstraintError: 4,
    ModelError: 5,
    CacheError: 6,
    BudgetError: 7,
}
INTERRUPTED = 130
PROGRESS_AFTER_S = 0.5


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
@click.option("--model", metavar="ID", help="demo (unless told), or local:NAME_OR_PATH.")
@click.option("--cache", metavar="on|off|FILE", help="off asks the model anew; FILE keeps what it says (x.tokens).")
@click.option(
    "--cache-mode",
    metavar="MODE",
    help="rw (unless told), ro: FILE is only read, replay: the model is never asked, or off.",
)
@click.option("--seed", type=int, metavar="N", help="Makes sampling repeatable; every result names its seed.")
@click.option("--max-tokens", type=int, metavar="N", help="The most tokens of one hole (1024 unless told).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: value, vars, prompt, usage, seed, model.")
@click.option("-u", "--usage", is_flag=True, help="One line on stderr: where the tokens came from.")
def run(
    file: str,
    texts: tuple[str, ...],
    values: tuple[str, ...],
    model: str | None,
    cache: str | None,
    cache_mode: str | None,
    seed: int | None,
    max_tokens: int | None,
    as_json: bool,
    usage: bool,
) -> None:
    """Run the query in FILE (- reads it from stdin).

    Prints what the query returns; one that returns nothing prints its whole text.
    """
    with reporting(as_json):
        query = load(file)
        inputs = read_inputs(texts, values)
        began = time.monotonic()
        result = asyncio.run(
            watched(
                query,
                inputs,
                model=model,
                cache={"on": True, "off": False}.get(cache, cache) if cache else None,
                cache_mode=cache_mode,
                seed=seed,
                max_tokens=max_tokens,
            )
        )
        if as_json:
            write(json.dumps(as_object(result), ensure_ascii=False, default=as_plain))
        else:
            write(as_text(result.value if query.returns else result.prompt))
        if usage:
            click.echo(usage_line(result, time.monotonic() - began), err=True)


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


@lq.group()
def cache() -> None:
    """Look at .tokens files: what models said, kept for later runs. Nothing here changes them."""


@cache.command()
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def stats(file: str, as_json: bool) -> None:
    """What FILE holds."""
    with reporting(as_json):
        report = report_on(file)
        if as_json:
            write(json.dumps(asdict(report), ensure_ascii=False))
            return
        for model in report.models:
            click.echo(f"model      {model.name}, {model.vocabulary_size:,} tokens, {model.fingerprint[:12]}")
        for what in ("nodes", "heads", "verdicts", "draws", "frames", "bytes"):
            click.echo(f"{what:<10} {getattr(report, what):,}")
        if not report.is_sound:
            click.echo(f"damaged in {len(report.damage)} places; see lq cache verify {file}", err=True)


@cache.command()
@click.argument("file")
def verify(file: str) -> None:
    """Read and check all of FILE; exit code 6 where some of it is damaged, and is then a miss."""
    with reporting(as_json=False):
        report = report_on(file)
        for damage in report.damage:
            click.echo(f"{file}: bytes {damage.start:,} to {damage.end:,}: {damage.what}")
        if report.torn_bytes:
            click.echo(f"{file}: the last {report.torn_bytes:,} bytes are of a write that was cut short, or goes on")
        if report.is_sound:
            click.echo(f"{file}: sound, {report.nodes:,} nodes in {report.frames:,} frames")
        else:
            sys.exit(EXIT_CODES[CacheError])


def report_on(file: str) -> Report:
    from lmql_lite.cache.verify import verify as read_and_check

    return read_and_check(file)


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


# Reading ---------------------------------------------------------------------------------------------------------


def tree_of(file: str) -> Any:
    from lmql_lite.lang.parser import parse
    from lmql_lite.lang.source import Source

    if file == "-":
        return parse(Source.from_bytes("<stdin>", sys.stdin.buffer.read()))
    return parse(Source.from_file(Path(file)))


def load(file: str) -> Query:
    from lmql_lite.program.compiler import compile as compile_program
    from lmql_lite.verbs import Query

    return Query(compile_program(tree_of(file)))


def read_inputs(texts: tuple[str, ...], values: tuple[str, ...]) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    for option, pair in [*(("--var", text) for text in texts), *(("--var-json", value) for value in values)]:
        name, equals, given = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"{option} takes NAME=VALUE; this is {pair!r}", hint=f"for example {option} place=Rome")
        if name in inputs:
            raise InputError(f"the input {name!r} is given twice")
        inputs[name] = _json(name, given) if option == "--var-json" else _text(name, given)
    return inputs


def _text(name: str, given: str) -> str:
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except OSError as error:
        raise InputError(f"the input {name!r} cannot be read from {given[1:]!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"the input {name!r} cannot be read from {given[1:]!r}: it is not UTF-8 text") from None


def _json(name: str, given: str) -> Any:
    try:
        return json.loads(given)
    except json.JSONDecodeError as error:
        raise InputError(
            f"the input {name!r} is no JSON: {error.msg} at character {error.pos + 1}",
            hint=f"for text use --var {name}=...",
        ) from None


# Running ---------------------------------------------------------------------------------------------------------


async def watched(
    query: Query,
    inputs: Mapping[str, Any],
    *,
    model: str | None,
    cache: bool | str | None,
    cache_mode: str | None,
    seed: int | None,
    max_tokens: int | None,
) -> Result:
    """Runs the query; on a terminal a line on stderr counts the tokens and is gone at the end."""
    from lmql_lite.runtime import events

    live = sys.stderr.isatty()
    began, tokens, drawn = time.monotonic(), 0, False
    try:
        stream = query.stream(inputs, model=model, cache=cache, cache_mode=cache_mode, seed=seed, max_tokens=max_tokens)
        async for event in stream:
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


# Writing ---------------------------------------------------------------------------------------------------------


def write(text: str) -> None:
    """The result. A model's control characters never reach a terminal; a pipe gets every byte."""
    if sys.stdout.isatty():
        text = "".join(character for character in text if character.isprintable() or character in "\n\t")
    click.echo(text, nl=not text.endswith("\n"), color=True)  # color=False would strip what looks like a colour


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


def as_object(result: Result) -> dict[str, Any]:
    return {
        "ok": True,
        "value": result.value,
        "vars": dict(result.variables),
        "prompt": result.prompt,
        "endings": dict(result.endings),
        "usage": result.usage.as_dict(),
        "seed": result.seed,
        "model": result.model,
        "schema": 1,
    }


def usage_line(result: Result, seconds: float) -> str:
    usage = result.usage
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


# Failing ---------------------------------------------------------------------------------------------------------


@contextmanager
def reporting(as_json: bool) -> Iterator[None]:
    """Turns every failure into a report and an exit code. With --json it also stands on stdout, as an object."""
    try:
        yield
    except LmqlLiteError as error:
        if as_json:
            click.echo(json.dumps({"ok": False, "error": error_object(error), "schema": 1}, ensure_ascii=False))
        click.echo(error.report(), err=True)
        sys.exit(EXIT_CODES.get(type(error), 1))
    except (BrokenPipeError, KeyboardInterrupt, click.ClickException):
        raise
    except Exception as error:
        if as_json:
            problem = {"code": type(error).__name__, "message": str(error)}
            click.echo(json.dumps({"ok": False, "error": problem, "schema": 1}, ensure_ascii=False))
        click.echo(own_report(error), err=True)
        sys.exit(4 if isinstance(error, AssertionError) else 1)


def error_object(error: LmqlLiteError) -> dict[str, Any]:
    place = {"file": error.span.name, "line": error.span.line, "column": error.span.column} if error.span else {}
    found: dict[str, Any] = {"code": type(error).__name__, "message": error.message, "hint": error.hint, **place}
    if isinstance(error, QueryError) and error.others:
        found["others"] = [error_object(other) for other in error.others]
    return found


def own_report(error: Exception) -> str:
    """An exception of the query's own Python: where in the query, and what. One of ours: everything."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.endswith(".py") and not frame.filename.startswith("<frozen")]
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if not own:
        return "".join(traceback.format_exception(error)) + "this is a bug of lmql_lite; please report it"
    place = own[-1]
    line = f"\n    {place.line}" if place.line else ""
    return f"{place.filename}:{place.lineno}: the query's own Python raised {said}{line}"
