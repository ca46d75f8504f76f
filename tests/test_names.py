"""Names and citations that can be checked: every rule, law and decision that is cited is written down."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

CITING = [
    path
    for folder in ("lmql_lite", "tests", "docs", "grammar", "benchmarks", "playground/src")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".md", ".lark", ".js"} and "node_modules" not in path.parts
]


def cited(pattern: str) -> dict[str, Path]:
    """Each thing that is cited, with one file that cites it."""
    return {found: path for path in CITING for found in re.findall(pattern, path.read_text())}


@pytest.mark.parametrize(
    ("citation", "heading"),
    [(r"\bS(\d{1,2})\b", r"^\*\*S(\d+)\.\*\*"), (r"\b[Ll]aw (\d)\b", r"^\*\*Law (\d)\.")],
    ids=["rules", "laws"],
)
def test_every_rule_that_is_cited_is_in_the_semantics(citation: str, heading: str) -> None:
    written = set(re.findall(heading, (ROOT / "docs" / "semantics.md").read_text(), re.MULTILINE))
    dangling = {number: path for number, path in cited(citation).items() if number not in written}
    assert not dangling
