"""What the patterned forms of a `where` clause mean: a term holds for a text where Python says so."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from lmql_lite.constraints.simplify import satisfies
from lmql_lite.errors import ConstraintError, QueryError
from tests.program.test_conditions import condition, term
from tests.tables import cases

TEXTS = (
    *("", "0", "7", "-7", "12", "119", "120", "121", "-119", "007", "-0", "1.5", "-0.25", "99999"),
    *(
        "a",
        "ab",
        "abc",
        "Ab",
        "AB",
        "xab",
        "b\n",
        "a b",
        "é",
        "ÉA",
        " ",
        "none",
        "a1",
        "_a",
        "2024-02-29",
        "2023-02-29",
    ),
)


@cases("program/patterns", "a term holds where python says so")
def test_a_term_holds_where_python_says_so(text: str) -> None:
    """Law 3: and where Python raises an error since a text is no number, it does not hold."""
    values = {
        "n": 3,
        "pattern": re.compile("[ab]+|N", re.I),
        "third": Fraction(36, 3),
        "infinity": float("inf"),
        "re": re,
    }
    bound = term(text, values)
    assert bound.span is not None and bound.span.source in text
    held = []
    for value in TEXTS:
        try:
            expected = bool(eval(text, {**values, "X": value}))
        except ValueError:
            expected = False
        if "int(X)" in text and value in ("007", "-0"):
            expected = False  # S20: one way to write a number
        held.append(satisfies(bound, value.encode()))
        assert held[-1] == expected, value
    assert any(held) or text in ("X.startswith(())", "int(X) == 11.5", "int(X) in range(0)", "int(X) > infinity")


@cases("program/patterns", "functions of a where clause mean what python could say")
def test_functions_of_a_where_clause_mean_what_python_could_say(text: str, meaning: str) -> None:
    values = {"pattern": re.compile("[ab]+|N", re.I), "re": re}
    for value in TEXTS:
        held = satisfies(term(text, values), value.encode())
        assert held == bool(eval(meaning, {**values, "X": value})), value


def test_an_order_that_python_would_change_does_not_change_a_term() -> None:
    assert term("STARTS_WITH(X, {'b', 'a', 'c'})") == term("X.startswith(('c', 'b', 'a', 'a'))")
    assert term("REGEX(X, pattern)", {"pattern": re.compile("a")}) == term("REGEX(X, 'a')")


@pytest.mark.parametrize(
    ("text", "part", "sentence"),
    [
        ("len(X) < 5 and REGEX(X, r'(?=a)b')", "r'(?=a)b'", "ahead or behind"),
        ("re.fullmatch('(a', X)", "'(a'", "not a regular expression"),
        (r"not REGEX(X, r'\bword\b')", r"r'\bword\b'", "word borders"),
    ],
)
def test_a_pattern_that_is_written_out_is_tried_before_anything_runs(text: str, part: str, sentence: str) -> None:
    """S22."""
    with pytest.raises(QueryError, match=sentence) as caught:
        condition(text)
    assert caught.value.span is not None and caught.value.span.source == part


@cases("program/patterns", "a value that cannot be followed is refused with its clause", globals())
def test_a_value_that_cannot_be_followed_is_refused_with_its_clause(text: str, value: object, sentence: str) -> None:
    with pytest.raises(ConstraintError, match=sentence) as caught:
        term(f"'a' in X and {text}", {"v": value})
    assert caught.value.span is not None and caught.value.span.source == text


@cases("program/patterns", "a function that is called wrongly is shown rightly", globals())
def test_a_function_that_is_called_wrongly_is_shown_rightly(text: str, hint: str) -> None:
    with pytest.raises(QueryError, match="takes a hole") as caught:
        condition(f"len(X) < 3 and {text}")
    assert caught.value.hint == hint


def test_the_function_of_another_hole_is_no_part_of_a_condition() -> None:
    with pytest.raises(QueryError, match="guides the hole") as caught:
        condition("len(X) < 3 or INT(Y)")
    assert caught.value.span is not None and caught.value.span.source == "INT(Y)" and caught.value.hint
