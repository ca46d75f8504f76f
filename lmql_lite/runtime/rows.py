"""One query for many rows: so many at once, in order, and all of them over when one fails or the caller has left."""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Mapping, Sized
from contextlib import aclosing
from typing import Any, Literal, TypeVar

from lmql_lite.cache.scores import mix
from lmql_lite.errors import InputError, did_you_mean

Answer = TypeVar("Answer")
Rows = Iterable[Any] | AsyncIterable[Any]
Progress = Callable[[int, int | None], object]
"""Is told how many rows are done, and how many there are: None where nobody knows."""
OnError = Literal["raise", "keep"]
CONCURRENCY = 8


async def each(
    rows: Rows,
    work: Callable[[int, Any], Coroutine[Any, Any, Answer]],
    concurrency: int,
    progress: Progress | None,
    on_error: OnError,
) -> list[Answer | Exception]:
    """What `work(number, row)` gives for each row, in the order of the rows, `concurrency` rows at a time.

    A row is taken when its turn comes: no more than `concurrency` of them are held. The first error ends all other work
    and is raised; with `on_error="keep"` an error stands in the place of its answer. Either says which row it was.
    Raises InputError for a wrong option.
    """
    _check(rows, concurrency, on_error)
    total = len(rows) if isinstance(rows, Sized) else None
    answers: list[Any] = []
    done, turn = 0, asyncio.Lock()

    async def worker(source: AsyncGenerator[Any, None]) -> None:
        nonlocal done
        while True:
            async with turn:  # a generator gives one row after the other
                try:
                    row = await anext(source)
                except StopAsyncIteration:
                    return
                number = len(answers)
                answers.append(None)
            try:
                answers[number] = await work(number, row)
            except Exception as error:
                error.add_note(f"in rows[{number}] of a map")
                if on_error == "raise":
                    raise
                answers[number] = error
            done += 1
            if progress is not None:
                progress(done, total)

    async with aclosing(_one_by_one(rows)) as source:
        workers = [asyncio.create_task(worker(source)) for _ in range(concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    return answers


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


def seed_of_row(seed: int, number: int) -> int:
    """Every row draws otherwise, and each run of the map draws the same: given as `seed` it repeats one row alone."""
    return mix(seed, number) >> 11  # JSON keeps 53 bits


def _check(rows: object, concurrency: object, on_error: object) -> None:
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable | AsyncIterable):
        raise InputError(f"rows are a list, a generator or another series of rows; this is {reprlib.repr(rows)}")
    if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
        raise InputError(f"concurrency is a whole number of rows, at least 1; this is {concurrency!r}")
    if on_error not in ("raise", "keep"):
        raise InputError(
            f"on_error is 'raise' or 'keep'; this is {on_error!r}", hint=did_you_mean(str(on_error), ("raise", "keep"))
        )
