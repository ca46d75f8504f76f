"""Python inside a query, compiled: code objects that know the query's own file name and lines."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from types import CodeType
from typing import Any, NamedTuple

from lmql_lite.errors import QueryError, Span


def compile_expression(node: ast.expr, span: Span) -> CodeType:
    """Code for `eval`; with `await` inside it gives a coroutine."""
    return _compile(ast.Expression(node), span, "eval")


def compile_call(name: str, place: ast.expr, span: Span, *given: ast.expr, is_async: bool = False) -> CodeType:
    """A call of `name` as if it stood in that place, so that a traceback shows it; with `is_async` it is awaited."""
    call: ast.expr = ast.copy_location(ast.Call(ast.Name(name, ast.Load()), list(given), []), place)
    return compile_expression(ast.copy_location(ast.Await(call), place) if is_async else call, span)


def compile_statements(module: ast.Module, span: Span) -> CodeType:
    """Code for `exec`; with a top-level `await` inside, evaluating it gives a coroutine."""
    return _compile(module, span, "exec")


def _compile(tree: ast.Expression | ast.Module, span: Span, mode: str) -> CodeType:
    try:
        # every query speaks for itself: no __future__ flags of this module
        code: CodeType = compile(
            ast.fix_missing_locations(tree),
            span.name,
            mode,
            flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            dont_inherit=True,
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "this is nested too deeply or holds no valid text"
        raise QueryError(reason, span=span) from None
    return code


class Columns(NamedTuple):
    """Positions in a text by its UTF-8: the byte at which each line starts, and the code points before each byte."""

    lines: list[int]
    code_points: Sequence[int]


@lru_cache(maxsize=16)
def _columns(text: str) -> Columns:
    data = text.encode("utf-8", "surrogatepass")
    lines = [0, *accumulate(len(line) + 1 for line in data.split(b"\n"))]
    if len(data) == len(text):
        return Columns(lines, range(len(data) + 1))
    return Columns(lines, [0, *accumulate(byte & 0xC0 != 0x80 for byte in data)])


def span_of(node: ast.expr, around: Span) -> Span:
    """The place of a Python expression. Its columns count UTF-8 bytes, spans count code points."""
    if node.end_lineno is None or node.end_col_offset is None:
        return around
    columns = _columns(around.text)

    def offset(line: int, column: int) -> int:
        return columns.code_points[columns.lines[line - around.first_line] + column]

    start, end = offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
    return Span(around.name, around.text, start, end, around.first_line)


def constant(node: ast.expr) -> Any:
    """A value that is written out; None for all others."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
