"""`lq check`: reports mistakes in queries to people, programs, GitHub and code scanners."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from lmql_lite.apps.examination import Finding, findings_of, queries_of
from lmql_lite.apps.terminal import EXIT_CODES, as_report, counted, write
from lmql_lite.errors import InputError, Span
from lmql_lite.lang.source import Source

Findings = Mapping[str, Sequence[Finding]]
"""Findings by file."""


@click.command(short_help="Find mistakes in queries; no model is asked.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="json: one object with all findings. github: annotations of a pull request.",
)
def check(files: tuple[str, ...], form: str) -> None:
    """Find all mistakes in each FILE that can be found without running it. No model is asked.

    Code that compiles but is probably a mistake, such as a condition that is always true, is a warning. In a Python
    file, docstrings that begin with a line `lq` are checked. Exit codes: 0 no errors, 2 a file cannot be read, 3 a
    query does not compile, 4 a condition cannot be met.
    """
    found = {file: _findings(file) for file in files}
    codes = [min(codes) for each in found.values() if (codes := [EXIT_CODES[type(one.error)] for one in errors(each)])]
    problems = sum(len(errors(each)) for each in found.values())
    write(FORMATS[form](found))
    if problems and form == "text":
        click.echo(f"{counted(problems, 'problem')} found", err=True)
    sys.exit(max(codes, default=0))


def _findings(file: str) -> Sequence[Finding]:
    try:
        source = _source(file)
        return tuple(findings_of(queries_of(source), source.text))
    except InputError as error:
        return (Finding(error, "error"),)


def _source(file: str) -> Source:
    return Source.from_bytes("<stdin>", sys.stdin.buffer.read()) if file == "-" else Source.from_file(file)


def errors(findings: Sequence[Finding]) -> list[Finding]:
    return [each for each in findings if each.severity == "error"]


def as_text(found: Findings) -> str:
    lines = []
    for file, findings in found.items():
        for each in findings:
            error = each.error
            sentence = error.message if each.severity == "error" else f"warning: {error.message}"
            lines.append(as_report(type(error)(sentence, span=error.span, hint=error.hint), sys.stdout))
        if not errors(findings):
            count = f", with {counted(len(findings), 'warning')}" if findings else ""
            lines.append(f"{file}: ok{count}")
    return "\n".join(lines)


def as_json(found: Findings) -> str:
    findings = [_object(file, each) for file, findings in found.items() for each in findings]
    is_ok = not any(errors(each) for each in found.values())
    return json.dumps({"ok": is_ok, "files": list(found), "findings": findings, "schema": 1}, indent=2)


def _object(file: str, finding: Finding) -> dict[str, Any]:
    error = finding.error
    return {
        "file": file,
        "severity": finding.severity,
        "code": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        **_place(error.span),
    }


def _place(span: Span | None) -> dict[str, int]:
    """First and last place, counted from 1; the last column is the first one behind the span."""
    if span is None:
        return {"line": 1, "column": 1, "end_line": 1, "end_column": 1}
    end = span.at(span.end, span.end)
    return {"line": span.line, "column": span.column, "end_line": end.line, "end_column": end.column}


def as_github(found: Findings) -> str:
    """Workflow commands, which GitHub draws beside the lines of a pull request."""
    lines = []
    for file, findings in found.items():
        for each in findings:
            place = _place(each.error.span)
            text = "\n".join(filter(None, [each.error.message, each.error.hint and f"hint: {each.error.hint}"]))
            where: dict[str, int | str] = {
                "file": file,
                "line": place["line"],
                "endLine": place["end_line"],
                "title": "lq check",
            }
            if place["line"] == place["end_line"]:  # GitHub takes columns within one line only
                where |= {"col": place["column"], "endColumn": place["end_column"]}
            properties = ",".join(f"{name}={_escaped(str(value), ',:')}" for name, value in where.items())
            lines.append(f"::{each.severity} {properties}::{_escaped(text)}")
    return "\n".join(lines)


def _escaped(text: str, others: str = "") -> str:
    return "".join(f"%{ord(each):02X}" if each in f"%\r\n{others}" else each for each in text)


FORMATS: Mapping[str, Callable[[Findings], str]] = {
    "text": as_text,
    "json": as_json,
    "github": as_github,
}
