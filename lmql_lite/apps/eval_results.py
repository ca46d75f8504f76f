"""`lq eval show|compare|export`: reports and tables of the finished rows of data-set runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from lmql_lite.apps.eval_views import (
    NOT_REACHED,
    RUN_PATH,
    comparison_lines,
    comparison_notes,
    is_worse,
    report_lines,
    report_notes,
    report_progress,
)
from lmql_lite.apps.terminal import JSON, counted, reporting, write, write_object, write_wrapped

RUN = click.argument("run", metavar="RUN", type=RUN_PATH)


@click.command()
@RUN
@click.option("--wrong", is_flag=True, help="The rows that failed, and those whose first score is below 1.")
@click.option("--html", is_flag=True, help="Write report.html to the folder of the run.")
@JSON
def show(run: Path, wrong: bool, html: bool, as_json: bool) -> None:
    """Show the report of RUN, or its wrong rows."""
    from lmql_lite.data.folder import last_attempts
    from lmql_lite.data.metrics import answer_of
    from lmql_lite.data.report import is_wrong, report_in

    with reporting(as_json):
        if wrong:
            rows = [record for record in last_attempts(run).values() if is_wrong(record)]
            if as_json:
                write_object({"rows": rows})
            for record in () if as_json else rows:
                answer = record["error"]["message"] if record.get("error") else json.dumps(answer_of(record))
                write(f"{record['id']}  line {record['line']}  target {json.dumps(record.get('target'))}  {answer}")
            return
        report = report_in(run)
        if html:
            from lmql_lite.data.pages import write_report

            write(str(write_report(run, [report_progress(report), *report_notes(report, str(run))])))
        elif as_json:
            write_object({"folder": str(run), **report})
        else:
            write_wrapped(report_lines(report, str(run)))


@click.command("compare")
@click.argument("first", metavar="A", type=RUN_PATH)
@click.argument("second", metavar="B", type=RUN_PATH)
@click.option("--cluster", metavar="COLUMN", help="Draw rows with equal values together.")
@click.option("--no-worse", type=float, metavar="X", help="Exit code 4 if B is worse than A by more than X.")
@click.option("--html", is_flag=True, help="Write compare.html, with the rows side by side, to the folder of B.")
@JSON
def compare_runs(
    first: Path, second: Path, cluster: str | None, no_worse: float | None, html: bool, as_json: bool
) -> None:
    """Compare runs A and B row by row."""
    from lmql_lite.data.report import compare

    with reporting(as_json):
        found = compare(first, second, cluster)
        if html:
            from lmql_lite.data.pages import write_comparison

            write(str(write_comparison(first, second, comparison_notes(found), cluster)))
        else:
            write_object(found) if as_json else write_wrapped(comparison_lines(found))
        if no_worse is not None and is_worse(found, no_worse):
            sys.exit(NOT_REACHED)


@click.command()
@RUN
@click.option("-o", "--output", type=RUN_PATH, required=True, metavar="FILE")
def export(run: Path, output: Path) -> None:
    """Write the rows of RUN as a CSV table."""
    from lmql_lite.data.folder import last_attempts
    from lmql_lite.data.table import write_table

    with reporting(as_json=False):
        records = list(last_attempts(run).values())
        write_table(records, output)
        write(f"{output}: {counted(len(records), 'row')}")
