"""Names and citations that can be checked: what is cited is written down, and a name means one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings

from tests.conftest import ROOT, SLOW, parsed

MODULES = sorted(path for path in (ROOT / "lmql_lite").rglob("*.py") if path.name != "__init__.py")
CIRCLING = ("What", "Who", "Which", "Where", "Whether", "How")
"""First words of a docstring that circles its thing (words.md, rule 1)."""

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


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(ROOT))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_a_docstring_names_its_thing_first() -> None:
    circling = []
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = (ast.get_docstring(node) or "-").split()[0]
                if first in CIRCLING:
                    circling.append(f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}")
    assert not circling


def test_the_slow_tests_are_files_that_there_are() -> None:
    assert [name for name in SLOW if not (ROOT / "tests" / name).exists()] == []


def test_a_busy_machine_fails_no_property() -> None:
    assert settings().deadline is None
    pattern = r"\bdeadline" + r"=(?!None)[^,)]+"
    assert [path for path in (ROOT / "tests").rglob("*.py") if re.search(pattern, path.read_text("utf-8"))] == []
