"""`lq eval --dry-run`: the rows that would be run, and how the model meets the conditions of their holes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmql_lite.apps.plan_view import plan_lines
from lmql_lite.apps.terminal import counted

if TYPE_CHECKING:
    from lmql_lite.data.job import EvalJob
    from lmql_lite.engine.plan import Plan


def eval_plan(job: EvalJob, folder: Path, *, is_new: bool = False) -> tuple[dict[str, Any], Plan | None]:
    """Numbers of attempts that are asked for, would be run and would fail because their row cannot be read; and the
    plan of the first one that would not. Asks no model and writes nothing. `is_new`: what the folder has does not
    count."""
    from lmql_lite.data.rows import FileRow
    from lmql_lite.data.run import unfinished

    to_run, problems, first = 0, list[str](), list[FileRow]()
    for row in unfinished(job, None if is_new else folder):
        to_run += 1
        if row.problem:
            problems.append(f"{row.id}: {row.problem}")
        elif not first:
            first.append(row)
    counts = {
        "folder": str(folder),
        "asked": job.scoring.attempts or 0,
        "to_run": to_run,
        "would_fail": len(problems),
        "first_problem": next(iter(problems), ""),
    }
    return counts, _planned(job, job.inputs_of(first[0])) if first else None


def eval_plan_lines(counts: Mapping[str, Any], plan: Plan | None) -> Iterator[str]:
    known = counts["asked"] - counts["to_run"]
    asked = counted(counts["asked"], "attempt")
    yield f"{counts['folder']}: {asked} asked for, {known:,} known, {counts['to_run']:,} to run"
    if counts["would_fail"]:
        yield f"{counted(counts['would_fail'], 'attempt')} would fail at once: {counts['first_problem']}"
    if plan is not None:
        yield from plan_lines(plan)


def _planned(job: EvalJob, inputs: Mapping[str, Any]) -> Plan:
    from lmql_lite.api import Query

    options: Any = {**job.options, **{f"max_{name}": limit for name, limit in job.budget.items()}}
    return job.query.plan(inputs, **options) if isinstance(job.query, Query) else job.query.plan(**inputs, **options)
