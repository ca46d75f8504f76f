"""Python functions that a model may call while it fills a hole: `[argmax(tools=[search, add]) ANSWER]`.

A call appears in the text as Python in backticks, with its result as a comment. The text continues after it:

    The tower was built in 1889. `add(1889, 100) # result: 1989` So a hundred years later it was 1989.

The model writes the call; the mark, the result and the closing backtick are inserted. Arguments are literals as Python
or JSON spells them. They are never executed, and are checked against the function's signature and annotations. An error
(wrong arguments, a tool that raises, an unknown tool) becomes the result, as `error: ..`, so that the model can correct
itself. No argument is ever replaced by another one.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from types import CodeType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from lmql_lite.engine.settings import Settings
from lmql_lite.engine.tools.call_text import CLOSING, COMPLETE
from lmql_lite.errors import InputError, did_you_mean
from lmql_lite.lang.python import parsed
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_CALLS = 16
"""Default maximum number of calls in one hole."""
JSON_NAMES = {"true": True, "false": False, "null": None, "NaN": math.nan, "Infinity": math.inf}
"""Values that JSON, or Python's `json`, spells otherwise than Python."""


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
        try:
            self._signature = inspect.signature(function)
            self._types = get_type_hints(inspect.unwrap(function), include_extras=True)
        except Exception as error:
            raise InputError(f"the signature of the tool {self.name} cannot be read: {error}") from None

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

    async def call(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The return value of the function; one that is not async runs in a thread. Raises ToolError if the arguments
        do not fit or the function raises."""
        hint = ""
        try:
            call = self._checked(arguments, named)
            if inspect.iscoroutinefunction(self._function):
                result = await self._function(*call.args, **call.kwargs)
            else:
                result = await asyncio.to_thread(self._outcome, call)
                if isinstance(result, Exception) and "thread" in str(result):
                    hint = f" ({self.name} runs in a thread of its own; write async def to run it in that of the query)"
                if inspect.isawaitable(result):
                    result = await result
        except ToolError:
            raise
        except Exception as error:
            result = error
        if isinstance(result, Exception):
            raise ToolError(f"{type(result).__name__}: {result}{hint}") from result
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
                (valid,) = self._adapters[name].validate_python((value,))
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                place = ".".join(map(str, (name, *first["loc"][1:])))
                raise ToolError(f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}, not {value!r}") from None
            if isinstance(value, bool) and not isinstance(valid, bool):  # pydantic takes True for 1
                raise ToolError(f"{name}: input should be a number, not {value!r}")
            call.arguments[name] = valid
        return call

    @cached_property
    def _adapters(self) -> dict[str, TypeAdapter[Any]]:
        """Validator of each annotated parameter."""
        adapters = {}
        for name, parameter in self._signature.parameters.items():
            annotation = self._types.get(name, Any)
            if parameter.kind is parameter.VAR_POSITIONAL:
                annotation = tuple[annotation, ...]  # type: ignore[valid-type]
            elif parameter.kind is parameter.VAR_KEYWORD:
                annotation = dict[str, annotation]  # type: ignore[valid-type]
            adapters[name] = _adapter(annotation)
        return adapters


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    """Validator of a tuple of one value: in there, dataclasses and typed dicts have no configuration of their own.

    Names that they lack are errors. A TypedDict that pydantic cannot check, as before Python 3.12, is not checked.
    """
    from pydantic import ConfigDict, TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(tuple[annotation], config=ConfigDict(arbitrary_types_allowed=True, extra="forbid"))
    except PydanticUserError as error:
        if error.code != "typed-dict-version":
            raise
        return TypeAdapter(tuple[Any])


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

        If the model can be `held` to any condition, a call is found at its beginning, and its mark is inserted.
        Otherwise, and for an unknown tool, a call is found when the model has written the mark.
        """
        begun = "|".join(map(re.escape, self.tools)) if held else "(?!)"
        return re.compile(rf"`(?:(?P<begun>{begun})\(|(?P<name>[^\W\d]\w*)\({COMPLETE})".encode())

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


async def own_decoder(
    op: Hole, settings: Settings, sampling: Sampling, python: Callable[[CodeType], Awaitable[Any]]
) -> tuple[Sampling, Toolbox | None]:
    """Settings of a hole with a decoder of its own, as in `[sample(temperature=0.8) X]` or `[argmax(tools=[search])
    X]`.

    Raises InputError for a wrong option, at its place.
    """
    decoder = op.decoder
    assert decoder is not None, "the hole has one"
    values = {option.name: await python(option.value) for option in decoder.options}
    spans = {option.name: option.span for option in decoder.options}
    tools, max_calls = values.pop("tools", None), values.pop("max_calls", MAX_CALLS)
    sampling = settings.at_hole(op.name, decoder.name, decoder.span, values, spans, sampling)
    if tools is None:
        return sampling, None
    try:
        return sampling, Toolbox(tools, max_calls)
    except InputError as error:
        raise InputError(error.message, span=spans["tools"], hint=error.hint) from None


def literals(arguments: str) -> tuple[list[Any], dict[str, Any]]:
    """The positional and named arguments of a call, in the spelling of Python or JSON. Nothing is executed.

    Raises ToolError for an argument that is not a literal, and for a name or a key that occurs twice.
    """
    text = f"call({arguments})"
    try:
        call = parsed(text, "<call>", "eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        call = None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ToolError(f"({arguments}) are not arguments of Python")
    named: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ToolError("** is not allowed here")
        if keyword.arg in named:
            raise ToolError(f"the argument {keyword.arg!r} is given twice")
        named[keyword.arg] = _literal(keyword.value, text)
    return [_literal(argument, text) for argument in call.args], named


def _literal(node: ast.expr, text: str) -> Any:
    """The value of a literal in the text of a call."""
    try:
        return ast.literal_eval(_Spelled(text).visit(node))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        spelled = ast.get_source_segment(text, node)
        raise ToolError(f"{spelled} is not a literal: write the value itself") from None


class _Spelled(ast.NodeTransformer):
    """Replaces what JSON spells otherwise than Python: `true`, `"\\/"`, and two escapes for one character."""

    def __init__(self, text: str) -> None:
        self._text = text

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(JSON_NAMES[node.id]) if node.id in JSON_NAMES else node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not isinstance(node.value, str) or "\\" not in (spelled := ast.get_source_segment(self._text, node) or ""):
            return node
        try:
            value = json.loads(spelled)
        except ValueError:  # Python's own spelling
            value = node.value
        return ast.Constant(value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass"))

    def visit_Dict(self, node: ast.Dict) -> ast.expr:
        self.generic_visit(node)
        keys = [ast.literal_eval(key) for key in node.keys if key is not None]
        for at, key in enumerate(keys):
            if key in keys[:at]:
                raise ToolError(f"the key {key!r} occurs twice in {ast.get_source_segment(self._text, node)}")
        return node


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
