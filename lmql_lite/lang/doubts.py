"""What a query may well not mean, though it compiles: the warnings of `lq check`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from lmql_lite.errors import LmqlLiteError, did_you_mean
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import CONSTRAINTS, TYPES
from lmql_lite.lang.problems import Problems
from lmql_lite.lang.python import Python
from lmql_lite.lang.scope import BUILTINS, Scope
from lmql_lite.lang.source import Source

METHODS = frozenset(name for name in dir(str) if not name.startswith("_"))


def doubts(query: nodes.Query, scope: Scope) -> tuple[LmqlLiteError, ...]:
    """In source order; never raised."""
    problems = Problems()
    check = _Doubts(query, scope, problems)
    for where in _wheres(query.body):
        check.truth(where.tree.body, where.tree.body)
    if query.where:
        check.truth(query.where.tree.body, query.where.tree.body)
    check.inputs()
    return problems.found()


class _Doubts:
    def __init__(self, query: nodes.Query, scope: Scope, problems: Problems) -> None:
        span = query.span
        self.scope = scope
        self._own = scope.locals.union(scope.holes)
        self.problems = problems
        self.python = Python(Source(span.name, span.text, span.first_line), problems)

    def truth(self, node: ast.expr, around: ast.expr) -> None:
        """Reports what is true or false whatever the holes are; `around` is the `and` or `or` that it stands in."""
        match node:
            case ast.BoolOp(_, values):
                for value in values:
                    self.truth(value, node)
                return
            case ast.UnaryOp(ast.Not(), operand):
                self.truth(operand, node)
                return
            case ast.Constant(value) if value is not Ellipsis:
                always = "true" if value else "false"
                shown = self.python.span(node).source
                self._add(node, f"`{shown}` alone is always {always}", self._comparison(shown, around))
            case ast.List(items) | ast.Set(items) | ast.Tuple(items):
                always = "true" if items else "false"
                self._add(node, f"a list is always {always}, whatever stands in it", "join conditions with and, or")
            case ast.Dict() | ast.Lambda() | ast.JoinedStr() | ast.GeneratorExp():
                self._add(node, "this is no condition: it is always true", "compare it with something")
            case ast.Name(name) if (name in CONSTRAINTS or name in self.scope.builtins) and name not in self._own:
                sentence = f"`{name}` is a function that is not called, and so always true"
                self._add(node, sentence, f"write {name}(...)")
        for part, parent in _with_parents(node):
            match part:
                case ast.Attribute(ast.Name(name), method) if (
                    name in self.scope.holes
                    and method in METHODS
                    and not (isinstance(parent, ast.Call) and parent.func is part)
                    and not isinstance(parent, ast.Attribute)
                ):
                    self._add(part, f"`{name}.{method}` is a method that is not called", f"write {name}.{method}()")

    def inputs(self) -> None:
        """Functions and types that nothing defines: the caller has to give them."""
        for free in self.scope.inputs:
            if free.form == "value":
                continue
            known = (*self.scope.holes, *BUILTINS, *(CONSTRAINTS if free.form == "function" else TYPES))
            meant = did_you_mean(free.name, known)
            sentence = f"the {free.form} '{free.name}' is neither defined nor imported, and so an input of the query"
            self.problems.add(sentence, free.span, meant or f"define or import {free.name}, or give it from Python")

    def _comparison(self, shown: str, around: ast.expr) -> str:
        """What was meant by the `"b"` of `X == "a" or "b"`."""
        for value in around.values if isinstance(around, ast.BoolOp) else ():
            match value:
                case ast.Compare(left, [ast.Eq() | ast.NotEq() as operator], [_]):
                    return f"write {ast.unparse(left)} {'==' if isinstance(operator, ast.Eq) else '!='} {shown}"
        return "remove it, or compare it with something"

    def _add(self, node: ast.expr, sentence: str, hint: str) -> None:
        self.problems.add(sentence, self.python.span(node), hint)


def _with_parents(node: ast.AST, parent: ast.AST | None = None) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    yield node, parent
    for child in ast.iter_child_nodes(node):
        yield from _with_parents(child, node)


def _wheres(statements: Iterable[nodes.Statement]) -> Iterator[nodes.Expression]:
    for statement in statements:
        if isinstance(statement, nodes.Prompt) and statement.where:
            yield statement.where
        for suite in nodes.suites(statement):
            yield from _wheres(suite)
