"""The verbs: compile, run, stream, score, generate, and `@query` on a Python function."""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import sys
import textwrap
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack, overload

from lmql_lite.cache.token_cache import AnyCache
from lmql_lite.errors import InputError, QueryError, did_you_mean
from lmql_lite.lang.keywords import MODULES
from lmql_lite.lang.parser import parse
from lmql_lite.lang.source import Source
from lmql_lite.models.base import Model
from lmql_lite.models.registry import load
from lmql_lite.program.compiler import compile as compile_program
from lmql_lite.program.ops import Program, Return
from lmql_lite.program.options import texts_of
from lmql_lite.runtime import events
from lmql_lite.runtime.plan import Plan
from lmql_lite.runtime.planning import planned
from lmql_lite.runtime.result import OptionScores, Result
from lmql_lite.runtime.session import Session
from lmql_lite.runtime.settings import checked
from lmql_lite.tokens import Tokenizer

Answer = TypeVar("Answer")
SUFFIXES = (".lq", ".lmql")


class Options(TypedDict, total=False):
    """What a caller may say about a run. Each one overrules the query's own header; None is the same as not said.

    `model` is an id (`demo`, `local:PATH`, `openai/NAME`) or a model object; `seed` makes a sampling run repeatable;
    `max_tokens` is the bound of each hole (1,024 unless told); `max_backtracks` how often a value that a Python
    condition rejects is replaced by another (64); `cache=False` asks the model for every token anew, `cache="x.tokens"`
    keeps what it says in a file, and a `TokenCache` says how; `cache_mode` is `rw`, `ro` (the file is only read),
    `refresh` (the model is asked again, and what it says replaces what was known), `replay` (the model is never asked,
    and what is not known is an error) or `off`; `speculate=False` lets the model score nothing ahead of the run, which
    changes how long it takes and nothing else; `max_requests`, `max_total_tokens` and `max_cost` (with `prices` of a
    million tokens of prompts and of answers) stop a run before it spends more with a model behind an API; `session`
    shares models and trees with its other runs (unless told, all runs of the process share one).
    """

    model: str | Model | None
    decoder: str | None
    n: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    max_tokens: int | None
    max_backtracks: int | None
    cache: AnyCache | None
    cache_mode: str | None
    speculate: bool | None
    max_requests: int | None
    max_total_tokens: int | None
    max_cost: float | None
    prices: tuple[float, float] | None
    session: Session | None


@functools.cache
def default_session() -> Session:
    """The session of all runs that name none (S28)."""
    return Session()


@dataclass(frozen=True, slots=True)
class Query:
    """A compiled query: run it as often as you like, also several times at once."""

    program: Program

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names that the caller gives, in the order of their first use."""
        return tuple(wanted.name for wanted in self.program.inputs)

    @property
    def holes(self) -> tuple[str, ...]:
        return self.program.holes

    @property
    def returns(self) -> bool:
        """Whether the query returns a value of its own somewhere."""
        return any(isinstance(op, Return) and op.value is not None for op in self.program.ops)

    async def stream(
        self, inputs: Mapping[str, Any] | None = None, **options: Unpack[Options]
    ) -> AsyncGenerator[events.Event, None]:
        """One run, event by event; the last event is `Finished` with the result.

        Raises InputError for a missing or unknown input and for a wrong option, ConstraintError where a `where`
        cannot be met, ModelError where the model fails, and whatever the query's own Python raises, unwrapped.
        """
        given = dict(inputs or {})
        self._refuse_unknown(given)
        session = options.pop("session", None) or default_session()
        model = options.pop("model", None)
        async with aclosing(session.stream(self.program, given, checked(options), model)) as stream:
            async for event in stream:
                yield event

    async def run(self, inputs: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> Result:
        """Runs to the end. Options and errors as in `stream`."""
        async with aclosing(self.stream(inputs, **options)) as stream:
            async for event in stream:
                if isinstance(event, events.Finished):
                    return event.result
        raise AssertionError("a run ends with Finished or raises")

    def run_sync(self, inputs: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> Result:
        """`run` for code that is not async; works inside a running event loop too, which it blocks."""
        return blocking(self.run(inputs, **options))

    def plan(self, inputs: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> Plan:
        """What a run may do and cost at most; inputs may be missing, options and errors are as in `stream`. No model is
        asked, but that some servers say what they can do only in an answer of one token."""
        self._refuse_unknown(inputs or {})
        session, model = options.pop("session", None) or default_session(), options.pop("model", None)
        return blocking(planned(self.program, inputs or {}, checked(options), session, model))

    def _refuse_unknown(self, given: Mapping[str, Any]) -> None:
        for name in given:
            if name not in (*self.inputs, *MODULES):
                known = f"its inputs are {', '.join(self.inputs)}" if self.inputs else "it has no inputs"
                raise InputError(f"the query reads no input {name!r}", hint=did_you_mean(name, self.inputs) or known)


def compile(source: str | Path) -> Query:
    """A query from its text, or from a file: a `Path`, or a string that ends in `.lq` or `.lmql`.

    Raises QueryError, with every problem found, and InputError for a file that cannot be read.
    """
    is_path = isinstance(source, Path) or ("\n" not in source and source.endswith(SUFFIXES))
    text = Source.from_file(Path(source)) if is_path else Source("<query>", str(source))
    return Query(compile_program(parse(text)))


async def run(source: str | Path, inputs: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> Result:
    """Compiles and runs a query: `await run('"Say hello:[GREETING]"')`. Errors as in `compile` and `Query.stream`."""
    return await compile(source).run(inputs, **options)


def run_sync(source: str | Path, inputs: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> Result:
    """`run` for code that is not async."""
    return compile(source).run_sync(inputs, **options)


def model(
    id: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    revision: str | None = None,
    tokenizer: str | Path | Tokenizer | None = None,
    timeout: float | None = None,
    concurrency: int | None = None,
) -> Model:
    """A model by its id, with what an id cannot say: `model("openai/NAME", base_url="http://localhost:8000/v1")`.

    `base_url` and `api_key` of an OpenAI-compatible server come from OPENAI_BASE_URL and OPENAI_API_KEY unless named.
    `revision` vouches for the version that it has, so that what the cache knows is found again at another address (S4).
    `tokenizer` is a folder with a `tokenizer.json`, or a Tokenizer; `timeout` are the seconds of silence that it is
    granted (300); `concurrency` is how many requests are under way at once (32). Raises ModelError.
    """
    return load(
        id,
        base_url=base_url,
        api_key=api_key,
        revision=revision,
        tokenizer=tokenizer,
        timeout=timeout,
        concurrency=concurrency,
    )


async def score(
    prompt: str,
    options: Iterable[str | int | float],
    *,
    model: str | Model | None = None,
    cache: AnyCache | None = None,
    cache_mode: str | None = None,
    session: Session | None = None,
) -> OptionScores:
    """How likely the model thinks each option is as the text that comes after the prompt, which is taken literally.

    All that is not known yet is one call of the model. The keywords are those of `Options`. Raises InputError for a
    prompt that is no text and for options that are none, ModelError where one does not fit or the model fails.
    """
    inputs = {"prompt": _literal(prompt), "options": texts_of(options)}
    result = await _own_query(SCORE).run(
        inputs, model=model, cache=cache, cache_mode=cache_mode, speculate=False, session=session
    )
    found: OptionScores = result.value
    return replace(found, usage=result.usage)


def score_sync(
    prompt: str,
    options: Iterable[str | int | float],
    *,
    model: str | Model | None = None,
    cache: AnyCache | None = None,
    cache_mode: str | None = None,
    session: Session | None = None,
) -> OptionScores:
    """`score` for code that is not async."""
    return blocking(score(prompt, options, model=model, cache=cache, cache_mode=cache_mode, session=session))


async def generate(prompt: str, *, stop: str | Sequence[str] = (), **options: Unpack[Options]) -> str:
    """What the model says after the prompt, which is taken literally and not part of the answer.

    It ends before the first `stop`, at end-of-text, or after `max_tokens` tokens. Options and errors as in
    `Query.stream`.
    """
    stops = [stop] if isinstance(stop, str) else list(stop)
    if not all(isinstance(each, str) and each for each in stops):
        raise InputError(f"a stop is a text with a character at least, or a list of such; this is {stop!r}")
    inputs: dict[str, Any] = {"prompt": _literal(prompt)}
    if not stops:
        return str((await _own_query(GENERATE).run(inputs, **options))["TEXT"])
    return str((await _own_query(GENERATE_UNTIL).run({**inputs, "stops": stops}, **options))["TEXT"])


def generate_sync(prompt: str, *, stop: str | Sequence[str] = (), **options: Unpack[Options]) -> str:
    """`generate` for code that is not async."""
    return blocking(generate(prompt, stop=stop, **options))


SCORE = '"{prompt}"\nreturn await context.score(options)'
GENERATE = '"{prompt}[TEXT]"'
GENERATE_UNTIL = '"{prompt}[TEXT]" where STOPS_BEFORE(TEXT, stops)'


@functools.cache
def _own_query(source: str) -> Query:
    return compile(source)


def _literal(prompt: str) -> str:
    if not isinstance(prompt, str):
        raise InputError(f"a prompt is a text; this is {prompt!r}")
    return prompt


def blocking(work: Coroutine[Any, Any, Answer]) -> Answer:
    """The one door from sync to async. Inside a running loop the work gets a thread and a loop of its own."""
    if not _inside_a_loop():
        return asyncio.run(work)
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def other_thread() -> None:
        try:
            answers.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=copy_context().run, args=(other_thread,), name="lmql_lite")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class QueryFunction:
    """A Python function whose docstring is a query.

    Calling it gives what the query returns, or the `Result` where it returns nothing; an `async def` is awaited.
    Its parameters are the query's inputs; other names come from where the function is defined (S27).
    """

    def __init__(
        self,
        function: Callable[..., Any],
        query: Query,
        options: Options,
        scope: Mapping[str, Any],
        bound: tuple[Any, ...] = (),
    ) -> None:
        functools.update_wrapper(self, function)
        self.query = query
        self._function = function
        self._options = options
        self._scope = scope
        self._bound = bound
        self._signature = inspect.signature(function)

    def __get__(self, instance: object, owner: type) -> QueryFunction:
        if instance is None:
            return self
        return QueryFunction(self._function, self.query, self._options, self._scope, (instance,))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        work = self._answer(*arguments, **named)
        return work if inspect.iscoroutinefunction(self._function) else blocking(work)

    async def _answer(self, *arguments: Any, **named: Any) -> Any:
        result = await self.run(*arguments, **named)
        return result.value if self.query.returns else result

    async def run(self, *arguments: Any, **named: Any) -> Result:
        """The whole `Result`. Keywords that are no parameters are options, as in `Query.stream`."""
        inputs, options = self._bind(arguments, named)
        return await self.query.run(inputs, **options)

    def run_sync(self, *arguments: Any, **named: Any) -> Result:
        return blocking(self.run(*arguments, **named))

    async def stream(self, *arguments: Any, **named: Any) -> AsyncGenerator[events.Event, None]:
        inputs, options = self._bind(arguments, named)
        async with aclosing(self.query.stream(inputs, **options)) as stream:
            async for event in stream:
                yield event

    def _bind(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[dict[str, Any], Options]:
        parameters = self._signature.parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        said = {} if takes_any else {name: named.pop(name) for name in list(named) if name not in parameters}
        unknown = [name for name in said if name not in Options.__annotations__]
        if unknown:
            raise TypeError(f"{self._function.__name__}() has no parameter and no option called {unknown[0]!r}")
        call = self._signature.bind(*self._bound, *arguments, **named)
        call.apply_defaults()
        module = self._function.__globals__
        wanted = (*self.query.inputs, *MODULES)
        inputs = {name: module[name] for name in wanted if name in module}
        inputs |= {name: value for name, value in self._scope.items() if name in wanted}
        inputs |= inspect.getclosurevars(self._function).nonlocals
        inputs |= call.arguments
        # every name in `said` was found in Options above, which the checker cannot see
        options: Options = {**self._options, **said}  # type: ignore[typeddict-item]
        return {name: value for name, value in inputs.items() if name in wanted}, options


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

    Raises QueryError at once for a query that does not compile, with the line of the Python file.
    """
    # the names around the definition: a docstring is no code, so that Python keeps no closure for what it mentions
    scope = sys._getframe(1).f_locals

    def decorate(function: Callable[..., Any]) -> QueryFunction:
        compiled = Query(compile_program(parse(docstring(function))))
        nearby = {name: scope[name] for name in (*compiled.inputs, *MODULES) if name in scope}
        return QueryFunction(function, compiled, options, nearby)

    return decorate if function is None else decorate(function)


def docstring(function: Callable[..., Any]) -> Source:
    """The query in a docstring, as it stands in the file: its `\\n` are still two characters."""
    name = function.__code__.co_filename
    try:
        lines, first_line = inspect.getsourcelines(function)
        body = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):  # no file: text that was given to exec
        return _query_text(function, name, function.__doc__ or "", function.__code__.co_firstlineno)
    definition = body.body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    literal = definition.body[0].value if isinstance(definition.body[0], ast.Expr) else None
    if literal is None or ast.get_docstring(definition) is None:
        return _query_text(function, name, "", first_line)
    source = ast.get_source_segment(textwrap.dedent("".join(lines)), literal) or ""
    quotes = source.lstrip("rRuUbBfF")[:3]
    marks = 3 if quotes in ("'''", '"""') else 1
    text = source.lstrip("rRuUbBfF")[marks:-marks]
    return _query_text(function, name, text, first_line + literal.lineno - 1)


def _query_text(function: Callable[..., Any], name: str, text: str, first_line: int) -> Source:
    marker, _, rest = text.partition("\n")
    if marker.strip() in ("lq", "lmql"):
        return Source(name, textwrap.dedent(rest).rstrip(" "), first_line + 1)
    if not text.strip():
        raise QueryError(
            f"{function.__name__} has no docstring with a query",
            hint="start it with a line 'lq'; python -OO removes docstrings",
        )
    return Source(name, textwrap.dedent(text).rstrip(" "), first_line)
