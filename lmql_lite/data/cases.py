"""Cases of a query: inputs and expectations, in a TOML file beside the query, and their runs.

# choose.cases.toml
[[case]]
name = "rain"
inputs = { weather = "rainy" }
returns = "umbrella"
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import re
import time
import tomllib
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lmql_lite.api import INPUT, Options, Query
from lmql_lite.api import compile as compile_query
from lmql_lite.data.equality import equal
from lmql_lite.engine.environment import value_of
from lmql_lite.engine.recording import Recording
from lmql_lite.engine.result import Result
from lmql_lite.engine.rows import rows_at_once
from lmql_lite.engine.session import Session
from lmql_lite.errors import InputError, LmqlLiteError, did_you_mean
from lmql_lite.models.base import Model
from lmql_lite.options import OPTIONS
from lmql_lite.plain import plain

SUFFIX = ".cases.toml"
OF_A_FILE = ("query", "model", "options", "case")
OF_A_CASE = (
    "name", "inputs", "options", "returns", "holes", "assert", "distribution", "seeds", "pass_rate"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """Runs of a query with the same inputs, one per seed, and their expectations.

    `expected` has the return value, if one is named, as `returns`; `holes` has values of holes; `conditions` are Python
    expressions; `distribution` has the lowest and highest probabilities of options for each hole. The case passes if at
    least the share `pass_rate` of its runs passes.
    """

    name: str
    line: int
    inputs: Mapping[str, Any]
    options: Mapping[str, Any]
    expected: Mapping[str, Any]
    holes: Mapping[str, Any]
    conditions: tuple[str, ...]
    distribution: Mapping[str, Mapping[str, tuple[float, float]]]
    seeds: tuple[int | None, ...]
    pass_rate: float


@dataclass(frozen=True, slots=True)
class CaseFile:
    """Cases of one query. `model` is the one that the file names."""

    path: Path
    query: Path
    model: str | None
    cases: tuple[Case, ...]

    @property
    def recording(self) -> Path:
        """File with what the model answered to the cases."""
        return self.path.with_name(f"{self.path.name.removesuffix(SUFFIX)}.cases.jsonl")


def case_files(place: Path) -> Iterator[Path]:
    """Case files that a name stands for: itself, that of a query, or all below a folder. Raises InputError."""
    if place.is_dir():
        found = sorted(
            path
            for path in place.rglob(f"*{SUFFIX}")
            if not any(part[0] == "." for part in path.relative_to(place).parts)
        )
        if not found:
            raise InputError(f"{place} has no cases", hint=f"cases of choose.lq are in choose{SUFFIX}, beside it")
        yield from found
    elif place.suffix in (".lq", ".lmql"):
        path = place.with_name(place.stem + SUFFIX)
        if not path.exists():
            raise InputError(f"{place} has no cases: there is no file {path}", hint="docs/testing.md shows one")
        yield path
    elif place.name.endswith(SUFFIX):
        yield place
    else:
        raise InputError(f"{place} is not a query, a folder or a file that ends in {SUFFIX}")


def read_cases(path: Path) -> CaseFile:
    """The cases of a file. Raises InputError, with the line of the case, for what is not a case."""
    try:
        text = path.read_text("utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"{path} is not TOML: {error}", hint="texts stand in quotes, and a table on one line"
        ) from None
    place = str(path)
    _known(table, OF_A_FILE, place)
    query = path.with_name(_text(table, "query", place) or path.name.removesuffix(SUFFIX) + ".lq")
    if not query.is_file():
        raise InputError(
            f"{path} has cases of {query}, which does not exist", hint='query = "FILE.lq" names another one'
        )
    lines = [number for number, line in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*case\s*\]\]", line)]
    tables, shared = table.get("case"), _table(table, "options", place)
    if not isinstance(tables, list) or not tables or len(lines) != len(tables):
        raise InputError(f"{path} has no cases", hint="each begins with a line [[case]]")
    cases = tuple(
        _case(each, number, line, shared, f"{path}:{line}")
        for number, (each, line) in enumerate(zip(tables, lines, strict=True), 1)
    )
    names = [case.name for case in cases]
    if twice := [case for at, case in enumerate(cases) if case.name in names[:at]]:
        raise InputError(f"{path}:{twice[0].line}: a second case is called {twice[0].name!r}")
    return CaseFile(path, query, _text(table, "model", place), cases)


def _case(table: dict[str, Any], number: int, line: int, shared: dict[str, Any], place: str) -> Case:
    _known(table, OF_A_CASE, place)
    options = shared | _table(table, "options", place)
    for name in options:
        if name not in OPTIONS or name in ("cache", "cache_mode", "model", "session", "trace"):
            hint = did_you_mean(name, OPTIONS)
            raise InputError(f"{place}: options has no {name!r}", hint=hint)
    conditions = table.get("assert", [])
    conditions = [conditions] if isinstance(conditions, str) else conditions
    for condition in conditions:
        try:
            ast.parse(condition, mode="eval")
        except (SyntaxError, TypeError, ValueError) as error:
            raise InputError(
                f"{place}: assert has {condition!r}, which is not an expression of Python ({error})",
                hint='such as assert = ["len(ANSWER) < 5"]',
            ) from None
    seeds, rate = table.get("seeds"), table.get("pass_rate", 1.0)
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds > 0:
        seeds = list(range(seeds))
    if seeds is not None and not (isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds)):
        raise InputError(f"{place}: seeds is a number of them, or a list; this is {seeds!r}", hint="seeds = 20")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
        raise InputError(f"{place}: pass_rate is a share above 0 and at most 1; this is {rate!r}")
    if rate < 1 and seeds is None:
        raise InputError(f"{place}: pass_rate is a share of seeds, and there is one run", hint="add seeds = 20")
    return Case(
        name=_text(table, "name", place) or f"case {number}",
        line=line,
        inputs=_table(table, "inputs", place),
        options=options,
        expected={"returns": table["returns"]} if "returns" in table else {},
        holes=_table(table, "holes", place),
        conditions=tuple(conditions),
        distribution={hole: _bounds(hole, each, place) for hole, each in _table(table, "distribution", place).items()},
        seeds=(options.get("seed"),) if seeds is None else tuple(seeds),
        pass_rate=float(rate),
    )


def _bounds(hole: str, options: Any, place: str) -> dict[str, tuple[float, float]]:
    found = {}
    for option, bound in options.items() if isinstance(options, dict) else [("", None)]:
        bounds: list[Any] = bound if isinstance(bound, list) else [bound, 1.0]
        if len(bounds) != 2 or not all(isinstance(each, int | float) and 0 <= each <= 1 for each in bounds):
            raise InputError(
                f"{place}: distribution.{hole} gives the lowest probability of each option, or the lowest and "
                "the highest",
                hint=f'distribution.{hole} = {{ " yes" = 0.6, " no" = [0, 0.4] }}',
            )
        found[option] = (float(bounds[0]), float(bounds[1]))
    return found


def _known(table: Mapping[str, Any], names: tuple[str, ...], place: str) -> None:
    for name in table:
        if name not in names:
            raise InputError(
                f"{place}: {name!r} is not known", hint=did_you_mean(name, names) or f"known: {', '.join(names)}"
            )


def _table(table: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise InputError(f"{place}: {name} is a table; this is {found!r}", hint=f'{name} = {{ NAME = "value" }}')
    return found


def _text(table: Mapping[str, Any], name: str, place: str) -> str | None:
    found = table.get(name)
    if found is not None and not isinstance(found, str):
        raise InputError(f"{place}: {name} is a text; this is {found!r}")
    return found


# Runs ----------------------------------------------------------------------------------------------------------------


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

    session.recording, began = recording, time.perf_counter()
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
