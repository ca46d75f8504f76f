"""Predicates: Python that judges the value of a hole (S21)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from lmql_lite.engine.environment import Environment, evaluate, value_of
from lmql_lite.errors import Span
from lmql_lite.program.ops import Hole
from lmql_lite.program.symbols import MADE
from lmql_lite.program.where import TEXT


class Objection(NamedTuple):
    """The part of the query that a value breaks, and the reason, if a type gives one."""

    span: Span
    reason: str | None = None


async def valued(op: Hole, text: str, environment: Environment) -> tuple[Any, Objection | None]:
    """The value of a hole with this text, and the first part of its type and its conditions that rejects the value. If
    `INT(X)` makes the hole a number, that is the value."""
    spec = op.type.spec if op.type else None
    try:
        value = spec.convert(text) if spec else MADE[op.number](text) if op.number else text
    except (ValueError, RecursionError) as error:  # RecursionError for JSON nested too deeply
        return text, Objection(op.type.span if op.type else op.span, str(error))
    return value, await objection(op, value, text, environment) if op.judges else None


async def objection(op: Hole, value: Any, text: str, environment: Environment) -> Objection | None:
    """The first condition that Python judges and that rejects a complete value. Conditions read the value under the
    hole's name."""
    evaluate_now = partial(value_of, environment=environment)
    run = partial(evaluate, environment=environment)
    with assigned(environment, {op.name: value, TEXT: text}):
        for condition in op.judges:
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
