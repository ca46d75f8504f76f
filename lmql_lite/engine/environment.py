"""The variables of a run, and the query's own Python in them."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import CodeType, ModuleType
from typing import Any

from lmql_lite import media
from lmql_lite.cache.kv.blocks import CBlock, block
from lmql_lite.engine.budget import Steps
from lmql_lite.engine.result import OptionScores
from lmql_lite.engine.user_input import read_line
from lmql_lite.errors import InputError, Span, did_you_mean
from lmql_lite.lang.keywords import BLOCK, CONSTRAINTS, DATES, MEDIA, MODULES, ROLES, TYPES
from lmql_lite.media import Media
from lmql_lite.program.ops import CALL, QUERIES, STEP, Input, Interpolated, Program
from lmql_lite.program.types import NAMES
from lmql_lite.tokens import Role

Environment = dict[str, Any]
LMQL = "lmql"
FROM_LMQL = "lmql_lite.integrations.from_lmql"


def imported(
    name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] | None = (), level: int = 0
) -> Any:
    """`import` in a query; a name of an LMQL module imports this package's module of that name."""
    if name.partition(".")[0] != LMQL or level:
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    frame = sys._getframe(1)
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return import_module(FROM_LMQL).imported(name, fromlist or (), place)


BUILTINS = ModuleType("builtins")
"""Python's builtins, with the query's `import`."""
vars(BUILTINS).update(vars(builtins), __import__=imported)
FUNCTIONS = ("len", "int", "float", "any", "all", "sum", "abs", "min", "max", "sorted", "set", "range", *CONSTRAINTS)
"""Functions that a misspelt name in a condition may stand for."""
PLAIN_TYPES = ("bool", "dict", "float", "int", "list", "str")


def environment_of(program: Program, inputs: Mapping[str, Any]) -> Environment:
    """The variables of one run. Raises InputError for a missing input and for one that the query does not read.

    One dict serves as globals and locals of all Python in the query: functions and comprehensions see the current value
    of each variable.
    """
    missing = [wanted for wanted in program.inputs if wanted.name not in inputs]
    if missing:
        first = missing[0]
        others = ", ".join(wanted.name for wanted in missing[1:])
        raise InputError(
            f"the input {first.name!r} is missing" + (f", and so are {others}" if others else ""),
            span=first.span,
            hint=_how_to_give(first, program.holes),
        )
    modules = {name: import_module(module) for name, module in MODULES.items()}
    own = {"__builtins__": BUILTINS, "__name__": "__main__", QUERIES: program.queries, STEP: Steps().take}
    dates = {name: NAMES[name] for name in DATES}
    items = {name: getattr(media, name) for name in MEDIA}
    return {**own, "input": read_line, BLOCK: block, **dates, **items, **modules, **inputs}


def _how_to_give(wanted: Input, holes: tuple[str, ...]) -> str:
    """The hint for a missing input, which may be a misspelt name."""
    name = wanted.name
    from_python = f"inputs={{{name!r}: ...}} from Python"
    if wanted.form == "value":
        give = f"pass --var {name}=..., or {from_python}"
        if wanted.span.text[: wanted.span.start].endswith("{ "):  # "css { color: red }"
            give += "; to write a brace as text, double it: {{ and }}"
    else:
        give = f"define or import the {wanted.form} {name} in the query, or pass {from_python}"
    others = {"value": ("True", "False"), "function": FUNCTIONS, "type": (*PLAIN_TYPES, *TYPES)}[wanted.form]
    meant = did_you_mean(name, (*holes, *others))
    return f"{meant} Else {give}" if meant else give


@dataclass(slots=True)
class Context:
    """The object `context` of a query's own Python."""

    score: Callable[[Any], Awaitable[OptionScores]]
    """`await context.score(["yes", "no"])`: log-probability of each option as the next text (S25)."""
    prompt: str = ""
    """The whole text so far."""


def value_of(code: CodeType, environment: Environment) -> Any:
    """The value of an expression, not awaited."""
    return eval(code, environment)


async def as_it_is(code: CodeType, environment: Environment) -> Any:
    """The value of an expression, not awaited, even if it could be."""
    value = value_of(code, environment)
    return await value if code.co_flags & inspect.CO_COROUTINE else value


async def called_at(here: CodeType, function: Callable[..., Any], environment: Environment) -> Any:
    """The return value of a function, called at a place of the query."""
    environment[CALL] = function
    try:
        return await as_it_is(here, environment)
    finally:
        environment.pop(CALL, None)


async def evaluate(code: CodeType, environment: Environment) -> Any:
    """The value of an expression, awaited if it is awaitable."""
    value = value_of(code, environment)
    return await value if inspect.isawaitable(value) else value


async def execute(code: CodeType, environment: Environment) -> None:
    """Executes statements; they may have `await` at their top level."""
    value = eval(code, environment)
    if code.co_flags & inspect.CO_COROUTINE:
        await value


Turns = tuple[tuple[Role, str], ...]


def interpolated(value: Any, part: Interpolated) -> str | Turns | Media:
    """The text of a value in a prompt, formatted as in an f-string; a picture, video or clip is returned as it is.
    Raises InputError as `turns_of` and `sayable` do."""
    if not part.conversion and not part.format:
        if isinstance(value, Media):
            return replace(value, span=part.span)
        turns = turns_of(value, part.span)
        if turns is not None:
            return turns
    match part.conversion:
        case "s":
            value = str(value)
        case "r":
            value = repr(value)
        case "a":
            value = ascii(value)
    text = sayable(format(value, part.format), part.span)
    is_block = isinstance(value, CBlock) and value.cache and not part.format
    return CBlock(text) if is_block else text


def sayable(text: str, span: Span) -> str:
    """The text. Raises InputError if it has half of a surrogate pair, which no model can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"this value holds half of a character ({text[error.start]!r}), which no model can read",
            span=span,
            hint="read the text as UTF-8, or drop broken characters: text.encode(errors='ignore').decode()",
        ) from None
    return text


def turns_of(value: Any, span: Span) -> Turns | None:
    """The turns of a conversation, each with its text; None for a value that is not a conversation.

    Raises InputError for an unknown role, and for a content that is not text.
    """
    if not isinstance(value, list | tuple) or not value or not all(map(_is_message, value)):
        return None
    return tuple((_role(message, span), _text(message, span)) for message in value)


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value and "content" in value


def _role(message: Mapping[str, Any], span: Span) -> Role:
    role = message["role"]
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(ROLES)
        raise InputError(f"a message has the role {role!r}, which does not exist", span=span, hint=f"there are {known}")
    return ROLES[role]


def _text(message: Mapping[str, Any], span: Span) -> str:
    content = message["content"]
    if not isinstance(content, str):
        kind = type(content).__name__
        raise InputError(f"the content of a message is {kind}, not text", span=span, hint="give each message a string")
    return sayable(content, span)
