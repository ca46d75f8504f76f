"""Clauses about places inside a JSON value: `X.age > 30`, `len(X.lines) == 2`, `X["a"] in [..]` (S21).

A clause becomes a condition on the schema of these places, as far as it can be read. Python judges the value in any
case, so a part that cannot be read is left out.
"""

from __future__ import annotations

import ast
import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, EnumMeta
from fractions import Fraction
from types import CodeType
from typing import Any as Anything
from typing import NamedTuple

from lmql_lite.constraints.terms import Constant, Inside, Or, PlaceStep, PlaceTest, Term, conjunction
from lmql_lite.errors import Span
from lmql_lite.lang import nodes
from lmql_lite.program.bytecode import compiled, span_of, written
from lmql_lite.program.conditions import Evaluate, Narrowing, at_compile_time
from lmql_lite.program.narrowing import MAX_POSITIONS

SYMBOLS: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.GtE: ">=",
    ast.Gt: ">",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
PAIRS = (("<", ">="), (">", "<="), ("==", "!="), ("in", "not in"), ("is", "is not"), ("contains", "lacks"))
OPPOSITE: Mapping[str, str] = dict((*PAIRS, *((other, one) for one, other in PAIRS)))
FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "in": "contains", "not in": "lacks"}
"""Maps symbols to those with the sides exchanged, where these differ."""
METHODS = ("startswith", "endswith")
AMONG = ("in", "not in")
WAYS = ("match", "fullmatch", "search")
SCALARS = (bool, int, float, str, Decimal, Fraction, datetime.date, datetime.time, Enum)
"""Types of the values that a place is compared with. Others may compare as they like."""
COLLECTIONS = (list, tuple, set, frozenset, dict, EnumMeta)
MAX_LISTED = 1_000
"""Most values of a collection that a place is compared with."""
COMPUTING = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Call),
    *(ast.UnaryOp, ast.BinOp, ast.IfExp, ast.operator, ast.unaryop, ast.expr_context, ast.Slice),
)
"""Nodes of values that may be evaluated once more than Python asks for, because that changes nothing."""
FUNCTIONS = frozenset(
    (
        "len",
        "int",
        "float",
        "str",
        "abs",
        "round",
        "bool",
        "range",
        "date",
        "datetime",
        "time",
        "Decimal",
        "Fraction",
        "compile",
    )
)
"""Functions with the same property. `sorted(rows)` lacks it: it may exhaust an iterator."""


class Operand(NamedTuple):
    """A value that a place is compared with: its code, and its node, for values that are written out."""

    node: ast.expr
    code: CodeType

    def value(self, evaluate: Evaluate) -> object:
        return written(self.node, {}) if evaluate is at_compile_time else evaluate(self.code)


class StepOperands(NamedTuple):
    """A step of a path. Its keys are evaluated when the hole opens."""

    kind: Anything
    name: str | None = None
    operands: tuple[Operand, ...] = ()


PathOperands = tuple[StepOperands, ...]


class TestOperands(NamedTuple):
    """A comparison of a place. Its value is evaluated when the hole opens."""

    relation: str
    operand: Operand | None = None
    of_length: bool = False


@dataclass(frozen=True, slots=True)
class PlaceCondition:
    """A comparison of one place; without a `test`, that the place is there.

    If a value cannot be evaluated, or compares in ways of its own, it guides nothing.
    """

    span: Span
    path: PathOperands
    test: TestOperands | None = None

    def bind(self, evaluate: Evaluate) -> Term:
        relation, operand, of_length = self.test or TestOperands("is")
        try:
            path = tuple([_step(step, evaluate) for step in self.path])
            value = operand.value(evaluate) if operand else None
        except Exception:  # not written out; or an error of Python, which is raised again when it judges
            return Constant(True, self.span)
        if relation in ("is", "is not"):
            known = value is None or value is True or value is False
        else:
            known = _comparable(value, relation)
        if not known or not all(_comparable(key, "==") for step in path for key in (step.key, step.default)):
            return Constant(True, self.span)
        if isinstance(value, EnumMeta):
            members: list[Enum] = list(value)
            value = (*members, *(member.value for member in members))
        elif isinstance(value, COLLECTIONS):
            value = tuple(value)
        return Inside(path, (PlaceTest(relation, value, of_length),) if self.test else (), self.span)


@dataclass(frozen=True, slots=True)
class GivenCondition:
    """A part that reads no place: `limit is None` in `limit is None or X.age < limit`."""

    span: Span
    operand: Operand
    holds: bool

    def bind(self, evaluate: Evaluate) -> Term:
        try:
            return Constant(bool(self.operand.value(evaluate)) is self.holds, self.span)
        except Exception:  # as above
            return Constant(True, self.span)


@dataclass(frozen=True, slots=True)
class JoinedParts:
    """Parts that are joined by `and`, if `every` is true, or by `or`."""

    span: Span
    parts: tuple[Part, ...]
    every: bool

    def bind(self, evaluate: Evaluate) -> Term:
        terms = tuple([part.bind(evaluate) for part in self.parts])
        if self.every:
            return conjunction(terms)
        if any(isinstance(term, Constant) and term.holds for term in terms):
            return Constant(True, self.span)
        return Or(terms, self.span)


Part = PlaceCondition | GivenCondition | JoinedParts


def lowered(clause: nodes.Expression, hole: str) -> Narrowing | None:
    """The condition of the parts of a clause that are about places inside the hole's value; None if there are none."""
    part = PlaceReader(clause.span).read(clause.tree.body, {hole: ()})
    return Narrowing(clause.span, part.bind) if part else None


def remedy(clause: nodes.Expression, hole: str) -> str:
    """The hint of the error if Python judged values, and none of them met the clause."""
    reader, roots = PlaceReader(clause.span), {hole: ()}

    def is_place(node: ast.expr) -> bool:
        return reader.path(node, roots) is not None

    def instead(node: ast.AST) -> str | None:
        match node:
            case ast.Compare(one, _, others) if sum(map(is_place, [one, *others])) > 1:
                return "fill each place in a hole of its own, as in [A: int] [B: int] where A < B"
            case ast.Compare(_, [ast.In()], [among]) if is_place(among):
                return f"bound the list in the type, such as Field(max_length={MAX_POSITIONS}), so that `in` guides"
            case ast.Call(ast.Name("any"), [ast.GeneratorExp()]):
                return f"bound the list in the type, such as Field(max_length={MAX_POSITIONS}), so that `any` guides"
            case ast.Call(ast.Name("len"), [place], []) if is_place(place):
                return "put the bound into the type, such as Field(min_length=2, max_length=2)"
            case ast.Call(ast.Attribute(place, method), [_], []) if method in METHODS and is_place(place):
                return 'put the pattern into the type, such as Field(pattern="^[A-Z]")'
            case ast.Call(ast.Attribute(_, method), [_, *_]) if method in WAYS:
                return 'put the pattern into the type, such as Field(pattern="^[A-Z]")'
            case ast.Compare(one, _, others) if any(map(is_place, [one, *others])):
                return "put the bound into the type, such as Field(gt=30), or Literal[..] for listed values"
        return None

    found = (each for node in ast.walk(clause.tree) if (each := instead(node)))
    other = f"compare single places, which guides, as in {hole}.age > 30 and {hole}.kind in [..]"
    return f"{next(found, other)}; or raise max_backtracks"


@dataclass(frozen=True, slots=True)
class PlaceReader:
    """Reads one clause. `roots` are the paths of the hole's name, and of the names of items inside `all` and `any`.

    `not` moves inwards, so that `holds` says which truth of a part is meant. A part that is not read counts as true.
    """

    span: Span

    def read(self, node: ast.expr, roots: Mapping[str, PathOperands], *, holds: bool = True) -> Part | None:
        span = span_of(node, self.span)
        if not any(isinstance(each, ast.Name) and each.id in roots for each in ast.walk(node)):
            return GivenCondition(span, operand, holds) if (operand := self._operand(node, roots)) else None
        match node:
            case ast.UnaryOp(ast.Not(), inner):
                return self.read(inner, roots, holds=not holds)
            case ast.BoolOp(operator, parts):
                read = [self.read(part, roots, holds=holds) for part in parts]
                return self._joined(span, read, every=isinstance(operator, ast.And) is holds)
            case ast.Compare(left, operators, comparators):
                sides = [left, *comparators]
                pairs = zip(sides, operators, sides[1:], strict=False)
                read = [self._comparison(span, *pair, roots, holds=holds) for pair in pairs]
                return self._joined(span, read, every=holds)
            case ast.Call(ast.Name("all" | "any" as name), [ast.GeneratorExp(element, [loop])], []) if holds:
                return self._of_items(name, element, loop, roots)
            case ast.Call(ast.Attribute(owner, method), [value], []) if holds and method in METHODS:
                return self._tested(span, owner, method, value, roots)
            case ast.Call(ast.Attribute(ast.Name("re"), way), [pattern, place], []) if holds and way in WAYS:
                return self._tested(span, place, way, pattern, roots)
            case ast.Call(ast.Attribute(owner, way), [place], []) if holds and way in WAYS:
                return self._tested(span, place, way, owner, roots)
            case ast.Call(ast.Name("len"), [measured], []):
                relation, path = "true" if holds else "false", self.path(measured, roots)
                return PlaceCondition(span, path, TestOperands(relation, of_length=True)) if path else None
        path = self.path(node, roots)
        return PlaceCondition(span, path, TestOperands("true" if holds else "false")) if path is not None else None

    def _joined(self, span: Span, read: list[Part | None], *, every: bool) -> Part | None:
        known = tuple(each for each in read if each is not None)
        if not known or (not every and len(known) < len(read)):
            return None
        return known[0] if len(known) == 1 else JoinedParts(span, known, every)

    def _of_items(
        self, name: str, element: ast.expr, loop: ast.comprehension, roots: Mapping[str, PathOperands]
    ) -> Part | None:
        """`all(p.age > 17 for p in X)`, for parts that are joined by `and`; `any(..)`."""
        match loop:
            case ast.comprehension(ast.Name(item), ast.Call(ast.Attribute(owner, "values"), [], []), [], 0):
                steps: PathOperands = (StepOperands("values"),)
            case ast.comprehension(ast.Name(item), owner, [], 0):
                steps = ()
            case _:
                return None
        path = self.path(owner, roots)
        if path is None:
            return None
        inside = (*path, *steps, StepOperands("each" if name == "all" else "some"))
        part = self.read(element, {**roots, item: inside})
        # `all` of no items is true, whatever else the condition reads; and it does not distribute over `or`
        return part if name == "any" or (part and _is_about_all(part, inside)) else None

    def _comparison(
        self,
        span: Span,
        left: ast.expr,
        operator: ast.cmpop,
        right: ast.expr,
        roots: Mapping[str, PathOperands],
        *,
        holds: bool,
    ) -> Part | None:
        relation = SYMBOLS[type(operator)]
        relation = relation if holds else OPPOSITE[relation]
        tested = self._tested(span, left, relation, right, roots)
        tested = tested or self._tested(span, right, FLIPPED.get(relation, relation), left, roots)
        if tested is not None:
            return tested
        # two places of the value are compared: then both are there
        paths = [path for side in (left, right) if (path := self.path(side, roots))]
        return self._joined(span, [PlaceCondition(span, path) for path in paths], every=True)

    def _tested(
        self, span: Span, place: ast.expr, relation: str, value: ast.expr, roots: Mapping[str, PathOperands]
    ) -> Part | None:
        """Condition of a comparison of `place`, or its length, with `value`; None if one of them is something else."""
        measured = place
        match place:
            case ast.Call(ast.Name("len"), [inner], []):
                measured = inner
        path, operand = self.path(measured, roots), self._operand(value, roots)
        if path is None or operand is None:
            return None
        return PlaceCondition(span, path, TestOperands(relation, operand, measured is not place))

    def path(self, node: ast.expr, roots: Mapping[str, PathOperands]) -> PathOperands | None:
        step: StepOperands | None = None
        owner = node
        match node:
            case ast.Name(name):
                return roots.get(name)
            case ast.Attribute(owner, name):
                step = StepOperands("attribute", name)
            case ast.Subscript(owner, key) if operand := self._operand(key, roots):
                step = StepOperands("item", operands=(operand,))
            case ast.Call(ast.Attribute(owner, "get"), [_] | [_, _] as given, []):
                operands = [operand for each in given if (operand := self._operand(each, roots))]
                step = StepOperands("get", operands=tuple(operands)) if len(operands) == len(given) else None
        before = self.path(owner, roots) if step else None
        return (*before, step) if before is not None and step else None

    def _operand(self, node: ast.expr, roots: Mapping[str, PathOperands]) -> Operand | None:
        """The value of an expression that reads no place and may be evaluated at any time; None for all others."""
        for part in ast.walk(node):
            match part:
                case ast.Name(name) if name in roots:
                    return None
                case ast.Call(ast.Name(name) | ast.Attribute(_, name)) if name not in FUNCTIONS:
                    return None
                case ast.Call(function) if not isinstance(function, ast.Name | ast.Attribute):
                    return None
            if not isinstance(part, COMPUTING):
                return None
        return Operand(node, compiled(node, span_of(node, self.span)))


def _is_about_all(part: Part, path: PathOperands) -> bool:
    """True if a part is a conjunction of conditions on places at the end of this path."""
    if isinstance(part, JoinedParts):
        return part.every and all(_is_about_all(each, path) for each in part.parts)
    return isinstance(part, PlaceCondition) and part.path[: len(path)] == path


def _step(step: StepOperands, evaluate: Evaluate) -> PlaceStep:
    if step.name is not None:
        return PlaceStep("attribute", step.name)
    return PlaceStep(step.kind, *[operand.value(evaluate) for operand in step.operands])


def _comparable(value: object, relation: str) -> bool:
    """True if comparisons with the value are those of numbers, texts, dates and listed values."""
    if isinstance(value, (range, *COLLECTIONS)) and relation not in (*AMONG, *METHODS):
        return False
    if isinstance(value, range):
        return True
    if isinstance(value, COLLECTIONS):
        return len(value) <= MAX_LISTED and all(_comparable(each, "==") for each in value)
    is_scalar = value is None or isinstance(value, SCALARS) or (isinstance(value, re.Pattern) and relation in WAYS)
    return is_scalar and value == value
