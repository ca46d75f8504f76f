"""`X.lower() == ".."`, `X.strip() in [..]`: exactly the texts of which Python says so."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.constraints.charset import every_character
from lmql_lite.constraints.simplify import satisfies
from lmql_lite.constraints.spellings import SIGMAS, spellings
from lmql_lite.constraints.terms import Choice, Constant, Matches
from lmql_lite.errors import Span

HERE = Span("test.lq", "X", 0, 1)
LETTERS = "yesYESkK\u212aß\u1e9eİi̇ıIåÅ\u212bǅǆ \n\u2003\x1f."


def tidied(text: str, lowered: bool, left: bool, right: bool) -> str:
    text = text.lower() if lowered else text
    text = text.lstrip() if left else text
    return text.rstrip() if right else text


@pytest.mark.parametrize(("lowered", "left", "right"), list(product((False, True), repeat=3)))
def test_a_term_holds_for_what_python_makes_equal(lowered: bool, left: bool, right: bool) -> None:
    options = ("yes", "k", "i̇", "Yes", " k", "", "ß", "å", "y\u2003s", "s ")
    term = spellings(options, HERE, lowered=lowered, left=left, right=right)

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
        term = spellings((small,), HERE, lowered=True, left=False, right=False)
        assert isinstance(term, Matches)
        compiled = re.compile(term.pattern)
        assert [each for each in every_character() if compiled.fullmatch(each)] == lowered[small]
    assert {character for character in every_character() if len(character.lower()) > 1} == {"İ"}
    assert {"Σ".lower(), "aΣ".lower()[1]} == SIGMAS


def test_what_lower_never_gives_is_no_option() -> None:
    assert spellings(("Yes",), HERE, lowered=True, left=False, right=False) == Constant(False)
    assert spellings((" a", "b"), HERE, lowered=False, left=False, right=False) == Choice((b" a", b"b"))
