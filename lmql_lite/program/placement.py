"""Placement of clauses: the holes at which each clause of a `where` is enforced.

A clause belongs to the holes that it names; one that names none of its string (of the query, at the end of a query)
belongs to all of them. One that names several is enforced at the last of them (S20), and where it depends on the run
which one is last, at each that may be, once the others have values.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import STOPS
from lmql_lite.program.bytecode import compile_expression
from lmql_lite.program.conditions import OtherHoles
from lmql_lite.program.ops import Clause, Hole, Op
from lmql_lite.program.segments import Ways, ways
from lmql_lite.program.where import conjuncts, mentioned


def clauses_of_string(
    where: nodes.Expression | None, in_string: Sequence[str], in_query: Iterable[str]
) -> list[list[Clause]]:
    """The clauses of each hole of one prompt string, by its place there. Holes of other strings are values by then."""
    found: list[list[Clause]] = [[] for _ in in_string]
    for each in _read(where, in_query):
        own = each.holes.intersection(in_string)
        for place, name in enumerate(in_string):
            to_come = set(in_string[place + 1 :]) - {name}
            if not own or (name in own and own.isdisjoint(to_come)):
                found[place].append(each.clause(each.reads - {name}, waits=False))
    return found


def clauses_of_query(
    where: nodes.Expression | None, in_query: Iterable[str], ops: Sequence[Op]
) -> Mapping[int, Sequence[Clause]]:
    """The clauses of the `where` at the end of a query, by the op of the hole that bears them."""
    found: dict[int, list[Clause]] = defaultdict(list)
    if where is None:
        return found
    onward = ways(ops)
    places: dict[str, list[int]] = defaultdict(list)
    for at, op in enumerate(ops):
        if isinstance(op, Hole):
            places[op.name].append(at)
    for each in _read(where, in_query):
        for name in each.holes or tuple(places):
            others = each.holes - {name}
            for at in places[name]:
                if not others or _may_be_last(ops, onward, at, others):
                    found[at].append(each.clause(each.reads - {name}, waits=bool(others)))
    return found


def _may_be_last(ops: Sequence[Op], onward: Ways, place: int, others: frozenset[str]) -> bool:
    """True if a run may end without filling any of the others after this op."""
    seen, reached = set[int](), list(onward[place])
    while reached:
        at = reached.pop()
        if at in seen:
            continue
        seen.add(at)
        op = ops[at]
        if isinstance(op, Hole) and op.name in others:  # filled, unless it fails and a `try` goes on
            reached += [target for target in onward[at] if target != at + 1]
        elif not onward[at]:
            return True
        else:
            reached += onward[at]
    return False


class _Read(NamedTuple):
    """One clause, the holes that bear it, and all holes that it reads."""

    expression: nodes.Expression
    holes: frozenset[str]
    reads: frozenset[str]

    def clause(self, others: frozenset[str], *, waits: bool) -> Clause:
        span = self.expression.span
        names = tuple(sorted(others))
        codes = tuple(compile_expression(ast.Name(name, ast.Load()), span) for name in names)
        return Clause(self.expression, OtherHoles(names, codes, waits) if names else None)


def _read(where: nodes.Expression | None, in_query: Iterable[str]) -> list[_Read]:
    found = []
    for clause in conjuncts(where) if where else []:
        holes = reads = frozenset(mentioned(clause, in_query))
        match clause.tree.body:
            case ast.Call(ast.Name(function), [ast.Name(name), *_]) if function in STOPS:
                holes &= {name}  # it says where this one ends, and nothing of the others
        found.append(_Read(clause, holes, reads))
    return found
