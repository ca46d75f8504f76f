"""Warnings of `lq check`: what compiles and is hardly meant."""

from __future__ import annotations

from lmql_lite.lang.lint import lint, unseen
from lmql_lite.lang.query import parse
from lmql_lite.lang.scope import check
from lmql_lite.lang.source import Source
from tests.tables import cases


def doubted(text: str) -> list[str]:
    tree = parse(Source("q", text))
    return [
        f"{each.span.line}:{each.span.column} {each.message} | {each.hint}"
        for each in lint(tree, check(tree))
        if each.span
    ]


@cases("lang/lint", "a condition that is always true is a warning")
def test_a_condition_that_is_always_true_is_a_warning(where: str, said: str) -> None:
    assert doubted(f'"[X]" where {where}') == [said]


@cases("lang/lint", "what may well be meant is no warning", globals())
def test_what_may_well_be_meant_is_no_warning(text: str) -> None:
    assert doubted(text) == []


def test_every_doubt_of_a_file_is_found_in_its_order() -> None:
    found = doubted('if a:\n    "[X]" where X.isdigit\nfor i in b:\n    "[Y]" where "a" or Y\n')
    assert [each.split(" ")[0] for each in found] == ["2:17", "4:17"]


def test_characters_that_turn_or_hide_text_are_warned_of() -> None:
    text = '"one"\nx = "\u2067 # \u2066"\n"\u0645\u200c\u0645 \U0001f469\u200d\U0001f467"\n'
    found = unseen(Source("q.lq", text))
    assert [(each.span.line, each.message) for each in found if each.span] == [
        (2, "the invisible character U+2067 can make this line look different from what it does")
    ]
