"""Attempts of a data-set run: each runs one row and returns a record of JSON data."""

from __future__ import annotations

import asyncio
import time
from itertools import groupby
from typing import Any

from lmql_lite.api import RunOptions
from lmql_lite.data.data_file import FileRow
from lmql_lite.data.eval_job import EvalJob
from lmql_lite.engine.result import OptionScores, Result
from lmql_lite.engine.rows import DataRow
from lmql_lite.errors import InputError, LmqlLiteError, ModelError
from lmql_lite.observe.lines import failed
from lmql_lite.plain import plain
from lmql_lite.redaction import redacted

PROMPT_SHOWN = 200
"""Characters at each end of a stretch of the program's own text that a record keeps."""


async def attempt(job: EvalJob, row: DataRow) -> dict[str, Any]:
    """Record of one attempt, run now, and run again as often as the job allows. What the row raises stands in it."""
    began = time.perf_counter()
    tries, is_over = 0, False
    while not is_over:
        tries += 1
        try:
            record = _row_fields(job, row) | _result_fields(await _result(job, row), job)
            is_over = True
        except Exception as error:
            record = failed_record(job, row, error)
            is_final = isinstance(error, LmqlLiteError) and not isinstance(error, ModelError)
            is_over = is_final or tries > job.retries
    if tries > 1:
        record["tries"] = tries
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
    told = failed(error)
    place = {"line": told.span.line} if told.span is not None else {}
    message = {"type": told.kind, "message": redacted(told.message), "hint": told.hint, **place}
    return _row_fields(job, row) | {"error": message, "created_at": time.time()}


def _row_fields(job: EvalJob, row: DataRow) -> dict[str, Any]:
    source: FileRow = row.value
    return {
        "key": job.key(row.id, row.repeat, job.inputs_of(source)),
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
        "tokens": _tokens(result, job.keeps_prompts),
        "usage": usage,
        "cost": None if result.usage.cost is None else result.usage.cost.amount,
        "cached": not usage.get("forward_passes") and not usage.get("requests"),
        "model": result.model,
        **({"notices": list(result.notices)} if result.notices else {}),
    }


def _tokens(result: Result, keeps_prompts: bool) -> list[list[Any]]:
    """Text, source and hole of each token; the program's own text in one piece, shortened in the middle."""
    found: list[list[Any]] = []
    kept = (token for token in result.tokens if token.fate == "kept")
    for is_prompt, tokens in groupby(kept, key=lambda token: token.hole is None):
        if not is_prompt:
            found += ([token.text, token.source, token.hole] for token in tokens)
            continue
        first, *others = tokens
        text = b"".join([first.data, *(token.data for token in others)]).decode("utf-8", "replace")
        if not keeps_prompts and len(text) > 2 * PROMPT_SHOWN:
            text = f"{text[:PROMPT_SHOWN]} ... {text[-PROMPT_SHOWN:]}"
        found.append([text, first.source, None])
    return found
