"""The verbs: compile, run, stream, map, plan, model."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from lmql_lite.cache.token_cache import AnyCache
from lmql_lite.errors import InputError, did_you_mean
from lmql_lite.lang.keywords import DATES, MODULES, PROVIDED
from lmql_lite.lang.parser import parse
from lmql_lite.lang.source import Source
from lmql_lite.models.base import Model
from lmql_lite.models.registry import Access, load
from lmql_lite.program.compiler import compile as compile_program
from lmql_lite.program.ops import Program
from lmql_lite.runtime import events
from lmql_lite.runtime.blocking import blocking
from lmql_lite.runtime.environment import value_of
from lmql_lite.runtime.nested import NestedCall
from lmql_lite.runtime.plan import Plan
from lmql_lite.runtime.planning.planner import planned
from lmql_lite.runtime.result import Result
from lmql_lite.runtime.rows import CONCURRENCY, OnError, Progress, Rows, each, seed_of_row
from lmql_lite.runtime.session import Session
from lmql_lite.runtime.settings import checked
from lmql_lite.runtime.tracebacks import ShortTracebacks

SUFFIXES = (".lq", ".lmql")
INPUT = "input"
"""Who runs a query may say how its user is asked: a function that gives a line, or an awaitable one."""


class RunOptions(TypedDict, total=False):
    """What a caller may say about a run. Each one overrules the query's own header; None is the same as not said.

    `model` is an id (`demo`, `local:PATH`, `openai/NAME`) or a model object; `seed` makes a sampling run repeatable;
    `max_tokens` is the bound of each hole (1,024 unless told); `max_backtracks` how often a value that a Python
    condition rejects is replaced by another (64); `step_budget` ends a run that would not end; `cache=False` asks the
    model for every token anew, `cache="x.tokens"` keeps what it says in a file, and a `TokenCache` says how;
    `cache_mode` is `rw`, `ro` (the file is only read), `refresh` (the model is asked again, and what it says replaces
    what was known), `replay` (the model is never asked, and what is not known is an error) or `off`; `speculate=False`
    lets the model score nothing ahead of the run, which changes how long it takes and nothing else; `max_requests`,
    `max_total_tokens` and `max_cost` (with `prices` of a million tokens of prompts and of answers) stop a run before it
    spends more with a model behind an API; `trace` writes what it told to a file: every call of the model (`run.json`),
    its events (`run.lqrun`, for `lq replay`) or a report (`run.html`); `session` shares models and trees with its other
    runs (unless told, all runs of the process share one).
    """

    model: str | Model | None
    decoder: str | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    seed: int | None
    max_tokens: int | None
    max_backtracks: int | None
    step_budget: int | None
    cache: AnyCache | None
    cache_mode: str | None
    speculate: bool | None
    max_requests: int | None
    max_total_tokens: int | None
    max_cost: float | None
    prices: tuple[float, float] | None
    trace: str | os.PathLike[str] | None
    session: Session | None


class Options(RunOptions, total=False):
    """Those, and `n`: how many results a run gives, unless it is one."""

    n: int | None


Answers = Result | list[Result]
"""Of a run: its result; where it was asked for more than one, all of them, best first."""


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
        return self.program.returns

    async def stream(
        self, inputs: Mapping[str, Any] | None = None, **options: Unpack[Options]
    ) -> AsyncGenerator[events.Event, None]:
        """One run, event by event; the last event is `Finished` with the result, and with all of them where `n` > 1.

        Raises InputError for a missing or unknown input and for a wrong option, ConstraintError where a `where`
        cannot be met, ModelError where the model fails, and whatever the query's own Python raises, unwrapped.
        """
        given = self._given(inputs)
        if unknown := [name for name in options if name in self.inputs and name not in Options.__annotations__]:
            raise InputError(
                f"{unknown[0]!r} is an input of the query, and no option of a run",
                hint=f"give inputs as a dict: {{{unknown[0]!r}: ...}}",
            )
        session = options.pop("session", None) or default_session()
        model = options.pop("model", None)
        async with aclosing(session.stream(self.program, given, checked(options), model)) as stream:
            with ShortTracebacks():
                async for batch in stream:
                    for event in batch:
                        yield event

    @overload  # n=1 is an int, too: the first that fits counts
    async def run(  # type: ignore[overload-overlap]
        self, inputs: Mapping[str, Any] | None = None, *, n: Literal[1] | None = None, **options: Unpack[RunOptions]
    ) -> Result: ...
    @overload
    async def run(
        self, inputs: Mapping[str, Any] | None = None, *, n: int, **options: Unpack[RunOptions]
    ) -> list[Result]: ...
    async def run(
        self, inputs: Mapping[str, Any] | None = None, *, n: int | None = None, **options: Unpack[RunOptions]
    ) -> Answers:
        """Runs to the end. With `n` > 1, also where only the query's header says so, a list of results, best first.

        Best is the result whose tokens have the highest sum of raw log-probabilities; equal ones stay in the order of
        their numbers. Options and errors as in `stream`.
        """
        return await answers_of(self.stream(inputs, n=n, **options))

    @overload
    def run_sync(  # type: ignore[overload-overlap]
        self, inputs: Mapping[str, Any] | None = None, *, n: Literal[1] | None = None, **options: Unpack[RunOptions]
    ) -> Result: ...
    @overload
    def run_sync(
        self, inputs: Mapping[str, Any] | None = None, *, n: int, **options: Unpack[RunOptions]
    ) -> list[Result]: ...
    def run_sync(
        self, inputs: Mapping[str, Any] | None = None, *, n: int | None = None, **options: Unpack[RunOptions]
    ) -> Answers:
        """`run` for code that is not async; works inside a running event loop too, which it blocks."""
        return blocking(answers_of(self.stream(inputs, n=n, **options)))

    @overload
    async def map(
        self,
        rows: Rows,
        *,
        concurrency: int = CONCURRENCY,
        progress: Progress | None = None,
        on_error: Literal["raise"] = "raise",
        **options: Unpack[RunOptions],
    ) -> list[Result]: ...
    @overload
    async def map(
        self,
        rows: Rows,
        *,
        concurrency: int = CONCURRENCY,
        progress: Progress | None = None,
        on_error: OnError,
        **options: Unpack[RunOptions],
    ) -> list[Result | Exception]: ...
    async def map(
        self,
        rows: Rows,
        *,
        concurrency: int = CONCURRENCY,
        progress: Progress | None = None,
        on_error: OnError = "raise",
        **options: Unpack[RunOptions],
    ) -> Any:
        """One run for each row, `concurrency` of them at a time; what each gives, in the order of the rows.

        A row that is a mapping names the inputs; any other value is the one input of a query that has just one. Rows
        may come from a generator, async or not, of any length. `progress(done, total)` is called after each row, with
        None for a total that nobody knows. The first error ends all runs and is raised; with `on_error="keep"` it
        stands in the place of the result. A note at it names the row.

        The rows share session and tree. A seed is mixed with the number of the row, so that equal rows draw
        differently: each result's own `seed` repeats it. A trace has a file for each row, `run.3.json` for rows[3].
        Options and other errors as in `stream`.
        """

        async def work(number: int, row: Any) -> Answers:
            return await answers_of(
                self.stream(self.inputs_of(row), **of_row({"n": None, **options}, self.program, number))
            )

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

    def plan(self, inputs: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> Plan:
        """What a run may do and cost at most; inputs may be missing, options and errors are as in `stream`. No model is
        asked, but that some servers say what they can do only in an answer of one token."""
        given = self._given(inputs)
        session, model = options.pop("session", None) or default_session(), options.pop("model", None)
        return blocking(planned(self.program, given, checked(options), session, model))

    def nested(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> NestedCall:
        """What a hole of another query calls: arguments by place are the inputs in the order of their first use.

        Raises TypeError for too many, for an unknown one and for one that is given twice or missing.
        """
        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in self.inputs]
        return NestedCall("a query", self.program, Signature(parameters).bind(*arguments, **named).arguments, {})

    def inputs_of(self, row: Any) -> Mapping[str, Any]:
        """A row of `map` as inputs. Raises InputError for a value without name where a query has not just one input."""
        if isinstance(row, Mapping):
            return row
        if len(self.inputs) != 1:
            raise InputError(f"a row names its inputs, unless there is just one; {self._known()}", hint="use a dict")
        return {self.inputs[0]: row}

    def _given(self, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
        """The inputs of a run. Raises InputError for what are none."""
        if not isinstance(inputs, Mapping | None):
            example = self.inputs[0] if self.inputs else "name"
            raise InputError(f"inputs are a dict; this is {inputs!r}", hint=f"for example {{{example!r}: ...}}")
        for name in inputs or {}:
            if name not in (*self.inputs, *self.program.bound, *MODULES, *DATES, INPUT):
                hint = did_you_mean(name, self.inputs) or self._known()
                if name in PROVIDED:
                    hint = f"{name!r} is the run's own object in every query: choose another name"
                raise InputError(f"the query reads no input {name!r}", hint=hint)
        return dict(inputs or {})

    def _known(self) -> str:
        return f"its inputs are {', '.join(self.inputs)}" if self.inputs else "it has no inputs"


async def answers_of(stream: AsyncGenerator[events.Event, None]) -> Answers:
    """What a run gives at its end: one result, or a list of them, best first, where more than one was asked for."""
    async with aclosing(stream):
        async for event in stream:
            if isinstance(event, events.Finished):
                return list(event.results) if event.results else event.result
    raise AssertionError("a run ends with Finished or raises")


def of_row(options: Options, program: Program, number: int) -> Options:
    """The options of one row of a map: a seed that the caller says or the header spells out becomes the row's own, and
    so does the name of a trace."""
    own: Options = {**options}
    seed: object = options.get("seed")
    if seed is None:
        header = [option.value for option in program.options if option.name == "seed" and not option.value.co_names]
        seed = value_of(header[0], {}) if header else None
    if isinstance(seed, int) and seed >= 0:  # else there is none, or one that the run refuses
        own["seed"] = seed_of_row(seed, number)
    trace = options.get("trace")
    if isinstance(trace, str | os.PathLike):
        path = Path(trace)
        own["trace"] = path.with_name(f"{path.stem}.{number}{path.suffix}")
    return own


def compile(source: str | Path) -> Query:
    """A query from its text, or from a file: a `Path`, or a string that ends in `.lq` or `.lmql`.

    Raises QueryError, with every problem found; ConstraintError where all that is wrong is a `where` that no text can
    meet; InputError for a file that cannot be read, and for what is neither a text nor a path.
    """
    if not isinstance(source, str | Path):
        sentence = f"a query is a text or the path of a file, and this is {source!r}"
        hint = "decode bytes first: source.decode()" if isinstance(source, bytes) else "give its text, or a Path"
        raise InputError(sentence, hint=hint)
    is_path = isinstance(source, Path) or ("\n" not in source and source.endswith(SUFFIXES))
    text = Source.from_file(Path(source)) if is_path else Source("<query>", str(source).removeprefix("\ufeff"))
    return Query(compile_program(parse(text)))


@overload
async def run(  # type: ignore[overload-overlap]
    source: str | Path,
    inputs: Mapping[str, Any] | None = None,
    *,
    n: Literal[1] | None = None,
    **options: Unpack[RunOptions],
) -> Result: ...
@overload
async def run(
    source: str | Path, inputs: Mapping[str, Any] | None = None, *, n: int, **options: Unpack[RunOptions]
) -> list[Result]: ...
async def run(
    source: str | Path, inputs: Mapping[str, Any] | None = None, *, n: int | None = None, **options: Unpack[RunOptions]
) -> Answers:
    """Compiles and runs a query: `await run('"Say hello:[GREETING]"')`. Errors as in `compile` and `Query.stream`."""
    return await answers_of(compile(source).stream(inputs, n=n, **options))


@overload
def run_sync(  # type: ignore[overload-overlap]
    source: str | Path,
    inputs: Mapping[str, Any] | None = None,
    *,
    n: Literal[1] | None = None,
    **options: Unpack[RunOptions],
) -> Result: ...
@overload
def run_sync(
    source: str | Path, inputs: Mapping[str, Any] | None = None, *, n: int, **options: Unpack[RunOptions]
) -> list[Result]: ...
def run_sync(
    source: str | Path, inputs: Mapping[str, Any] | None = None, *, n: int | None = None, **options: Unpack[RunOptions]
) -> Answers:
    """`run` for code that is not async."""
    return blocking(answers_of(compile(source).stream(inputs, n=n, **options)))


def model(id: str, **access: Unpack[Access]) -> Model:
    """A model by its id, with what an id cannot say: `model("openai/NAME", base_url="http://localhost:8000/v1")`.

    What else may be said is in `Access`. Raises ModelError, and TypeError for a keyword that is not there.
    """
    for name in access:
        if name not in Access.__annotations__:
            meant = did_you_mean(name, Access.__annotations__) or f"there are {', '.join(Access.__annotations__)}"
            raise TypeError(f"model() takes no {name!r}: {meant}")
    return load(id, **access)
