"""Editors and the page know the words of the language from one table, and the language agrees with it."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from typing import Any

import pytest

from lmql_lite.lang import keywords
from tests.conftest import ROOT

MADE = runpy.run_path(str(ROOT / "playground" / "words.py"))
TABLE: dict[str, list[str]] = MADE["table"]()
GRAMMAR: dict[str, Any] = json.loads((ROOT / "grammar" / "lq.tmLanguage.json").read_text("utf-8"))
OF_A_KIND = {
    "DECODER": "decoders",
    "FROM": "clauses",
    "WHERE": "clauses",
    "DISTRIBUTION": "clauses",
    "MATCH": "soft",
    "CASE": "soft",
}
NO_WORDS = {"ARGUMENTS", "EXPRESSION", "HEAD", "NAME", "PYTHON", "STRING"}


def test_what_was_generated_is_up_to_date() -> None:
    assert (ROOT / "playground" / "src" / "words.js").read_text("utf-8") == MADE["module"]()
    assert (ROOT / "grammar" / "lq.tmLanguage.json").read_text("utf-8") == MADE["grammar"]()


def test_every_word_of_the_grammar_is_in_the_table() -> None:
    text = (ROOT / "grammar" / "lq.lark").read_text("utf-8")
    declared = {word for line in re.findall(r"^%declare (.*)$", text, re.M) for word in line.split()}
    words = {terminal for terminal in declared if not terminal.startswith("_")} - NO_WORDS
    assert words, "the grammar declares its terminals in another way by now"
    for terminal in words - {"DECODER"}:
        assert terminal.lower() in TABLE[OF_A_KIND.get(terminal, "python")], terminal
    assert {word.upper() for word in TABLE["clauses"]} <= words


def rules(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from rules(inner)


def test_every_expression_of_the_grammar_for_editors_can_be_read() -> None:
    found = [rule[key] for rule in rules(GRAMMAR) for key in ("match", "begin") if key in rule]
    assert len(found) > 15
    for expression in found:
        re.compile(expression)


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ("support.function.constraint.lq", keywords.CONSTRAINTS),
        ("keyword.control.clause.lq", keywords.CLAUSES),
        ("support.type.lq", keywords.TYPES),
    ],
    ids=["constraints", "clauses", "types"],
)
def test_an_editor_knows_the_words_of_a_kind(scope: str, words: tuple[str, ...]) -> None:
    expressions = [rule["match"] for rule in rules(GRAMMAR) if rule.get("name") == scope and "match" in rule]
    for word in words:
        assert any((found := re.search(each, f"{word}(X)")) and found.group() == word for each in expressions), word


@pytest.mark.parametrize("name", keywords.DECODERS)
def test_a_header_is_known_by_its_decoder(name: str) -> None:
    header = GRAMMAR["repository"]["header"]["match"]
    assert (found := re.match(header, f"{name}(n=2)")) and found.group(1) == name
    assert not re.match(header, f"{name} = 3")
