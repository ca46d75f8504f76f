"""Many phrases in one condition: each is a count that stops at one."""

from __future__ import annotations

import random
import string
import time

import numpy as np
import pytest

from lmql_lite.constraints.matcher import Engine, HoleMatcher
from lmql_lite.constraints.terms import And, Begins, Choice, Ends, Length, Not, Or, Stop, Term, contains
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ConstraintError, Span

WORDS = ("apple", "banana", "cherry", "elder", "grape", "orange", "day", " day", "ing", "anana", "rapple")
VOCABULARY = Vocabulary((None, *(bytes([byte]) for byte in range(256)), *map(str.encode, WORDS)), frozenset({0}))
EIGHT = ("abcd", "efgh", "ijkl", "mnop", "cdef", "ghij", "klmn", "opqr")
"""Phrases whose shortest common text has 18 letters: `abcdef..`."""


def has(*phrases: str) -> tuple[Term, ...]:
    return tuple(
        contains(phrase.encode(), Span("test.lq", f'"{phrase}" in X', 0, len(phrase) + 7)) for phrase in phrases
    )


def opened(*terms: Term, max_tokens: int = 1024) -> HoleMatcher:
    return Engine(VOCABULARY).matcher(And(terms), b"", max_tokens, "X", Span("test.lq", "[X]", 0, 3))


def filled(matcher: HoleMatcher, seed: int) -> str:
    """Value of a hole filled with random tokens that the masks allow."""
    dice = random.Random(seed)
    for left in range(100, 0, -1):
        if matcher.ending is not None:
            break
        allowed = [token for token in np.flatnonzero(matcher.allowed(b"", left)).tolist() if token]
        if not allowed:
            break
        matcher = matcher.advance(VOCABULARY.tokens[dice.choice(allowed)] or b"")
    assert matcher.ending is not None or matcher.may_end, "dead end"
    return matcher.value.decode()


@pytest.mark.parametrize("last", [(), (Stop(b".", True),), (Stop(b".", False),)])
def test_eight_phrases_are_met_to_the_last_character(last: tuple[Term, ...]) -> None:
    for most in (18, 40):
        matcher = opened(*has(*EIGHT), Length(0, most), *last)
        for seed in range(3):
            value = filled(matcher, seed)
            assert all(phrase in value for phrase in EIGHT) and len(value) <= most, value
    with pytest.raises(ConstraintError, match="cannot hold together"):
        opened(*has(*EIGHT), Length(0, 17), *last)


def test_phrases_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConstraintError, match="cannot hold together") as raised:
        opened(*has(*"abcdefgh"), Length(0, 7, span=Span("test.lq", "len(X) < 8", 0, 10)))
    assert '"h" in X' in raised.value.message and "len(X) < 8" in raised.value.message


def test_phrases_that_are_too_many_are_named_within_a_second() -> None:
    for more in ((), (Length(0, 400),), (Length(0, 40, "words"), Length(0, 400))):
        began = time.process_time()
        with pytest.raises(ConstraintError, match="these conditions together") as raised:
            opened(*has(*string.ascii_lowercase), *more)
        assert '"z" in X' in raised.value.message and time.process_time() - began < 1.5


def test_alternatives_of_phrases_and_lengths() -> None:
    either = tuple(Or((*has(phrase), Length(0, 20 + at))) for at, phrase in enumerate(EIGHT[:6]))
    neither = Or(
        tuple(
            And((*has(phrase), Not(contains(phrase[::-1].encode())), Length(0, 20 + at)))
            for at, phrase in enumerate(("ab", "cd", "ef", "gh", "ij", "kl"))
        )
    )
    for seed in range(3):
        value = filled(opened(*either), seed)
        assert all(phrase in value or len(value) <= 20 + at for at, phrase in enumerate(EIGHT[:6]))
        assert filled(opened(neither), seed)


def test_many_beginnings_and_endings_are_one_machine() -> None:
    dice = random.Random(1)
    phrases = tuple(bytes(dice.choices(b"abcdefgh ", k=10)) for _ in range(300))
    for term in (Begins(phrases), Ends(phrases), Not(Ends(phrases))):
        began = time.process_time()
        matcher = opened(term)
        assert matcher.advance(phrases[7]).may_end == (term != Not(Ends(phrases)))
        assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "terms",
    [
        (Length(1, 1, "tokens"), Choice((b" day",))),
        (Length(31, None), Length(0, 19, "tokens")),
        (Length(10, None, "words"), Length(0, 15, "tokens")),
        (Length(10, None, "words"), Length(0, 15, "tokens"), Stop(b".", True)),
        (Length(12, 12), Length(2, 2, "tokens")),
    ],
)
def test_token_bounds_are_refused_only_where_no_tokens_can_meet_them(terms: tuple[Term, ...]) -> None:
    """S19."""
    for seed in range(3):
        assert filled(opened(*terms), seed)


def test_a_text_longer_than_max_tokens_is_possible_where_tokens_are_long() -> None:
    """S19."""
    assert opened(Length(1101, None)).allowed(b"", 1024).any()
    with pytest.raises(ConstraintError, match="within max_tokens=1024"):
        opened(Length(6145, None))
    with pytest.raises(ConstraintError):
        opened(Length(31, None), Length(0, 5, "tokens"))
