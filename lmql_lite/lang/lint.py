"""Warnings of `lq check`: code that compiles but is probably a mistake."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from lmql_lite.errors import LmqlLiteError, did_you_mean
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import CONSTRAINTS, TYPES
from lmql_lite.lang.names import every_node
from lmql_lite.lang.python import PythonReader
from lmql_lite.lang.scope import BUILTINS, Scope, python_of
from lmql_lite.lang.source import Problems, Source

COMPARING = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
UNSEEN = re.compile("[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
"""Characters that are invisible or change the direction of the following text: a line with one can look different from
what it does. The joiners U+200C and U+200D belong to words and emoji and are allowed."""
METHODS = frozenset(name for name in dir(str) if not name.startswith("_"))


def lint(query: nodes.QueryNode, scope: Scope, around: Collection[str] = ()) -> tuple[LmqlLiteError, ...]:
    """Warnings in source order; never raised. `around` are the names that Python around a docstring binds."""
    problems = Problems()
    check = _Lint(query, scope, problems)
    for prompt in query.prompts.values():
        if prompt.where:
            check.truth(prompt.where.tree.body, prompt.where.tree.body)
    if query.where:
        check.truth(query.where.tree.body, query.where.tree.body)
    check.inputs(around)
    check.numbers(query)
    return (*unseen(Source(query.span.name, query.span.text, query.span.first_line)), *problems.found())


def unseen(source: Source) -> tuple[LmqlLiteError, ...]:
    """A warning for each line with an invisible character; the text need not be a query."""
    problems = Problems()
    for found in UNSEEN.finditer(source.text):
        number = f"{ord(found.group()):04X}"
        sentence = f"the invisible character U+{number} can make this line look different from what it does"
        problems.add(sentence, source.span(found.start(), found.end()), f"remove it, or write \\u{number} in a string")
    return problems.found()


class _Lint:
    def __init__(self, query: nodes.QueryNode, scope: Scope, problems: Problems) -> None:
        span = query.span
        self.scope = scope
        self._own = scope.locals.union(scope.holes)
        self.problems = problems
        self.python = PythonReader(Source(span.name, span.text, span.first_line), problems)

    def truth(self, node: ast.expr, around: ast.expr) -> None:
        """Report a part that is always true or always false; `around` is the `and` or `or` around it."""
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
                self._add(node, "this is not a condition: it is always true", "compare it with something")
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

    def inputs(self, around: Collection[str]) -> None:
        """Report functions and types that nothing defines, so that the caller has to pass them."""
        for free in self.scope.inputs:
            if free.form == "value" or free.name in around:
                continue
            known = (*self.scope.holes, *BUILTINS, *(CONSTRAINTS if free.form == "function" else TYPES))
            meant = did_you_mean(free.name, known)
            sentence = f"the {free.form} '{free.name}' is neither defined nor imported, and so an input of the query"
            self.problems.add(sentence, free.span, meant or f"define or import {free.name}, or give it from Python")

    def numbers(self, query: nodes.QueryNode) -> None:
        """Report text of a hole that the query's Python compares with a number: it would fail after the model was
        asked."""
        prompts, holes = query.prompts.values(), query.holes
        other = {hole.name for hole in holes if hole.annotation or hole.decorators or hole.call}
        wheres = [each for each in (*(prompt.where for prompt in prompts), query.where) if each]
        other |= {name.id for where in wheres for name in _made_numbers(where.tree)}
        texts = {hole.name for hole in holes} - other - self.scope.locals
        for tree in (*query.body, *(tree for prompt in prompts for tree in python_of(prompt))):
            for node in every_node(tree):
                match node:
                    case ast.Compare(left, [operator], [right]) if isinstance(operator, COMPARING):
                        named = [each.id for each in (left, right) if isinstance(each, ast.Name) and each.id in texts]
                        if named and any(map(_is_number, (left, right))):
                            shown = ast.unparse(node)
                            number = shown.replace(named[0], f"int({named[0]})")
                            hint = f"write {number}, or [{named[0]}: int] in the prompt"
                            self._add(node, f"`{shown}` compares text with a number: [{named[0]}] is text", hint)

    def _comparison(self, shown: str, around: ast.expr) -> str:
        """Hint with the comparison that the `"b"` of `X == "a" or "b"` was meant to be."""
        for value in around.values if isinstance(around, ast.BoolOp) else ():
            match value:
                case ast.Compare(left, [ast.Eq() | ast.NotEq() as operator], [_]):
                    return f"write {ast.unparse(left)} {'==' if isinstance(operator, ast.Eq) else '!='} {shown}"
        return "remove it, or compare it with something"

    def _add(self, node: ast.expr, sentence: str, hint: str) -> None:
        self.problems.add(sentence, self.python.span(node), hint)


def _made_numbers(tree: ast.AST) -> Iterator[ast.Name]:
    """Holes that `INT(X)` and `FLOAT(X)` turn into numbers."""
    for node in every_node(tree):
        match node:
            case ast.Call(ast.Name("INT" | "FLOAT"), [ast.Name() as name]):
                yield name


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def _with_parents(node: ast.AST, parent: ast.AST | None = None) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    yield node, parent
    for child in ast.iter_child_nodes(node):
        yield from _with_parents(child, node)
