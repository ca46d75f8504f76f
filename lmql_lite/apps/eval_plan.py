"""`lq eval --dry-run`: the rows that would be run, and how the model meets the conditions of their holes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmql_lite.apps.plan_view import plan_lines, plan_object
from lmql_lite.apps.terminal import counted

if TYPE_CHECKING:
    from lmql_lite.data.job import EvalJob
    from lmql_lite.engine.plan import Plan


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """Numbers of attempts that are asked for and that would be run, and the plan of the first of them.

    `would_fail` counts those whose row cannot be read, and `first_problem` is that of the first one.
    """

    folder: str
    asked: int
    to_run: int
    would_fail: int
    first_problem: str
    plan: Plan | None

    def lines(self) -> Iterator[str]:
        known = self.asked - self.to_run
        yield f"{self.folder}: {counted(self.asked, 'attempt')} asked for, {known:,} known, {self.to_run:,} to run"
        if self.would_fail:
            yield f"{counted(self.would_fail, 'attempt')} would fail at once: {self.first_problem}"
        if self.plan is not None:
            yield from plan_lines(self.plan)

    def as_object(self) -> dict[str, Any]:
        plan = None if self.plan is None else plan_object(self.plan)
        names = ("folder", "asked", "to_run", "would_fail", "first_problem")
        return {**{name: getattr(self, name) for name in names}, "plan": plan}


def eval_plan(job: EvalJob, folder: Path, *, is_new: bool = False) -> EvalPlan:
    """Plan of a run; asks no model and writes nothing. `is_new`: what the folder has does not count."""
    from lmql_lite.data.rows import FileRow
    from lmql_lite.data.run import unfinished

    asked = job.scoring.attempts or 0
    to_run, problems, first = 0, list[str](), list[FileRow]()
    for row in unfinished(job, None if is_new else folder):
        to_run += 1
        if row.problem:
            problems.append(f"{row.id}: {row.problem}")
        elif not first:
            first.append(row)
    plan = _planned(job, job.inputs_of(first[0])) if first else None
    return EvalPlan(str(folder), asked, to_run, len(problems), next(iter(problems), ""), plan)


def _planned(job: EvalJob, inputs: Mapping[str, Any]) -> Plan:
    from lmql_lite.api import Query

    options: Any = {**job.options, **{f"max_{name}": limit for name, limit in job.budget.items()}}
    return job.query.plan(inputs, **options) if isinstance(job.query, Query) else job.query.plan(**inputs, **options)
