"""`where` expressions to conditions, one per hole. Total: what cannot be enforced is an error (law 3)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from lmql_lite.errors import QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.program.conditions import All, Any, Comparison, Condition, Given, Has, LengthIs, No, OneOf, StopsAt
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
SUPPORTED = (
    'len(X) < 80, X in [...], X == "..", ".." in X, STOPS_AT(X, ".."), STOPS_BEFORE(X, "..") and and/or/not of these'
)


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
    """The condition that one clause puts on one hole. Raises QueryError with the part that cannot be enforced."""
    return Lowering(clause.span, hole).condition(clause.tree.body)


class Lowering:
    """One clause. Every other name in it, earlier holes too, is Python and has its value by then (S20)."""

    def __init__(self, span: Span, hole: str) -> None:
        self._span = span
        self._hole = hole

    def condition(self, node: ast.expr) -> Condition:
        span = span_of(node, self._span)
        if not self._reads_hole(node):
            self._refuse_foreign_stops(node)
            return Given(span, compile_expression(node, span))
        match node:
            case ast.BoolOp(ast.And(), values):
                return All(span, tuple(self.condition(value) for value in values))
            case ast.BoolOp(ast.Or(), values):
                return Any(span, tuple(self.condition(value) for value in values))
            case ast.UnaryOp(ast.Not(), operand):
                self._refuse_stops(operand)
                return No(span, self.condition(operand))
            case ast.Compare(left, operators, comparators):
                sides = [left, *comparators]
                pairs = tuple(
                    self._comparison(span, sides[i], operator, sides[i + 1]) for i, operator in enumerate(operators)
                )
                return pairs[0] if len(pairs) == 1 else All(span, pairs)
            case ast.Call(ast.Name("STOPS_AT" | "STOPS_BEFORE" as name), [ast.Name(hole), value], []) if (
                hole == self._hole and not self._reads_hole(value)
            ):
                return StopsAt(span, compile_expression(value, span), inclusive=name == "STOPS_AT")
            case ast.Call(ast.Name("STOPS_AT" | "STOPS_BEFORE" as name)):
                raise QueryError(f"{name} takes a hole and a text", span=span, hint=f'{name}({self._hole}, "\\n")')
        raise self._unsupported(span)

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
            else:
                raise self._unsupported(span)
            return No(span, inside) if isinstance(operator, ast.NotIn) else inside
        symbol = SYMBOLS.get(type(operator))
        if symbol is None:
            raise self._unsupported(span)
        asked, value = (left, right) if reads_left else (right, left)
        code = compile_expression(value, span)
        if self._is_hole(asked) and symbol in ("==", "!="):
            same = OneOf(span, code, single=True)
            return same if symbol == "==" else No(span, same)
        if self._is_length(asked):
            return LengthIs(span, symbol if reads_left else FLIPPED[symbol], code)
        raise self._unsupported(span)

    def _reads_hole(self, node: ast.AST) -> bool:
        return any(self._is_hole(part) for part in ast.walk(node))

    def _is_hole(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self._hole

    def _is_length(self, node: ast.expr) -> bool:
        match node:
            case ast.Call(ast.Name("len"), [argument], []):
                return self._is_hole(argument)
        return False

    def _refuse_stops(self, operand: ast.expr) -> None:
        for name, span in self._stops(operand):
            raise QueryError(
                f"{name} cannot stand under `not`: a stop says where a value ends, not what it is",
                span=span,
                hint=f'to forbid a phrase write `not ".." in {self._hole}`',
            )

    def _refuse_foreign_stops(self, node: ast.expr) -> None:
        for name, span in self._stops(node):
            raise QueryError(
                f"{name} says where its own hole ends and cannot be part of a condition on [{self._hole}]",
                span=span,
                hint="give it a clause of its own, joined by `and`",
            )

    def _stops(self, node: ast.expr) -> Iterator[tuple[str, Span]]:
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in STOPS:
                yield part.func.id, span_of(part, self._span)

    def _unsupported(self, span: Span) -> QueryError:
        return QueryError(
            f"this condition on [{self._hole}] cannot be enforced in this version", span=span, hint=SUPPORTED
        )
