"""`X.lower() == ".."`, `X.strip() in [..]`, `".." in X.upper()`: exactly the texts for which Python is true."""

from __future__ import annotations

import random
import re
from itertools import product
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.constraints.charset import every_character
from lmql_lite.constraints.letter_case import (
    LONGEST,
    SIGMAS,
    Case,
    Inexact,
    containing,
    ending,
    spelled,
    spellings,
    starting,
)
from lmql_lite.constraints.simplify import satisfies
from lmql_lite.constraints.terms import Choice, Constant, Matches
from lmql_lite.errors import Span

HERE = Span("test.lq", "X", 0, 1)
CASES: tuple[Case, ...] = get_args(Case)
LETTERS = "yesYESkK\u212aß\u1e9eİi̇ıIåÅ\u212bǅǆ \n\u2003\x1f."


def tidied(text: str, lowered: bool, left: bool, right: bool) -> str:
    text = text.lower() if lowered else text
    text = text.lstrip() if left else text
    return text.rstrip() if right else text


@pytest.mark.parametrize(("lowered", "left", "right"), list(product((False, True), repeat=3)))
def test_a_term_holds_for_what_python_makes_equal(lowered: bool, left: bool, right: bool) -> None:
    options = ("yes", "k", "i̇", "Yes", " k", "", "ß", "å", "y\u2003s", "s ")
    term = spellings(options, HERE, case="lower" if lowered else None, left=left, right=right)

    @settings(deadline=None)
    @given(st.text(LETTERS, max_size=4))
    def same(text: str) -> None:
        assert satisfies(term, text.encode()) == (tidied(text, lowered, left, right) in options)

    same()
    for text in ("yes", "YES ", " yEs", "\n K", "İ", "I\u0307", " ", "Å", "y\u2003S"):
        assert satisfies(term, text.encode()) == (tidied(text, lowered, left, right) in options), text


def test_every_character_is_lowered_as_python_does() -> None:
    lowered: dict[str, list[str]] = {}
    for character in every_character():
        lowered.setdefault(character.lower(), []).append(character)
    for small in ("k", "s", "å", "ß", "ω", "ǆ", "ⴀ", "i̇", "ა", "ꮿ", "1", "文"):
        term = spellings((small,), HERE, case="lower", left=False, right=False)
        assert isinstance(term, Matches)
        compiled = re.compile(term.pattern)
        assert [each for each in every_character() if compiled.fullmatch(each)] == lowered[small]
    assert {character for character in every_character() if len(character.lower()) > 1} == {"İ"}
    assert {"Σ".lower(), "aΣ".lower()[1]} == SIGMAS


def test_what_lower_never_gives_is_no_option() -> None:
    assert spellings(("Yes",), HERE, case="lower", left=False, right=False) == Constant(False)
    assert spellings((" a", "b"), HERE, case=None, left=False, right=False) == Choice((b" a", b"b"))


MIXED = "yesYESkK\u212aß\u1e9eSſﬀfF\ufb01iİi̇ıIåÅ\u212bǅǆǄŉʼnN ΐι\u0308\u0301.1ªaA"


@pytest.mark.parametrize("case", CASES)
def test_every_method_that_changes_case_is_followed_in_both_directions(case: Case) -> None:
    dice = random.Random(len(case))
    for _ in range(150):
        base = "".join(dice.choices(MIXED, k=dice.randint(0, 4)))
        text = dice.choice([base, "".join(dice.choices(MIXED, k=dice.randint(0, 5)))])
        target, made = getattr(base, case)(), getattr(text, case)()
        pattern = spelled(target, case, HERE)
        assert pattern is not None and (re.fullmatch(pattern, text) is not None) == (made == target), (target, text)
        at = dice.randint(0, max(len(target) - 1, 0))
        part = target[at : at + dice.randint(1, 3)]
        for left, right in product((False, True), repeat=2):
            stripped = tidied(made, False, left, right)
            begins = starting(part, HERE, case=case, left=left, right=right)
            found = bool(begins and re.fullmatch(begins, text))
            assert found == stripped.startswith(part), (part, text, left, right)
            ends = ending(part, HERE, case=case, left=left, right=right)
            found = bool(ends and re.fullmatch(ends, text))
            assert found == stripped.endswith(part), (part, text, left, right)
        inside = containing(part, HERE, case)
        assert bool(inside and re.fullmatch(inside, text)) == (part in made), (part, text)


@pytest.mark.parametrize("case", CASES)
def test_what_the_patterns_take_for_granted_of_python(case: Case) -> None:
    """No character becomes more than LONGEST characters. White space stays the same, and nothing else becomes it."""
    for character in every_character():
        made = getattr(character, case)()
        assert len(made) <= LONGEST
        assert made == character if character.isspace() else not any(map(str.isspace, made))


@pytest.mark.parametrize(("text", "case"), [("aσ", "lower"), ("ς", "swapcase"), ("S" * 40, "upper")])
def test_what_no_pattern_says_exactly_is_left_to_python(text: str, case: Case) -> None:
    with pytest.raises(Inexact):
        spelled(text, case, HERE)
