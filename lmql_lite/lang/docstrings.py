"""The query in the docstring of a Python function."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import FunctionType

from lmql_lite.errors import QueryError
from lmql_lite.lang.keywords import MARKS
from lmql_lite.lang.source import Source


def docstring(function: FunctionType) -> Source:
    """The query as it stands in the file: its `\\n` are still two characters. Raises QueryError where there is none."""
    name = function.__code__.co_filename
    try:
        lines, first_line = inspect.getsourcelines(function)
        is_indented = lines[0][:1].isspace()  # and parts of the text may be so less
        source = "if True:\n" * is_indented + "".join(lines)
        body = ast.parse(source).body
    except (OSError, SyntaxError):  # no file: text that was given to exec
        return _query_text(function, name, function.__doc__ or "", function.__code__.co_firstlineno)
    definition = body[0].body[0] if isinstance(body[0], ast.If) else body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    first = definition.body[0]
    if ast.get_docstring(definition) is None or not isinstance(first, ast.Expr):
        return _query_text(function, name, "", first_line)
    literal = (ast.get_source_segment(source, first.value) or "").lstrip("rRuU")
    marks = 3 if literal[:3] in ("'''", '"""') else 1
    return _query_text(function, name, literal[marks:-marks], first_line + first.lineno - 1 - is_indented)


def _query_text(function: FunctionType, name: str, text: str, first_line: int) -> Source:
    marker, _, rest = text.partition("\n")
    if marker.strip() in MARKS:
        return Source(name, textwrap.dedent(rest).rstrip(" "), first_line + 1)
    if not text.strip():
        raise QueryError(
            f"{function.__name__} has no docstring with a query",
            hint="start it with a line 'lq'; python -OO removes docstrings",
        )
    return Source(name, textwrap.dedent(text).rstrip(" "), first_line)
