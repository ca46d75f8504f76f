"""`@query`: a Python function whose docstring is a query."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import ChainMap
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from inspect import BoundArguments
from types import FrameType, FunctionType
from typing import Any, Literal, Unpack, overload

from lmql_lite.errors import QueryError, did_you_mean
from lmql_lite.lang.docstrings import docstring
from lmql_lite.lang.keywords import DATES, MODULES
from lmql_lite.lang.parser import parse
from lmql_lite.program.compiler import compile as compile_program
from lmql_lite.program.decoding import INSTEAD
from lmql_lite.program.ops import QUERIES, Program
from lmql_lite.runtime import events
from lmql_lite.runtime.blocking import blocking
from lmql_lite.runtime.nested import NestedCall
from lmql_lite.runtime.plan import Plan
from lmql_lite.runtime.returned import Returned, named_in
from lmql_lite.runtime.rows import CONCURRENCY, OnError, Progress, Rows, each
from lmql_lite.verbs import Answers, Options, Query, RunOptions, answers_of, of_row

Kind = Literal["function", "class", "static"]
"""What it is bound to when it is read from an object: that, its class, or nothing."""
OPTIONS = (*RunOptions.__annotations__, *Options.__annotations__)


class QueryFunction:
    """A Python function whose docstring is a query.

    Calling it gives what the query returns, or the `Result` where it returns nothing (of `n` > 1 a list of either); an
    `async def` is awaited. A return annotation says what the value must be, as pydantic reads it. Its parameters are
    the query's inputs; other names come from where the function is defined (S27). Keywords that are no parameters are
    options of the run, unless the function takes any (`**named`).
    """

    def __init__(
        self,
        function: FunctionType,
        query: Query,
        options: Options,
        scope: dict[str, Any],
        kind: Kind = "function",
        bound: tuple[Any, ...] = (),
    ) -> None:
        functools.update_wrapper(self, function)
        self.query = query
        self.options = options
        """Of every run, unless a call says otherwise."""
        self._function = function
        self._scope = scope
        self._kind = kind
        self._bound = bound
        self._whole = inspect.signature(function)
        self.__signature__ = self._whole.replace(parameters=list(self._whole.parameters.values())[len(bound) :])
        self._returned = Returned(function, scope, query.program)
        self._is_async = inspect.iscoroutinefunction(function)
        if self._is_async and sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)

    @property
    def program(self) -> Program:
        return self.query.program

    def __get__(self, instance: object, owner: type) -> QueryFunction:
        if self._bound or self._kind == "static" or (instance is None and self._kind == "function"):
            return self
        first = owner if self._kind == "class" else instance
        return QueryFunction(self._function, self.query, self.options, self._scope, self._kind, (first,))

    def rebound(self, function: FunctionType) -> QueryFunction:
        """The same query of another function: a copy of a function that a query defines (S23)."""
        return QueryFunction(function, self.query, self.options, self._scope, self._kind, self._bound)

    def __repr__(self) -> str:
        return f"<query {self._function.__qualname__}{self.__signature__}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By name, as functions are pickled; a method with its object."""
        return (getattr, (self._bound[0], self._function.__name__)) if self._bound else self._function.__qualname__

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        work = self._answer(arguments, named)
        return work if self._is_async else blocking(work)

    async def _answer(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        answers = await answers_of(self.stream(*arguments, **named))
        if not self.query.returns:
            return answers
        return [result.value for result in answers] if isinstance(answers, list) else answers.value

    async def stream(self, *arguments: Any, **named: Any) -> AsyncGenerator[events.Event, None]:
        """As `Query.stream`. Raises ConstraintError for a value that is not what the annotation says."""
        named, options = self._told(named)
        async with aclosing(self._stream(self._bind(arguments, named), options)) as stream:
            async for event in stream:
                yield event

    async def _stream(self, inputs: Mapping[str, Any], options: Options) -> AsyncGenerator[events.Event, None]:
        async with aclosing(self.query.stream(inputs, **options)) as stream:
            async for event in stream:
                yield self._finished(event) if isinstance(event, events.Finished) else event

    def _finished(self, event: events.Finished) -> events.Finished:
        several = event.results or (event.result,)
        first, *others = (replace(result, value=self.typed(result.value)) for result in several)
        return events.Finished(first, (first, *others) if event.results else ())

    async def run(self, *arguments: Any, **named: Any) -> Any:
        """The whole `Result`; of `n` > 1 a list of them, as `Query.run` gives it."""
        return await answers_of(self.stream(*arguments, **named))

    def run_sync(self, *arguments: Any, **named: Any) -> Any:
        """`run` for code that is not async; works inside a running event loop too, which it blocks."""
        return blocking(answers_of(self.stream(*arguments, **named)))

    def plan(self, *arguments: Any, **named: Any) -> Plan:
        """As `Query.plan`; arguments may be missing."""
        named, options = self._told(named)
        call = self._call(self._whole.bind_partial(*self._bound, *arguments, **named))
        return self.query.plan(call.inputs, **options)

    async def map(
        self,
        rows: Rows,
        *,
        concurrency: int = CONCURRENCY,
        progress: Progress | None = None,
        on_error: OnError = "raise",
        **options: Unpack[RunOptions],
    ) -> list[Any]:
        """The `Result` of each row, as `Query.map` gives it. A mapping holds arguments by name; any other row is the
        first argument."""

        async def work(number: int, row: Any) -> Answers:
            arguments, named = ((), row) if isinstance(row, Mapping) else ((row,), {})
            said: Options = {**self.options, **options}
            return await answers_of(self._stream(self._bind(arguments, named), of_row(said, self.program, number)))

        return await each(rows, work, concurrency, progress, on_error)

    def map_sync(
        self,
        rows: Rows,
        *,
        concurrency: int = CONCURRENCY,
        progress: Progress | None = None,
        on_error: OnError = "raise",
        **options: Unpack[RunOptions],
    ) -> list[Any]:
        """`map` for code that is not async."""
        return blocking(self.map(rows, concurrency=concurrency, progress=progress, on_error=on_error, **options))

    def nested(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> NestedCall:
        """What a hole of another query calls (S26). Raises TypeError for a call that does not fit the signature."""
        return self._call(self._whole.bind(*self._bound, *arguments, **named))

    def typed(self, value: Any) -> Any:
        """What the query returned, as the annotation says. Raises ConstraintError for a value that does not fit."""
        return self._returned.typed(value) if self.query.returns else value

    def _bind(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        return self.nested(arguments, named).inputs

    def _call(self, call: BoundArguments) -> NestedCall:
        """Defaults and the object of a method are arguments; what stands around the definition is the scope (S27)."""
        call.apply_defaults()
        wanted = (*self.query.inputs, *MODULES, *DATES)
        around = ChainMap(_closure(self._function), self._scope, self._function.__globals__)
        return NestedCall(
            self._function.__name__,
            self.program,
            {name: value for name, value in call.arguments.items() if name in wanted or name in self.program.bound},
            {name: around[name] for name in wanted if name in around},
            self.options.get("model"),
            self.typed,
        )

    def _told(self, named: dict[str, Any]) -> tuple[dict[str, Any], Options]:
        """Arguments by name, and the options of the run with those among the keywords."""
        parameters = self.__signature__.parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return named, self.options
        said = {name: value for name, value in named.items() if name not in parameters}
        _known(said, f"{self._function.__name__}() has no parameter and no option", OPTIONS)
        # every name in `said` is one of Options, which the checker cannot see
        options: Options = {**self.options, **said}  # type: ignore[typeddict-item]
        return {name: value for name, value in named.items() if name in parameters}, options


@overload
def query(function: Callable[..., Any], /) -> QueryFunction: ...
@overload
def query(**options: Unpack[Options]) -> Callable[[Callable[..., Any]], QueryFunction]: ...
def query(
    function: Callable[..., Any] | None = None, /, **options: Unpack[Options]
) -> QueryFunction | Callable[[Callable[..., Any]], QueryFunction]:
    """Turns a function with a query in its docstring into one that runs it. With options or without:

        @query(model="demo")
        def packing(place):
            '''lq
            "Things to pack for {place}:\\n-[THING]" where STOPS_AT(THING, "\\n")
            return THING
            '''

    A `classmethod` or a `staticmethod` stands below it. Raises QueryError at once for a query that does not compile,
    with the line of the Python file, and TypeError for an option that does not exist.
    """
    if function is not None:
        return _made(function, options, sys._getframe(1))

    def decorate(function: Callable[..., Any]) -> QueryFunction:
        return _made(function, options, sys._getframe(1))

    _known(options, "@query has no option", OPTIONS)
    return decorate


def _made(function: object, options: Options, frame: FrameType) -> QueryFunction:
    kind: Kind = "function"
    if isinstance(function, classmethod | staticmethod):
        kind = "class" if isinstance(function, classmethod) else "static"
        function = function.__func__
    if not isinstance(function, FunctionType):
        raise TypeError(
            f"@query stands above a function, and this is {function!r}; compile() takes the text of a query"
        )
    known = function.__globals__.get(QUERIES, {}).get(function.__code__.co_firstlineno)
    if "context" in inspect.signature(function).parameters:
        hint = "choose another name; the text so far is context.prompt"
        raise QueryError(
            f"{function.__name__}() cannot have a parameter 'context': it is the run's own object", hint=hint
        )
    compiled = Query(known or compile_program(parse(docstring(function))))
    names = {*compiled.inputs, *MODULES, *DATES, *named_in(function.__annotations__.get("return"))}
    return QueryFunction(function, compiled, options, _around(frame, names), kind)


def _around(frame: FrameType | None, names: Iterable[str]) -> dict[str, Any]:
    """The variables of the function in which a query is defined, as they are then. A docstring is no code, so that
    Python keeps no closure for what it mentions. A class's own names are none of its methods'."""
    while frame is not None and frame.f_locals is not frame.f_globals:
        if frame.f_code.co_flags & inspect.CO_NEWLOCALS:
            return {name: frame.f_locals[name] for name in names if name in frame.f_locals}
        frame = frame.f_back
    return {}


def _closure(function: FunctionType) -> dict[str, Any]:
    """The variables around a function that its own code reads, as they are now."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable that has no value yet
            found[name] = cell.cell_contents
    return found


def _known(names: Iterable[str], sentence: str, known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            meant = INSTEAD.get(name) or did_you_mean(name, known)
            raise TypeError(f"{sentence} called {name!r}" + (f": {meant}" if meant else ""))
