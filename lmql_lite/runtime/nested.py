"""A query that a hole of another query calls (S26): `[X: q(place)]`, `where q(X)`."""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from lmql_lite.constraints.membership import meets
from lmql_lite.constraints.terms import And, Term
from lmql_lite.models.base import Model
from lmql_lite.program.ops import Hole, Program
from lmql_lite.runtime.judge import Objection
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.result import Result
from lmql_lite.runtime.settings import Settings
from lmql_lite.runtime.state import Piece, State, Step, cut_off, data_of, join, steps_since

MOST_DEEP = 100
"""So many queries may be under way inside each other: a query that calls itself for ever is told so."""


@dataclass(frozen=True, slots=True)
class NestedCall:
    """A query and what it is called with. `arguments` come from the query that calls, `scope` from where it is
    defined. `model` is one of its own; `typed` makes of what it returns what its annotation says."""

    name: str
    program: Program
    arguments: Mapping[str, Any]
    scope: Mapping[str, Any]
    model: str | Model | None = None
    typed: typing.Callable[[Any], Any] | None = None

    @property
    def inputs(self) -> dict[str, Any]:
        return {**self.scope, **self.arguments}

    @property
    def returns(self) -> bool:
        """Whether it returns a value of its own somewhere: then its text does not stay."""
        return self.program.returns


Elsewhere = typing.Callable[[NestedCall, Settings, str], Awaitable[Result | None]]
"""Runs a query that has a model of its own behind this text; None where its model is that of the run."""


@runtime_checkable
class Callable(Protocol):
    """A query as a value."""

    def nested(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> NestedCall:
        """Raises TypeError for arguments that do not fit, as calling a function does."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """The hole that waits for a query, what its value has to meet, and the state in which it called."""

    op: Hole
    nested: NestedCall
    term: Term
    before: State

    def objects(self, value: str) -> Objection | None:
        """The part of the condition that the query's value does not meet."""
        return unmet(self.op, self.term, value)


def unmet(op: Hole, term: Term, value: str) -> Objection | None:
    """The part of a hole's condition that a text does not meet."""
    parts = term.terms if isinstance(term, And) else (term,)
    broken = next((part for part in parts if not meets(part, value.encode())), None)
    return None if broken is None else Objection(getattr(broken, "span", None) or op.span)


def answered(before: State, after: State, answer: str, hole: str, ledger: Ledger) -> State:
    """What was said between the two states leaves the path, and an answer comes in its place.

    Text that was pending when it began is only said anew. Tokens that ran past the end of the hole before it are cut
    there, if it was settled meanwhile what becomes of them (S14).
    """
    hanging: tuple[Step, ...] = ()
    if before.overhang is not None and after.overhang is not before.overhang:
        hanging, before = before.overhang.steps, cut_off(before)
    steps = steps_since(before, after)
    not_cut = {id(step) for step in steps}.intersection(map(id, hanging))
    history = before.history
    waiting = 0 if not_cut else len(data_of(before.held)) + len(data_of(before.pending))
    for step in steps:
        if id(step) in not_cut:
            ledger.drop(step, "cut")
            step = replace(step, token=replace(step.token, fate="cut"))
        elif step.token.fate == "kept":
            is_said_again = waiting >= len(step.token.data)
            waiting -= len(step.token.data)
            ledger.remove(step, is_said_again=is_said_again)
            if is_said_again:
                continue
            step = replace(step, token=replace(step.token, fate="removed"))
        history = replace(step, before=history)
    pending = join(before.pending, Piece(answer.encode(), hole, "forced"))
    return before._replace(history=history, pending=pending, text=before.text + answer)
