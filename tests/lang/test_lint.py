"""Warnings of `lq check`: what compiles and is hardly meant."""

from __future__ import annotations

import pytest

from lmql_lite.lang.lint import lint, unseen
from lmql_lite.lang.query import parse
from lmql_lite.lang.scope import check
from lmql_lite.lang.source import Source


def doubted(text: str) -> list[str]:
    tree = parse(Source("q", text))
    return [
        f"{each.span.line}:{each.span.column} {each.message} | {each.hint}"
        for each in lint(tree, check(tree))
        if each.span
    ]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ('X == "a" or "b"', '1:25 `"b"` alone is always true | write X == "b"'),
        ('X != "a" and "b"', '1:26 `"b"` alone is always true | write X != "b"'),
        ('X in ["a"] or 3', "1:27 `3` alone is always true | remove it, or compare it with something"),
        ("len(X) < 3 and not False", "1:32 `False` alone is always false | remove it, or compare it with something"),
        ("X.isdigit", "1:13 `X.isdigit` is a method that is not called | write X.isdigit()"),
        ("[X, 1]", "1:13 a list is always true, whatever stands in it | join conditions with and, or"),
        ("{X}", "1:13 a list is always true, whatever stands in it | join conditions with and, or"),
        ("lambda: X", "1:13 this is not a condition: it is always true | compare it with something"),
        (
            "len(X) < 3 and INT",
            "1:28 `INT` is a function that is not called, and so always true | write INT(...)",
        ),
    ],
)
def test_a_condition_that_is_always_true_is_a_warning(where: str, said: str) -> None:
    assert doubted(f'"[X]" where {where}') == [said]


@pytest.mark.parametrize(
    "text",
    [
        '"[X]" where X == "a" or X == "b"',
        '"[X]" where X and X.isdigit() or flag',
        '"[X]" where len(X) < 3 and check(X)\n',
        '"[X]" where X.strip().lower() == "a" and len([X, 1]) == 2',
        'INT = True\n"[X]" where X and INT',
        "\"{place}[X: 'a+']\"",
    ],
)
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
