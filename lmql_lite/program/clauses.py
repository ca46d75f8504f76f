"""What the clauses of `where` ask of a hole, once its type is known: each guides the model, or judges what it said."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lmql_lite.errors import QueryError
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import CONSTRAINTS
from lmql_lite.program.conditions import All, Condition
from lmql_lite.program.contradictions import refuse_contradiction
from lmql_lite.program.lower import Unguided, lower
from lmql_lite.program.mistakes import refuse_mistakes
from lmql_lite.program.mixed import mixed
from lmql_lite.program.numbers import LengthIs
from lmql_lite.program.ops import Hole, Predicate
from lmql_lite.program.python import compile_expression, span_of
from lmql_lite.program.schemas import JsonType
from lmql_lite.program.subjects import PLAIN, Value
from lmql_lite.program.types import typed


def asked(hole: Hole, clauses: Sequence[nodes.Expression]) -> Hole:
    """The hole with its clauses, read as its type has it. Raises QueryError for a clause that it cannot honour."""
    spec = hole.type.spec if hole.type else None
    if isinstance(spec, JsonType):
        return _asked_of_json(hole, clauses, spec)
    conditions: list[Condition] = []
    predicates: list[Predicate] = []
    # what a query or a decorator gives need not be text
    is_text = (spec is None or spec.bare == PLAIN) and not hole.callees and not hole.decorators
    for clause in clauses:
        if is_text:
            refuse_mistakes(clause, hole.name)
        try:
            conditions.append(lower(clause, hole.name, spec.bare if spec else PLAIN))
        except Unguided:
            guiding, judging = mixed(clause, hole.name, spec.bare if spec else PLAIN)
            if guiding is not None:
                conditions.append(guiding)
            predicates.append(judging)
    refuse_contradiction(hole.name, clauses, spec.bare if spec else PLAIN)
    condition = All(hole.span, tuple(conditions))
    return replace(hole, condition=condition, predicates=tuple(predicates))


def settled(hole: Hole, annotation: Any) -> Hole:
    """A hole whose type the run had to find out: this is what its annotation gave."""
    assert hole.type is not None, "only the type of a typed hole is found out"
    spec = typed(annotation, hole.name, hole.type.span)
    return asked(replace(hole, type=replace(hole.type, spec=spec)), hole.type.clauses)


def _asked_of_json(hole: Hole, clauses: Sequence[nodes.Expression], spec: JsonType) -> Hole:
    """How many items a list has is a part of its grammar; all else Python judges, on the value."""
    conditions: list[Condition] = []
    predicates: list[Predicate] = []
    for clause in clauses:
        judging = _judged(clause, hole.name, spec)
        try:
            guiding = lower(clause, hole.name, Value())
        except QueryError:  # on a text it would be a mistake, on a value it need not be
            guiding = None
        if guiding is not None and spec.is_list and _bounds_length(guiding):
            conditions.append(guiding)
        else:
            predicates.append(judging)
    return replace(hole, condition=All(hole.span, tuple(conditions)), predicates=tuple(predicates))


def _bounds_length(condition: Condition) -> bool:
    match condition:
        case All(_, conditions):
            return all(map(_bounds_length, conditions))
        case LengthIs(_, comparison, _, unit):
            return unit == "characters" and comparison != "!="
    return False


def _judged(clause: nodes.Expression, hole: str, spec: JsonType) -> Predicate:
    """A condition on a value that is JSON: no automaton knows its text and its grammar at once, Python knows it."""
    for node in ast.walk(clause.tree):
        match node:
            case ast.Call(ast.Name(name)) if name in CONSTRAINTS:
                raise QueryError(
                    f"{name} cannot be honoured: it guides text, and [{hole}] is JSON, guided by its type",
                    span=clause.span,
                    hint="ask in Python what the value has to be, such as X.age > 17".replace("X", hole),
                )
            case ast.Call(ast.Name("len"), [ast.Name(name)]) if name == hole and not spec.has_length:
                raise QueryError(
                    f"a length of [{hole}] cannot be honoured: values of its type have none, and JSON cannot be cut",
                    span=span_of(node, clause.span),
                    hint=f"bound a part of it, such as len({hole}.name), or the type (max_length)",
                )
    return Predicate(clause.span, compile_expression(clause.tree.body, clause.span))
