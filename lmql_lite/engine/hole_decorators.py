"""Decorators of a hole, `[@a @b(1) X]`: Python that runs before, during and after the filling of the hole.

A decorator is a `Decorator`, an object with some of the methods `pre`, `stream` and `post`, or a plain function, which
acts as `post`. Each may be async, and may leave out trailing parameters; the last argument is `context`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from lmql_lite.engine.environment import Context, Environment, called_at
from lmql_lite.errors import InputError, Span
from lmql_lite.program.ops import Hole

Stage = Callable[..., Any]
STAGES = ("pre", "stream", "post")


@dataclass(frozen=True, slots=True)
class Decorator:
    """Python around a hole. The leftmost decorator is the outermost: its `pre` runs first, its other stages last.

    `pre(name, context)` may return a value other than None: the hole takes it, and the model is not asked.
    `stream(text, context)` gets the text so far, as far as it is certain. `post(value, text, context)` returns the
    hole's value, whose text replaces the generated one in the prompt, or a pair of value and text.

    >>> loud = lq.Decorator(post=lambda value, text, context: value.upper())
    >>> lq.run_sync('"Say:[@loud X]"', {"loud": loud}, model=lq.ScriptedModel("Say: hi"))["X"]
    ' HI'
    """

    pre: Stage | None = None
    stream: Stage | None = None
    post: Stage | None = None


class Decoration:
    """The decorators of one hole while it is filled."""

    def __init__(self, op: Hole, decorators: Sequence[tuple[Decorator, CodeType]], context: Context) -> None:
        self._op = op
        self.decorators = tuple(decorators)
        self._context = context
        self.told: list[str] = []
        """The texts that the decorators were told."""

    async def fixed(self, environment: Environment) -> Any:
        """The value that a `pre` returned; None if the model is asked."""
        for each, here in self.decorators:
            value = await self._called(here, each.pre, environment, self._op.name) if each.pre else None
            if value is not None:
                return value
        return None

    async def tell(self, text: str, environment: Environment) -> None:
        """Passes the text so far to each `stream`."""
        if text == (self.told[-1] if self.told else ""):
            return
        self.told.append(text)
        for each, here in reversed(self.decorators):
            if each.stream:
                await self._called(here, each.stream, environment, text)

    async def finished(self, value: Any, text: str, environment: Environment) -> tuple[Any, str]:
        """The hole's value, and its text in the prompt."""
        await self.tell(text, environment)
        for each, here in reversed(self.decorators):
            if each.post is None:
                continue
            given = await self._called(here, each.post, environment, value, text)
            if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], str):
                value, text = given
            else:
                if given is not None and given is not value:
                    text = str(given)
                value = given
        return value, text

    async def _called(self, here: CodeType, stage: Stage, environment: Environment, *arguments: Any) -> Any:
        """The value of a stage, called with as many arguments as it takes, `context` last."""
        given = (*arguments, self._context)[: _takes(stage, len(arguments) + 1)]

        async def call() -> Any:
            value = stage(*given)
            return await value if inspect.isawaitable(value) else value

        return await called_at(here, call, environment)


async def decoration_of(op: Hole, python: Callable[[CodeType], Awaitable[Any]], context: Context) -> Decoration | None:
    """The decorators of a hole, None if it has none. Raises InputError for an object that is not a decorator."""
    if not op.decorators:
        return None
    decorators = [(_decorator(await python(each.code), each.span), each.here) for each in op.decorators]
    return Decoration(op, decorators, context)


def _decorator(value: Any, span: Span) -> Decorator:
    if isinstance(value, Decorator):
        return value
    stages = {name: getattr(value, name, None) for name in STAGES} if not inspect.isroutine(value) else {}
    if any(map(callable, stages.values())) and not isinstance(value, type):
        return Decorator(**{name: stage for name, stage in stages.items() if callable(stage)})
    if callable(value):
        return Decorator(post=value)
    hint = "a function that takes the value, or a Decorator(pre=..., stream=..., post=...)"
    raise InputError(f"a hole is decorated with functions; this is {value!r}", span=span, hint=hint)


def _takes(stage: Stage, most: int) -> int:
    try:
        parameters = inspect.signature(stage).parameters.values()
    except (TypeError, ValueError):  # a builtin such as `str.upper` or `int`
        return 1
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return most
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [each for each in places if each.default is each.empty]
    return min(max(len(needed), min(len(places), 1)), most)
