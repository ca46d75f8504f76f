"""Answers of any model object: as a list or one by one, from a plain or an async method."""

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
        raise InputError(f"the model has no method {request_type!r}", hint="add a method that takes a list of requests")
    return method  # type: ignore[no-any-return]


def answers_of(given: Any, expected: int) -> Iterator[tuple[Any, bool, float]]:
    """Each answer of a model, True if answers arrive one by one, and its time. Raises ModelError for another number of
    answers."""
    if isinstance(given, list | tuple):
        if len(given) != expected:
            raise _miscounted(len(given), expected)
        now = time.time()
        yield from ((answer, False, now) for answer in given)
        return
    if not isinstance(given, Iterator):
        raise ModelError(f"the model returned {type(given).__qualname__}", hint="return a list or an iterator")
    count = 0
    for count, answer in enumerate(given, 1):
        if count > expected:
            raise _miscounted(count, expected)
        yield answer, True, time.time()
    if count < expected:
        raise _miscounted(count, expected)


async def called(method: Callable[[list[AnyRequest]], Any], part: list[AnyRequest]) -> Any:
    """Result of an async method, or of a blocking one, which runs in a thread."""
    if iscoroutinefunction(method):
        return await method(part)
    given = method(part) if isasyncgenfunction(method) else await asyncio.to_thread(method, part)
    return await given if isawaitable(given) else given


async def async_answers_of(given: Any, expected: int) -> AsyncIterator[tuple[Any, bool, float]]:
    """`answers_of` for an async iterator, or for a plain one, which may block and therefore runs in a thread."""
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
        f"the model returned {given} answers to {expected} requests", hint="return one answer for each request"
    )
