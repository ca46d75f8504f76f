"""The variables of a run, and the query's own Python in them."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import CodeType
from typing import Any

from lmql_lite.errors import InputError, did_you_mean
from lmql_lite.lang.keywords import CONSTRAINTS, DATES, MODULES, TYPES
from lmql_lite.program.ops import CALL, ERROR, QUERIES, STEP, Input, Program
from lmql_lite.program.types import NAMES
from lmql_lite.runtime.asking import read_line
from lmql_lite.runtime.result import OptionScores
from lmql_lite.runtime.steps import Steps

Environment = dict[str, Any]
OTHER_NAMES = {"null": "None", "nil": "None", "undefined": "None", "true": "True", "false": "False"}
"""What other languages call a value of Python."""
FUNCTIONS = ("len", "int", "float", "any", "all", "sum", "abs", "min", "max", "sorted", "set", "range", *CONSTRAINTS)
"""Functions that a condition is likely to mean."""
PLAIN_TYPES = ("bool", "dict", "float", "int", "list", "str")
HOME = "#home"
"""No name of a query."""


def environment_of(program: Program, inputs: Mapping[str, Any]) -> Environment:
    """The variables of one run. Raises InputError for a missing input and for one that the query does not read.

    One dict is globals and locals of all Python in the query: functions and comprehensions see each variable as it is
    when they run.
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
    own = {"__builtins__": builtins, "__name__": "__main__", HOME: Home(), QUERIES: program.queries, STEP: Steps().take}
    dates = {name: NAMES[name] for name in DATES}
    return {**own, "input": read_line, **dates, **modules, **inputs}


def _how_to_give(wanted: Input, holes: tuple[str, ...]) -> str:
    """What helps where nobody gave this input: it may be a slip of the pen."""
    name = wanted.name
    if name in OTHER_NAMES:
        return f"did you mean {OTHER_NAMES[name]}?"
    from_python = f"inputs={{{name!r}: ...}} from Python"
    if wanted.form == "value":
        give = f"pass --var {name}=..., or {from_python}"
    else:
        give = f"define or import the {wanted.form} {name} in the query, or pass {from_python}"
    others = {"value": (), "function": FUNCTIONS, "type": (*PLAIN_TYPES, *TYPES)}[wanted.form]
    meant = did_you_mean(name, (*holes, *others))
    return f"{meant} Else {give}" if meant else give


class Home:
    """Tells which functions a query under way has made, also when its variables were copied: theirs have the same."""

    def __deepcopy__(self, memo: Any) -> Home:
        return self


def home_of(environment: Environment) -> Home | None:
    """That of a query under way; None for variables of other Python."""
    return environment.get(HOME)


@dataclass(slots=True)
class Context:
    """What a query's own Python may ask about its run, under the name `context`."""

    score: Callable[[Any], Awaitable[OptionScores]]
    """`await context.score(["yes", "no"])`: what the model thinks of each as the text that comes next (S25)."""
    prompt: str = ""
    """The whole text so far."""


def value_of(code: CodeType, environment: Environment) -> Any:
    """An expression's value, as it is."""
    error = environment.get(ERROR)
    return eval(code, environment) if error is None else _handling(error, code, environment)


def _handling(error: BaseException, code: CodeType, environment: Environment) -> Any:
    """The value, found while the exception is handled: `raise`, `sys.exc_info` and chaining are Python's own."""
    trace, context = error.__traceback__, error.__context__
    try:
        raise error
    except BaseException:
        error.__traceback__, error.__context__ = trace, context
        value = eval(code, environment)
    return _awaited(error, value) if code.co_flags & inspect.CO_COROUTINE else value


async def _awaited(error: BaseException, value: Awaitable[Any]) -> Any:
    trace, context = error.__traceback__, error.__context__
    try:
        raise error
    except BaseException:
        error.__traceback__, error.__context__ = trace, context
        return await value


async def as_it_is(code: CodeType, environment: Environment) -> Any:
    """An expression's value as it is, also if that could be awaited."""
    value = value_of(code, environment)
    return await value if code.co_flags & inspect.CO_COROUTINE else value


async def called_at(here: CodeType, function: Callable[..., Any], environment: Environment) -> Any:
    """What the function gives, called in the place of an op."""
    environment[CALL] = function
    try:
        return await as_it_is(here, environment)
    finally:
        environment.pop(CALL, None)


async def evaluate(code: CodeType, environment: Environment) -> Any:
    """An expression's value; an awaitable one is awaited."""
    value = value_of(code, environment)
    return await value if inspect.isawaitable(value) else value


async def execute(code: CodeType, environment: Environment) -> None:
    """Statements, with `await` at their top level or without."""
    value = eval(code, environment)
    if code.co_flags & inspect.CO_COROUTINE:
        await value
