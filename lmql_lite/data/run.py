"""Runs over data sets: runs the attempts that a folder has no answer of, scores them, and adds their outcomes up.

An attempt runs one row and gives a record of JSON data, which the folder keeps.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from sys import intern
from typing import Any

from lmql_lite.api import RunOptions
from lmql_lite.data.equality import text
from lmql_lite.data.folder import RunFolder, attempts_in
from lmql_lite.data.job import SHORT_KEY, EvalJob, Scoring, text_digest
from lmql_lite.data.metrics import accepted, answer_of
from lmql_lite.data.rows import FileRow
from lmql_lite.engine.result import OptionScores, Result
from lmql_lite.engine.rows import DataRow, finished_rows, rows_at_once
from lmql_lite.engine.session import default_session
from lmql_lite.errors import BudgetError, InputError, ModelError
from lmql_lite.observe.lines import failed
from lmql_lite.plain import plain
from lmql_lite.redaction import redacted

PROMPT_SHOWN = 200
"""Characters at each end of a stretch of the program's own text that a record keeps."""
MAX_PROBLEMS = 5
MAX_VALUES = 12
"""Different values of a column, and different targets, that a report has a line for each of."""
MAX_LABEL = 40
"""Characters of a value that a report has a line for."""


# Outcomes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one attempt, as far as a report needs it.

    `scores` has a score for each metric, None where the row or the metric failed. `group` names the
    attempts that are drawn together. `answer` and `target` are texts to compare; a target is None if there are several.
    """

    id: str
    repeat: int
    is_error: bool
    scores: tuple[float | None, ...]
    group: str
    answer: str
    target: str | None


class Tally:
    """Outcomes of a run, and their total cost."""

    def __init__(self, scoring: Scoring) -> None:
        self.scoring = scoring
        self.outcomes: list[Outcome] = []
        self.kept = 0
        """Attempts that the folder had, and that were not run."""
        self.usage = Counter[str]()
        self.cost = 0.0
        self.errors = Counter[str]()
        self.metric_errors = Counter[str]()
        self.metric_problems: dict[str, dict[str, str]] = {}
        """First row of each sentence about a missing score, by metric; the first `MAX_PROBLEMS` sentences of each."""
        self.places: dict[str, dict[str, list[int]] | None] = {}
        """Places of the outcomes of each value, by column; None for a column of many or long values."""

    def add(self, record: Mapping[str, Any]) -> None:
        if error := record.get("error"):
            self.errors[error["type"]] += 1
        for name, number in record.get("usage", {}).items():
            if isinstance(number, int):
                self.usage[name] += number
        self.cost += record.get("cost") or 0.0
        for name, found in record.get("scores", {}).items():
            if isinstance(found, dict):
                self.metric_errors[name] += 1
                problems = self.metric_problems.setdefault(name, {})
                if len(problems) < MAX_PROBLEMS:
                    problems.setdefault(found["error"], record["id"])
        for name, value in record.get("columns", {}).items():
            self._place(name, value)
        self.outcomes.append(_outcome(record, self.scoring))

    def _place(self, name: str, value: Any) -> None:
        places = self.places.setdefault(name, {})
        if places is None:
            return
        shown = text(value)
        is_one_too_many = len(places) == MAX_VALUES and shown not in places
        if is_one_too_many or isinstance(value, dict | list) or len(shown) > MAX_LABEL:
            self.places[name] = None
        else:
            places.setdefault(shown, []).append(len(self.outcomes))


def _outcome(record: Mapping[str, Any], scoring: Scoring) -> Outcome:
    found = record.get("scores", {})
    scores = [found.get(name) for name in scoring.metrics]
    cluster = record["id"] if scoring.cluster is None else str(record.get("columns", {}).get(scoring.cluster))
    targets = accepted(record) if "target" in record else []
    return Outcome(
        id=record["id"],
        repeat=record["repeat"],
        is_error=bool(record.get("error")),
        scores=tuple(each if isinstance(each, float) else None for each in scores),
        group=intern(cluster),
        answer=_label(answer_of(record)),
        target=_label(targets[0]) if len(targets) == 1 else None,
    )


def _label(value: Any) -> str:
    """A text to compare; of a long one the beginning and a digest."""
    found = text(value)
    if len(found) > MAX_LABEL:
        found = f"{found[:MAX_LABEL]} {text_digest(found)}"
    return intern(found)


# Runs ----------------------------------------------------------------------------------------------------------------


OnRecord = Callable[[Mapping[str, Any]], object]
Finish = Callable[[dict[str, Any]], Awaitable[None]]
Engine = Callable[[EvalJob, AsyncGenerator[DataRow, None], Finish], Awaitable[None]]
"""Runs rows elsewhere, and hands each record to a function as it ends."""


async def evaluate(
    job: EvalJob,
    folder: RunFolder,
    seen: OnRecord | None = None,
    engine: Engine | None = None,
    go_on: Callable[[Tally], object] | None = None,
) -> Tally:
    """Runs the attempts that the folder has no answer of, in the order of the data; gives the outcomes of all.

    Rows that failed are run again. An answer whose row has changed outside of its inputs, and one of other metrics, is
    only scored again. `seen` is called with each record that is new or scored anew, `go_on` with the tally of the
    known ones before rows run.
    """
    tally = Tally(job.scoring)
    left = {key: _digest(plain(row.values)) for key, row, _ in _attempts(job)}
    stale: dict[str, dict[str, Any]] = {}
    answers = enumerate(attempts_in(folder.path))
    last = {record["key"][:SHORT_KEY]: number for number, record in answers if not record.get("error")}
    for number, record in enumerate(attempts_in(folder.path)):
        key = record["key"][:SHORT_KEY]
        if key not in left or last.get(key) != number:
            continue
        is_scored = record.get("scored") == job.scored and record.get("target_name") == job.target
        if is_scored and _digest(record["columns"]) == left[key]:
            del left[key]
            tally.kept += 1
            tally.add(record)
        else:
            stale[key] = record

    async def finish(record: dict[str, Any]) -> None:
        await _score(record, job)
        await folder.add(record)
        tally.add(record)
        if seen is not None:
            seen(record)

    async def missing() -> AsyncGenerator[DataRow, None]:
        number = -1
        for key, row, repeat in _attempts(job):
            number += repeat == 0
            if key not in left:
                continue
            if (found := stale.pop(key, None)) is not None:
                tally.kept += 1
                known = {name: value for name, value in found.items() if name not in ("crc32", "kind")}
                await finish(known | {"line": row.line, "columns": plain(row.values)})
                continue
            _check_budget(job.budget, tally)
            yield DataRow(number, row.id, repeat, row)

    async def work(row: DataRow) -> list[Result]:
        await finish(await attempt(job, row))
        return []

    if go_on is not None:
        go_on(tally)
    if engine is not None:
        await engine(job, missing(), finish)
        return tally
    session = job.options.get("session") or default_session()
    places = rows_at_once(job.options.get("model"), job.query.program, session, job.concurrency)
    async with aclosing(finished_rows(missing(), work, places, "raise")) as finished:
        async for _ in finished:
            pass
    return tally


def unfinished(job: EvalJob, folder: Path | None) -> Iterator[FileRow]:
    """Rows of the attempts that a folder has no answer of: those that `evaluate` would run."""
    records = () if folder is None else attempts_in(folder)
    answered = {record["key"][:SHORT_KEY] for record in records if not record.get("error")}
    return (row for key, row, _ in _attempts(job) if key not in answered)


def _attempts(job: EvalJob) -> Iterator[tuple[str, FileRow, int]]:
    """Short keys of the attempts that are asked for, with their rows and repeats."""
    for row in job.rows():
        for repeat in range(job.repeat):
            yield job.key(row, repeat)[:SHORT_KEY], row, repeat


def _digest(columns: Mapping[str, Any]) -> int:
    """Digest of a row's columns, which its scores depend on."""
    return hash(json.dumps(columns, sort_keys=True))


def _check_budget(budget: Mapping[str, float], tally: Tally) -> None:
    spent = {
        "requests": tally.usage["requests"],
        "total_tokens": tally.usage["prompt_tokens"] + tally.usage["completion_tokens"],
        "cost": tally.cost,
    }
    for name, most in budget.items():
        if spent[name] >= most:
            hint = "the same command goes on with a higher limit; rows that have ended are kept"
            raise BudgetError(f"the run has used {spent[name]:g} of {most:g} {name.replace('_', ' ')}", hint=hint)


async def _score(record: dict[str, Any], job: EvalJob) -> None:
    """Adds the scores of a record. A metric that raises has its error in the place of its score."""
    record.pop("target", None)
    record |= {**job.target_of(record.get("columns", {})), "scored": job.scored, "target_name": job.target}
    record["scores"] = scores = dict[str, Any]()
    if record.get("error"):
        return
    for metric in job.metrics:
        try:
            scores[metric.name] = await metric.score(record)
        except Exception as error:
            scores[metric.name] = {"error": f"{type(error).__name__}: {error}"}


# Attempts ------------------------------------------------------------------------------------------------------------


async def attempt(job: EvalJob, row: DataRow) -> dict[str, Any]:
    """Record of one attempt, run now. What the row raises stands in it."""
    began = time.perf_counter()
    try:
        record = _row_fields(job, row) | _result_fields(await _result(job, row), job)
    except Exception as error:
        record = failed_record(job, row, error)
    return record | {"ms": round(1000 * (time.perf_counter() - began), 1), "created_at": time.time()}


async def _result(job: EvalJob, row: DataRow) -> Result:
    source: FileRow = row.value
    if source.problem:
        raise InputError(source.problem)
    own: RunOptions = {**job.options, "seed": job.seed}
    numbered = DataRow(row.number, row.id, row.repeat, job.inputs_of(source))
    try:
        async with asyncio.timeout(job.timeout) as limit:
            answer = await job.query.run_row(numbered, "carry", own)
    except TimeoutError:
        if not limit.expired():
            raise
        raise ModelError(f"the row did not end within {job.timeout:g} s") from None
    return answer[0] if isinstance(answer, list) else answer


def failed_record(job: EvalJob, row: DataRow, error: Exception) -> dict[str, Any]:
    """Record of an attempt that ended with an error."""
    found = failed(error)
    place = {"line": found.span.line} if found.span is not None else {}
    message = {"type": found.kind, "message": redacted(found.message), "hint": found.hint, **place}
    return _row_fields(job, row) | {"error": message, "created_at": time.time()}


def _row_fields(job: EvalJob, row: DataRow) -> dict[str, Any]:
    source: FileRow = row.value
    return {
        "key": job.key(source, row.repeat),
        "id": row.id,
        "repeat": row.repeat,
        "line": source.line,
        "seed": row.seed(job.seed),
        "columns": plain(source.values),
    }


def _result_fields(result: Result, job: EvalJob) -> dict[str, Any]:
    value = plain(result.value)
    if isinstance(result.value, OptionScores):
        tokens = [[each.text for each in one] for one in result.value.tokens]
        value = {"options": value["options"], "logprobs": value["logprobs"], "tokens": tokens}
    usage = {name: number for name, number in result.usage.as_dict().items() if number is not None}
    return {
        "value": value,
        **({"returns": True} if job.returns else {}),
        "variables": plain(result.variables),
        "endings": dict(result.endings),
        "tokens": _tokens(result),
        "usage": usage,
        "cost": None if result.usage.cost is None else result.usage.cost.amount,
        "cached": not usage.get("forward_passes") and not usage.get("requests"),
        "model": result.model,
        **({"notices": list(result.notices)} if result.notices else {}),
    }


def _tokens(result: Result) -> list[list[Any]]:
    """Text, source and hole of each token; the program's own text in one piece, shortened in the middle."""
    found: list[list[Any]] = []
    kept = (token for token in result.tokens if token.fate == "kept")
    for is_prompt, tokens in groupby(kept, key=lambda token: token.hole is None):
        if not is_prompt:
            found += ([token.text, token.source, token.hole] for token in tokens)
            continue
        first, *others = tokens
        whole = b"".join([first.data, *(token.data for token in others)]).decode("utf-8", "replace")
        if len(whole) > 2 * PROMPT_SHOWN:
            whole = f"{whole[:PROMPT_SHOWN]} ... {whole[-PROMPT_SHOWN:]}"
        found.append([whole, first.source, None])
    return found
