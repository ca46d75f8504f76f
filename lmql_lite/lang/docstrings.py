"""Queries in docstrings: of a Python function that is given, and of functions under `@query` inside a query.

A docstring is read where it stands in the file, so that its `\\n` is two characters and every place is the file's.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType

from lmql_lite.errors import QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import MARKS
from lmql_lite.lang.names import Form, every_node
from lmql_lite.lang.prompt import Literal
from lmql_lite.lang.python import parsed
from lmql_lite.lang.query import parse
from lmql_lite.lang.source import Problems, Source, places, span_of

OFFERED = "query"
"""The decorator, which needs no import."""

NEVER = "the code after the docstring of {} never runs: the docstring is the query"
INSIDE = "move it into the docstring; a last line `raise NotImplementedError` is for type checkers"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def docstring(function: FunctionType) -> Source:
    """Docstring of a function, as written in its file: a `\\n` is two characters. Raises QueryError if it has no
    query."""
    name = function.__code__.co_filename
    try:
        lines, first_line = inspect.getsourcelines(function)
        is_indented = lines[0][:1].isspace()  # and parts of the text may be so less
        source = "if True:\n" * is_indented + "".join(lines)
        body = parsed(source, name, "exec").body
    except (OSError, SyntaxError):  # no file: text that was given to exec
        return _query_text(function, name, function.__doc__ or "", function.__code__.co_firstlineno)
    definition = body[0].body[0] if isinstance(body[0], ast.If) else body[0]
    ast.increment_lineno(definition, first_line - 1 - is_indented)
    text = "".join(lines)
    whole = Span(name, text, 0, len(text), first_line)
    if not isinstance(definition, Function) or (place := _literal(definition, whole)) is None:  # as a lambda
        return _query_text(function, name, "", first_line)
    if code := _code_after(definition):
        raise QueryError(NEVER.format(function.__name__), span=span_of(code, whole), hint=INSIDE)
    return _query_text(function, name, place.source, place.line)


def _code_after(function: Function) -> ast.stmt | None:
    """First statement after the docstring that would do something. A `return` tells type checkers what is returned, and
    Python what the function reads of those around it."""
    for each in function.body[1:]:
        is_constant = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
        if not is_constant and not isinstance(each, ast.Pass | ast.Raise | ast.Assert | ast.Return):
            return each
    return None


def _query_text(function: FunctionType, name: str, text: str, first_line: int) -> Source:
    first, newline, rest = text.partition("\n")
    if first.strip() in MARKS:
        return Source(name, textwrap.dedent(rest).rstrip(" "), first_line + 1)
    if first.strip():  # it begins on the line of its quotes
        return Source(name, f"{first.lstrip()}{newline}{textwrap.dedent(rest)}".rstrip(" "), first_line)
    if not text.strip():
        raise QueryError(
            f"{function.__name__} has no docstring with a query",
            hint="start it with a line 'lq'; python -OO removes docstrings",
        )
    return Source(name, textwrap.dedent(text).rstrip(" "), first_line)


# Inside a query ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FreeName:
    """A name that a query reads and never binds; `span` is its first use."""

    name: str
    span: Span
    form: Form = "value"


@dataclass(frozen=True, slots=True)
class Embedded:
    """A function in a query that is a query itself. `line` is that of its first decorator, as in Python."""

    line: int
    function: Function
    place: Span
    """Place in the file of its text below the mark."""
    tree: nodes.QueryNode

    def reads(self, inputs: Iterable[FreeName]) -> Iterator[ast.Name]:
        """Names of these inputs that are not parameters of the function: they come from around it."""
        given = self.function.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        parameters = {each.arg for each in every if each}
        for each in inputs:
            if each.name not in parameters:
                line, column = places(each.span.text).position(each.span.start)
                place = {"lineno": line + each.span.first_line, "col_offset": column}
                end = {"end_lineno": place["lineno"], "end_col_offset": column + len(each.name.encode())}
                yield ast.Name(each.name, ast.Load(), **place, **end)


def read(every: Iterable[ast.AST], whole: Span, problems: Problems) -> Iterator[Embedded]:
    """Queries among nodes of Python, read from the text of a span. Their errors become problems at their places."""
    for node in every:
        if not isinstance(node, Function) or not any(map(_is_query, node.decorator_list)):
            continue
        text = _text(node, whole)
        if text is None:
            continue
        if code := _code_after(node):
            problems.add(NEVER.format(node.name), span_of(code, whole), INSIDE)
        try:
            yield Embedded(node.decorator_list[0].lineno, node, text, parse(_source(text)))
        except QueryError as error:
            for problem in error.problems:
                problems.add(problem.message, moved(problem.span, text), problem.hint)


def texts_in(tree: ast.AST, source: Source) -> Iterator[Span]:
    """Places of all queries in the docstrings of a Python file, below their marks."""
    whole = source.span(0, len(source.text))
    for node in every_node(tree):
        if isinstance(node, Function) and (text := _text(node, whole)):
            yield text


def moved(span: Span | None, text: Span) -> Span:
    """A place in the docstring's query as one of the file; `text` is where that stands."""
    if span is None:
        return text
    return text.at(text.start + span.start, text.start + span.end)


def offers(decorator: ast.expr) -> ast.Name | None:
    """The bare name `query` in a decorator."""
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return name if isinstance(name, ast.Name) and name.id == OFFERED else None


def _is_query(decorator: ast.expr) -> bool:
    """`@query`, `@lq.query(model="demo")`."""
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return offers(decorator) is not None or (isinstance(name, ast.Attribute) and name.attr == OFFERED)


def _text(function: Function, whole: Span) -> Span | None:
    """Place of the query in the docstring, below its mark."""
    place = _literal(function, whole)
    mark, _, _ = place.source.partition("\n") if place else ("", "", "")
    if place is None or mark.strip() not in MARKS:
        return None
    return whole.at(place.start + len(mark) + 1, place.end)


def _literal(function: Function, whole: Span) -> Span | None:
    """Place of the docstring between its quotes."""
    match function.body[0]:
        case ast.Expr(ast.Constant(str()) as value):
            place = span_of(value, whole)
            literal = Literal.at(whole.text, place.start, place.end)
            return whole.at(literal.start, literal.end)
    return None


def _source(text: Span) -> Source:
    return Source(text.name, text.source, text.line)
