"""Runs of cases: each result says whether the case passed, and what failed otherwise."""

from __future__ import annotations

import ast
import asyncio
import builtins
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from lmql_lite.api import INPUT, Options, Query
from lmql_lite.api import compile as compile_query
from lmql_lite.data.cases import Case, CaseFile
from lmql_lite.data.equality import equal
from lmql_lite.engine.environment import value_of
from lmql_lite.engine.recording import Recording
from lmql_lite.engine.result import Result
from lmql_lite.engine.rows import rows_at_once
from lmql_lite.engine.session import Session
from lmql_lite.errors import LmqlLiteError, did_you_mean
from lmql_lite.models.base import Model
from lmql_lite.plain import plain


@dataclass(frozen=True, slots=True)
class CaseRun:
    """One run of a case. `problems` are sentences about failed expectations; `is_error`: the run ended with an
    exception."""

    seed: int | None
    value: Any
    problems: tuple[str, ...]
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Result of a case. `problem` is one line about why it did not pass."""

    case: Case
    runs: tuple[CaseRun, ...]
    seconds: float

    @property
    def passed(self) -> int:
        """Number of runs of which everything holds."""
        return sum(not run.problems for run in self.runs)

    @property
    def is_passed(self) -> bool:
        return self.passed >= self.case.pass_rate * len(self.runs) - 1e-9

    @property
    def is_error(self) -> bool:
        return not self.is_passed and any(run.is_error for run in self.runs)

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences about all runs, with their seeds where there are several."""
        if len(self.runs) == 1:
            return self.runs[0].problems
        return tuple(f"seed {run.seed}: {problem}" for run in self.runs for problem in run.problems)

    def as_dict(self) -> dict[str, Any]:
        """The result as values that JSON has."""
        runs = [
            {"seed": run.seed, "value": plain(run.value), "problems": list(run.problems), "error": run.is_error}
            for run in self.runs
        ]
        return {
            "name": self.case.name,
            "line": self.case.line,
            "passed": self.is_passed,
            "pass_rate": self.passed / len(self.runs),
            "needed": self.case.pass_rate,
            "seconds": round(self.seconds, 4),
            "runs": runs,
        }


async def run_cases(
    file: CaseFile, *, model: str | Model | None = None, recording: Recording | None = None
) -> AsyncGenerator[CaseResult, None]:
    """Runs the cases of a file, as many at a time as the model takes, and gives their results in the file's order.

    `model` overrides that of the file. All runs read and write the `recording`, which stays the caller's to close.
    Raises QueryError for a query that does not compile; what a run raises is a problem of its case.
    """
    query, session = compile_query(file.query), Session()
    chosen = model if model is not None else file.model
    places = asyncio.Semaphore(rows_at_once(chosen, query.program, session, None))

    async def run(case: Case, seed: int | None) -> CaseRun:
        async with places:
            return await _run(query, case, seed, cast("Options", {"model": chosen, "session": session}))

    before, Session.recording = Session.recording, recording
    began = time.perf_counter()
    tasks = [[asyncio.create_task(run(case, seed)) for seed in case.seeds] for case in file.cases]
    try:
        for case, runs in zip(file.cases, tasks, strict=True):
            done = tuple([await each for each in runs])
            now = time.perf_counter()
            yield CaseResult(case, done, now - began)
            began = now
    finally:
        for each in [each for runs in tasks for each in runs]:
            each.cancel()
        await asyncio.gather(*(each for runs in tasks for each in runs), return_exceptions=True)
        Session.recording = before


async def _run(query: Query, case: Case, seed: int | None, options: Options) -> CaseRun:
    own = {**case.options, **options, **({} if seed is None else {"seed": seed})}
    try:
        answer: Any = await query.run(case.inputs, **cast("Any", own))
    except Exception as error:
        said = error.report() if isinstance(error, LmqlLiteError) else f"{type(error).__name__}: {error}"
        return CaseRun(seed, None, (said,), is_error=not isinstance(error, AssertionError))
    result = answer[0] if isinstance(answer, list) else answer
    return CaseRun(seed, result.value, tuple(problems_of(case, result)))


def problems_of(case: Case, result: Result) -> list[str]:
    """Sentences about what does not hold of a result."""
    found = []
    for value in case.expected.values():
        if not equal(plain(result.value), value):
            found.append(f"returned {result.value!r}, expected {value!r}")
    for hole, value in case.holes.items():
        if hole not in result:
            others = did_you_mean(hole, result) or f"there are {', '.join(result)}"
            found.append(f"no hole {hole!r} was filled; {others}")
        elif not equal(plain(result[hole]), value):
            found.append(f"{hole} is {result[hole]!r}, expected {value!r}")
    for hole, options in case.distribution.items():
        found += _unlikely(hole, options, result)
    known = {**case.inputs, **result.variables, "value": result.value, "prompt": result.prompt, "result": result}
    known.pop(INPUT, None)
    return found + [problem for condition in case.conditions if (problem := _unmet(condition, known))]


def _unlikely(hole: str, options: Mapping[str, tuple[float, float]], result: Result) -> list[str]:
    pairs = result.variables.get(f"P({hole})")
    if pairs is None:
        return [f"[{hole}] has no distribution; write: distribution {hole} in [...] behind its prompt"]
    shares = {str(option): share for option, share in pairs}
    found = []
    for option, (low, high) in options.items():
        if option not in shares:
            found.append(f"{option!r} is not an option of [{hole}]; there are {', '.join(map(repr, shares))}")
        elif not low <= shares[option] <= high:
            wanted = f"at least {low:g}" if shares[option] < low else f"at most {high:g}"
            found.append(f"P({hole} = {option!r}) is {shares[option]:.4f}, expected {wanted}")
    return found


def _unmet(condition: str, known: Mapping[str, Any]) -> str | None:
    names = [node.id for node in ast.walk(ast.parse(condition, mode="eval")) if isinstance(node, ast.Name)]
    try:
        if value_of(compile(condition, "<assert>", "eval"), dict(known)):
            return None
    except NameError as error:
        name = next((name for name in names if name not in known and not hasattr(builtins, name)), "")
        return f"{condition}: {did_you_mean(name, known) or error}"
    except Exception as error:
        return f"{condition} raised {type(error).__name__}: {error}"
    values = [f"{name} = {known[name]!r}" for name in dict.fromkeys(names) if name in known]
    return f"{condition} does not hold" + (f": {', '.join(values)}" if values else "")
