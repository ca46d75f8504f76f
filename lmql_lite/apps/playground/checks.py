"""Checks of a query: its problems and its names, without running it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmql_lite.api import Query
from lmql_lite.apps.completions import completions, holes_of, inputs_of
from lmql_lite.apps.examination import Finding, examined
from lmql_lite.lang.query import parse
from lmql_lite.lang.source import Source
from lmql_lite.program.compiler import compile as compile_program
from lmql_lite.redaction import redacted


def query_of(job: Mapping[str, Any]) -> Query:
    """Raises QueryError, or ConstraintError for a query whose conditions cannot be met."""
    return Query(compile_program(parse(Source(job["name"], job["text"]))))


def check(text: str) -> dict[str, Any]:
    """Runs nothing of the query."""
    found = examined(Source("<query>", text))
    problems = [_problem(each, text) for each in found.findings]
    names = [each._asdict() for each in completions(found)]
    return {"problems": problems, "inputs": inputs_of(found), "holes": holes_of(found), "completions": names}


def _problem(finding: Finding, text: str) -> dict[str, Any]:
    """A problem at the beginning of the text where its place is not known."""
    error, span = finding.error, finding.error.span
    is_placed = span is not None and span.text == text
    start, end, line, column = (span.start, span.end, span.line, span.column) if span and is_placed else (0, 0, 1, 1)
    return {
        "severity": finding.severity,
        "message": redacted(error.message),
        "hint": error.hint,
        "from": units(text, start),
        "to": units(text, end),
        "line": line,
        "column": column,
    }


def units(text: str, end: int) -> int:
    """Length of the first `end` characters in UTF-16 units, as browsers count."""
    return len(text[:end].encode("utf-16-le", "surrogatepass")) // 2
