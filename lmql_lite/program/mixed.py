"""A clause that an automaton can follow in parts only: these guide the model, Python judges the whole (S21)."""

from __future__ import annotations

import ast
from dataclasses import replace

from lmql_lite.errors import QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import STOPS
from lmql_lite.lang.names import words
from lmql_lite.program.conditions import All, Any, Condition
from lmql_lite.program.given import Given
from lmql_lite.program.lower import Unguided, lower
from lmql_lite.program.ops import FINAL, GUIDED, Call, Predicate
from lmql_lite.program.python import compile_expression, span_of
from lmql_lite.program.subjects import Subject


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
            if isinstance(node, ast.BoolOp):
                return self._read_all(part, node, functions)
            if functions:
                raise
            return None, node
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
