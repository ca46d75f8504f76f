"""The modules of LMQL that queries import: `lmql.lib.chat`, `lmql.lib.actions`, `lmql.http`, `lmql.decorators`.

A name that is not here is a QueryError with the line to change (docs/coming-from-lmql.md).
"""

from __future__ import annotations

import ast
import asyncio
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn
from urllib.parse import quote

from lmql_lite.decorators import post, pre, query, streaming
from lmql_lite.engine.hole_decorators import Decorator
from lmql_lite.errors import InputError, QueryError, did_you_mean
from lmql_lite.lang.keywords import NOT_OF_LMQL

message = Decorator()
"""`[@message X]` showed X to the user of a chat; here every hole is shown whose name does not begin with `_`."""
TURNS = 16
"""Most steps of `reAct`."""
MAX_EXTRACT_LENGTH = 280
"""Characters of an article that `wiki` gives."""
SECONDS = 30
_SUMS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip


# lmql.lib.actions


@query
def inline_use(tools: Any) -> Any:
    """lq
    "[argmax(tools=tools) STEPS]"
    """


@query
def reAct(tools: Any) -> Any:
    """lq
    functions = named(tools)
    for turn in range(TURNS):
        "\n[MODE]:" where MODE in ["Thought", "Action", "Answer"]
        if MODE == "Thought":
            "[THOUGHT]" where not "\n" in THOUGHT and STOPS_BEFORE(THOUGHT, "\n")
        elif MODE == "Action":
            " [NAME]([ARGUMENT])" where NAME in list(functions) and STOPS_BEFORE(ARGUMENT, ")") and not "\n" in ARGUMENT
            "\nObservation: {await observed(functions[NAME], ARGUMENT)}"
        else:
            break
    "[ANSWER]" where STOPS_BEFORE(ANSWER, "\n")
    return ANSWER.strip()
    """


def named(tools: Sequence[Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Functions by name. Raises InputError for what is not a list of functions."""
    if not isinstance(tools, list | tuple) or not tools or not all(map(callable, tools)):
        raise InputError(f"reAct takes a list of functions; this is {tools!r}", hint="reAct([wiki, calc])")
    return {tool.__name__: tool for tool in tools}


async def observed(tool: Callable[..., Any], argument: str) -> str:
    """Result of a tool on one line; an exception is the model's to read."""
    try:
        found = tool(argument.strip().strip("\"'"))
        found = await found if asyncio.iscoroutine(found) else found
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    return " ".join(str(found).split())


def calc(expression: str) -> str:
    """calculates a sum of numbers, such as 3 * (4 + 5)"""
    found = _number(ast.parse(expression.partition("=")[0].strip(), mode="eval").body)
    return f"{found:g}" if isinstance(found, float) else str(found)


def _number(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(int() | float() as value):
            return value
        case ast.BinOp(left, sign, right) if type(sign) in _SUMS:
            return _SUMS[type(sign)](_number(left), _number(right))  # type: ignore[no-any-return]
        case ast.UnaryOp(sign, value) if type(sign) in _SUMS:
            return _SUMS[type(sign)](_number(value))  # type: ignore[no-any-return]
    raise InputError(f"{ast.unparse(node)} is not a sum of numbers")


async def wiki(title: str) -> str:
    """gives the beginning of an article of Wikipedia"""
    url = "https://en.wikipedia.org/w/api.php?format=json&action=query&prop=extracts&exintro&explaintext&redirects=1"
    pages = await fetch(f"{url}&titles={quote(title)}", "query.pages")
    extracts = [page.get("extract", "") for page in pages.values()]
    return extracts[0][:MAX_EXTRACT_LENGTH] if extracts and extracts[0] else "nothing is called that"


# lmql.http


async def fetch(url: str, path: str = "") -> Any:
    """The body of a page: as JSON where it is some, and of that what stands at `path`, such as `query.pages`.

    Raises InputError where there is no such page, or nothing at the path.
    """
    import httpx2

    try:
        async with httpx2.AsyncClient(follow_redirects=True, timeout=SECONDS) as client:
            response = await client.get(url)
            response.raise_for_status()
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise InputError(f"{url} cannot be fetched: {error}") from None
    try:
        found = json.loads(response.text)
    except ValueError:
        if path:
            raise InputError(f"{url} is not JSON, so it has nothing at {path!r}") from None
        return response.text
    for key in path.split(".") if path else ():
        try:
            found = found[int(key)] if isinstance(found, list) else found[key]
        except (KeyError, IndexError, TypeError, ValueError):
            raise InputError(f"{url} has nothing at {path!r}: there is no {key!r}") from None
    return found


# Finding them


MODULES: Mapping[str, Mapping[str, Any]] = {
    "lib": {},
    "lib.chat": {"message": message},
    "lib.actions": {"calc": calc, "inline_use": inline_use, "reAct": reAct, "wiki": wiki},
    "http": {"fetch": fetch},
    "decorators": {"post": post, "pre": pre, "streaming": streaming},
}
PAGE = "docs/coming-from-lmql.md has all differences"


class LmqlModule(ModuleType):
    """A module of LMQL, imported at `place`. A name that it lacks is a QueryError that names that line."""

    def __init__(self, name: str, names: Mapping[str, Any], place: str) -> None:
        super().__init__(f"lmql.{name}")
        self._place = place
        vars(self).update(names, __all__=list(names), __path__=[])

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(f"{self.__name__}.{name}", did_you_mean(name, self.__all__), self._place)


def module(name: str, place: str = "") -> ModuleType:
    """The module `lmql.NAME`, and those in it. Raises QueryError where there is none."""
    if name not in MODULES:
        refuse(f"lmql.{name}", NOT_OF_LMQL.get(name.partition(".")[0]), place)
    inner = {each.rpartition(".")[2]: module(each, place) for each in MODULES if each.rpartition(".")[0] == name}
    return LmqlModule(name, {**MODULES[name], **inner}, place)


def imported(name: str, names: Sequence[str], place: str) -> ModuleType:
    """Module that `import NAME` or `from NAME import NAMES` gives at this place. NAME is `lmql` or a module of it."""
    face, inner = import_module("lmql_lite"), name.partition(".")[2]
    if inner:
        found = module(inner, place)
        if not names:
            return face
    else:
        found = face
    for each in names:
        if each == "*":
            continue
        try:
            getattr(found, each)
        except AttributeError as error:
            refuse(f"{name}.{each}", str(error).partition("; ")[2], place)
    return found


def refuse(name: str, instead: str | None, place: str) -> NoReturn:
    raise QueryError(
        f"{place}{': ' if place else ''}{name} is not here", hint=f"{instead}; {PAGE}" if instead else PAGE
    )
