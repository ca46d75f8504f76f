"""What the commands share: queries and inputs are read, results are written, failures become reports and exit codes."""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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
    from lmql_lite.models.base import Model
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

RUN_MODEL = click.option(
    "--model", metavar="ID", help="demo (unless told), local:NAME_OR_PATH, or openai/NAME for one behind an API."
)
BASE_URL = click.option(
    "--base-url",
    metavar="URL",
    help="Where the server of openai/NAME is, such as http://localhost:8000/v1 (OPENAI_BASE_URL, or OpenAI itself, "
    "unless told). Its key is read from OPENAI_API_KEY and nowhere else: all users of a machine see its command lines.",
)


class QueryCommand(click.Command):
    """A command whose FILE is a query: its inputs and its header are easily taken for options of the command."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        try:
            return super().parse_args(context, arguments)
        except click.NoSuchOption as error:
            from lmql_lite.program.decoding import OPTIONS

            name = error.option_name.lstrip("-")
            own = [option.lstrip("-") for each in self.params for option in each.opts]
            if (option := name.replace("-", "_")) in OPTIONS:
                hint = f"It stands in the header of the query: sample({option}=...)"
            elif close := get_close_matches(name, own, n=1):
                hint = f"Did you mean --{close[0]}?"
            else:
                hint = "An input of the query is given as --var NAME=TEXT"
            raise click.UsageError(f"No such option '{error.option_name}'. {hint}", context) from None


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


def model_named(model: str | None, base_url: str | None) -> str | Model | None:
    """The model of MODEL and BASE_URL; None where the query says it."""
    if base_url is None:
        return model
    if model is None:
        raise InputError("--base-url says where a model is, and none is named", hint="add --model openai/NAME")
    from lmql_lite.models.registry import load as load_model

    return load_model(model, base_url=base_url)


# Writing ---------------------------------------------------------------------------------------------------------


def write(text: str) -> None:
    """The result. A model's control characters never reach a terminal; a pipe gets every byte."""
    if sys.stdout.isatty():
        text = "".join(character for character in text if character.isprintable() or character in "\n\t")
    text = text.encode(errors="backslashreplace").decode()  # half a character is none, but in JSON it may be spelled so
    click.echo(text, nl=not text.endswith("\n"), color=True)  # color=False would strip what looks like a colour


def write_object(found: Mapping[str, Any]) -> None:
    """A result as one JSON object, in ASCII: names of files may be no text."""
    write(json.dumps({"ok": True, **found, "schema": 1}))


def tell(text: str) -> None:
    """On stderr. What a terminal would act upon is shown instead: names of files and texts of models may hold it."""
    shown = (one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)
    click.echo("".join(shown), err=True)


def note(sentence: str) -> None:
    tell(f"note: {sentence}")


def counted(number: int, what: str) -> str:
    """`1 head`, `2 heads`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def money(amount: float) -> str:
    """Rounded up to a millionth."""
    millionths = math.ceil(round(amount * 1e6, 3))
    return f"{millionths // 10**6:,}.{millionths % 10**6:06}".rstrip("0").rstrip(".")


def ago(seconds: float) -> str:
    """`3 days ago`, from the largest unit of which there is one."""
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds >= length:
            return f"{counted(int(seconds // length), unit)} ago"
    return "just now"


def written_ago(oldest: int, newest: int, now: float) -> str:
    """When facts were written, from unix seconds; 0 is not known."""
    if not newest:
        return "written at an unknown time"
    first, last = ago(now - oldest) if oldest else "an unknown time", ago(now - newest)
    return f"written {last}" if first == last else f"written between {first} and {last}"


# Failing ---------------------------------------------------------------------------------------------------------


@contextmanager
def reporting(as_json: bool) -> Iterator[None]:
    """Turns every failure into a report and an exit code. With --json it also stands on stdout, as an object."""
    try:
        yield
    except LmqlLiteError as error:
        if as_json:
            click.echo(json.dumps({"ok": False, "error": error_object(error), "schema": 1}))
        tell(error.report())
        sys.exit(next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1))
    except (BrokenPipeError, click.Abort, click.ClickException):
        raise
    except Exception as error:
        if as_json:
            problem = {"code": type(error).__name__, "message": str(error)}
            click.echo(json.dumps({"ok": False, "error": problem, "schema": 1}))
        tell(own_report(error))
        sys.exit(4 if isinstance(error, AssertionError) else 1)


def error_object(error: LmqlLiteError) -> dict[str, Any]:
    place = {"file": error.span.name, "line": error.span.line, "column": error.span.column} if error.span else {}
    found: dict[str, Any] = {"code": type(error).__name__, "message": error.message, "hint": error.hint, **place}
    if error.others:
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
