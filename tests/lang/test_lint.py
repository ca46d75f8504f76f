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
        ('X.lower == "a"', "1:13 `X.lower` is a method that is not called | write X.lower()"),
        ("[X, 1]", "1:13 a list is always true, whatever stands in it | join conditions with and, or"),
        ("{X}", "1:13 a list is always true, whatever stands in it | join conditions with and, or"),
        ("lambda: X", "1:13 this is not a condition: it is always true | compare it with something"),
        (
            "len(X) < 3 and INT",
            "1:28 `INT` is a function that is not called, and so always true | write INT(...)",
        ),
        (
            "lenght(X) < 3",
            "1:13 the function 'lenght' is neither defined nor imported, and so an input of the query"
            " | did you mean len?",
        ),
    ],
)
def test_a_condition_that_is_always_true_is_a_warning(where: str, said: str) -> None:
    assert doubted(f'"[X]" where {where}') == [said]


def test_a_type_that_nothing_defines_is_a_warning() -> None:
    (said,) = doubted('"[X: strng]"')
    assert said.startswith("1:6 the type 'strng' is neither defined") and said.endswith("did you mean str?")


@pytest.mark.parametrize(
    "text",
    [
        '"[X]" where X == "a" or X == "b"',
        '"[X]" where X and X.isdigit() or flag',
        '"[X]" where len(X) < 3 and check(X)\n',
        '"[X]" where X.strip().lower() == "a" and len([X, 1]) == 2',
        'from m import T\n"[X: T]"',
        'INT = True\n"[X]" where X and INT',
        "\"{place}[X: 'a+']\"",
    ],
)
def test_what_may_well_be_meant_is_no_warning(text: str) -> None:
    assert [said for said in doubted(text) if "'check'" not in said] == []


def test_every_doubt_of_a_file_is_found_in_its_order() -> None:
    found = doubted('if a:\n    "[X]" where X.isdigit\nfor i in b:\n    "[Y: Foo]"\n')
    assert [each.split(" ")[0] for each in found] == ["2:17", "4:10"]


def test_text_that_the_query_compares_with_a_number_is_a_warning() -> None:
    found = doubted('"[X] [N: int]" where len(X) < 9\nif X < 3 or N < 3:\n    return 3 == X\n')
    assert found == [
        "2:4 `X < 3` compares text with a number: [X] is text | write int(X) < 3, or [X: int] in the prompt",
        "3:12 `3 == X` compares text with a number: [X] is text | write 3 == int(X), or [X: int] in the prompt",
    ]


@pytest.mark.parametrize(
    "text",
    [
        '"[X]" where INT(X)\nif X < 3:\n    return',
        '"[X]"\nX = int(X)\nif X < 3:\n    return',
        '"[@f X]"\nif X < 3:\n    return',
        '"[X]"\nif int(X) < 3 or len(X) == 2 or X == "3":\n    return',
    ],
)
def test_a_number_that_a_hole_has_become_may_be_compared(text: str) -> None:
    assert [each for each in doubted(text) if "compares" in each] == []


def test_characters_that_turn_or_hide_text_are_warned_of() -> None:
    text = '"one"\nx = "\u2067 # \u2066"\n"\u0645\u200c\u0645 \U0001f469\u200d\U0001f467"\n'
    found = unseen(Source("q.lq", text))
    assert [(each.span.line, each.message) for each in found if each.span] == [
        (2, "the invisible character U+2067 can make this line look different from what it does")
    ]
