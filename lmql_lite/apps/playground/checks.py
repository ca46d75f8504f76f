"""Checks and plans of a query: its problems, its names and what it would ask, without running it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from lmql_lite.api import Options, Query
from lmql_lite.apps.completions import completions, holes_of, inputs_of
from lmql_lite.apps.examination import examined
from lmql_lite.apps.plan_view import plan_lines, plan_object
from lmql_lite.engine.session import Session
from lmql_lite.errors import LmqlLiteError
from lmql_lite.lang.query import parse
from lmql_lite.lang.source import Source
from lmql_lite.plain import plain
from lmql_lite.program.compiler import compile as compile_program
from lmql_lite.redaction import redacted


def query_of(job: Mapping[str, Any]) -> Query:
    """Raises QueryError, or ConstraintError for a query whose conditions cannot be met."""
    return Query(compile_program(parse(Source(job["name"], job["text"]))))


def check(text: str) -> dict[str, Any]:
    """Runs nothing of the query."""
    found = examined(Source("<query>", text))
    problems = [{**_found(each.error, text), "severity": each.severity} for each in found.findings]
    names = [each._asdict() for each in completions(found)]
    return {"problems": problems, "inputs": inputs_of(found), "holes": holes_of(found), "completions": names}


def plan(job: Mapping[str, Any], session: Session) -> dict[str, Any]:
    """Runs nothing of the query but what can have no effect; asks a server at most what it is."""
    try:
        plan = query_of(job).plan(job["inputs"], **cast(Options, {**job["options"], "session": session}))
    except LmqlLiteError as error:
        return {"problems": problems_of(error, job["text"])}
    except (RecursionError, MemoryError):
        return {"problems": [_problem("the query is nested too deeply to be read", None, (0, 0), (1, 1))]}
    return {"plan": plain(plan_object(plan)), "lines": list(plan_lines(plan))}


def problems_of(error: LmqlLiteError, text: str) -> list[dict[str, Any]]:
    return [_found(each, text) for each in error.problems]


def _found(error: LmqlLiteError, text: str) -> dict[str, Any]:
    message, span = redacted(error.message), error.span
    if span is None or span.text != text:
        return _problem(message, error.hint, (0, 0), (1, 1))
    return _problem(message, error.hint, (units(text, span.start), units(text, span.end)), (span.line, span.column))


def _problem(message: str, hint: str | None, range: tuple[int, int], place: tuple[int, int]) -> dict[str, Any]:
    return {
        "severity": "error",
        "message": message,
        "hint": hint,
        "from": range[0],
        "to": range[1],
        "line": place[0],
        "column": place[1],
    }


def units(text: str, end: int) -> int:
    """Length of the first `end` characters in UTF-16 units, as browsers count."""
    return len(text[:end].encode("utf-16-le", "surrogatepass")) // 2
