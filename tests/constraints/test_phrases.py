"""Many phrases in one condition: the missing text is known without a state for every subset of them."""

from __future__ import annotations

import itertools
import random
import string
import time
from itertools import pairwise

import numpy as np
import pytest

import lmql_lite as lq
from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.hole_matcher import Engine, HoleMatcher
from lmql_lite.constraints.superstrings import Superstrings
from lmql_lite.constraints.terms import And, Choice, Contains, Length, Matches, Not, Or, Stop, Term
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ConstraintError, Span

WORDS = ("apple", "banana", "cherry", "elder", "grape", "orange", "day", " day", "ing", "anana", "rapple")
VOCABULARY = Vocabulary((None, *(bytes([byte]) for byte in range(256)), *map(str.encode, WORDS)), frozenset({0}))
TWELVE = ("abcd", "efgh", "ijkl", "mnop", "qrst", "uvwx", "yzab", "cdef", "ghij", "klmn", "opqr", "stuv")
"""Phrases whose shortest common text has 26 letters: `yzabcdef..`."""


def has(*phrases: str) -> tuple[Term, ...]:
    return tuple(
        Contains(phrase.encode(), Span("test.lq", f'"{phrase}" in X', 0, len(phrase) + 7)) for phrase in phrases
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


@pytest.mark.parametrize("seed", range(40))
def test_the_least_text_with_some_phrases_is_that_of_all_their_orders(seed: int) -> None:
    dice = random.Random(seed)
    phrases = list({"".join(dice.choices("ab", k=dice.randint(1, 4))).encode() for _ in range(4)})
    text = "".join(dice.choices("ab", k=dice.randint(0, 3))).encode()
    best = 99
    for order in itertools.permutations(phrases):
        # each new phrase ends after the given text
        said = text
        for phrase in order:
            if phrase in said[max(len(text) - len(phrase) + 1, 0) :]:
                continue
            shared = max(size for size in range(len(phrase)) if said.endswith(phrase[:size]))
            said += phrase[shared:]
        best = min(best, len(said) - len(text))
    found = Superstrings(phrases, [text]).least(0, (1 << len(phrases)) - 1)
    assert found == best, (phrases, text)


@pytest.mark.parametrize("seed", range(20))
def test_the_least_of_many_is_that_of_each(seed: int) -> None:
    dice = random.Random(seed)
    letters = dice.choice([string.ascii_lowercase[:8], string.ascii_letters])
    many = dice.choice([1, 3, 8]) if len(letters) == 8 else 80
    phrases = list({"".join(dice.choices(letters, k=dice.randint(1, 6))).encode() for _ in range(many)})
    found = Superstrings(phrases, texts := [b"", *(phrase[: dice.randint(0, len(phrase))] for phrase in phrases)])
    wanted = [dice.getrandbits(len(phrases)) for _ in range(40)]
    lanes = [np.array([each >> at & (1 << 62) - 1 for each in wanted]) for at in range(0, len(phrases), 62)]
    behind = [dice.randrange(len(texts)) for _ in wanted]
    assert found.least_of_all(np.array(behind), lanes).tolist() == list(map(found.least, behind, wanted))


@pytest.mark.parametrize("last", [(), (Stop(b".", True),), (Stop(b".", False),)])
def test_twelve_phrases_are_met_to_the_last_character(last: tuple[Term, ...]) -> None:
    for most in (28, 40):
        matcher = opened(*has(*TWELVE), Length(0, most), *last)
        for seed in range(3):
            value = filled(matcher, seed)
            assert all(phrase in value for phrase in TWELVE) and len(value) <= most, value
        assert len(matcher.masks.automaton._places) < 1500


def test_phrases_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConstraintError, match="cannot hold together") as raised:
        opened(*has(*string.ascii_lowercase), Length(0, 19, span=Span("test.lq", "len(X) < 20", 0, 11)))
    assert '"z" in X' in raised.value.message and "len(X) < 20" in raised.value.message


def test_a_letter_more_is_all_that_is_left_for_26_letters() -> None:
    value = filled(opened(*has(*string.ascii_lowercase), Length(0, 26)), 0)
    assert sorted(value) == list(string.ascii_lowercase)


def test_alternatives_of_phrases_and_lengths_do_not_multiply() -> None:
    either = tuple(Or((*has(phrase), Length(0, 20 + at))) for at, phrase in enumerate(TWELVE[:10]))
    neither = Or(
        tuple(
            And((*has(phrase), Not(Contains(phrase[::-1].encode())), Length(0, 20 + at)))
            for at, phrase in enumerate(("ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr", "st"))
        )
    )
    for seed in range(3):
        value = filled(opened(*either), seed)
        assert all(phrase in value or len(value) <= 20 + at for at, phrase in enumerate(TWELVE[:10]))
        assert filled(opened(neither), seed)


@pytest.mark.parametrize("seed", range(30))
def test_phrases_beside_a_bound_on_words_are_judged_as_a_search_judges_them(seed: int) -> None:
    dice = random.Random(seed)
    phrases = {"".join(dice.choices("abc", k=dice.randint(1, 3))) for _ in range(3)}
    terms = (*has(*phrases), Length(0, dice.randint(3, 12)), Length(0, dice.randint(1, 3), "words"))
    if dice.random() < 0.5:
        terms = (Or((And(terms), And((*has("aab"), Length(0, 9))))),)
    tokens = ("a", "b", "ab", "ba ", " ab", " ", "  ", "é", "c", "a b", "a b a", "\u2003", "\u2003a", "aab", "bbbb")
    broken = (b"\xe2", b"\xe2\x80", b"\x80", b"\x83", b"\xc3", b"\xa9", b"a\xe2")
    vocabulary = Vocabulary((None, *map(str.encode, tokens), *broken), frozenset({0}))
    is_everything = Matches("(?s:.*)", delimits=False)
    span = Span("test.lq", "[X]", 0, 3)
    try:
        one, other = (
            Engine(vocabulary).matcher(And(each), b"", 99, "X", span) for each in (terms, (*terms, is_everything))
        )
    except ConstraintError:
        return
    assert one.masks.automaton.has_margins and not other.masks.automaton.has_margins
    for left in range(14, 0, -1):
        mask = one.allowed(b"", left)
        assert (mask == other.allowed(b"", left)).all(), (terms, one.text)
        allowed = [token for token in np.flatnonzero(mask).tolist() if token]
        if not allowed or one.ending is not None:
            return
        data = vocabulary.tokens[dice.choice(allowed)] or b""
        one, other = one.advance(data), other.advance(data)
        assert (one.ending, one.may_end) == (other.ending, other.may_end)


def test_clauses_that_multiply_are_named() -> None:
    pairs = [
        Or(has(phrase, phrase[::-1]), Span("test.lq", f'("{phrase}" in X or "{phrase[::-1]}" in X)', 0, 30))
        for phrase in TWELVE
    ]
    with pytest.raises(ConstraintError, match="these conditions together need more than") as raised:
        opened(*pairs, Length(0, 60))
    assert '"abcd" in X' in raised.value.message and "len" not in raised.value.message


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


def test_a_state_that_no_token_leads_on_from_was_an_error() -> None:
    automaton, none = Automaton(And(has("ab", "ba"))), np.zeros(0, dtype=np.intp)
    found = automaton.distances(none, none.reshape(0, len(automaton.counts.units)), none[None])
    assert found.size == 0


def test_phrases_whose_overlaps_are_not_known_were_said_to_contradict_each_other() -> None:
    """18 of them fit into 19 characters; without overlaps they take 36."""
    clauses = " and ".join(f'"{one}{other}" in X' for one, other in pairwise(string.ascii_lowercase[:19]))
    for more in ("", ' and REGEX(X, "[a-z ]+")', " and len(WORDS(X)) < 9"):
        began = time.process_time()
        with pytest.raises(lq.ConstraintError, match="too short for 18 phrases without their overlaps") as error:
            lq.run_sync(
                f'"[X]" where len(X) < 30 and {clauses}{more}', model=lq.ScriptedModel(""), session=lq.Session()
            )
        assert error.value.hint and "allow 36 characters" in error.value.hint and time.process_time() - began < 20
        text = lq.run_sync(f'"[X]" where len(X) < 37 and {clauses}{more}', model=lq.ScriptedModel("ab"), max_tokens=64)
        assert all(phrase in text["X"] for phrase in ("ab", "hi", "rs"))
