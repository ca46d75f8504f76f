"""Comparisons of a decimal text with a number, against Python's comparison of its `float()`."""

from __future__ import annotations

import itertools
import math
import operator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.constraints import formats
from lmql_lite.constraints.pattern import program
from lmql_lite.constraints.simplify import satisfies
from lmql_lite.constraints.terms import And, Matches, Or, Term
from lmql_lite.errors import Span

HERE = Span("test.lq", "X", 0, 1)
COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}
BOUNDS = (0, 1, -1, 2, 10, -12, 0.5, 1.5, -0.25, 0.1, 0.3, 0.1 + 0.2, 99.99, 120, Fraction(1, 3), Fraction(-7, 4), -0.0)
FLOAT = program(formats.FLOAT, 0)
signed = st.sampled_from(["", "-"])
digits = st.text("0123456789", max_size=formats.DECIMALS)
wholes = st.integers(0, 10**17).map(str) | st.integers(0, 200).map(str)


@st.composite
def numbers(draw: st.DrawFn, places: st.SearchStrategy[str]) -> str:
    behind = draw(places)
    return draw(signed) + draw(wholes) + (f".{behind}" if behind else "")


def accepts(term: Term, text: str) -> bool:
    return satisfies(term, text.encode())


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("value", BOUNDS, ids=str)
def test_every_short_number_is_on_the_side_where_python_puts_it(comparison: str, value: float) -> None:
    term = formats.compared(comparison, value, HERE)
    wholes = ("0", "1", "2", "3", "9", "10", "11", "12", "13", "99", "100", "119", "120", "121", "1200")
    places = ("", *(f".{''.join(each)}" for size in (1, 2) for each in itertools.product("0123459", repeat=size)))
    for sign, whole, behind in itertools.product(("", "-"), wholes, places):
        text = f"{sign}{whole}{behind}"
        assert accepts(term, text) == COMPARISONS[comparison](float(text), value), text
    for text in ("", "-", ".5", "1.", "01", "1e3", "+1", "nan", "inf", " 1", "1_0", "--1", "1.5.0"):
        assert not accepts(term, text), text


@settings(deadline=None)
@given(numbers(digits), numbers(digits).map(float) | st.floats(-1e9, 1e9) | st.integers(-(10**20), 10**20))
def test_numbers_with_as_many_places_as_are_kept_are_decided_as_python_does(text: str, value: float) -> None:
    for comparison in ("<", "<=", ">", ">="):
        held = accepts(formats.compared(comparison, value, HERE), text)
        assert held == COMPARISONS[comparison](float(text), value), comparison


@settings(deadline=None)
@given(numbers(st.text("0123456789", max_size=60) | st.sampled_from(["4" + "9" * 40, "0" * 330 + "1"])), st.data())
def test_what_a_term_accepts_python_accepts_however_long_it_is(text: str, data: st.DataObject) -> None:
    """Law 3: also where `float` rounds."""
    near = st.sampled_from([float(text), math.nextafter(float(text), math.inf), math.nextafter(float(text), -math.inf)])
    value = data.draw(near | st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100))
    for comparison, says in COMPARISONS.items():
        if accepts(formats.compared(comparison, value, HERE), text):
            assert says(float(text), value), comparison


@settings(deadline=None)
@given(st.integers(-(10**6), 10**6), st.integers(0, 5), st.integers(0, 6))
def test_equal_is_equal_with_or_without_zeros_behind(scaled: int, places: int, zeros: int) -> None:
    value = scaled / 10**places
    text = f"{value:.{places}f}"
    longer = text + ("." if "." not in text and zeros else "") + "0" * zeros
    for each in (text, longer):
        assert accepts(formats.compared("==", value, HERE), each)
        assert not accepts(formats.compared("!=", value, HERE), each)
        assert accepts(formats.one_of_numbers([1e9 + 0.5, value], HERE), each)
        assert not accepts(formats.none_of_numbers([1e9 + 0.5, value], HERE), each)
        assert accepts(formats.none_of_numbers([value + 1, value - 1], HERE), each)


def test_what_rounds_to_infinity_is_not_below_it() -> None:
    long = "1" + "0" * 400
    assert float(long) == math.inf
    for comparison in ("<", "<=", "!="):
        term = formats.compared(comparison, math.inf, HERE)
        assert accepts(term, "12.5") and accepts(term, "-0") and not accepts(term, long)
    for comparison in (">", ">=", "=="):
        assert not accepts(formats.compared(comparison, math.inf, HERE), "12.5")
        assert accepts(formats.compared(comparison, -math.inf, HERE), "12.5") == (comparison != "==")
    assert not accepts(formats.compared("<", -math.inf, HERE), "-12.5")


def test_a_number_that_no_float_is_equals_none() -> None:
    assert not accepts(formats.compared("==", Fraction(1, 3), HERE), "0.3333333333333333")
    assert not accepts(formats.compared("==", 2**53 + 1, HERE), str(2**53 + 1))
    assert accepts(formats.compared("==", 2**53, HERE), str(2**53))


@pytest.mark.parametrize("value", [*BOUNDS, 10**119, -(10**119), 1e-300], ids=str)
def test_a_bound_is_a_small_pattern(value: float) -> None:
    def patterns(term: Term) -> list[str]:
        if isinstance(term, And | Or):
            return [pattern for part in term.terms for pattern in patterns(part)]
        return [term.pattern] if isinstance(term, Matches) else []

    for comparison in COMPARISONS:
        for pattern in patterns(formats.compared(comparison, value, HERE)):
            assert program(pattern, 0)
            assert len(pattern) < 600 or abs(value) > 1e100
