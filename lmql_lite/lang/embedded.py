"""Queries inside a query: functions under `@query` whose docstring is one.

The docstring is read where it stands in the file, so that its `\\n` is two characters and every place is the file's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lmql_lite.errors import QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.lang.escapes import Literal
from lmql_lite.lang.keywords import MARKS
from lmql_lite.lang.names import Form
from lmql_lite.lang.parser import parse
from lmql_lite.lang.python import Python
from lmql_lite.lang.source import Source

OFFERED = "query"
"""The decorator, which needs no import."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class FreeName:
    """A name that a query reads and never binds; `span` is its first use."""

    name: str
    span: Span
    form: Form = "value"


@dataclass(frozen=True, slots=True)
class Embedded:
    """`line` is that of the function's first decorator, by which Python knows it too."""

    line: int
    function: Function
    place: Span
    """In the file, of its text below the mark."""
    tree: nodes.Query

    def reads(self, inputs: Iterable[FreeName]) -> Iterator[ast.Name]:
        """Of the names that it is given those that are no parameters: they come from around the function."""
        given = self.function.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        parameters = {each.arg for each in every if each}
        for each in inputs:
            if each.name not in parameters:
                name = ast.Name(each.name, ast.Load(), lineno=each.span.line, col_offset=_column(each.span))
                name.end_lineno, name.end_col_offset = name.lineno, name.col_offset + len(each.name.encode())
                yield name


def read(tree: ast.AST, python: Python) -> Iterator[Embedded]:
    """Those in a piece of Python. What is wrong with them becomes a problem, at its place in the whole file."""
    for node in ast.walk(tree):
        if not isinstance(node, Function) or not any(map(_is_query, node.decorator_list)):
            continue
        text = _text(node, python)
        if text is None:
            continue
        try:
            yield Embedded(node.decorator_list[0].lineno, node, text, parse(_source(text)))
        except QueryError as error:
            for problem in error.problems:
                python.problems.add(problem.message, moved(problem.span, text), problem.hint)


def moved(span: Span | None, text: Span) -> Span:
    """A place in the docstring's query as one of the file; `text` is where that stands."""
    if span is None:
        return text
    return Span(text.name, text.text, text.start + span.start, text.start + span.end, text.first_line)


def offers(decorator: ast.expr) -> ast.Name | None:
    """The bare name `query` in a decorator."""
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return name if isinstance(name, ast.Name) and name.id == OFFERED else None


def _is_query(decorator: ast.expr) -> bool:
    """`@query`, `@lq.query(model="demo")`."""
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return offers(decorator) is not None or (isinstance(name, ast.Attribute) and name.attr == OFFERED)


def _text(function: Function, python: Python) -> Span | None:
    """Where the query stands: in the docstring, below its mark."""
    first = function.body[0]
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return None
    if not isinstance(first.value.value, str):
        return None
    place = python.span(first.value)
    literal = Literal.at(python.source, place.start, place.end)
    mark, _, _ = python.text[literal.start : literal.end].partition("\n")
    if mark.strip() not in MARKS:
        return None
    return python.source.span(literal.start + len(mark) + 1, literal.end)


def _source(text: Span) -> Source:
    return Source(text.name, text.source, text.line)


def _column(span: Span) -> int:
    """Of its first character, in bytes, as Python counts."""
    begin = span.text.rfind("\n", 0, span.start) + 1
    return len(span.text[begin : span.start].encode())
