"""`where` expressions to conditions, one per hole. Total: what cannot be enforced is an error (law 3)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from lmql_lite.constraints.pattern import UnsupportedPattern, program
from lmql_lite.constraints.shapes import METHODS, SHAPES
from lmql_lite.errors import QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.program.conditions import (
    All,
    Any,
    Comparison,
    Condition,
    Edge,
    Fits,
    Given,
    Has,
    LengthIs,
    NumberIn,
    NumberIs,
    OneOf,
    Shaped,
    StopsAt,
    negated,
)
from lmql_lite.program.python import compile_expression, span_of

FLIPPED: dict[str, Comparison] = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
SYMBOLS: dict[type[ast.cmpop], Comparison] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.GtE: ">=",
    ast.Gt: ">",
}
STOPS = ("STOPS_AT", "STOPS_BEFORE")
EXAMPLES = {
    "STOPS_AT": '(X, "\\n")',
    "STOPS_BEFORE": '(X, "\\n")',
    "STARTS_WITH": '(X, ["a", "b"])',
    "ENDS_WITH": '(X, ["a", "b"])',
    "REGEX": '(X, r"[a-z]+")',
    **dict.fromkeys(SHAPES, "(X)"),
}
"""The functions of a `where` clause, as they are called."""
TAKES = {"REGEX": "a hole and a regular expression", **dict.fromkeys(SHAPES, "a hole")}
SUPPORTED = (
    'len(X) < 80, X in [...], X == "..", ".." in X, X.startswith(".."), X.isdigit(), REGEX(X, r".."), INT(X), DATE(X), '
    'int(X) < 120, STOPS_AT(X, ".."), STOPS_BEFORE(X, "..") and and/or/not of these'
)


class Unguided(QueryError):
    """A condition that no automaton can say: it cannot guide the model, only judge what it has said (S21)."""


def conjuncts(where: nodes.Expression) -> list[nodes.Expression]:
    """The parts of a top-level `and`, each with its own span."""
    body = where.tree.body
    if not (isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And)):
        return [where]
    return [
        part
        for value in body.values
        for part in conjuncts(nodes.Expression(span_of(value, where.span), ast.Expression(value)))
    ]


def mentioned(expression: nodes.Expression, names: Iterable[str]) -> set[str]:
    """Which of `names` the expression reads."""
    read = {node.id for node in ast.walk(expression.tree) if isinstance(node, ast.Name)}
    return read & set(names)


def lower(clause: nodes.Expression, hole: str) -> Condition:
    """The condition that one clause puts on one hole.

    Raises Unguided, with the part that is to blame, where only Python can judge it, and QueryError for mistakes.
    """
    return Lowering(clause.span, hole).condition(clause.tree.body)


class Lowering:
    """One clause. Every other name in it, earlier holes too, is Python and has its value by then (S20)."""

    def __init__(self, span: Span, hole: str) -> None:
        self._span = span
        self._hole = hole

    def condition(self, node: ast.expr) -> Condition:
        span = span_of(node, self._span)
        if not self._reads_hole(node):
            self._refuse_foreign(node)
            return Given(span, compile_expression(node, span))
        match node:
            case ast.BoolOp(ast.And(), values):
                return All(span, tuple(self.condition(value) for value in values))
            case ast.BoolOp(ast.Or(), values):
                return Any(span, tuple(self.condition(value) for value in values))
            case ast.UnaryOp(ast.Not(), operand):
                self._refuse_stops(operand)
                return negated(self.condition(operand))
            case ast.Compare(left, operators, comparators):
                sides = [left, *comparators]
                pairs = tuple(
                    self._comparison(span, sides[i], operator, sides[i + 1]) for i, operator in enumerate(operators)
                )
                return pairs[0] if len(pairs) == 1 else All(span, pairs)
            case ast.Call(ast.Name(name), arguments, keywords) if name in EXAMPLES:
                return self._function(span, name, arguments, keywords)
            case ast.Call(ast.Attribute(owner, name), arguments, []):
                return self._method(span, owner, name, arguments)
        raise self._unsupported(span)

    def _function(self, span: Span, name: str, arguments: list[ast.expr], keywords: list[ast.keyword]) -> Condition:
        """A function of the `where` clause: its first argument is the hole."""
        match arguments:
            case [first] if self._is_hole(first) and not keywords and name in SHAPES:
                return Shaped(span, name)
            case [first, value] if (
                self._is_hole(first) and not keywords and not self._reads_hole(value) and name not in SHAPES
            ):
                if name in STOPS:
                    return StopsAt(span, compile_expression(value, span), inclusive=name == "STOPS_AT")
                if name == "REGEX":
                    return self._fits(span, value)
                code = compile_expression(value, span)
                return Edge(span, code, at_start=name == "STARTS_WITH", tuple_only=False)
        takes = f"{name} takes {TAKES.get(name, 'a hole and a text')}"
        raise QueryError(takes, span=span, hint=name + EXAMPLES[name].replace("X", self._hole))

    def _method(self, span: Span, owner: ast.expr, name: str, arguments: list[ast.expr]) -> Condition:
        match arguments:
            case [] if self._is_hole(owner) and name in METHODS:
                return Shaped(span, name)
            case [value] if self._is_hole(owner) and name in ("startswith", "endswith") and not self._reads_hole(value):
                return Edge(span, compile_expression(value, span), at_start=name == "startswith", tuple_only=True)
            case [pattern, text] if self._is_hole(text) and name == "fullmatch" and not self._reads_hole(pattern):
                if isinstance(owner, ast.Name) and owner.id == "re":
                    return self._fits(span, pattern)
            case [text] if self._is_hole(text) and name == "fullmatch" and not self._reads_hole(owner):
                return self._fits(span, owner)
        raise self._unsupported(span)

    def _fits(self, span: Span, pattern: ast.expr) -> Condition:
        """A pattern that is written out is tried at once: nothing is spent before it is refused (S22)."""
        if isinstance(pattern, ast.Constant) and isinstance(pattern.value, str):
            try:
                program(pattern.value, 0)
            except UnsupportedPattern as error:
                raise QueryError(error.sentence, span=span_of(pattern, self._span), hint=error.hint) from None
        return Fits(span, compile_expression(pattern, span))

    def _comparison(self, span: Span, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Condition:
        reads_left, reads_right = self._reads_hole(left), self._reads_hole(right)
        if not reads_left and not reads_right:
            compare = ast.copy_location(ast.Compare(left, [operator], [right]), left)
            return Given(span, compile_expression(compare, span))
        if reads_left and reads_right:
            raise self._unsupported(span)
        if isinstance(operator, ast.In | ast.NotIn):
            inside: Condition
            if self._is_hole(left):
                inside = OneOf(span, compile_expression(right, span), single=False)
            elif self._is_hole(right):
                inside = Has(span, compile_expression(left, span))
            elif self._is_call_of("int", left):
                inside = NumberIn(span, compile_expression(right, span), inside=True)
            else:
                raise self._unsupported(span)
            return negated(inside) if isinstance(operator, ast.NotIn) else inside
        if isinstance(operator, ast.Is | ast.IsNot) and isinstance(right, ast.Constant) and right.value is None:
            found = self.condition(left) if isinstance(left, ast.Call) else None
            if not isinstance(found, Fits):
                raise self._unsupported(span)
            return negated(found) if isinstance(operator, ast.Is) else found
        symbol = SYMBOLS.get(type(operator))
        if symbol is None:
            raise self._unsupported(span)
        asked, value = (left, right) if reads_left else (right, left)
        code = compile_expression(value, span)
        if self._is_hole(asked) and symbol in ("==", "!="):
            same = OneOf(span, code, single=True)
            return same if symbol == "==" else negated(same)
        comparison = symbol if reads_left else FLIPPED[symbol]
        if self._is_call_of("len", asked):
            return LengthIs(span, comparison, code)
        if self._is_call_of("int", asked):
            return NumberIs(span, comparison, code)
        raise self._unsupported(span)

    def _reads_hole(self, node: ast.AST) -> bool:
        return any(self._is_hole(part) for part in ast.walk(node))

    def _is_hole(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self._hole

    def _is_call_of(self, function: str, node: ast.expr) -> bool:
        match node:
            case ast.Call(ast.Name(name), [argument], []):
                return name == function and self._is_hole(argument)
        return False

    def _refuse_stops(self, operand: ast.expr) -> None:
        for name, span in self._stops(operand):
            raise QueryError(
                f"{name} cannot stand under `not`: a stop says where a value ends, not what it is",
                span=span,
                hint=f'to forbid a phrase write `not ".." in {self._hole}`',
            )

    def _refuse_foreign(self, node: ast.expr) -> None:
        for name, span in self._stops(node):
            raise QueryError(
                f"{name} says where its own hole ends and cannot be part of a condition on [{self._hole}]",
                span=span,
                hint="give it a clause of its own, joined by `and`",
            )
        for part in ast.walk(node):
            match part:
                case ast.Call(ast.Name(name), [ast.Name(other), *_]) if name in EXAMPLES:
                    raise QueryError(
                        f"{name} guides the hole it is asked of and cannot be part of a condition on [{self._hole}]",
                        span=span_of(part, self._span),
                        hint=f"give it a clause of its own, joined by `and`, or ask in Python what {other} is",
                    )

    def _stops(self, node: ast.expr) -> Iterator[tuple[str, Span]]:
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in STOPS:
                yield part.func.id, span_of(part, self._span)

    def _unsupported(self, span: Span) -> Unguided:
        return Unguided(
            f"this condition on [{self._hole}] cannot be enforced in this version", span=span, hint=SUPPORTED
        )
