"""`lq eval --dry-run`: the rows that would be run, and how the model meets the conditions of their holes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmql_lite.apps.plan_view import plan_lines, plan_object
from lmql_lite.apps.terminal import counted
from lmql_lite.errors import InputError, LmqlLiteError

if TYPE_CHECKING:
    from lmql_lite.data.eval_job import EvalJob
    from lmql_lite.engine.plan import Plan


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """Numbers of attempts that are asked for and that would be run.

    `plan` is that of the first row that can be planned; None where there is none. `first_problem` is that of the first
    row that would fail at once.
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


def eval_plan(job: EvalJob, folder: Path, reuse: Sequence[Path], *, is_new: bool = False) -> EvalPlan:
    """Plan of a run; asks no model and writes nothing. `is_new`: what the folder has does not count.

    Raises InputError for the folder of another run.
    """
    from lmql_lite.data.evaluation import unfinished
    from lmql_lite.data.run_folder import RUN, identity_of
    from lmql_lite.data.run_identity import continued

    if not is_new and (folder / RUN).exists():
        job = replace(job, identity=continued(dict(job.identity), identity_of(folder), folder))
    first: Plan | None = None
    to_run, problems = 0, list[str]()
    for row in unfinished(job, reuse if is_new else [folder, *reuse]):
        to_run += 1
        try:
            if row.problem:
                raise InputError(row.problem)
            plan = _planned(job, job.inputs_of(row))
            if plan.missing:
                raise InputError(f"the input {plan.missing[0]!r} is missing")
        except LmqlLiteError as error:
            problems.append(f"{row.id}: {error.message}")
            continue
        first = first or plan
    if first is not None:
        limits: dict[str, Any] = {f"max_{name}": number for name, number in job.budget.items()}
        first = replace(first, budget=replace(first.budget, **limits))
    return EvalPlan(str(folder), job.attempts, to_run, len(problems), next(iter(problems), ""), first)


def _planned(job: EvalJob, inputs: Mapping[str, Any]) -> Plan:
    from lmql_lite.api import Query

    options: Any = job.options
    return job.query.plan(inputs, **options) if isinstance(job.query, Query) else job.query.plan(**inputs, **options)
