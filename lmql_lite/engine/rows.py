"""Runs of one query for many rows. A bounded number runs at once, rows are yielded as they end, and all runs end when
the caller stops reading."""

from __future__ import annotations

import asyncio
import json
import re
import reprlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Mapping, Sized
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from lmql_lite.cache.tokens.draws import mix
from lmql_lite.engine.environment import value_of
from lmql_lite.engine.result import Result, ResultList
from lmql_lite.engine.session import Session
from lmql_lite.errors import InputError, did_you_mean
from lmql_lite.models.base import Completer, Model
from lmql_lite.program.ops import Program

Rows = Iterable[Any] | AsyncIterable[Any]
Progress = Callable[[int, int | None], object]
"""Callback with the number of finished rows and of all rows; None for an unknown total."""
OnError = Literal["raise", "keep"]
Columns = Literal["carry", "strict"]
SEQUENCES = 8
"""Concurrent rows with a model that does not state its number of sequences."""


@dataclass(frozen=True, slots=True)
class DataRow:
    """One row to run. `id` and `repeat` determine its seed; `number` is its position, `value` the row as given."""

    number: int
    id: str
    repeat: int
    value: Any

    def seed(self, seed: int) -> int:
        """Seed of this row in a run with `seed`. A run with the row's seed repeats the row alone (S28)."""
        name = int.from_bytes(blake2b(self.id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        return mix(mix(seed, name), self.repeat) >> 11  # JSON keeps 53 bits


@dataclass(frozen=True, slots=True)
class FinishedRow:
    """One finished row. `answer` is its result, for `n` > 1 a list of results, or the exception that ended it.

    `row` is the row as given, including columns that the query does not read.

    >>> async def main():
    ...     query = lq.compile('"{word}!"\\nreturn word.upper()')
    ...     return [row async for row in query.rows([{"word": "hi", "target": "HI"}])]
    >>> finished, = asyncio.run(main())
    >>> finished.result.value, finished.row["target"]
    ('HI', 'HI')
    """

    number: int
    id: str
    repeat: int
    row: Any
    answer: Result | list[Result] | Exception

    @property
    def result(self) -> Result:
        """The result, or the best of several. Raises the exception of a failed row."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer[0] if isinstance(self.answer, list) else self.answer


Work = Callable[[DataRow], Coroutine[Any, Any, Result | list[Result]]]


async def finished_rows(
    rows: AsyncGenerator[DataRow, None], work: Work, concurrency: int, on_error: OnError
) -> AsyncGenerator[FinishedRow, None]:
    """Rows as they end. At most `concurrency` rows are held, including finished ones that the caller has not read yet.

    With `on_error="raise"` the first error ends all other rows and is raised, with a note that names its row.
    """
    places = asyncio.Semaphore(concurrency)
    ended = asyncio.Queue[FinishedRow | BaseException | None]()
    running = set[asyncio.Task[None]]()

    async def run(row: DataRow) -> None:
        try:
            answer = await work(row)
        except Exception as error:
            error.add_note(f"in rows[{row.number}]")
            ended.put_nowait(FinishedRow(row.number, row.id, row.repeat, row.value, error))
        except BaseException as error:
            ended.put_nowait(error)
            raise
        else:
            ended.put_nowait(FinishedRow(row.number, row.id, row.repeat, row.value, answer))

    async def feed() -> None:
        try:
            while True:
                await places.acquire()
                task = asyncio.create_task(run(await anext(rows)))
                running.add(task)
                task.add_done_callback(running.discard)
        except StopAsyncIteration:
            await asyncio.gather(*running)
            ended.put_nowait(None)
        except Exception as error:
            ended.put_nowait(error)

    async with aclosing(rows):
        feeder = asyncio.create_task(feed())
        try:
            while (found := await ended.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                if on_error == "raise" and isinstance(found.answer, Exception):
                    raise found.answer
                yield found
                places.release()
        finally:
            others = (feeder, *running)
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)


def check_rows(rows: object, concurrency: object, on_error: object, columns: object, repeat: object) -> None:
    """Raises InputError for rows that are not a series, and for a wrong option."""
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable | AsyncIterable):
        raise InputError(f"rows must be a list, a generator or another series of rows; this is {reprlib.repr(rows)}")
    for name, number in (("concurrency", concurrency), ("repeat", repeat)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            raise InputError(f"{name} must be a whole number, at least 1; this is {number!r}")
    for name, value, values in (("on_error", on_error, ("raise", "keep")), ("columns", columns, ("carry", "strict"))):
        if value not in values:
            hint = did_you_mean(str(value), values)
            raise InputError(f"{name} must be {values[0]!r} or {values[1]!r}; this is {value!r}", hint=hint)


async def numbered(rows: Rows, repeat: int, id_column: str | None) -> AsyncGenerator[DataRow, None]:
    """Rows with their ids, each `repeat` times. The second of two equal ids gets the suffix `#2`."""
    seen: dict[str, int] = {}
    number = 0
    async with aclosing(_one_by_one(rows)) as source:
        async for row in source:
            name = id_of(row, id_column)
            seen[name] = seen.get(name, 0) + 1
            if seen[name] > 1:
                name = f"{name}#{seen[name]}"
            for turn in range(repeat):
                yield DataRow(number, name, turn, row)
            number += 1


async def _one_by_one(rows: Rows) -> AsyncGenerator[Any, None]:
    if isinstance(rows, AsyncGenerator):
        async with aclosing(rows):
            async for row in rows:
                yield row
    elif isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row


def id_of(row: Any, column: str | None) -> str:
    """The row's id from its column, or a digest of the row's content, independent of its position."""
    if column is not None and isinstance(row, Mapping) and row.get(column) not in (None, ""):
        return str(row[column])
    try:
        text = json.dumps(row, sort_keys=True, default=str)
    except (TypeError, ValueError, RecursionError):  # keys without an order, or a value that contains itself
        text = str(row)
    return blake2b(_ADDRESS.sub("", text).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Memory address in the text of an object, which differs between processes."""


def carried(inputs: Mapping[str, Any], known: Iterable[str], optional: Iterable[str] = ()) -> Mapping[str, Any]:
    """The columns of a row that are inputs. Raises InputError if one is missing and another has a similar name.

    Those that are `optional` may be missing.
    """
    names, optional = set(known), set(optional)
    surplus = [name for name in inputs if name not in names and name not in optional]
    if not surplus:
        return inputs
    for name in names - {"input"}:
        if name not in inputs and (meant := did_you_mean(name, map(str, surplus))):
            raise InputError(f"the row has no column {name!r}", hint=meant)
    return {name: value for name, value in inputs.items() if name in names or name in optional}


async def in_order(streamed: AsyncGenerator[FinishedRow, None], rows: Rows, progress: Progress | None) -> list[Any]:
    """The answers of finished rows in the order of the rows."""
    total = len(rows) if isinstance(rows, Sized) else None
    answers: dict[int, Any] = {}
    async with aclosing(streamed):
        async for finished in streamed:
            answers[finished.number] = finished.answer
            if progress is not None:
                progress(len(answers), total)
    return ResultList(answers[number] for number in range(len(answers)))


def row_options(options: Mapping[str, Any], program: Program, row: DataRow) -> dict[str, Any]:
    """Options of one row, with its own seed and its own trace file."""
    own = {"n": None, **options}
    seed = options.get("seed")
    if seed is None:
        seed = _in_header(program, "seed")
    if isinstance(seed, int) and seed >= 0:  # otherwise there is no seed, or a wrong one that the run reports
        own["seed"] = row.seed(seed)
    if (trace := options.get("trace")) is not None:
        path = Path(trace)
        turn = f"-{row.repeat}" if row.repeat else ""
        own["trace"] = path.with_name(f"{path.stem}.{row.number}{turn}{path.suffix}")
    return own


def _in_header(program: Program, name: str) -> Any:
    """The value of an option in the header of a query; None if it is computed at run time."""
    found = [option.value for option in program.options if option.name == name and not option.value.co_names]
    return value_of(found[0], {}) if found else None


def constant_model(model: str | Model | None, program: Program, session: Session) -> Model | None:
    """The model of all rows: the given one, else that of the header; None if it is computed at run time."""
    header = program.model
    if model is None and header is not None:
        if header.value.co_names:
            return None
        model = value_of(header.value, {})
    return session.model(model)


def rows_at_once(model: str | Model | None, program: Program, session: Session, asked: int | None) -> int:
    """Number of concurrent rows: the requested number, or the model's number of sequences.

    A model in this process runs at most its own number, because more sequences would evict each other from its memory.
    """
    found = constant_model(model, program, session)
    if found is None:
        return asked or SEQUENCES
    own = found.sequences
    return own if asked is None else asked if isinstance(found, Completer) else min(asked, own)
