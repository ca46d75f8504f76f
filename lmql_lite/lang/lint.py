"""Warnings of `lq check`: code that compiles but is probably a mistake."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from lmql_lite.errors import LmqlLiteError
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import CONSTRAINTS
from lmql_lite.lang.scope import Scope
from lmql_lite.lang.source import Problems, Source, span_of

UNSEEN = re.compile("[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
"""Characters that are invisible or change the direction of the following text: a line with one can look different from
what it does. The joiners U+200C and U+200D belong to words and emoji and are allowed."""


def lint(query: nodes.QueryNode, scope: Scope) -> tuple[LmqlLiteError, ...]:
    """Warnings in source order; never raised."""
    problems = Problems()
    source = Source(query.span.name, query.span.text, query.span.first_line)
    functions = (scope.builtins.union(CONSTRAINTS)) - scope.locals.union(scope.holes)
    for where in (*(prompt.where for prompt in query.prompts.values()), query.where):
        for node, around in _parts(where.tree.body, where.tree.body) if where else ():
            span = span_of(node, query.span)
            sentence, hint = _always(node, span.source, around, functions)
            if sentence:
                problems.add(sentence, span, hint)
    return (*unseen(source), *problems.found())


def unseen(source: Source) -> tuple[LmqlLiteError, ...]:
    """A warning for each line with an invisible character; the text need not be a query."""
    problems = Problems()
    for found in UNSEEN.finditer(source.text):
        number = f"{ord(found.group()):04X}"
        sentence = f"the invisible character U+{number} can make this line look different from what it does"
        problems.add(sentence, source.span(found.start(), found.end()), f"remove it, or write \\u{number} in a string")
    return problems.found()


def _parts(node: ast.expr, around: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Conditions that are not made of others, each with the `and`, `or` or `not` around it."""
    match node:
        case ast.BoolOp(_, parts):
            for part in parts:
                yield from _parts(part, node)
        case ast.UnaryOp(ast.Not(), part):
            yield from _parts(part, node)
        case _:
            yield node, around


def _always(node: ast.expr, shown: str, around: ast.expr, functions: frozenset[str]) -> tuple[str, str]:
    """Sentence and hint for a condition that is always true or always false; empty for any other."""
    match node:
        case ast.Constant(value) if value is not Ellipsis:
            return f"`{shown}` alone is always {'true' if value else 'false'}", _comparison(shown, around)
        case ast.List(items) | ast.Set(items) | ast.Tuple(items):
            sentence = f"a list is always {'true' if items else 'false'}, whatever stands in it"
            return sentence, "join conditions with and, or"
        case ast.Dict() | ast.Lambda() | ast.JoinedStr() | ast.GeneratorExp():
            return "this is not a condition: it is always true", "compare it with something"
        case ast.Name(name) if name in functions:
            return f"`{name}` is a function that is not called, and so always true", f"write {name}(...)"
        case ast.Attribute(ast.Name(name), method) if name not in functions and hasattr(str, method):
            return f"`{shown}` is a method that is not called", f"write {shown}()"
    return "", ""


def _comparison(shown: str, around: ast.expr) -> str:
    """Hint with the comparison that the `"b"` of `X == "a" or "b"` was meant to be."""
    for value in around.values if isinstance(around, ast.BoolOp) else ():
        match value:
            case ast.Compare(left, [ast.Eq() | ast.NotEq() as operator], [_]):
                return f"write {ast.unparse(left)} {'==' if isinstance(operator, ast.Eq) else '!='} {shown}"
    return "remove it, or compare it with something"
