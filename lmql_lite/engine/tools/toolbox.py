"""Python functions that a model may call while it fills a hole: `[argmax(tools=[search, add]) ANSWER]`.

A call appears in the text as Python in backticks, with its result as a comment. The text continues after it:

    The tower was built in 1889. `add(1889, 100) # result: 1989` So a hundred years later it was 1989.

The model writes up to `# result: `; the result and the closing backtick are inserted. A backtick, the name of a tool
and a parenthesis begin a call, which must then be well-formed. All other text is free. Arguments are Python literals.
They are never executed, and are checked against the function's annotations. An error (wrong arguments, a tool that
raises, an unknown tool) becomes the result, as `error: ..`, so that the model can correct itself.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from lmql_lite.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_CALLS = 16
"""Default maximum number of calls in one hole."""
MARK = ") # result: "
"""End of a call; the text after it is inserted."""
CLOSING = "`"

_PLAIN = (
    r'(?:"(?:[^"\\\x00-\x1f]|\\["\'\\nrt])*"'
    r"|'(?:[^'\\\x00-\x1f]|\\[\"'\\nrt])*'"
    r"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|True|False|None)"
)
LITERAL = rf"(?:{_PLAIN}|\[(?:{_PLAIN}(?:, {_PLAIN})*)?\]|\{{(?:{_PLAIN}: {_PLAIN}(?:, {_PLAIN}: {_PLAIN})*)?\}})"
"""Pattern of an argument: a text, a number, True, False, None, and lists and dicts of these."""


class ToolError(Exception):
    """Error that the model gets instead of a result."""


class Bare(str):
    """An annotation that a signature shows without quotes."""

    __repr__ = str.__str__


class Tool:
    """A function that the model may call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises InputError for an object that is not a function with a name."""
        self.name = getattr(function, "__name__", "")
        if not callable(function) or not self.name.isidentifier() or inspect.isclass(function):
            raise InputError(
                f"a tool must be a function with a name; this is {function!r}", hint="write def search(query): .."
            )
        self._function = function
        self._signature = inspect.signature(function)
        try:
            self._types = get_type_hints(inspect.unwrap(function), include_extras=True)
        except Exception as error:
            raise InputError(f"the annotations of the tool {self.name} cannot be read: {error}") from None

    def __repr__(self) -> str:
        return f"<tool {self.described}>"

    @property
    def described(self) -> str:
        """One line for a prompt: `add(a: int, b: int) -> int: adds two numbers`."""
        about = (inspect.getdoc(self._function) or "").partition("\n")[0]
        return self._heading + (f": {about}" if about else "")

    @property
    def _heading(self) -> str:
        """Signature such as `add(a: int, b: int) -> int`, with annotations as written and classes by name."""
        whole = self._signature
        parameters = [each.replace(annotation=_bare(each.annotation)) for each in whole.parameters.values()]
        return f"{self.name}{whole.replace(parameters=parameters, return_annotation=_bare(whole.return_annotation))}"

    @property
    def named(self) -> tuple[str, ...]:
        """The parameters that may be given by name."""
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return tuple(name for name, each in self._signature.parameters.items() if each.kind in by_name)

    @property
    def arguments(self) -> str:
        """Regular expression for the text of a call after its opening parenthesis: the arguments and the `MARK`."""
        by_place = rf"{LITERAL}(?:, {LITERAL})*"
        parts = [by_place]
        if self.named:
            names = "|".join(map(re.escape, self.named))
            by_name = rf"(?:{names})={LITERAL}(?:, (?:{names})={LITERAL})*"
            parts = [rf"{by_place}(?:, {by_name})?", by_name]
        return rf"(?:{'|'.join(parts)})?{re.escape(MARK)}"

    async def call(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The return value of the function; one that is not async runs in a thread. Raises ToolError if the arguments
        do not fit or the function raises."""
        call = self._checked(arguments, named)
        try:
            if inspect.iscoroutinefunction(self._function):
                result = await self._function(*call.args, **call.kwargs)
            else:
                result = await asyncio.to_thread(self._outcome, call)
        except Exception as error:
            result = error
        if isinstance(result, Exception):
            raise ToolError(f"{type(result).__name__}: {result}") from result
        return result

    def _outcome(self, call: inspect.BoundArguments) -> Any:
        """The return value of the function, or its exception, because not every exception can leave a thread."""
        try:
            return self._function(*call.args, **call.kwargs)
        except Exception as error:
            return error

    def _checked(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> inspect.BoundArguments:
        from pydantic import ValidationError

        try:
            call = self._signature.bind(*arguments, **named)
        except TypeError as error:
            raise ToolError(f"{error}; it is {self._heading}") from None
        for name, value in call.arguments.items():
            try:
                call.arguments[name] = self._adapters[name].validate_python(value)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                place = ".".join(map(str, (name, *first["loc"])))
                raise ToolError(f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}, not {value!r}") from None
        return call

    @cached_property
    def _adapters(self) -> dict[str, TypeAdapter[Any]]:
        """Validator of each annotated parameter."""
        from pydantic import ConfigDict, TypeAdapter
        from pydantic.errors import PydanticUserError

        adapters = {}
        for name, parameter in self._signature.parameters.items():
            annotation = self._types.get(name, Any)
            if parameter.kind is parameter.VAR_POSITIONAL:
                annotation = tuple[annotation, ...]  # type: ignore[valid-type]
            elif parameter.kind is parameter.VAR_KEYWORD:
                annotation = dict[str, annotation]  # type: ignore[valid-type]
            try:
                adapters[name] = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
            except PydanticUserError:
                adapters[name] = TypeAdapter(annotation)  # a class with a configuration of its own
        return adapters


def _bare(annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    if isinstance(annotation, type) and not get_args(annotation):
        return Bare(annotation.__name__)
    return Bare(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


class Toolbox:
    """The tools of one hole."""

    def __init__(self, functions: Sequence[Callable[..., Any]], max_calls: int = MAX_CALLS) -> None:
        """Raises InputError for an object that is not a list of functions, and for two functions of one name."""
        if not isinstance(functions, Sequence) or isinstance(functions, str) or not functions:
            raise InputError(f"tools must be a list of functions; this is {functions!r}", hint="write tools=[search]")
        if not isinstance(max_calls, int) or isinstance(max_calls, bool) or max_calls < 0:
            raise InputError(f"max_calls must be a whole number, at least 0; this is {max_calls!r}")
        self.tools: dict[str, Tool] = {}
        for tool in map(Tool, functions):
            if tool.name in self.tools:
                raise InputError(f"two tools are called {tool.name!r}", hint="give one of them another name")
            self.tools[tool.name] = tool
        self.max_calls = max_calls

    def calls(self, *, held: bool) -> re.Pattern[bytes]:
        """Pattern that finds calls in free text: the `name` and `arguments` of a complete one, or the name of one that
        has `begun`.

        If the model can be `held` to any condition, a call is found at its beginning, and must then be well-formed.
        Otherwise, and for an unknown tool, a call is found when it is complete.
        """
        begun = "|".join(map(re.escape, self.tools)) if held else "(?!)"
        complete = rf"(?P<name>[^\W\d]\w*)\((?P<arguments>[^`\n]*){re.escape(MARK)}"
        return re.compile(rf"`(?:(?P<begun>{begun})\(|{complete})".encode())

    async def output(self, name: str, arguments: str, *, made: int) -> str:
        """The text to insert after a call, with the closing backtick. `made` is the number of earlier calls."""
        try:
            if made >= self.max_calls:
                raise ToolError(f"no more than {self.max_calls} calls can be made")
            tool = self.tools.get(name)
            if tool is None:
                hint = did_you_mean(name, self.tools) or f"there are {', '.join(self.tools)}"
                raise ToolError(f"there is no {name}, {hint}")
            return written(await tool.call(*literals(arguments))) + CLOSING
        except ToolError as refused:
            text = " ".join(str(refused).split()).encode("utf-8", "replace").decode()
            return f"error: {text}{CLOSING}"


def literals(arguments: str) -> tuple[list[Any], dict[str, Any]]:
    """The positional and named arguments of a call. Nothing is executed.

    Raises ToolError for an argument that is not a literal.
    """
    try:
        call = ast.parse(f"call({arguments})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        call = None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ToolError(f"({arguments}) are not arguments of Python")
    named: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ToolError("** is not allowed here")
        named[keyword.arg] = _literal(keyword.value)
    return [_literal(argument) for argument in call.args], named


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ToolError(f"{ast.unparse(node)} is not a literal: write the value itself") from None


def written(value: Any) -> str:
    """A result as one line of JSON, with `str` of the values that JSON lacks.

    Raises ToolError for a result that cannot be written.
    """
    from pydantic_core import to_jsonable_python

    try:
        text = json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)
    except Exception as error:
        raise ToolError(f"the result cannot be written: {error}") from error
    return text.encode("utf-8", "replace").decode()


def describe(functions: Sequence[Callable[..., Any]]) -> str:
    """Description of tools for a prompt, one line each: `- add(a: int, b: int) -> int: adds two numbers`.

    >>> lq.describe([divmod])
    '- divmod(x, y, /): Return the tuple (x//y, x%y).  Invariant: div*y + mod == x.'
    """
    return "\n".join(f"- {tool.described}" for tool in Toolbox(functions).tools.values())
