"""Examination of a text without running it: finds its queries, and everything that is wrong with them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmql_lite.errors import LmqlLiteError, QueryError, Span
from lmql_lite.lang.docstrings import moved, texts_in
from lmql_lite.lang.lint import lint, unseen
from lmql_lite.lang.nodes import QueryNode
from lmql_lite.lang.query import parse
from lmql_lite.lang.scope import Scope
from lmql_lite.lang.scope import check as scope_of
from lmql_lite.lang.source import Source
from lmql_lite.program.compiler import compile as compile_program
from lmql_lite.program.ops import Program

Severity = Literal["error", "warning"]
PYTHON = (".py", ".pyi")
"""Suffixes of files whose queries are in docstrings."""


@dataclass(frozen=True, slots=True)
class Finding:
    error: LmqlLiteError
    severity: Severity


@dataclass(frozen=True, slots=True)
class Examination:
    """Result for one query. From the step that found an error on, `tree`, `scope` and `program` are None."""

    source: Source
    findings: tuple[Finding, ...]
    tree: QueryNode | None = None
    scope: Scope | None = None
    program: Program | None = None


def examined(source: Source) -> Examination:
    """Errors of the first step that finds any (parser, names, compiler), and warnings. Nothing is run."""
    tree, scope, program = None, None, None
    try:
        tree = parse(source)
        scope = scope_of(tree)
        program = compile_program(tree, scope)
    except LmqlLiteError as error:
        errors = error.problems
    except (RecursionError, MemoryError):
        errors = (QueryError("the query is nested too deeply to be read", span=source.span(0, 0)),)
    else:
        errors = ()
    warnings = lint(tree, scope) if tree and scope else unseen(source)
    findings = [Finding(error, "error") for error in errors] + [Finding(each, "warning") for each in warnings]
    return Examination(source, tuple(findings), tree, scope, program)


@dataclass(frozen=True, slots=True)
class Embedding:
    """A query inside a text. It begins at `offset` and has the text's name; its places count from there."""

    examination: Examination
    offset: int


def queries_of(source: Source) -> Iterator[Embedding]:
    """Every query of a file: the file itself, or the docstrings of a Python file that begin with a line `lq`.

    A Python file that Python cannot read has none.
    """
    if Path(source.name).suffix not in PYTHON:
        yield Embedding(examined(source), 0)
        return
    try:
        tree = ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for text in texts_in(tree, source):
        yield Embedding(examined(Source(text.name, text.source, text.line)), text.start)


def findings_of(queries: Iterable[Embedding], text: str) -> Iterator[Finding]:
    """Findings of all queries of a file, at their places in its text."""
    for query in queries:
        source = query.examination.source
        place = Span(source.name, text, query.offset, query.offset + len(source.text))
        for each in query.examination.findings:
            error = each.error
            if len(source.text) < len(text):
                error = type(error)(error.message, span=moved(error.span, place), hint=error.hint)
            yield Finding(error, each.severity)
