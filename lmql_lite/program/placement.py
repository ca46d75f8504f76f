"""Placement of clauses: the holes at which each clause of a `where` is enforced.

A clause belongs to the holes that it names; one that names none of its string (of the query, at the end of a query)
belongs to all of them. One that names several is enforced at the last of them (S20), and where it depends on the run
which one is last, at each that may be, once the others have values.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import STOPS
from lmql_lite.program.given import OtherHoles
from lmql_lite.program.lower import conjuncts, mentioned
from lmql_lite.program.ops import Clause, Hole, Op
from lmql_lite.program.python import compile_expression
from lmql_lite.program.ways import ways


class StringClauses:
    """Clauses of the `where` of one prompt string. The holes of other strings are values by then."""

    def __init__(self, where: nodes.Expression | None, in_string: Sequence[str], in_query: Iterable[str]) -> None:
        self._in_string = in_string
        self._clauses = _read(where, in_query)

    def of(self, place: int) -> Iterator[Clause]:
        """The clauses of the hole that is at this place among those of its string."""
        name = self._in_string[place]
        to_come = set(self._in_string[place + 1 :]) - {name}
        for each in self._clauses:
            own = each.holes.intersection(self._in_string)
            if not own or (name in own and own.isdisjoint(to_come)):
                yield each.clause(each.reads.difference(self._in_string), waits=False)


class QueryClauses:
    """Clauses of the `where` at the end of a query."""

    def __init__(self, where: nodes.Expression | None, in_query: Iterable[str], ops: Sequence[Op]) -> None:
        self._ops = ops
        self._ways = ways(ops)
        self._clauses = _read(where, in_query)
        self._by_hole: dict[str, list[int]] = {name: [] for name in in_query}
        for at, each in enumerate(self._clauses):
            for name in each.holes or self._by_hole:
                self._by_hole[name].append(at)

    def of(self, place: int, name: str) -> Iterator[Clause]:
        """The clauses of the hole that is op `place` of the program."""
        for each in (self._clauses[at] for at in self._by_hole[name]):
            others = each.holes - {name}
            if not others or self._may_be_last(place, others):
                yield each.clause(each.reads - {name}, waits=bool(others))

    def _may_be_last(self, place: int, others: frozenset[str]) -> bool:
        """Whether a run may end without filling any of the others after this op."""
        seen, reached = set[int](), list(self._ways[place])
        while reached:
            at = reached.pop()
            if at in seen:
                continue
            seen.add(at)
            op = self._ops[at]
            if isinstance(op, Hole) and op.name in others:  # filled, unless it fails and a `try` goes on
                reached += [target for target in self._ways[at] if target != at + 1]
            elif not self._ways[at]:
                return True
            else:
                reached += self._ways[at]
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
