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
        for node in _parts(where.tree.body) if where else ():
            span = span_of(node, query.span)
            sentence, hint = _always(node, span.source, functions)
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


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Conditions that are not made of others."""
    match node:
        case ast.BoolOp(_, parts):
            for part in parts:
                yield from _parts(part)
        case ast.UnaryOp(ast.Not(), part):
            yield from _parts(part)
        case _:
            yield node


def _always(node: ast.expr, shown: str, functions: frozenset[str]) -> tuple[str, str]:
    """Sentence and hint for a condition that is always true or always false; empty for any other."""
    match node:
        case ast.Constant(value) if value is not Ellipsis:
            hint = f"write X == {shown}" if isinstance(value, str) else "remove it, or compare it with something"
            return f"`{shown}` alone is always {'true' if value else 'false'}", hint
        case ast.List() | ast.Set() | ast.Tuple() | ast.Dict() | ast.Lambda() | ast.JoinedStr() | ast.GeneratorExp():
            return "this is not a condition, and says nothing of the hole", "join conditions with and, or"
        case ast.Name(name) if name in functions:
            return f"`{name}` is a function that is not called, and so always true", f"write {name}(...)"
        case ast.Attribute(ast.Name(name), method) if name not in functions and hasattr(str, method):
            return f"`{shown}` is a method that is not called", f"write {shown}()"
    return "", ""
