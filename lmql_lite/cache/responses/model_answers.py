"""Answers of any model object: a list at once, or one by one, from a plain method or an async one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction
from typing import Any

from lmql_lite.cache.responses.request import AnyRequest
from lmql_lite.errors import InputError, ModelError


def method_of(model: Any, request_type: str) -> Callable[[list[AnyRequest]], Any]:
    method = getattr(model, request_type, None)
    if not callable(method):
        raise InputError(f"the model has no method {request_type!r}", hint="it takes a list of requests")
    return method  # type: ignore[no-any-return]


def answers_of(given: Any, expected: int) -> Iterator[tuple[Any, bool, float]]:
    """Answers of a model, whether they come one by one, and when. Raises ModelError for any other number of them."""
    if isinstance(given, list | tuple):
        if len(given) != expected:
            raise _miscounted(len(given), expected)
        now = time.time()
        yield from ((answer, False, now) for answer in given)
        return
    if not isinstance(given, Iterator):
        raise ModelError(f"the model returned {type(given).__qualname__}", hint="a list or an iterator is expected")
    count = 0
    for count, answer in enumerate(given, 1):
        if count > expected:
            raise _miscounted(count, expected)
        yield answer, True, time.time()
    if count < expected:
        raise _miscounted(count, expected)


async def called(method: Callable[[list[AnyRequest]], Any], part: list[AnyRequest]) -> Any:
    """Result of an async method, or of one that blocks and runs in a thread."""
    if iscoroutinefunction(method):
        return await method(part)
    given = method(part) if isasyncgenfunction(method) else await asyncio.to_thread(method, part)
    return await given if isawaitable(given) else given


async def async_answers_of(given: Any, expected: int) -> AsyncIterator[tuple[Any, bool, float]]:
    """`answers_of` for an async iterator, and for a plain one, which may block and runs in a thread."""
    if not isinstance(given, AsyncIterator):
        answers = answers_of(given, expected)
        while (each := await asyncio.to_thread(next, answers, None)) is not None:
            yield each
        return
    count = 0
    async for answer in given:
        if (count := count + 1) > expected:
            raise _miscounted(count, expected)
        yield answer, True, time.time()
    if count < expected:
        raise _miscounted(count, expected)


def _miscounted(given: int, expected: int) -> ModelError:
    return ModelError(
        f"the model gave {given} answers to {expected} requests", hint="a method returns one answer for each request"
    )
