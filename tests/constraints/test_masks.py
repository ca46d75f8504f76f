"""Masks, ends and values of random conditions against an oracle that tries all texts (`brute.py`).

More of them: `python -m tests.constraints.test_masks FIRST MASKS` compares at least MASKS masks from the seed FIRST on.
It prints every difference, and at the end the seed to go on with.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest

from lmql_lite.constraints.matcher import Engine, HoleMatcher
from lmql_lite.constraints.simplify import satisfies
from lmql_lite.constraints.terms import And, Length, Unit
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ConstraintError, Span
from tests.constraints.brute import FAR, Oracle
from tests.constraints.trees import PHRASE, Trees

HOLE = Span("test.lq", "[X]", 0, 3)
MANY = 10**5
"""Number of tokens that is no limit."""
TREES = 25
"""Number of conditions of one seed."""


class Family(NamedTuple):
    """Characters of which conditions, texts and tokens consist. Of every kind that conditions tell apart, there is one.

    So there is a space besides the one that may be banned, and another mark. Phrases consist of the letters `phrases`.
    """

    letters: str
    phrases: str
    longest: int
    units: tuple[Unit, ...]
    patterns: tuple[str, ...]
    stop_patterns: tuple[str, ...]
    broken: tuple[bytes, ...]


FAMILIES = (
    Family("abzéê", "abé", 5, ("characters", PHRASE),
           ("[ab]*", "a+b?", "(?:ab|ba)+", "[^a]{1,4}", "[ab]{2,5}", "é?[ab]+", "(?s:.)*b", "(?:a|b|é)+", "(?s:.){3,}"),
           ("a?b", "b|ab", "[ab]{2}", "é[ab]", "(?:ab|é)a?", "b+a"),
           (b"\xc3", b"\xa9", b"\xaa", b"a\xc3", b"\xa9b", b"\xaa\xc3", b"b\xff", b"\xc3z", b"\xff")),
    Family("az .\t!\u2003—", "a .", 4, ("characters", "words", "sentences", PHRASE),
           (r"\S+", r"\S+ \S+", r"a(?:\s|z)*", r"[^.]*\.", r"(?:\S+\s+){2}\S+", "[a z]{2,4}", "(?s:.){2}"),
           (r"\s\s", r"\.\s", r"\s+a", "[.]"),
           (b"\xe2\x80", b"\x83", b"\x94", b"a\xe2\x80", b"\x83a", b".\xff", b"a \xff")),
    Family("ab\n z", "ab\n", 5, ("characters", "lines", "words", PHRASE),
           ("[ab]*", ".{0,3}", "(?:a|b)+\n", "(?s:.)*b", r"\S+", "[^a]{1,4}"),
           ("a?b", "[ab]{2}", "\n", "b+a"), (b"\n\xff", b"a \xff")),
)  # fmt: skip
HELD = 3
"""Most characters of held text."""
SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 60))]


@pytest.mark.parametrize("seed", SEEDS)
def test_masks_ends_and_values_are_those_of_all_texts(seed: int) -> None:
    """S10, S13 to S16, S18, S19: of whole masks, at places that random tokens reach."""
    seen = _compared(seed)
    assert seen["masks"] > 2 * TREES and seen["impossible"] < TREES * 2 // 3, seen


def _compared(seed: int) -> Counter[str]:
    """Numbers of conditions, of those that nothing can meet, and of masks compared."""
    dice = random.Random(seed)
    family = FAMILIES[seed % len(FAMILIES)]
    vocabulary = _vocabulary(dice, family)
    engine, seen = Engine(vocabulary), Counter[str]()
    while seen["conditions"] < TREES:
        term = And((_trees(dice, family).term(dice.choice([1, 2, 3, 3])), Length(0, family.longest)))
        following = dice.choice(["", "", "b", ".a", "é", "a b"])
        seen["conditions"] += 1
        oracle = Oracle(term, family.letters, family.longest, following)
        try:
            matcher = engine.matcher(term, following.encode(), MANY, "X", HOLE)
        except ConstraintError:
            assert not oracle.values, term
            seen["impossible"] += 1
            continue
        assert oracle.values, term
        for _ in range(3):
            seen["masks"] += _walk(dice, family, oracle, matcher)
    return seen


def _walk(dice: random.Random, family: Family, oracle: Oracle, matcher: HoleMatcher) -> int:
    """Number of masks compared."""
    vocabulary = matcher.masks.vocabulary
    held = "".join(dice.choices(family.letters, k=dice.choice([0, 0, 1, 2, HELD]))).encode()
    for compared in range(5):
        text = matcher.text
        if matcher.ending is not None:
            return compared
        assert matcher.may_end == oracle.may_end(text), (oracle.term, text)
        left = dice.choice([MANY, MANY, 1, 2, 3, max(1, oracle.lives(text))])
        mask = matcher.allowed(held, left)
        assert _told(vocabulary, mask) == oracle.mask(text, vocabulary.tokens, held, left), (oracle, text, held, left)
        data = bytes(byte for _ in range(3) for byte in dice.choice(vocabulary.texts))
        assert matcher.longest_valid(data) == oracle.longest_valid(text, data), (oracle, text, data)
        allowed = [
            token for token in _told(vocabulary, matcher.allowed(held, MANY)) if token and len(token) > len(held)
        ]
        if not allowed:
            return compared + 1
        data, held = dice.choice(sorted(allowed))[len(held) :], b""
        expected = oracle.after(text, data)
        matcher = matcher.advance(data)
        assert (matcher.ending, matcher.value) == expected, (oracle, text, data)
    return 5


def _trees(dice: random.Random, family: Family) -> Trees:
    return Trees(dice, family.phrases, patterns=family.patterns, stop_patterns=family.stop_patterns, units=family.units)


def _vocabulary(dice: random.Random, family: Family) -> Vocabulary:
    """Some tokens of one to four characters, tokens of parts of characters, two of equal text, and two that end."""
    texts = ["".join(dice.choices(family.letters, k=dice.choice([2, 2, 3, 4]))).encode() for _ in range(40)]
    return Vocabulary(
        (None, None, None, *map(str.encode, family.letters), *texts, texts[0], *family.broken), frozenset({1, 2})
    )


def _told(vocabulary: Vocabulary, mask: np.ndarray) -> set[bytes | None]:
    """Texts of the allowed tokens, None for the end. All tokens of a text are allowed, or none is."""
    allowed = np.flatnonzero(mask).tolist()
    assert 0 not in allowed and (1 in allowed) == (2 in allowed)
    told = {vocabulary.tokens[token] for token in allowed}
    assert len(allowed) == sum(token in told for at, token in enumerate(vocabulary.tokens) if at)
    return told


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 40))])
def test_allowed_tokens_lead_to_an_end_under_every_limit(seed: int) -> None:
    """Law 3, S19: whatever is chosen. Also where tokens are counted, and where bytes alone say that there are too few.

    A value is as the condition demands, and has at most as many tokens as there are.
    """
    dice = random.Random(seed)
    ended, tries = 0, 0
    family = FAMILIES[seed % len(FAMILIES)]
    vocabulary = _vocabulary(dice, family)
    vocabulary = Vocabulary((*vocabulary.tokens, *(bytes([byte]) for byte in range(256))), frozenset({1, 2}))
    engine = Engine(vocabulary)
    while ended < 60 and tries < 400:
        tries += 1
        units: tuple[Unit, ...] = (*family.units, "tokens")
        trees = Trees(dice, family.phrases, patterns=family.patterns, stop_patterns=family.stop_patterns, units=units)
        term, limit = trees.term(dice.choice([1, 2, 3, 4])), dice.choice([1, 2, 3, 4, 6, 9, 30])
        try:
            matcher = engine.matcher(term, dice.choice([b"", b"b", b"a."]), limit, "X", HOLE)
        except ConstraintError:
            continue
        ended += 1
        assert satisfies(term, *_filled(dice, matcher, limit)), (term, limit, matcher)


def _filled(dice: random.Random, matcher: HoleMatcher, limit: int) -> tuple[bytes, object]:
    """Value of a hole that random allowed tokens fill, and a function that returns the number of its tokens."""
    vocabulary, tokens = matcher.masks.vocabulary, 0
    while matcher.ending is None and tokens < limit:
        mask = matcher.allowed(b"", limit - tokens)
        assert mask.any(), ("dead end", matcher.text)
        token = int(dice.choice(np.flatnonzero(mask).tolist()))
        if token in (1, 2):
            assert matcher.may_end
            matcher = matcher.end("end-of-text")
            break
        matcher, tokens = matcher.advance(vocabulary.tokens[token] or b""), tokens + 1
    assert matcher.ending is not None or matcher.may_end, ("the limit is no end", matcher.text)
    used = tokens - (matcher.ending == "end-of-text" and matcher.text != matcher.value and len(matcher.value) == 0)
    return matcher.value, lambda _: used


def test_a_distance_is_that_of_the_nearest_value() -> None:
    oracle = Oracle(And((Length(2, 3), Length(1, 1, "words"))), "a é", 3)
    assert [oracle.lives(text) for text in (b"", b"a", b" ", b"\xc3", b" a")] == [2, 1, 1, 2, 0]
    assert oracle.lives(b"a a") == FAR


def _campaign(first: int, masks: int) -> int:
    """Compares at least so many masks. Returns the number of seeds with a difference."""
    began, seed, different, seen = time.monotonic(), first, 0, Counter[str]()
    while seen["masks"] < masks:
        try:
            seen += _compared(seed)
        except AssertionError as difference:
            different += 1
            sys.stderr.write(f"seed {seed} differs: {difference}\n")
        seed += 1
        if (seed - first) % 10 == 0 or seen["masks"] >= masks:
            spent, counts = time.monotonic() - began, dict(seen)
            sys.stderr.write(f"{counts}, {different} seeds differ, {spent:.0f} s; go on with seed {seed}\n")
    return different


if __name__ == "__main__":
    sys.exit(_campaign(int(sys.argv[1]), int(sys.argv[2])) > 0)
