"""The library's functions: compile, run, stream, rows, map, plan, model."""

from __future__ import annotations

import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Generic, Literal, Unpack, cast, overload

from typing_extensions import TypeVar

from lmql_lite.cache.tokens.trees import AnyCache
from lmql_lite.engine import events
from lmql_lite.engine.blocking import blocked, blocking
from lmql_lite.engine.budget import Account
from lmql_lite.engine.nested import NestedCall
from lmql_lite.engine.plan import Plan, planned
from lmql_lite.engine.result import Result
from lmql_lite.engine.rows import (
    Columns,
    DataRow,
    FinishedRow,
    OnError,
    Progress,
    Rows,
    carried,
    check_rows,
    finished_rows,
    in_order,
    numbered,
    row_options,
    rows_at_once,
)
from lmql_lite.engine.session import Session, default_session
from lmql_lite.engine.settings import checked
from lmql_lite.engine.tracebacks import shorten
from lmql_lite.errors import InputError, did_you_mean
from lmql_lite.lang.keywords import BLOCK, DATES, MEDIA, MODULES, PROVIDED
from lmql_lite.lang.query import parse
from lmql_lite.lang.source import Source
from lmql_lite.models.base import Model
from lmql_lite.models.registry import Access, load, of_network
from lmql_lite.observe.telemetry import LOGGER, TRACE, watched
from lmql_lite.observe.trace import Trace, traced
from lmql_lite.options import OPTIONS, HeaderOptions
from lmql_lite.program.compiler import compile as compile_program
from lmql_lite.program.ops import Program

SUFFIXES = (".lq", ".lmql")
INPUT = "input"
"""Name of the input that replaces the query's `input()`: a function that returns a line or an awaitable line."""


class RunOptions(HeaderOptions, total=False):
    """Options of a run: those of a header, and those that only a caller has. They override the query's header.

    `model` is an id (`demo`, `local:PATH`, `openai/NAME`) or a model object. `cache=False` asks the model for every
    token anew, `cache="x.tokens"` keeps its answers in a file, and a `TokenCache` configures that file. `trace` writes
    every call of the model (`x.json`), its events (`x.lqrun`) or a report (`x.html`). `session` shares
    models and trees among its runs; the default is one session for the process.
    `prefill=[("A", "Paris"), ("B", " It")]` gives the texts of the first holes, in the order in which they open. The
    model continues the last text, unless `("", "")` follows it. `docs/language.md` has a table of all options.
    """

    decoder: str | None
    model: str | Model | None
    cache: AnyCache | None
    trace: str | os.PathLike[str] | None
    session: Session | None
    prefill: Sequence[tuple[str, str]] | None
    k: int | None
    budget: int | None
    b: int | None
    alpha: float | None
    particles: int | None


class Options(RunOptions, total=False):
    """`RunOptions`, and `n`: the number of results.

    >>> options: lq.Options = {"seed": 7, "max_tokens": 20}
    >>> lq.run_sync('"Say:[X]"', model=lq.ScriptedModel("Say: hi"), **options).seed
    7
    """

    n: int | None


Answers = Result | list[Result]
"""Return value of a run: its result, or for `n` > 1 a list of results, best first."""


R = TypeVar("R", default=Any)


class RowRuns(ABC, Generic[R]):
    """Runs of one query for many rows, of `Query` and `QueryFunction`. R is the type of a result's value."""

    __slots__ = ()

    program: Program

    @abstractmethod
    def batches(
        self, inputs: Mapping[str, Any] | None, options: Options, account: Account | None = None
    ) -> AsyncGenerator[events.Batch, None]:
        """Batches of simultaneous events of one run, as in `stream`. Runs with one `account` share their limits."""

    @abstractmethod
    def inputs_of(self, row: Any, columns: Columns) -> Mapping[str, Any]:
        """A row as the inputs of a run. Raises InputError or TypeError for a row that does not fit."""

    def _own_options(self) -> Options:
        """Options of every run; options of a call override them."""
        return {}

    def rows(
        self,
        rows: Rows,
        *,
        concurrency: int | None = None,
        repeat: int = 1,
        id_column: str | None = "id",
        columns: Columns = "carry",
        on_error: OnError = "raise",
        **options: Unpack[RunOptions],
    ) -> AsyncGenerator[FinishedRow, None]:
        """`repeat` runs for each row, yielded in the order in which they end.

        A row is a mapping of inputs. Any other value is the input of a query with only one, and the first argument of a
        function. Rows may come from a generator, async or not, of any length; at most `concurrency` of them are held.
        Columns that the query does not read are carried along in `FinishedRow.row`; `columns="strict"` refuses them.

        `concurrency` is by default the model's number of sequences. A model in this process runs at most that number,
        because more runs would evict each other from its memory.

        A row's id is its `id_column`, or a digest of the row. The seed is mixed with the id and the repeat, so that
        equal rows draw differently and no row depends on the rows before it. The `seed` of a result repeats it. A trace
        has a file for each row, `run.3.json` for rows[3]. Rows share the session, the tree, and limits such as
        `max_requests`.

        The first error ends all runs and is raised with a note that names its row; with `on_error="keep"` the error is
        the row's `answer`. Options and other errors as in `stream`.
        """
        check_rows(rows, concurrency, on_error, columns, repeat)
        both: Options = {**self._own_options(), **options}
        places = rows_at_once(both.get("model"), self.program, both.get("session") or default_session(), concurrency)
        account = Account()

        async def work(row: DataRow) -> Answers:
            return await self.run_row(row, columns, both, account)

        return finished_rows(numbered(rows, repeat, id_column), work, places, on_error)

    async def run_row(
        self, row: DataRow, columns: Columns, options: RunOptions, account: Account | None = None
    ) -> Answers:
        """The run of one row, with a seed and a trace of its own. Rows with the same `account` share their limits."""
        own = row_options({**self._own_options(), **options}, self.program, row)
        return await answers_of(self.batches(self.inputs_of(row.value, columns), cast("Options", own), account))

    @overload
    async def map(
        self,
        rows: Rows,
        *,
        concurrency: int | None = None,
        progress: Progress | None = None,
        on_error: Literal["raise"] = "raise",
        columns: Columns = "carry",
        **options: Unpack[RunOptions],
    ) -> list[Result[R]]: ...
    @overload
    async def map(
        self,
        rows: Rows,
        *,
        concurrency: int | None = None,
        progress: Progress | None = None,
        on_error: OnError,
        columns: Columns = "carry",
        **options: Unpack[RunOptions],
    ) -> list[Result[R] | Exception]: ...
    async def map(
        self,
        rows: Rows,
        *,
        concurrency: int | None = None,
        progress: Progress | None = None,
        on_error: OnError = "raise",
        columns: Columns = "carry",
        **options: Unpack[RunOptions],
    ) -> Any:
        """The answers of `rows` as a list, in the order of the rows.

        `progress(done, total)` is called after each row, with None for an unknown total. With `on_error="keep"` an
        exception takes the place of its result.
        """
        streamed = self.rows(rows, concurrency=concurrency, on_error=on_error, columns=columns, **options)
        return await in_order(streamed, rows, progress)

    map_sync = blocked(map)


@dataclass(frozen=True, slots=True, repr=False)
class Query(RowRuns[Any]):
    """A compiled query: run it as often as you like, also several times at once. It pickles as its source.

    >>> query = lq.compile('"A list of {things}:[LIST]"')
    >>> query
    Query('<query>', inputs=('things',), holes=('LIST',))
    >>> query("colours", model=lq.ScriptedModel("A list of colours: red"))["LIST"]
    ' red'
    """

    program: Program

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs the query. Returns its value, or the `Result` of a query without `return`; for `n` > 1 a list of them.

        Arguments by place are the inputs in the order of their first use. Keywords that are not inputs are options of
        the run. Inside a running event loop it blocks that. Errors as in `stream`.
        """
        if len(arguments) > len(self.inputs):
            raise InputError(f"the query takes {len(self.inputs)} inputs, but {len(arguments)} are given by position")
        inputs = dict(zip(self.inputs, arguments, strict=False))
        if twice := [name for name in named if name in inputs]:
            raise InputError(f"the input {twice[0]!r} is given twice")
        options = {name: value for name, value in named.items() if name in OPTIONS and name not in self.inputs}
        inputs |= {name: value for name, value in named.items() if name not in options}
        return returned(self.program, blocking(answers_of(self.batches(inputs, cast("Options", options)))))

    def __repr__(self) -> str:
        return f"Query({self.program.span.name!r}, inputs={self.inputs}, holes={self.holes})"

    def __reduce__(self) -> tuple[Any, ...]:
        span = self.program.span
        return _of_source, (span.name, span.text, span.first_line)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in the order of their first use."""
        return tuple(wanted.name for wanted in self.program.inputs)

    @property
    def holes(self) -> tuple[str, ...]:
        return self.program.holes

    @property
    def returns(self) -> bool:
        """True if the query has a `return` with a value."""
        return self.program.returns

    def stream(
        self, inputs: Mapping[str, Any] | None = None, **options: Unpack[Options]
    ) -> AsyncGenerator[events.Event, None]:
        """Events of one run. The last one is `Finished` with the result, for `n` > 1 with all results.

        Raises InputError for a missing or unknown input and for a wrong option, ConstraintError if a `where` cannot be
        met, ModelError if the model fails, and unwrapped any exception of the query's own Python.
        """
        return events.flat(self.batches(inputs, options))

    def batches(
        self, inputs: Mapping[str, Any] | None, options: Options, account: Account | None = None
    ) -> AsyncGenerator[events.Batch, None]:
        given = {} if inputs is None else self._given(inputs)
        if unknown := [name for name in options if name not in OPTIONS and name in self.inputs]:
            raise InputError(
                f"{unknown[0]!r} is an input of the query, not an option of a run",
                hint=f"give inputs as a dict: {{{unknown[0]!r}: ...}}",
            )
        session, model = options.get("session") or default_session(), options.get("model")
        settings = checked({name: value for name, value in options.items() if name not in ("session", "model")})
        trace = Trace(settings.trace) if settings.trace else None
        batches = session.stream(
            self.program, given, settings, model, trace.calls if trace else None, account or Account()
        )
        if TRACE in sys.modules or LOGGER.isEnabledFor(logging.INFO):
            batches = watched(batches)
        return traced(batches, trace) if trace else batches

    @overload  # n=1 is an int too: the first overload that fits counts
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
        """The `Result` of one run. For `n` > 1, in the call or in the header, a list of results, best first.

        The best result has the highest sum of raw log-probabilities; ties are in the order of their numbers. Options
        and errors as in `stream`.
        """
        all_options = cast("Options", options if n is None else {"n": n, **options})
        return await answers_of(self.batches(inputs, all_options))

    run_sync = blocked(run)

    def plan(self, inputs: Mapping[str, Any] | None = None, **options: Unpack[Options]) -> Plan:
        """Plan of a run: its holes, and how the model would meet their conditions.

        Inputs may be missing; options and errors as in `stream`. No billable request is sent.
        """
        given = {} if inputs is None else self._given(inputs)
        session, model = options.pop("session", None) or default_session(), options.pop("model", None)
        return blocking(planned(self.program, given, checked(options), session, model))

    def nested(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> NestedCall:
        """Call by a hole of another query: positional arguments are the inputs in the order of their first use.

        Raises TypeError for too many arguments, and for one that is unknown, missing or given twice.
        """
        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in self.inputs]
        return NestedCall("a query", self.program, Signature(parameters).bind(*arguments, **named).arguments, {})

    def inputs_of(self, row: Any, columns: Columns) -> Mapping[str, Any]:
        if not isinstance(row, Mapping):
            if len(self.inputs) != 1:
                raise InputError(f"a row names its inputs unless there is only one; {self._known()}", hint="use a dict")
            return {self.inputs[0]: row}
        return row if columns == "strict" else carried(row, (*self.inputs, INPUT), self.program.builtins)

    def _given(self, inputs: object) -> dict[str, Any]:
        """The inputs of a run. Raises InputError for unknown ones, and unless they are a dict."""
        if not isinstance(inputs, Mapping):
            example = self.inputs[0] if self.inputs else "name"
            hint = f"for example {{{example!r}: ...}}; a call takes values: query(...)"
            raise InputError(f"inputs must be a dict; this is {inputs!r}", hint=hint)
        own = {*self.inputs, *self.program.bound, *self.program.builtins}
        for name in inputs:
            if name not in own and name not in (*MODULES, *DATES, *MEDIA, INPUT, BLOCK):
                hint = did_you_mean(name, self.inputs) or self._known()
                if name in PROVIDED:
                    hint = f"{name!r} is the run's own object in every query: choose another name"
                raise InputError(f"the query has no input {name!r}", hint=hint)
        return dict(inputs)

    def _known(self) -> str:
        return f"its inputs are {', '.join(self.inputs)}" if self.inputs else "it has no inputs"


def _of_source(name: str, text: str, first_line: int) -> Query:
    return Query(compile_program(parse(Source(name, text, first_line))))


async def answers_of(batches: AsyncGenerator[events.Batch, None]) -> Answers:
    """Return value of a run: its result, or for `n` > 1 a list of results, best first."""
    last: events.Event | None = None
    try:
        async with aclosing(batches):
            async for batch in batches:
                last = batch[-1] if batch else last
    except BaseException as error:
        shorten(error)
        raise
    assert isinstance(last, events.Finished), "a run ends with Finished or raises"
    return list(last.results) if last.results else last.result


def returned(program: Program, answers: Answers) -> Any:
    """Return value of a call: what the query returns, the results themselves of a query without `return`."""
    if not program.returns:
        return answers
    return [result.value for result in answers] if isinstance(answers, list) else answers.value


def compile(source: str | Path) -> Query:
    """A query from its text, or from a file: a `Path`, or a string that ends in `.lq` or `.lmql`.

    Raises QueryError with every problem; ConstraintError if the only problem is a `where` that no text can meet;
    InputError for a file that cannot be read, and for a source that is neither a text nor a path.

    >>> lq.compile('"Say:[X]"').run_sync(model=lq.ScriptedModel("Say: hi"))["X"]
    ' hi'
    """
    if not isinstance(source, str | Path):
        sentence = f"a query is a text or the path of a file; this is {source!r}"
        hint = "decode bytes first: source.decode()" if isinstance(source, bytes) else "give its text, or a Path"
        raise InputError(sentence, hint=hint)
    try:
        is_path = isinstance(source, Path) or ("\n" not in source and source.endswith(SUFFIXES))
        text = Source.from_file(Path(source)) if is_path else Source("<query>", str(source).removeprefix("\ufeff"))
        return Query(compile_program(parse(text)))
    except Exception as error:
        shorten(error)
        raise


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
    """Compiles and runs a query: `await run('"Say hello:[GREETING]"')`. Errors as in `compile` and `Query.stream`.

    >>> asyncio.run(lq.run('"Say:[X]"', model=lq.ScriptedModel("Say: hi")))["X"]
    ' hi'
    """
    return await answers_of(compile(source).batches(inputs, {"n": n, **options}))


run_sync = blocked(
    run,
    """
    >>> lq.run_sync('"Say:[X]"', model=lq.ScriptedModel("Say: hi"))["X"]
    ' hi'
    """,
)


def model(id: Any, tokenizer: Any = None, /, **access: Unpack[Access]) -> Model:
    """A model by its id and keywords: `model("openai/NAME", base_url="http://localhost:8000/v1")`,
    `model("local:PATH", dtype="bfloat16")`. Or a loaded transformers model: `model(network, tokenizer)`.

    `Access` lists the keywords. Raises ModelError, and TypeError for an unknown keyword.

    >>> lq.model("demo").name
    'demo'
    """
    for name in access:
        if name not in Access.__annotations__:
            meant = did_you_mean(name, Access.__annotations__) or f"the options are {', '.join(Access.__annotations__)}"
            raise TypeError(f"model() has no option {name!r}: {meant}")
    if isinstance(id, str):
        if tokenizer is not None:
            raise TypeError("a tokenizer goes with a loaded network: model(network, tokenizer)")
        return load(id, **access)
    if others := [name for name in access if name not in ("kv", "exact", "use_caches")]:
        raise TypeError(f"a loaded network takes no {others[0]}=: it is used as it is")
    return of_network(id, tokenizer, access.get("kv"), access.get("exact"), access.get("use_caches"))
