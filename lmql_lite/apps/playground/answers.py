"""What is said of a query without running it: its problems, its names, its plan."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from lmql_lite.apps.plan_view import plan_lines, plan_object
from lmql_lite.apps.playground.words import KINDS, WORDS
from lmql_lite.errors import LmqlLiteError
from lmql_lite.lang.parser import parse
from lmql_lite.lang.source import Source
from lmql_lite.program.compiler import compile as compile_program
from lmql_lite.runtime.session import Session
from lmql_lite.runtime.shown.plain import plain
from lmql_lite.runtime.shown.redaction import redacted
from lmql_lite.verbs import Options, Query

_HOLE = re.compile(r"(?<!\[)(?:\[\[)*\[([A-Z][A-Z0-9_]*)\s*[\]:]")
"""Of a text that cannot be parsed: names in capitals, since `[i]` may be an index."""


def query_of(job: Mapping[str, Any]) -> Query:
    """Raises QueryError, or ConstraintError for a query whose conditions cannot be met."""
    return Query(compile_program(parse(Source(job["name"], job["text"]))))


def check(text: str) -> dict[str, Any]:
    """Runs nothing of the query."""
    problems: list[dict[str, Any]] = []
    inputs: Sequence[str] = ()
    holes: Sequence[str] = tuple(dict.fromkeys(_HOLE.findall(text)))
    try:
        query = query_of({"name": "<query>", "text": text})
        inputs, holes = query.inputs, query.holes
    except LmqlLiteError as error:
        problems = problems_of(error, text)
    except (RecursionError, MemoryError):
        problems = [_problem("the query is nested too deeply to be read", None, (0, 0), (1, 1))]
    words = [{"label": word, "kind": KINDS[name]} for name in KINDS for word in WORDS[name]]
    names = [
        *({"label": name, "kind": "hole"} for name in holes),
        *({"label": name, "kind": "input"} for name in inputs),
    ]
    return {"problems": problems, "inputs": list(inputs), "holes": list(holes), "completions": [*names, *words]}


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
    return {"message": message, "hint": hint, "from": range[0], "to": range[1], "line": place[0], "column": place[1]}


def units(text: str, end: int) -> int:
    """How many UTF-16 units the first `end` characters are: what a browser counts."""
    return len(text[:end].encode("utf-16-le", "surrogatepass")) // 2
