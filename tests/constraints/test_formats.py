"""Numbers, dates and kinds of characters, against Python's own definitions."""

from __future__ import annotations

import datetime
import itertools
import random
import re

import pytest

from lmql_lite.constraints import formats
from lmql_lite.constraints.pattern import every_character, program
from lmql_lite.constraints.simplify import satisfies
from lmql_lite.constraints.terms import Begins, Ends, Matches, Term
from lmql_lite.errors import Span
from tests.conftest import examples

HERE = Span("test.lq", "X", 0, 1)


def accepts(term: Term, text: str) -> bool:
    return satisfies(term, text.encode())


@pytest.mark.parametrize(
    "year", [0, 1, 4, 99, 100, 400, 1000, 1900, 1996, 2000, 2023, 2024, 2100, 4000, 8800, 9996, 9999]
)
def test_dates_are_the_days_that_exist(year: int) -> None:
    for month, day in itertools.product(range(14), range(33)):
        try:
            exists = bool(datetime.date(year, month, day))
        except ValueError:
            exists = False
        text = f"{year:04}-{month:02}-{day:02}"
        assert bool(re.fullmatch(formats.DATE, text)) == exists, text
        assert accepts(formats.shape("DATE", HERE), text) == exists, text


def test_every_year_has_its_leap_day_or_not() -> None:
    found = [year for year in range(10_000) if re.fullmatch(formats.DATE, f"{year:04}-02-29")]
    assert found == [y for y in range(1, 10_000) if y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)]
    for text in ("2024-1-1", "2024-01-01 ", "02024-01-01", "2024-01-1٣", "2024/01/01"):
        assert not accepts(formats.shape("DATE", HERE), text)


def test_integers_are_those_that_python_writes() -> None:
    """S20."""
    for text in ("0", "7", "-7", "10", "-10", "123456789012345678901234567890"):
        assert accepts(formats.shape("INT", HERE), text) and str(int(text)) == text
    for text in ("", "-", "-0", "+1", "007", "1.0", " 1", "1_000", "١", "1\n"):
        assert not accepts(formats.shape("INT", HERE), text)


def test_floats() -> None:
    for text in ("0", "-0", "3", "-3.25", "0.5", "10.00"):
        assert accepts(formats.shape("FLOAT", HERE), text) and isinstance(float(text), float)
    for text in ("", ".5", "1.", "01.5", "1e5", "inf", "nan", "+1", "1.5.2", "-"):
        assert not accepts(formats.shape("FLOAT", HERE), text)


@pytest.mark.parametrize("seed", range(60))
def test_integers_between_bounds(seed: int) -> None:
    dice = random.Random(seed)
    size = dice.choice([3, 12, 130, 1100, 10**6])
    low, high = (dice.choice([None, dice.randrange(-size, size)]) for _ in range(2))
    term = formats.integers(low, high, HERE)
    near = [bound + step for bound in (low, high) if bound is not None for step in range(-2, 3)]
    powers = [sign * 10**power + step for power in range(7) for step in (-1, 0, 1) for sign in (-1, 1)]
    for number in {*near, *powers, *(dice.randrange(-2 * size, 2 * size) for _ in range(200)), *range(-120, 121)}:
        inside = (low is None or low <= number) and (high is None or number <= high)
        assert accepts(term, str(number)) == inside, (low, high, number)
        assert not accepts(term, f"0{number}") and not accepts(term, f"+{number}") and not accepts(term, f"{number}a")
    assert not accepts(term, "-0") and not accepts(term, "") and not accepts(term, "-")


def test_large_bounds_stay_within_what_a_pattern_may_need() -> None:
    for bound in (10**formats.DIGITS_BUDGET - 1, int("5" * formats.DIGITS_BUDGET), 10 ** (formats.DIGITS_BUDGET - 1)):
        for term in (formats.integers(None, bound, HERE), formats.integers(-bound, None, HERE)):
            assert isinstance(term, Matches) and program(term.pattern, 0)
        assert accepts(formats.integers(bound, bound, HERE), str(bound))
        assert not accepts(formats.integers(bound, bound, HERE), str(bound - 1))


@pytest.mark.parametrize("name", formats.METHODS)
def test_methods_of_str_are_those_of_python(name: str) -> None:
    term = formats.method(name, HERE)
    assert isinstance(term, Matches)
    compiled = re.compile(term.pattern)
    every, matches, expected = 4 // examples(4), compiled.fullmatch, getattr(str, name)
    wrong = [c for c in every_character()[::every] if bool(matches(c)) != expected(c)]
    assert wrong == []
    dice = random.Random(7)
    for _ in range(400):
        text = "".join(dice.choices("aA1 _ǅßÉé\n٣²-文ªⅫ", k=dice.randrange(5)))
        assert accepts(term, text) == getattr(text, name)(), text


def test_beginnings_and_ends() -> None:
    phrases = (b"a.", "é\n".encode())
    begins, ends = Begins(phrases), Ends(phrases)
    for text in ("", "a", "a.", "ab", "a.\nb", "é\n", "é\né\n", "xa.", "xa.\n", "aé"):
        assert accepts(begins, text) == text.startswith(("a.", "é\n")), text
        assert accepts(ends, text) == text.endswith(("a.", "é\n")), text
    assert accepts(Begins((b"",)), "x") and accepts(Ends((b"",)), "")
    assert not accepts(Begins(()), "") and not accepts(Ends(()), "x")
