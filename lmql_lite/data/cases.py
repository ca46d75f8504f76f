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
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, ValidationError

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
BEGIN = "each begins with a line [[case]]"


def _checked(condition: str) -> str:
    try:
        ast.parse(condition, mode="eval")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"not an expression of Python, such as 'len(ANSWER) < 5' ({error})") from None
    return condition


Condition = Annotated[str, AfterValidator(_checked)]


class Case(BaseModel):
    """Runs of a query with the same inputs, one per seed, and their expectations.

    `returns` is the expected value, if one is named, and `holes` has values of holes; `conditions` are Python
    expressions. The case passes if at least the share `pass_rate` of its runs passes.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str = ""
    inputs: dict[str, Any] = {}
    options: dict[str, Any] = {}
    returns: Any = None
    holes: dict[str, Any] = {}
    conditions: list[Condition] = Field([], alias="assert")
    seeds: PositiveInt | None = None
    pass_rate: float = Field(1.0, gt=0, le=1)

    _line: int = 0

    @property
    def line(self) -> int:
        return self._line

    @property
    def drawn(self) -> Sequence[int | None]:
        """The seed of each run."""
        return [self.options.get("seed")] if self.seeds is None else range(self.seeds)


class CaseTable(BaseModel):
    """A file of cases as it is written. Options above the first case apply to all."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    options: dict[str, Any] = {}
    case: list[Case] = Field(min_length=1)


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
        return self.query.with_suffix(".cases.jsonl")


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
        found = tomllib.loads(text)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"{path} is not TOML: {error}", hint="texts are in quotes, and a table is on one line"
        ) from None
    query = path.with_name(path.name.removesuffix(SUFFIX) + ".lq")
    if not query.is_file():
        raise InputError(f"{path} has cases of {query}, which does not exist", hint="cases are beside their query")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*case\s*\]\]", line)]
    if isinstance(tables := found.get("case"), list) and len(tables) != len(lines):
        raise InputError(f"{path} has no cases", hint=BEGIN)
    try:
        table = CaseTable.model_validate(found)
    except ValidationError as error:
        raise _problem(path, lines, error.errors()) from None
    cases: dict[str, Case] = {}
    for number, (each, line) in enumerate(zip(table.case, lines, strict=True), 1):
        name, options = each.name or f"case {number}", table.options | each.options
        case = each.model_copy(update={"name": name, "options": options})
        case._line = line
        if unknown := [name for name in case.options if name not in OPTIONS or name in OF_A_RUN]:
            hint = did_you_mean(unknown[0], OPTIONS)
            raise InputError(f"{path}:{line}: options has no {unknown[0]!r}", hint=hint)
        if case.name in cases:
            raise InputError(f"{path}:{line}: a second case is called {case.name!r}")
        cases[case.name] = case
    return CaseFile(path, query, table.model, tuple(cases.values()))


OF_A_RUN = ("cache", "cache_mode", "model", "session", "trace")
"""Options that a case may not set."""


def _problem(path: Path, lines: Sequence[int], errors: Sequence[Mapping[str, Any]]) -> InputError:
    """The error of what is no case, at its line; a key that is not known first."""
    found = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    first, *rest = found["loc"]
    if first != "case":
        place, known, names = str(path), [*CaseTable.model_fields], [first, *rest]
    elif not rest:
        return InputError(f"{path} has no cases", hint=BEGIN)
    else:
        place, names = f"{path}:{lines[rest[0]]}", rest[1:]
        known = [field.alias or name for name, field in Case.model_fields.items()]
    name = ".".join(map(str, names))
    if found["type"] == "extra_forbidden":
        return InputError(
            f"{place}: {name!r} is not known", hint=did_you_mean(name, known) or f"known: {', '.join(known)}"
        )
    return InputError(f"{place}: {name} is {found['input']!r}: {found['msg'].removeprefix('Value error, ')}")


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
    tasks = [[asyncio.create_task(run(case, seed)) for seed in case.drawn] for case in file.cases]
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
    if "returns" in case.model_fields_set and not equal(plain(result.value), case.returns):
        found.append(f"returned {result.value!r}, expected {case.returns!r}")
    for hole, value in case.holes.items():
        if hole not in result:
            others = did_you_mean(hole, result) or f"there are {', '.join(result)}"
            found.append(f"no hole {hole!r} was filled; {others}")
        elif not equal(plain(result[hole]), value):
            found.append(f"{hole} is {result[hole]!r}, expected {value!r}")
    known = {**case.inputs, **result.variables, "value": result.value, "prompt": result.prompt, "result": result}
    known.pop(INPUT, None)
    return found + [problem for condition in case.conditions if (problem := _unmet(condition, known))]


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
