"""`lq eval show|compare|export|merge`: reports and tables of the finished rows of data-set runs."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Literal

import click

from lmql_lite import __version__
from lmql_lite.apps.eval_views import (
    FORM,
    NOT_REACHED,
    RUN_PATH,
    comparison_lines,
    comparison_notes,
    is_worse,
    report_lines,
    report_notes,
    report_progress,
    row_cases,
)
from lmql_lite.apps.junit import write_junit
from lmql_lite.apps.terminal import counted, reporting, write, write_object, write_wrapped
from lmql_lite.errors import InputError

RUN = click.argument("run", metavar="RUN", type=RUN_PATH)


@click.command()
@RUN
@click.option("--wrong", is_flag=True, help="Rows whose first score is below 1.")
@click.option("--errors", "only_errors", is_flag=True, help="Rows that failed.")
@click.option("--id", "ids", multiple=True, metavar="ID", help="This row.")
@click.option("--html", is_flag=True, help="Write report.html to the folder of the run.")
@FORM
def show(run: Path, wrong: bool, only_errors: bool, ids: tuple[str, ...], html: bool, form: str) -> None:
    """Show the report of RUN, or some of its rows."""
    from lmql_lite.data.folder import last_attempts
    from lmql_lite.data.metrics import answer_of
    from lmql_lite.data.report import is_wrong, report_in

    with reporting(form == "json"):
        if html:
            from lmql_lite.data.pages import write_report

            report = report_in(run)
            write(str(write_report(run, [report_progress(report), *report_notes(report, str(run))])))
            return
        records = last_attempts(run)
        if not (wrong or only_errors or ids):
            report = report_in(run)
            if form == "json":
                write_object({"folder": str(run), **report})
            else:
                write_wrapped(report_lines(report, str(run)))
            return
        chosen = [
            record
            for record in records.values()
            if record["id"] in ids or (wrong and is_wrong(record)) or (only_errors and record.get("error"))
        ]
        if form == "json":
            write_object({"rows": chosen})
            return
        for record in chosen:
            answer = record["error"]["message"] if record.get("error") else json.dumps(answer_of(record))
            write(f"{record['id']}  line {record['line']}  target {json.dumps(record.get('target'))}  {answer}")


@click.command("compare")
@click.argument("first", metavar="A", type=RUN_PATH)
@click.argument("second", metavar="B", type=RUN_PATH)
@click.option("--cluster", metavar="COLUMN", help="Draw rows with equal values together.")
@click.option("--no-worse", type=float, metavar="X", help="Exit code 4 if B is worse than A by more than X.")
@click.option("--html", is_flag=True, help="Write compare.html, with the rows side by side, to the folder of B.")
@FORM
def compare_runs(first: Path, second: Path, cluster: str | None, no_worse: float | None, html: bool, form: str) -> None:
    """Compare runs A and B row by row."""
    from lmql_lite.data.report import compare

    with reporting(form == "json"):
        found = compare(first, second, cluster)
        if html:
            from lmql_lite.data.pages import write_comparison

            write(str(write_comparison(first, second, comparison_notes(found), cluster)))
        else:
            write_object(found) if form == "json" else write_wrapped(comparison_lines(found))
        if no_worse is not None and is_worse(found, no_worse):
            sys.exit(NOT_REACHED)


@click.command()
@RUN
@click.option(
    "--as", "kind", type=click.Choice(["csv", "parquet", "junit"]), default="csv", show_default=True,
    help="Format; junit is XML with a test case for each row, which fails if its first score is below 1.",
)  # fmt: skip
@click.option("-o", "--output", type=RUN_PATH, required=True, metavar="FILE")
def export(run: Path, kind: Literal["csv", "parquet", "junit"], output: Path) -> None:
    """Write the rows of RUN as a table, or as a test report."""
    from lmql_lite.data.folder import identity_of, last_attempts
    from lmql_lite.data.table import write_table

    with reporting(as_json=False):
        records = list(last_attempts(run).values())
        if kind == "junit":
            write_junit(output, [(str(run), [*row_cases(records, str(run), identity_of(run)["data"])])])
        else:
            write_table(records, kind, output)
        write(f"{output}: {counted(len(records), 'row')}")


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=RUN_PATH)
@click.option("-o", "--output", type=RUN_PATH, required=True, metavar="FOLDER")
def merge(runs: tuple[Path, ...], output: Path) -> None:
    """Join the rows of RUNs of one query and model in a new folder. The RUNs do not change."""
    from lmql_lite.data.folder import RunFolder, identity_of, last_attempts

    with reporting(as_json=False):
        identities = [identity_of(run) for run in runs]
        for run, identity in zip(runs, identities, strict=True):
            fields = ("query", "model", "fingerprint", "settings")
            others = [name for name in fields if identity[name] != identities[0][name]]
            if others:
                raise InputError(f"{run} is a run with another {', '.join(others)} than {runs[0]}")
        folder = RunFolder(output, identities[0], [f"lq {__version__}", *sys.argv[1:]])
        count = 0

        async def copy() -> int:
            number = 0
            for run in runs:
                for record in last_attempts(run).values():
                    await folder.add({name: each for name, each in record.items() if name not in ("crc32", "kind")})
                    number += 1
            return number

        try:
            count = asyncio.run(copy())
        finally:
            folder.close("merged")
        total = f"{counted(count, 'row')} of {counted(len(runs), 'run')}"
        write(f"{output}: {total}; the command of the runs with -o {output} makes its report")
