"""Runs of one query for many rows: a bounded number at once, streamed as they end, and all ended when the caller
leaves."""

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

from lmql_lite.cache.scores import mix
from lmql_lite.engine.environment import value_of
from lmql_lite.engine.result import Result, ResultList
from lmql_lite.engine.session import Session
from lmql_lite.errors import InputError, did_you_mean
from lmql_lite.models.base import Completer, Model
from lmql_lite.program.ops import Program

Rows = Iterable[Any] | AsyncIterable[Any]
Progress = Callable[[int, int | None], object]
"""Callback with the number of rows done and of all rows; None for a total that is not known."""
OnError = Literal["raise", "keep"]
Columns = Literal["carry", "strict"]
SEQUENCES = 8
"""Rows at a time with a model that does not say how many sequences it keeps."""


@dataclass(frozen=True, slots=True)
class DataRow:
    """One row of many, to be run. `id` and `repeat` make its seed; `number` is its place, `value` what was given."""

    number: int
    id: str
    repeat: int
    value: Any

    def seed(self, seed: int) -> int:
        """Seed of this row in a run with `seed`. Given as `seed` it repeats the row alone (S28)."""
        name = int.from_bytes(blake2b(self.id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        return mix(mix(seed, name), self.repeat) >> 11  # JSON keeps 53 bits


@dataclass(frozen=True, slots=True)
class FinishedRow:
    """One row that has ended: its result, of `n` > 1 a list of them, or the exception that ended it.

    `row` is what was given, columns that the query does not read included.

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
        """The result, the best of several. Raises the row's own exception where it failed."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer[0] if isinstance(self.answer, list) else self.answer


Work = Callable[[DataRow], Coroutine[Any, Any, Result | list[Result]]]


async def finished_rows(
    rows: AsyncGenerator[DataRow, None], work: Work, concurrency: int, on_error: OnError
) -> AsyncGenerator[FinishedRow, None]:
    """Rows as they end. A row is taken when there is room: at most `concurrency` are held, those included that have
    ended and that the caller has not asked for yet.

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
    """Raises InputError for what is no series of rows, and for a wrong option."""
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable | AsyncIterable):
        raise InputError(f"rows are a list, a generator or another series of rows; this is {reprlib.repr(rows)}")
    for name, number in (("concurrency", concurrency), ("repeat", repeat)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
            raise InputError(f"{name} is a whole number of rows, at least 1; this is {number!r}")
    for name, value, values in (("on_error", on_error, ("raise", "keep")), ("columns", columns, ("carry", "strict"))):
        if value not in values:
            hint = did_you_mean(str(value), values)
            raise InputError(f"{name} is {values[0]!r} or {values[1]!r}; this is {value!r}", hint=hint)


async def numbered(rows: Rows, repeat: int, id_column: str | None) -> AsyncGenerator[DataRow, None]:
    """Rows with their ids, each `repeat` times. Equal ids are told apart: the second one ends in `#2`."""
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
    """The row's own id, from its column; without one a digest of what the row holds, wherever it stands."""
    if column is not None and isinstance(row, Mapping) and row.get(column) not in (None, ""):
        return str(row[column])
    try:
        text = json.dumps(row, sort_keys=True, default=str)
    except (TypeError, ValueError, RecursionError):  # keys that have no order, or a value that holds itself
        text = str(row)
    return blake2b(_ADDRESS.sub("", text).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Of objects whose text is their place in memory: another process has them elsewhere."""


def carried(inputs: Mapping[str, Any], known: Iterable[str]) -> Mapping[str, Any]:
    """The columns of a row that are inputs. Raises InputError where one is missing and another column is like it."""
    names = set(known)
    surplus = [name for name in inputs if name not in names]
    if not surplus:
        return inputs
    for name in names - {"input"}:
        if name not in inputs and (meant := did_you_mean(name, map(str, surplus))):
            raise InputError(f"the row has no column {name!r}", hint=meant)
    return {name: value for name, value in inputs.items() if name in names}


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
    if isinstance(seed, int) and seed >= 0:  # else there is none, or one that the run refuses
        own["seed"] = row.seed(seed)
    if (trace := options.get("trace")) is not None:
        path = Path(trace)
        turn = f"-{row.repeat}" if row.repeat else ""
        own["trace"] = path.with_name(f"{path.stem}.{row.number}{turn}{path.suffix}")
    return own


def _in_header(program: Program, name: str) -> Any:
    """The value of an option in the header of a query; None where only a run finds it out."""
    found = [option.value for option in program.options if option.name == name and not option.value.co_names]
    return value_of(found[0], {}) if found else None


def constant_model(model: str | Model | None, program: Program, session: Session) -> Model | None:
    """The model of every row: the given one, else that of the header; None where only a run finds it out."""
    header = program.model
    if model is None and header is not None:
        if header.value.co_names:
            return None
        model = value_of(header.value, {})
    return session.model(model)


def rows_at_once(model: str | Model | None, program: Program, session: Session, asked: int | None) -> int:
    """Number of rows that run at a time: the model's own, or what was asked for.

    More sequences than a model in this process keeps would throw each other out of its memory, so that asking for
    more than those changes nothing.
    """
    found = constant_model(model, program, session)
    if found is None:
        return asked or SEQUENCES
    own = int(getattr(found, "sequences", SEQUENCES))
    return own if asked is None else asked if isinstance(found, Completer) else min(asked, own)
