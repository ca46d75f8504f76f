"""`@query`: a Python function whose docstring is a query."""

from __future__ import annotations

import asyncio
import builtins
import functools
import inspect
import sys
from collections import ChainMap
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from inspect import BoundArguments
from types import FrameType, FunctionType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, Unpack, cast, overload

from typing_extensions import TypeVar

from lmql_lite.api import Options, Query, RowRuns, RunOptions, answers_of, returned
from lmql_lite.engine import events
from lmql_lite.engine.blocking import blocking
from lmql_lite.engine.budget import Account
from lmql_lite.engine.hole_decorators import Decorator
from lmql_lite.engine.nested import NestedCall
from lmql_lite.engine.plan import Plan
from lmql_lite.engine.result import Result
from lmql_lite.engine.return_type import ReturnAnnotation, named_in
from lmql_lite.engine.rows import Columns, carried
from lmql_lite.engine.tracebacks import shorten
from lmql_lite.errors import QueryError, did_you_mean
from lmql_lite.lang.docstrings import docstring
from lmql_lite.lang.keywords import BLOCK, DATES, MEDIA, MODULES
from lmql_lite.lang.query import parse
from lmql_lite.options import INSTEAD, OPTIONS
from lmql_lite.program.compiler import compile as compile_program
from lmql_lite.program.ops import QUERIES

Kind = Literal["function", "class", "static"]
"""Binding of an attribute read: to the instance, to its class, or to nothing."""
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
Called = TypeVar("Called", default=R)
"""Type of a call: R, or a coroutine of it for an `async def`."""
Self = TypeVar("Self")


class QueryFunction(RowRuns[R], Generic[P, R, Called]):
    """A Python function whose docstring is a query: `QueryFunction[P, R]` has its parameters and returns R.

    Calling it gives what the query returns, or the `Result` where it returns nothing (of `n` > 1 a list of either); an
    `async def` is awaited. A return annotation says what the value must be, as pydantic reads it. Its parameters are
    the query's inputs; other names come from where the function is defined (S27). Keywords that are not parameters are
    options of the run, unless the function takes any (`**named`); `with_options` says the same to a type checker.

    >>> @lq.query(model=lq.ScriptedModel("Say: hi"))
    ... def said() -> str:
    ...     '''lq
    ...     "Say:[X]"
    ...     return X
    ...     '''
    ...     raise NotImplementedError
    >>> isinstance(said, lq.QueryFunction), said.run_sync().prompt
    (True, 'Say: hi')
    """

    def __init__(
        self,
        function: FunctionType,
        query: Query,
        options: Options,
        scope: Mapping[str, Any],
        kind: Kind = "function",
        bound: tuple[Any, ...] = (),
    ) -> None:
        functools.update_wrapper(self, function)
        self.query = query
        self.program = query.program
        self.options = options
        """Options of every run; options of a call override them."""
        self._function = function
        self._scope = scope
        self._kind = kind
        self._bound = bound
        self._whole = inspect.signature(function)
        self.__signature__ = self._whole.replace(parameters=list(self._whole.parameters.values())[len(bound) :])
        self._returned = ReturnAnnotation(function, scope, query.program)
        self._is_async = inspect.iscoroutinefunction(function)
        if self._is_async and sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)
        elif self._is_async:
            self._is_coroutine = vars(asyncio.coroutines)["_is_coroutine"]  # as asyncio marks its own

    @overload  # a class method: checkers see a function whose first parameter is the class
    def __get__(
        self: QueryFunction[Concatenate[type[Self], Q], R, Called], instance: Self | None, owner: type[Self]
    ) -> QueryFunction[Q, R, Called]: ...
    @overload
    def __get__(self, instance: None, owner: type) -> QueryFunction[P, R, Called]: ...
    @overload
    def __get__(
        self: QueryFunction[Concatenate[Self, Q], R, Called], instance: Self, owner: type
    ) -> QueryFunction[Q, R, Called]: ...
    def __get__(self, instance: object, owner: type) -> QueryFunction[Any, R, Called]:
        if self._bound or self._kind == "static" or (instance is None and self._kind == "function"):
            return self
        first = owner if self._kind == "class" else instance
        return QueryFunction(self._function, self.query, self.options, self._scope, self._kind, (first,))

    def with_options(self, **options: Unpack[RunOptions]) -> QueryFunction[P, R, Called]:
        """The same function with other options: `packing.with_options(seed=7)("Rome")`."""
        _known(options, "with_options() has no option")
        both: Options = {**self.options, **options}
        return QueryFunction(self._function, self.query, both, self._scope, self._kind, self._bound)

    def __repr__(self) -> str:
        return f"<query {self._function.__qualname__}{self.__signature__}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickles by name, as functions do; a method with its object."""
        return (getattr, (self._bound[0], self._function.__name__)) if self._bound else self._function.__qualname__

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> Called:
        __tracebackhide__ = True
        work: Any = self._answer(arguments, named)
        return work if self._is_async else blocking(work)  # type: ignore[no-any-return]

    async def _answer(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return returned(self.program, await answers_of(self._batches_of(arguments, named)))

    def stream(self, *arguments: P.args, **named: P.kwargs) -> AsyncGenerator[events.Event, None]:
        """Events of a run, as in `Query.stream`. Raises ConstraintError for a value that does not fit the
        annotation."""
        return events.flat(self._batches_of(arguments, named))

    def _batches_of(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> AsyncGenerator[events.Batch, None]:
        named, options = self._split(named)
        return self.batches(self.nested(arguments, named).inputs, options)

    async def batches(
        self, inputs: Mapping[str, Any] | None, options: Options, account: Account | None = None
    ) -> AsyncGenerator[events.Batch, None]:
        async with aclosing(self.query.batches(inputs, {**self.options, **options}, account)) as batches:
            async for batch in batches:
                yield [self._finished(event) if isinstance(event, events.Finished) else event for event in batch]

    def _own_options(self) -> Options:
        return self.options

    def _finished(self, event: events.Finished) -> events.Finished:
        several = event.results or (event.result,)
        first, *others = (replace(result, value=self.typed(result.value)) for result in several)
        return events.Finished(first, (first, *others) if event.results else ())

    async def run(self, *arguments: P.args, **named: P.kwargs) -> Result[R]:
        """The `Result`, for `n` > 1 a list of results, as in `Query.run`."""
        answers: Any = await answers_of(self._batches_of(arguments, named))
        return answers  # type: ignore[no-any-return]

    def run_sync(self, *arguments: P.args, **named: P.kwargs) -> Result[R]:
        """`run` for code that is not async. A call inside a running event loop blocks the loop."""
        __tracebackhide__ = True
        return blocking(self.run(*arguments, **named))

    def plan(self, *arguments: Any, **named: Any) -> Plan:
        """Plan of a run, as in `Query.plan`; arguments may be missing."""
        named, options = self._split(named)
        call = self._call(self._whole.bind_partial(*self._bound, *arguments, **named))
        both: Options = {**self.options, **options}
        return self.query.plan(call.inputs, **both)

    def inputs_of(self, row: Any, columns: Columns) -> dict[str, Any]:
        if not isinstance(row, Mapping):
            return self.nested((row,), {}).inputs
        parameters = self.__signature__.parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        return self.nested((), row if columns == "strict" or takes_any else carried(row, parameters)).inputs

    def nested(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> NestedCall:
        """Call by a hole of another query (S26). Raises TypeError for arguments that do not fit the signature."""
        return self._call(self._whole.bind(*self._bound, *arguments, **named))

    def typed(self, value: Any) -> Any:
        """The returned value in the annotated type. Raises ConstraintError for a value that does not fit."""
        return self._returned.typed(value) if self.query.returns else value

    def _call(self, call: BoundArguments) -> NestedCall:
        """Call with defaults and a method's object among its arguments, and the names around the definition as its
        scope (S27)."""
        call.apply_defaults()
        wanted = (*self.query.inputs, *MODULES, *DATES, *MEDIA, BLOCK)
        own = {*wanted, *self.program.bound, *vars(builtins)}
        around = ChainMap(_closure(self._function), dict(self._scope), self._function.__globals__)
        return NestedCall(
            self._function.__name__,
            self.program,
            {name: value for name, value in call.arguments.items() if name in own},
            {name: around[name] for name in wanted if name in around},
            self.options.get("model"),
            self.typed,
        )

    def _split(self, named: Mapping[str, Any]) -> tuple[dict[str, Any], Options]:
        """The keywords, split into arguments and options of the run."""
        parameters = self.__signature__.parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return dict(named), {}
        options = {name: value for name, value in named.items() if name not in parameters}
        _known(options, f"{self._function.__name__}() has no parameter and no option")
        return {name: value for name, value in named.items() if name in parameters}, cast("Options", options)


class Decorate(Protocol):
    """Type of `@query(...)`: from a function to a `QueryFunction` of the same parameters."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> QueryFunction[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> QueryFunction[P, R]: ...


@overload
def query(function: Callable[P, Coroutine[Any, Any, R]], /) -> QueryFunction[P, R, Coroutine[Any, Any, R]]: ...
@overload
def query(function: Callable[P, R], /) -> QueryFunction[P, R]: ...
@overload
def query(*, n: int, **options: Unpack[RunOptions]) -> Callable[[Callable[..., Any]], Any]: ...
@overload
def query(**options: Unpack[RunOptions]) -> Decorate: ...
def query(function: Any = None, /, **options: Unpack[Options]) -> Any:
    """Turns a function whose docstring is a query into one that runs the query. It takes options, or none:

        @query(model="demo")
        def packing(place: str) -> str:
            '''lq
            "Things to pack for {place}:\\n-[THING]" where STOPS_AT(THING, "\\n")
            return THING
            '''
            raise NotImplementedError

    The docstring is the body. The last line never runs: it keeps type checkers from asking for a `return`. Put
    `classmethod` or `staticmethod` below the decorator. Raises QueryError for a query that does not compile, with the
    line of the Python file, and TypeError for an unknown option.

    >>> @lq.query(model=lq.ScriptedModel("2 + 3 = 5."))
    ... def total(a, b):
    ...     '''lq
    ...     "{a} + {b} = [SUM: int]."
    ...     return SUM
    ...     '''
    >>> total(2, 3)
    5
    """
    if function is not None:
        return _made(function, options, sys._getframe(1))

    def decorate(function: object) -> Any:
        return _made(function, options, sys._getframe(1))

    _known(options, "@query has no option")
    return decorate


def _made(function: object, options: Options, frame: FrameType) -> QueryFunction[Any, Any, Any]:
    kind: Kind = "function"
    if isinstance(function, classmethod | staticmethod):
        kind = "class" if isinstance(function, classmethod) else "static"
        function = function.__func__
    if not isinstance(function, FunctionType):
        raise TypeError(f"@query decorates a function; this is {function!r}; compile() takes the text of a query")
    known = function.__globals__.get(QUERIES, {}).get(function.__code__.co_firstlineno)
    if "context" in inspect.signature(function).parameters:
        hint = "choose another name; the text so far is context.prompt"
        raise QueryError(
            f"{function.__name__}() cannot have a parameter 'context': it is the run's own object", hint=hint
        )
    try:
        compiled = Query(known or compile_program(parse(docstring(function))))
    except Exception as error:
        shorten(error)
        raise
    names = {*compiled.inputs, *MODULES, *DATES, *MEDIA, BLOCK, *named_in(function.__annotations__.get("return"))}
    return QueryFunction(function, compiled, options, _around(frame, names), kind)


def _around(frame: FrameType | None, names: Iterable[str]) -> Mapping[str, Any]:
    """The variables of the function in which a query is defined. A docstring is not code, so that Python keeps no
    closure for what it mentions. A class's own names are none of its methods'."""
    while frame is not None and frame.f_locals is not frame.f_globals:
        if frame.f_code.co_flags & inspect.CO_NEWLOCALS:
            return _Around(frame, names)
        frame = frame.f_back
    return {}


class _Around(Mapping[str, Any]):
    """Local variables of a function, as they are when a query is defined. One that has no value yet, such as the query
    itself or a function below it, is looked up when it is read."""

    def __init__(self, frame: FrameType, names: Iterable[str]) -> None:
        self._known = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
        local = {*frame.f_code.co_varnames, *frame.f_code.co_cellvars}
        self._later = [name for name in names if name in local and name not in self._known]
        self._frame = frame if self._later else None

    def __getitem__(self, name: str) -> Any:
        if self._frame is not None and name in self._later:
            return self._frame.f_locals[name]
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._known
        if self._frame is not None:
            yield from (name for name in self._later if name in self._frame.f_locals)

    def __len__(self) -> int:
        return len(list(iter(self)))


def _closure(function: FunctionType) -> dict[str, Any]:
    """Current values of the variables in a function's closure."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable without a value yet
            found[name] = cell.cell_contents
    return found


def _known(names: Iterable[str], sentence: str) -> None:
    for name in names:
        if name not in OPTIONS:
            meant = INSTEAD.get(name) or did_you_mean(name, OPTIONS)
            raise TypeError(f"{sentence} called {name!r}" + (f": {meant}" if meant else ""))


def pre(function: Callable[..., Any]) -> Decorator:
    """`Decorator(pre=function)`: LMQL's `@lmql.decorators.pre`."""
    return Decorator(pre=function)


def streaming(function: Callable[..., Any]) -> Decorator:
    """`Decorator(stream=function)`: LMQL's `@lmql.decorators.streaming`."""
    return Decorator(stream=function)


def post(function: Callable[..., Any]) -> Decorator:
    """`Decorator(post=function)`: LMQL's `@lmql.decorators.post`."""
    return Decorator(post=function)
