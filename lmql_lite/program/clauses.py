"""What the clauses of `where` ask of a hole, once its type is known: each guides the model, or judges what it said."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lmql_lite.errors import QueryError
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import CONSTRAINTS
from lmql_lite.program.conditions import All, Condition, Joint
from lmql_lite.program.contradictions import refuse_contradiction
from lmql_lite.program.given import Given
from lmql_lite.program.lower import Unguided, lower
from lmql_lite.program.mistakes import refuse_mistakes
from lmql_lite.program.mixed import mixed
from lmql_lite.program.numbers import SHAPE, Kind, LengthIs
from lmql_lite.program.ops import Clause, Hole, Predicate
from lmql_lite.program.python import compile_expression, span_of
from lmql_lite.program.schemas import JsonType
from lmql_lite.program.subjects import PLAIN, Text, Value
from lmql_lite.program.texts import Tidied
from lmql_lite.program.types import typed


def asked(hole: Hole, clauses: Sequence[Clause]) -> Hole:
    """The hole with its clauses, read as its type has it. Raises QueryError for a clause that it cannot honour."""
    spec = hole.type.spec if hole.type else None
    if isinstance(spec, JsonType):
        return _asked_of_json(hole, clauses, spec)
    number = None if spec else _number(hole.name, clauses)
    bare = spec.bare if spec else Text(Tidied(), number)
    conditions: list[Condition] = []
    predicates: list[Predicate] = []
    # what a query or a decorator gives need not be text
    is_text = bare == PLAIN and not hole.callees and not hole.decorators
    for expression, others in ((clause.expression, clause.others) for clause in clauses):
        if is_text:
            refuse_mistakes(expression, hole.name)
        try:
            guiding: Condition | None = lower(expression, hole.name, bare)
        except Unguided:
            guiding, judging = mixed(expression, hole.name, bare)
            predicates.append(replace(judging, others=others))
        if guiding is not None:
            conditions.append(Joint(expression.span, others, guiding) if others else guiding)
    refuse_contradiction(hole.name, [clause.expression for clause in clauses], bare)
    condition = All(hole.span, tuple(conditions))
    return replace(hole, condition=condition, predicates=tuple(predicates), number=number)


def _number(hole: str, clauses: Sequence[Clause]) -> Kind | None:
    """What `INT(X)` or `FLOAT(X)` makes of the hole, where it certainly holds: as a clause of its own."""
    for kind, name in SHAPE.items():
        for clause in clauses:
            match clause.expression.tree.body:
                case ast.Call(ast.Name(function), [ast.Name(first)], []) if (function, first) == (name, hole):
                    return kind
    return None


def settled(hole: Hole, annotation: Any) -> Hole:
    """A hole whose type the run had to find out: this is what its annotation gave."""
    assert hole.type is not None, "only the type of a typed hole is found out"
    spec = typed(annotation, hole.name, hole.type.span)
    return asked(replace(hole, type=replace(hole.type, spec=spec)), hole.type.clauses)


def _asked_of_json(hole: Hole, clauses: Sequence[Clause], spec: JsonType) -> Hole:
    """How many items a list has is a part of its grammar; all else Python judges, on the value."""
    conditions: list[Condition] = []
    predicates: list[Predicate] = []
    for clause, others in ((each.expression, each.others) for each in clauses):
        judging = replace(_judged(clause, hole.name, spec), others=others)
        try:
            guiding = lower(clause, hole.name, Value())
        except QueryError:  # on a text it would be a mistake, on a value it need not be
            guiding = None
        if isinstance(guiding, Given) or (guiding is not None and spec.is_list and _bounds_length(guiding)):
            conditions.append(Joint(clause.span, others, guiding) if others else guiding)
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
