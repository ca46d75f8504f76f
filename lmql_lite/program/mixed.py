"""A clause that an automaton can follow in parts only: these guide the model, Python judges the whole (S21)."""

from __future__ import annotations

import ast
import copy
from dataclasses import replace

from lmql_lite.constraints.terms import Unit
from lmql_lite.errors import QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import STOPS
from lmql_lite.lang.names import values, words
from lmql_lite.program.conditions import All, Any, Condition
from lmql_lite.program.given import Given
from lmql_lite.program.lower import Unguided, lower
from lmql_lite.program.numbers import LengthFits
from lmql_lite.program.ops import FINAL, GUIDED, Call, Predicate
from lmql_lite.program.python import compile_expression, span_of
from lmql_lite.program.subjects import Size, Subject, Text, subject


def mixed(clause: nodes.Expression, hole: str, bare: Subject) -> tuple[Condition | None, Predicate]:
    """What the clause asks of every text as far as an automaton can tell, None for nothing, and what is left to judge.

    A part that only Python can judge is taken for true on the way. Raises Unguided where a function of `where` stands
    in such a part.
    """
    parts = Parts(clause, hole, bare)
    condition, judged = parts.read(clause.tree.body)
    return condition, replace(predicate(judged, clause.span, hole), guided=tuple(parts.guided))


def predicate(node: ast.expr, span: Span, hole: str) -> Predicate:
    """Any Python. A call of a function may tell it whether the text is complete."""
    code = compile_expression(node, span)
    match node:
        case ast.Call(function, arguments, keywords) if _is_named(function, hole):
            starred = any(isinstance(argument, ast.Starred) for argument in arguments)
            if not starred and all(keyword.arg not in ("final", None) for keyword in keywords):
                final = ast.keyword("final", ast.Name(FINAL, ast.Load()))
                told = ast.copy_location(ast.Call(function, arguments, [*keywords, final]), node)
                call = Call(compile_expression(told, span), compile_expression(function, span), len(arguments))
                return Predicate(span, code, call)
    return Predicate(span, code)


def _is_named(function: ast.expr, hole: str) -> bool:
    """Whether it can be looked up before the hole has a value, without calling anything."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id != hole


LENGTH = "length of the hole"
ARITHMETIC = ("abs", "bool", "divmod", "float", "int", "max", "min", "pow", "range", "round", "sum")
"""Functions that do nothing but compute."""
SIMPLE = (
    *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.IfExp, ast.Constant, ast.Name, ast.Attribute),
    *(ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Set),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)
"""Python that does nothing but compute."""


def negated_parts(node: ast.BoolOp) -> ast.BoolOp:
    """`not` before `and` or `or`, moved inwards: `not (a or b)` is `not a and not b`."""
    parts: list[ast.expr] = [ast.copy_location(ast.UnaryOp(ast.Not(), value), value) for value in node.values]
    return ast.copy_location(ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), parts), node)


class Parts:
    def __init__(self, clause: nodes.Expression, hole: str, bare: Subject) -> None:
        self._clause = clause
        self._hole = hole
        self._bare = bare
        self.guided: list[Condition] = []
        """The parts with functions of `where`, which are no Python: an automaton judges them at the end too."""

    def read(self, node: ast.expr) -> tuple[Condition | None, ast.expr]:
        """What guides, and the node with its guided parts looked up."""
        part = nodes.Expression(span_of(node, self._clause.span), ast.Expression(node))
        functions = {word.id for word in words(node)}
        try:
            condition = lower(part, self._hole, self._bare)
        except Unguided:
            match node:
                case ast.UnaryOp(ast.Not(), ast.BoolOp() as inner):
                    return self.read(negated_parts(inner))
            if isinstance(node, ast.BoolOp):
                return self._read_all(part, node, functions)
            if functions:
                raise
            return self._by_length(part, node), node
        if not functions:
            return condition, node
        if "TOKENS" in functions:
            raise QueryError(
                f"how many tokens [{self._hole}] has cannot be joined by `or` with what only Python can judge",
                span=part.span,
                hint="count its characters or words instead",
            )
        looked_up = ast.Subscript(ast.Name(GUIDED, ast.Load()), ast.Constant(len(self.guided)), ast.Load())
        self.guided.append(condition)
        return condition, ast.copy_location(looked_up, node)

    def _by_length(self, part: nodes.Expression, node: ast.expr) -> Condition | None:
        """What guides where all that the node asks of the hole is its length."""
        if not isinstance(self._bare, Text):
            return None
        lengths = Lengths(self._hole, self._bare)
        asked: ast.expr = lengths.visit(copy.deepcopy(node))
        if len(lengths.units) != 1 or lengths.asks_more or any(name.id == self._hole for name in values(asked)):
            return None
        given = ast.arguments([], [ast.arg(LENGTH)], None, [], [], None, [])
        function = ast.copy_location(ast.Lambda(given, asked), node)
        return LengthFits(part.span, compile_expression(function, part.span), lengths.units.pop())

    def _read_all(
        self, part: nodes.Expression, node: ast.BoolOp, functions: set[str]
    ) -> tuple[Condition | None, ast.expr]:
        read = [self.read(value) for value in node.values]
        judged = ast.copy_location(ast.BoolOp(node.op, [each for _, each in read]), node)
        known = tuple(condition for condition, _ in read if condition is not None)
        if isinstance(node.op, ast.And):
            return (All(part.span, known) if known else None), judged
        if len(known) == len(read):
            return Any(part.span, known), judged
        # one of the others may be true of any text; but a stop is a stop wherever it stands
        true = Given(part.span, compile_expression(ast.Constant(True), part.span))
        return (Any(part.span, (*known, true)) if functions.intersection(STOPS) else None), judged


class Lengths(ast.NodeTransformer):
    """Puts a parameter in the place of the hole's length."""

    def __init__(self, hole: str, bare: Subject) -> None:
        self._hole = hole
        self._bare = bare
        self.units: set[Unit] = set()
        self.asks_more = False
        """Whether it does what may not be done for every length, such as calling a function of the query."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match subject(node, self._hole, self._bare):
            case Size(unit):
                self.units.add(unit)
                return ast.copy_location(ast.Name(LENGTH, ast.Load()), node)
        if not (isinstance(node.func, ast.Name) and node.func.id in ARITHMETIC):
            self.asks_more = True
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, SIMPLE):
            self.asks_more = True
        return super().generic_visit(node)
