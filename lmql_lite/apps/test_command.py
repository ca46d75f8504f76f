"""`lq test`: cases beside a query."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import aclosing, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from lmql_lite.apps.interruption import until_interrupted
from lmql_lite.apps.junit import JUnitCase, write_junit
from lmql_lite.apps.terminal import (
    BASE_URL,
    RUN_MODEL,
    counted,
    model_named,
    printable,
    put,
    reporting,
    write,
    write_object,
)

if TYPE_CHECKING:
    from lmql_lite.data.cases import CaseFile, CaseResult
    from lmql_lite.engine.recording import Recording
    from lmql_lite.models.base import Model

FAILED = 4
SHOWN = 5
"""Problems of one case that are shown."""


@click.command("test", short_help="Run the cases of a query: inputs, expected values, conditions.")
@click.argument("places", metavar="[FILE|DIR]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--record",
    type=click.Choice(["none", "new", "all"]),
    default="new",
    show_default=True,
    help="What to ask the model: nothing, what NAME.cases.jsonl lacks, or everything.",
)
@RUN_MODEL
@BASE_URL
@click.option("--junit", metavar="FILE", type=click.Path(path_type=Path), help="Write a report as JUnit XML.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with every case and run.")
def test(
    places: tuple[Path, ...], record: str, model: str | None, base_url: str | None, junit: Path | None, as_json: bool
) -> None:
    """Run the cases in NAME.cases.toml beside the query NAME.lq, or the cases of all queries below DIR.

    The model's answers are kept in NAME.cases.jsonl, so that with --record none the same cases need no model and no
    key. Exit code 4 if a case fails.
    """
    from lmql_lite.data.cases import case_files, read_cases

    with reporting(as_json):
        paths = dict.fromkeys(path for place in places or (Path(),) for path in case_files(place))
        files = [read_cases(path) for path in paths]
        chosen = model_named(model, {"base_url": base_url})
        done: list[tuple[CaseFile, list[CaseResult], Recording]] = []
        for file in files:
            with redirect_stdout(sys.stderr):
                done.append((file, *until_interrupted(_results(file, chosen, record))))
            if not as_json:
                put(printable("\n".join(_lines(*done[-1][:2])) + "\n"))
        if junit is not None:
            write_junit(junit, [(str(file.path), [*_junit_cases(file, results)]) for file, results, _ in done])
        results = [result for _, each, _ in done for result in each]
        failed = sum(not result.is_passed for result in results)
        if as_json:
            cases = [{"file": str(file.path), **result.as_dict()} for file, each, _ in done for result in each]
            write_object({"passed": len(results) - failed, "failed": failed, "cases": cases})
        else:
            asked, kept = (sum(getattr(one, name) for *_, one in done) for name in ("asked", "kept"))
            write(
                f"{counted(len(results), 'case')}: {len(results) - failed} passed, {failed} failed · "
                f"{counted(asked, 'token')} asked, {kept:,} known"
            )
        sys.exit(FAILED if failed else 0)


async def _results(file: CaseFile, model: str | Model | None, record: Any) -> tuple[list[CaseResult], Recording]:
    from lmql_lite.data.cases import run_cases
    from lmql_lite.data.metrics import only_modules_beside
    from lmql_lite.engine.recording import Recording, RecordMode

    assert record in get_args(RecordMode), "click takes no other"
    remedy = f"lq test {file.path} asks the model for what is missing"
    recording = Recording(file.recording, record, name=str(file.recording), remedy=remedy)
    results: list[CaseResult] = []
    try:
        with only_modules_beside(file.query.parent):
            async with aclosing(run_cases(file, model=model, recording=recording)) as runs:
                async for result in runs:
                    results.append(result)
    finally:
        is_whole = len(results) == len(file.cases) and all(result.is_passed for result in results)
        await recording.close(keep=is_whole)
    return results, recording


def _lines(file: CaseFile, results: list[CaseResult]) -> list[str]:
    lines = [str(file.path)]
    for result in results:
        share = f"  {result.passed} of {len(result.runs)} seeds" if len(result.runs) > 1 else ""
        if result.is_passed:
            lines.append(f"  ok    {result.case.name}{share}")
            continue
        needed = f", at least {result.case.pass_rate:g} must pass" if share else ""
        lines.append(f"  FAIL  {result.case.name}{share}{needed}  (line {result.case.line})")
        lines += [f"        {line}" for problem in result.problems[:SHOWN] for line in problem.splitlines()]
        if len(result.problems) > SHOWN:
            lines.append(f"        and {len(result.problems) - SHOWN} more")
    return lines


def _junit_cases(file: CaseFile, results: list[CaseResult]) -> Iterator[JUnitCase]:
    for result in results:
        problems = () if result.is_passed else result.problems
        yield JUnitCase(
            result.case.name, str(file.query), str(file.path), result.case.line, result.seconds, problems,
            result.is_error,
        )  # fmt: skip
