"""Runs over data sets: runs missing attempts, scores and stores their records, collects the outcomes."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from lmql_lite.data.attempts import attempt
from lmql_lite.data.data_file import FileRow
from lmql_lite.data.eval_job import EvalJob
from lmql_lite.data.outcomes import Outcomes, Scoring
from lmql_lite.data.pending import PendingAttempts
from lmql_lite.data.run_folder import RunFolder, attempts_in
from lmql_lite.engine.result import Result
from lmql_lite.engine.rows import DataRow, finished_rows, rows_at_once
from lmql_lite.engine.session import default_session
from lmql_lite.errors import BudgetError
from lmql_lite.plain import plain

MAX_PROBLEMS = 5


class Tally:
    """Outcomes of a run, and their total cost."""

    def __init__(self, scoring: Scoring) -> None:
        self.outcomes = Outcomes(scoring)
        self.kept = self.reused = 0
        """Attempts that were read and not run: of this run, and of others."""
        self.usage: dict[str, int] = {}
        self.cost = 0.0
        self.errors: dict[str, int] = {}
        self.metric_errors: dict[str, int] = {}
        self.first_metric_error = ""
        self.metric_problems: dict[str, dict[str, str]] = {}
        """First row of each sentence about a missing score, by metric; the first `MAX_PROBLEMS` sentences of each."""

    def add(self, record: Mapping[str, Any]) -> None:
        if error := record.get("error"):
            self.errors[error["type"]] = self.errors.get(error["type"], 0) + 1
        for name, number in record.get("usage", {}).items():
            if isinstance(number, int):
                self.usage[name] = self.usage.get(name, 0) + number
        self.cost += record.get("cost") or 0.0
        for name, found in record.get("scores", {}).items():
            if isinstance(found, dict):
                self.metric_errors[name] = self.metric_errors.get(name, 0) + 1
                self.first_metric_error = self.first_metric_error or f"{record['id']}: {found['error']}"
                problems = self.metric_problems.setdefault(name, {})
                if len(problems) < MAX_PROBLEMS:
                    problems.setdefault(found["error"], record["id"])
        self.outcomes.add(record)


def _short(key: str) -> int:
    return int(key[:16], 16)


OnRecord = Callable[[Mapping[str, Any]], object]
Finish = Callable[[dict[str, Any]], Awaitable[None]]
Engine = Callable[[EvalJob, AsyncGenerator[DataRow, None], Finish], Awaitable[None]]
"""Runs rows elsewhere, and hands each record to a function as it ends."""


async def evaluate(
    job: EvalJob,
    folder: RunFolder,
    reuse: Sequence[Path] = (),
    seen: OnRecord | None = None,
    engine: Engine | None = None,
    go_on: Callable[[int], object] | None = None,
) -> Tally:
    """Runs the attempts that the folder has no answer of, in the order of the data; gives the outcomes of all.

    Rows that failed are run again. `reuse` are other runs whose records count where their keys are equal. `seen` is
    called with each record that is new or scored anew, `go_on` with the number of known ones before rows run.
    """
    job.check()
    chosen = job.selection.rows(job.rows())
    tally = Tally(job.scoring)
    scored = [f"{metric.name}@{metric.version}" for metric in job.metrics]
    left: PendingAttempts | None = None
    if any(True for source in (folder.path, *reuse) for _ in attempts_in(source)):
        left = PendingAttempts((key, _digest(plain(row.values))) for key, row in _attempts(job, chosen))
    else:
        deque(job.rows(), maxlen=0)  # two rows of one id end the run before it begins
    for number, source in enumerate((folder.path, *reuse)):
        if not left:
            break
        stale = dict[int, dict[str, Any]]()
        for record in attempts_in(source):
            key = _short(record["key"])
            if record.get("error") or (digest := left.digest(key)) is None:
                continue
            is_scored = record.get("scored") == scored and record.get("target_name") == job.target
            if number == 0 and is_scored and not job.rescore and _digest(record["columns"]) == digest:
                left.settle(key)
                stale.pop(key, None)
                tally.kept += 1
                tally.add(record)
            else:
                stale[key] = record
        for key, row in _attempts(job, chosen) if stale else ():
            found = stale.pop(key, None)
            if found is None:
                continue
            left.settle(key)
            tally.kept += number == 0
            tally.reused += number > 0
            record = {name: value for name, value in found.items() if name not in ("crc32", "kind")}
            record |= {"line": row.line, "columns": plain(row.values)}
            await _score(record, job, scored)
            await folder.add(record)
            tally.add(record)
            if seen is not None:
                seen(record)

    async def finish(record: dict[str, Any]) -> None:
        await _score(record, job, scored)
        await folder.add(record)
        tally.add(record)
        if seen is not None:
            seen(record)

    async def work(row: DataRow) -> Result | list[Result]:
        await finish(await attempt(job, row))
        return []

    if go_on is not None:
        go_on(tally.kept + tally.reused)
    rows = _missing(job, chosen, left, tally)
    if engine is not None:
        await engine(job, rows, finish)
        return tally
    places = rows_at_once(job.options.get("model"), job.query.program, _session(job), job.concurrency)
    async with aclosing(finished_rows(rows, work, places, "raise")) as finished:
        async for _ in finished:
            pass
    return tally


def unfinished(job: EvalJob, sources: Sequence[Path]) -> Iterator[FileRow]:
    """Rows of the attempts that no folder of `sources` has an answer of: those that `evaluate` would run."""
    records = (record for source in sources for record in attempts_in(source))
    answered = {_short(record["key"]) for record in records if not record.get("error")}
    job.check()
    return (row for key, row in _attempts(job, job.selection.rows(job.rows())) if key not in answered)


def _check_budget(budget: Mapping[str, float], tally: Tally) -> None:
    spent = {
        "requests": tally.usage.get("requests", 0),
        "total_tokens": tally.usage.get("prompt_tokens", 0) + tally.usage.get("completion_tokens", 0),
        "cost": tally.cost,
    }
    for name, most in budget.items():
        if spent[name] >= most:
            hint = "the same command goes on with a higher limit; rows that have ended are kept"
            raise BudgetError(f"the run has used {spent[name]:g} of {most:g} {name.replace('_', ' ')}", hint=hint)


def _session(job: EvalJob) -> Any:
    return job.options.get("session") or default_session()


def _chosen_rows(job: EvalJob, chosen: list[int] | None, *, is_checked: bool = False) -> Iterator[FileRow]:
    numbers = None if chosen is None else set(chosen)
    for number, row in enumerate(job.rows(is_checked=is_checked)):
        if numbers is None or number in numbers:
            yield row


def _attempts(job: EvalJob, chosen: list[int] | None) -> Iterator[tuple[int, FileRow]]:
    """Short keys of the attempts that are asked for, and their rows."""
    for row in _chosen_rows(job, chosen):
        for repeat in range(job.repeat):
            yield _short(job.key(row.id, repeat, job.inputs_of(row))), row


def _digest(columns: Mapping[str, Any]) -> int:
    """Digest of a row's columns, which its scores depend on."""
    return hash(json.dumps(columns, sort_keys=True))


async def _missing(
    job: EvalJob, chosen: list[int] | None, left: PendingAttempts | None, tally: Tally
) -> AsyncGenerator[DataRow, None]:
    """Attempts that are left; None for all."""
    if left is not None and not left:
        return
    for number, row in enumerate(_chosen_rows(job, chosen, is_checked=True)):
        for repeat in range(job.repeat):
            if left is None or _short(job.key(row.id, repeat, job.inputs_of(row))) in left:
                _check_budget(job.budget, tally)
                yield DataRow(number, row.id, repeat, row)


async def _score(record: dict[str, Any], job: EvalJob, scored: list[str]) -> None:
    """Adds the scores of a record. A metric that raises has its error in the place of its score."""
    record.pop("target", None)
    record |= {**job.target_of(record.get("columns", {})), "scored": scored, "target_name": job.target}
    record["scores"] = scores = dict[str, Any]()
    if record.get("error"):
        return
    for metric in job.metrics:
        try:
            scores[metric.name] = list(await metric.score(record))
        except Exception as error:
            scores[metric.name] = {"error": f"{type(error).__name__}: {error}"}
