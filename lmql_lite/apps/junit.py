"""JUnit XML reports, with one test case per case of a query or row of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from lmql_lite.errors import InputError


@dataclass(frozen=True, slots=True)
class JUnitCase:
    """A test case. `problems` are sentences about failed expectations; a case that passed has none."""

    name: str
    classname: str
    file: str
    line: int
    seconds: float
    problems: Sequence[str] = ()
    is_error: bool = False


def write_junit(path: Path, suites: Sequence[tuple[str, Sequence[JUnitCase]]]) -> None:
    """Writes suites, each with its name. Raises InputError where the file cannot be written."""
    root = ElementTree.Element("testsuites")
    for name, cases in suites:
        bad = [case for case in cases if case.problems]
        errors = sum(case.is_error for case in bad)
        about = {"name": name, "tests": len(cases), "failures": len(bad) - errors, "errors": errors}
        suite = ElementTree.SubElement(root, "testsuite", {name: _clean(str(value)) for name, value in about.items()})
        suite.set("time", f"{sum(case.seconds for case in cases):.4f}")
        for case in cases:
            element = ElementTree.SubElement(
                suite, "testcase", classname=_clean(case.classname), name=_clean(case.name), file=_clean(case.file),
                line=str(case.line), time=f"{case.seconds:.4f}",
            )  # fmt: skip
            if case.problems:
                kind = "error" if case.is_error else "failure"
                first = next(iter(case.problems[0].splitlines()), "")
                problem = ElementTree.SubElement(element, kind, message=_clean(first))
                problem.text = _clean("\n".join(case.problems))
    try:
        ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None


def _clean(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return "".join(one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)
