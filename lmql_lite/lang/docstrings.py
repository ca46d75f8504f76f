"""The query in the docstring of a Python function."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import FunctionType

from lmql_lite.errors import QueryError
from lmql_lite.lang.keywords import MARKS
from lmql_lite.lang.parser import parse
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
        return _without_file(_query_text(function, name, function.__doc__ or "", function.__code__.co_firstlineno))
    definition = body[0].body[0] if isinstance(body[0], ast.If) else body[0]
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):  # a lambda: no docstring
        return _query_text(function, name, "", first_line)
    first = definition.body[0]
    if ast.get_docstring(definition) is None or not isinstance(first, ast.Expr):
        return _query_text(function, name, "", first_line)
    literal = (ast.get_source_segment(source, first.value) or "").lstrip("rRuU")
    marks = 3 if literal[:3] in ("'''", '"""') else 1
    return _query_text(function, name, literal[marks:-marks], first_line + first.lineno - 1 - is_indented)


def _without_file(source: Source) -> Source:
    """A query of which only the docstring's value is known. Raises QueryError where it cannot be read."""
    try:
        parse(source)
    except QueryError as error:
        sentence = f"no file holds this function, so that a \\n in its docstring is a line end here: {error.message}"
        hint = 'write r before the docstring (r"""), or define the function in a file'
        raise QueryError(sentence, span=error.span, hint=hint, others=error.others) from None
    return source


def _query_text(function: FunctionType, name: str, text: str, first_line: int) -> Source:
    marker, _, rest = text.partition("\n")
    mark, backslash, _ = marker.strip().partition("\\n")
    if mark in MARKS and backslash:
        raise QueryError(
            f"the docstring of {function.__name__} is read as it stands in the file, where \\n is two characters",
            span=Source(name, text, first_line).span(0, len(marker)),
            hint="write it over several lines, in triple quotes",
        )
    if marker.strip() in MARKS:
        return Source(name, textwrap.dedent(rest).rstrip(" "), first_line + 1)
    if not text.strip():
        raise QueryError(
            f"{function.__name__} has no docstring with a query",
            hint="start it with a line 'lq'; python -OO removes docstrings",
        )
    return Source(name, textwrap.dedent(text).rstrip(" "), first_line)
