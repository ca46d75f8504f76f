"""Predicates: Python that judges the value of a hole (S21)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from lmql_lite.engine.environment import Environment, evaluate, value_of
from lmql_lite.errors import Span
from lmql_lite.program.ops import Hole, HoleType
from lmql_lite.program.symbols import MADE
from lmql_lite.program.where import TEXT


class Objection(NamedTuple):
    """The part of the query that a value breaks, and the reason, if a type gives one."""

    span: Span
    reason: str | None = None


class Judge:
    """The type of one hole, and the conditions that Python judges. These read the value under the hole's name; if
    `INT(X)` makes the hole a number, that is the value.
    """

    def __init__(self, op: Hole) -> None:
        self.value: Any = None
        """The value of the hole, once its text is complete."""
        self.op = op
        self._type = op.type.spec if op.type else None

    def fork(self) -> Judge:
        return copy(self)

    def retype(self, type: HoleType | None) -> None:
        self.op = replace(self.op, type=type)
        self._type = type.spec if type else None

    async def objects(self, text: str, environment: Environment) -> Objection | None:
        """The first condition that the complete value of this text breaks."""
        try:
            self.value = self._valued(text)
        except (ValueError, RecursionError) as error:  # RecursionError for JSON nested too deeply
            return Objection(self.op.type.span if self.op.type else self.op.span, str(error))
        return await self.judged(self.value, text, environment)

    def _valued(self, text: str) -> Any:
        """The value of a complete text. Raises ValueError or RecursionError if the type rejects the text."""
        if self._type:
            return self._type.convert(text)
        return MADE[self.op.number](text) if self.op.number else text

    async def judged(self, value: Any, text: str, environment: Environment) -> Objection | None:
        """The first condition that rejects a complete value."""
        if not self.op.judges:
            return None
        evaluate_now = partial(value_of, environment=environment)
        run = partial(evaluate, environment=environment)
        with assigned(environment, {self.op.name: value, TEXT: text}):
            for condition in self.op.judges:
                if not condition.clause.has_values(evaluate_now):
                    continue
                if not await condition.accepts(text, evaluate_now, run):
                    return Objection(condition.span)
        return None


@contextmanager
def assigned(environment: Environment, values: Mapping[str, Any]) -> Iterator[None]:
    """Gives variables these values for a while, so that a rejected value does not stay."""
    before = {name: environment[name] for name in values if name in environment}
    environment.update(values)
    try:
        yield
    finally:
        for name in values.keys() - before.keys():
            environment.pop(name, None)
        environment.update(before)
