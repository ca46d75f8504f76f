"""Shared parts of the commands: reading queries and inputs, writing results, errors as reports and exit codes."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from lmql_lite.errors import (
    MAX_EXCERPT_COLUMNS,
    BudgetError,
    CacheError,
    ConstraintError,
    InputError,
    LmqlLiteError,
    ModelError,
    QueryError,
)

if TYPE_CHECKING:
    from lmql_lite.api import Query
    from lmql_lite.models.base import Model

EXIT_CODES: Mapping[type[LmqlLiteError], int] = {
    InputError: 2,
    QueryError: 3,
    ConstraintError: 4,
    ModelError: 5,
    CacheError: 6,
    BudgetError: 7,
}
INTERRUPTED = 130
INDENTED = 4
"""Columns by which a source line is indented in a report."""
MIN_COLUMNS = 40
"""Columns that a source line takes on any terminal."""

_STYLES: Mapping[str, dict[str, Any]] = {
    "note": {"fg": "yellow", "bold": True},
    "place": {"bold": True},
    "carets": {"fg": "red", "bold": True},
    "hint": {"fg": "cyan", "bold": True},
}
_STYLED = re.compile(
    r"(?m)^(?:(?P<note>(?:note|warning):)|(?P<place>\S[^\n]*?:\d+:(?:\d+:)?)(?= )|(?P<carets> +\^+)$|(?P<hint> +hint:))"
)
"""The parts of a report that have a colour."""

MODEL_HELP = (
    "demo, smol, local:NAME_OR_PATH, llamacpp:FILE.gguf; openai/NAME behind an API; ollama/NAME, vllm/NAME or "
    "llamacpp/NAME on a server on this machine. Default: the query's own model, then LQ_MODEL, pyproject.toml, demo."
)
RUN_MODEL = click.option("--model", metavar="ID", help=MODEL_HELP)
BASE_URL_HELP = (
    "Address of the server of openai/NAME, such as http://localhost:8000/v1. Default: LQ_BASE_URL, then "
    "OPENAI_BASE_URL, then OpenAI. The key is read from OPENAI_API_KEY only, because all users of a machine can see "
    "its command lines."
)
BASE_URL = click.option("--base-url", metavar="URL", help=BASE_URL_HELP)
TIMEOUT = click.option(
    "--timeout", type=float, metavar="SECONDS", help="Longest silence of the server in seconds (default: 300)."
)
ACCESS = ("base_url", "revision", "tokenizer", "timeout", "concurrency")
"""Options of a model behind an API that have a flag; `models.registry.Access` has all of them."""
_MODEL_OPTIONS = (
    RUN_MODEL,
    BASE_URL,
    click.option(
        "--revision",
        metavar="NAME",
        help="Version of the model on the server. Cached answers stay valid at another address and after the server "
        "has changed.",
    ),
    click.option(
        "--tokenizer",
        metavar="FOLDER",
        help="Folder with the tokenizer.json of the server's model. Prompts are then sent as token ids.",
    ),
    TIMEOUT,
    click.option(
        "--concurrency",
        type=int,
        metavar="N",
        help="Maximum number of simultaneous requests to the server (default: 32).",
    ),
)
_INPUT_OPTIONS = (
    click.option(
        "--var", "texts", multiple=True, metavar="NAME=TEXT", help="An input; NAME=@FILE reads the text of a file."
    ),
    click.option(
        "--var-json",
        "values",
        multiple=True,
        metavar="NAME=JSON",
        help="An input that is not text: a number, a list...",
    ),
)
JSON_HELP = "One JSON object."
JSON = click.option("--json", "as_json", is_flag=True, help=JSON_HELP)


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--model` and the flags of `ACCESS`."""
    for option in reversed(_MODEL_OPTIONS):
        command = option(command)
    return command


def input_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--var` and `--var-json`."""
    for option in reversed(_INPUT_OPTIONS):
        command = option(command)
    return command


class QueryCommand(click.Command):
    """A command whose FILE is a query. Users easily mistake the query's inputs and header for options of the
    command."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        try:
            return super().parse_args(context, arguments)
        except click.NoSuchOption as error:
            from difflib import get_close_matches

            from lmql_lite.options import IN_HEADER

            name = error.option_name.lstrip("-")
            own = [option.lstrip("-") for each in self.params for option in each.opts]
            if (option := name.replace("-", "_")) in IN_HEADER:
                takes = any(each.name == "sets" for each in self.params)
                hint = f"Add --set {option}=VALUE" if takes else "It belongs in the header of the query: "
                hint += "" if takes else f"sample({option}=...)"
            elif close := get_close_matches(name, own, n=1):
                hint = f"Did you mean --{close[0]}?"
            else:
                hint = "An input of the query is given as --var NAME=TEXT"
            raise click.UsageError(f"No such option '{error.option_name}'. {hint}", context) from None


# Reading ---------------------------------------------------------------------------------------------------------


def tree_of(file: str, text: str | None = None) -> Any:
    """The syntax tree of a file, of stdin (`-`), or of a text on the command line."""
    from lmql_lite.lang.query import parse
    from lmql_lite.lang.source import Source

    if text is not None:
        return parse(Source(file, text))
    if file == "-":
        return parse(Source.from_bytes("<stdin>", sys.stdin.buffer.read()))
    return parse(Source.from_file(Path(file)))


def load(file: str, text: str | None = None) -> Query:
    """The compiled query of a file, of stdin or of a text. Its Python finds the modules beside the file."""
    from lmql_lite.api import Query
    from lmql_lite.program.compiler import compile as compile_program

    find_modules_beside(Path() if text is not None or file == "-" else Path(file).parent)
    return Query(compile_program(tree_of(file, text)))


def find_modules_beside(folder: Path, *, is_first: bool = True) -> None:
    """Lets Python import the modules of a folder: before all others, as those beside a script, or after them."""
    name = str(folder.resolve())
    if name not in sys.path:
        sys.path.insert(0 if is_first else len(sys.path), name)


def read_inputs(texts: tuple[str, ...], values: tuple[str, ...], file: str | None = None) -> dict[str, Any]:
    """Inputs of --var, --var-json and --vars."""
    inputs: dict[str, Any] = {} if file is None else _object_in(file)
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


def _object_in(file: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(file).read_text("utf-8"))
    except OSError as error:
        raise InputError(f"--vars {file!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"--vars {file!r} is not a JSON file: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"--vars {file!r} does not hold a JSON object", hint='for example {"place": "Rome"}')
    return found


def _json(name: str, given: str) -> Any:
    try:
        return json.loads(given)
    except json.JSONDecodeError as error:
        raise InputError(
            f"the input {name!r} is not JSON: {error.msg} at character {error.pos + 1}",
            hint=f"for text use --var {name}=...",
        ) from None


def model_named(model: str | None, given: Mapping[str, Any]) -> str | Model | None:
    """Model of `--model` with the options of `ACCESS` that are given. None if the query, LQ_MODEL or pyproject.toml
    names it."""
    from lmql_lite.apps.configuration import read_configuration

    read_configuration(Path.cwd())
    access = {name: given[name] for name in ACCESS if given.get(name) is not None}
    if not access:
        return model
    if model is None:
        named = next(iter(access)).replace("_", "-")
        raise InputError(f"--{named} is for a model behind an API, but none is named", hint="add --model openai/NAME")
    from lmql_lite.models.registry import Access
    from lmql_lite.models.registry import load as load_model

    return load_model(model, **cast("Access", access))


# Writing ---------------------------------------------------------------------------------------------------------


class Unwritable(click.ClickException):
    """The result cannot be written: the disk is full, or the terminal is gone."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the result cannot be written: {error.strerror or error}")


def put(text: str, out: TextIO | None = None) -> None:
    """Writes to stdout, or to `out`, and at once. Raises Unwritable, and BrokenPipeError where the reader left."""
    try:
        click.echo(text, file=out, nl=False, color=True)  # color=False would strip what looks like a colour
    except BrokenPipeError:
        raise
    except OSError as error:
        # Python flushes it once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), (out or sys.stdout).fileno())
        raise Unwritable(error) from None


def printable(text: str) -> str:
    """A text for stdout. A model's control characters never reach a terminal; a pipe gets every byte."""
    if sys.stdout.isatty():
        text = "".join(character for character in text if character.isprintable() or character in "\n\t")
    return text.encode(errors="backslashreplace").decode()  # half a character is none, but in JSON it may be spelled so


def write(text: str) -> None:
    """Writes a result, with a line end if it has none."""
    text = printable(text)
    put(text if text.endswith("\n") else f"{text}\n")


def write_lines(lines: Iterable[str], output: Path | None) -> None:
    """Writes lines to stdout, or all of them to a new file. Raises CacheError where the file cannot be made."""
    if output is None:
        for line in lines:
            write(line)
        return
    try:
        with output.open("x", encoding="ascii", newline="\n") as file:
            try:
                file.writelines(f"{line}\n" for line in lines)
            except BaseException:
                output.unlink()
                raise
    except FileExistsError:
        raise CacheError(f"{output} exists, and is not overwritten", hint="name another file, or remove it") from None
    except OSError as error:
        raise CacheError(f"{output} cannot be written ({error.strerror})") from None


def write_wrapped(lines: Iterable[str]) -> None:
    """Writes lines for people: on a terminal they are broken between words."""
    write(wrapped("\n".join(lines), sys.stdout))


def write_object(found: Mapping[str, Any]) -> None:
    """Writes a result as one JSON object in ASCII, because names of files may not be valid text."""
    write(json.dumps({"ok": True, **found, "schema": 1}))


def as_report(error: LmqlLiteError, stream: TextIO) -> str:
    """Report of an error, with source lines that fit into the terminal to which it is written."""
    columns = shutil.get_terminal_size().columns - INDENTED if stream.isatty() else MAX_EXCERPT_COLUMNS
    return error.report(min(max(columns, MIN_COLUMNS), MAX_EXCERPT_COLUMNS))


def write_error(text: str) -> None:
    """Writes to stderr. Control characters in file names and model output are escaped. Errors are coloured if stderr
    takes colours."""
    shown = (one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)
    text = wrapped("".join(shown), sys.stderr)
    click.echo(coloured(text) if has_colour() else text, err=True, color=True)


def wrapped(text: str, stream: TextIO) -> str:
    """The text with lines that fit the terminal of a stream, broken between words. A file or pipe gets it as it is."""
    if not stream.isatty():
        return text
    from textwrap import fill

    lines, width = list[str](), shutil.get_terminal_size().columns
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + INDENTED)
        if len(line) > width:
            line = fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        lines.append(line)
    return "\n".join(lines)


def has_colour() -> bool:
    """True if stderr takes colours: `--color` decides, then NO_COLOR and the terminal."""
    context = click.get_current_context(silent=True)
    if context is not None and context.color is not None:
        return context.color
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(report: str) -> str:
    """A report with its places in bold, and notes, carets and hints in colours."""
    return _STYLED.sub(lambda found: click.style(found[0], **_STYLES[found.lastgroup or ""]), report)


def colour_chosen(context: click.Context, option: click.Parameter, given: str) -> None:
    context.color = {"always": True, "never": False}.get(given, context.color)


COLOUR = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    expose_value=False,
    is_eager=True,
    callback=colour_chosen,
    help="Colour error messages. auto: on a terminal, unless NO_COLOR is set.",
)


def note(sentence: str) -> None:
    write_error(f"note: {sentence}")


def counted(number: int, what: str) -> str:
    """`1 token`, `2 entries`, `3 passes`."""
    plural = f"{what[:-1]}ies" if what.endswith("ry") else f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"


def money(amount: float) -> str:
    """Rounded up to a millionth."""
    millionths = math.ceil(round(amount * 1e6, 3))
    return f"{millionths // 10**6:,}.{millionths % 10**6:06}".rstrip("0").rstrip(".")


# Failing ---------------------------------------------------------------------------------------------------------


@contextmanager
def reporting(as_json: bool) -> Iterator[None]:
    """Turns every failure into a report and an exit code. With --json, the error is also an object on stdout."""
    try:
        yield
    except LmqlLiteError as error:
        if as_json:
            write(json.dumps({"ok": False, "error": error_object(error), "schema": 1}))
        write_error(as_report(error, sys.stderr))
        sys.exit(next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1))
    except (BrokenPipeError, click.Abort, click.ClickException):
        raise
    except Exception as error:
        if as_json:
            problem = {"code": type(error).__name__, "message": str(error)}
            write(json.dumps({"ok": False, "error": problem, "schema": 1}))
        write_error(own_report(error))
        sys.exit(4 if isinstance(error, AssertionError) else 1)


def error_object(error: LmqlLiteError) -> dict[str, Any]:
    place = {"file": error.span.name, "line": error.span.line, "column": error.span.column} if error.span else {}
    found: dict[str, Any] = {"code": type(error).__name__, "message": error.message, "hint": error.hint, **place}
    if error.others:
        found["others"] = [error_object(other) for other in error.others]
    return found


def own_report(error: Exception) -> str:
    """Report of an exception: place and message if the query's own Python raised it, the whole traceback if it is
    ours."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.endswith(".py") and not frame.filename.startswith("<frozen")]
    raised = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if not own:
        return "".join(traceback.format_exception(error)) + "this is a bug of lmql_lite; please report it"
    place = own[-1]
    line = f"\n    {place.line}" if place.line else ""
    return f"{place.filename}:{place.lineno}: the query's own Python raised {raised}{line}"
