"""The engine against monitors: whole masks and end bits of random conditions, along walks that seek edge cases.

`monitors.py` is the oracle, and `test_monitors.py` tests the oracle. Each seed is a campaign, which asserts that enough
of its conditions are hard. With the slow seeds, at least 5,000 masks are compared.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.hole_matcher import Engine, HoleMatcher
from lmql_lite.constraints.terms import Length, Term
from lmql_lite.constraints.token_distance import in_tokens
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ConstraintError, Span
from tests.constraints.monitors import NEVER, Oracle, Place
from tests.constraints.trees import Trees, atoms

CHARACTERS = "abz .!\néêë\u2003—019-"
PIECES = ("ab", "ab", "aab", "ba", "bb", "zz", " a", "b ", ". ", ".\n", "\n\n", " b.", "é ", "b\u2003", "éb", "! a",
          "ab.", "a b a b", "10", "99", "-1", "2024", "z" * 7)  # fmt: skip
BROKEN = (b"\xc3", b"\xa9", b"\xaa", b"\xe2", b"\xe2\x80", b"\x80", b"\x83", b"\x94", b"\x80\x83", b"\xff", b"a\xc3",
          b"\xa9b", b"\xa9 a", b"b\xe2\x80", b" \xe2", b"\x83b", b"\xaa\xc3", b"b\xff", b".\xff", b"a \xff", b"\n\xff",
          b"\xc3z")  # fmt: skip
"""Tokens with parts of characters, or with bytes that are not UTF-8: such a token must be cut before them."""
TOKENS = (None, None, None, *map(str.encode, (*CHARACTERS, *PIECES)), *BROKEN)
EOS = frozenset({1, 2})
HELD = (b"a", b"b", b" ", b".", b"ab", "é".encode(), b"z", b"a b")
"""Texts before the hole that a token must agree with first."""
VOCABULARY = Vocabulary(TOKENS, EOS)
HOLE = Span("test.lq", "[X]", 0, 3)
MANY = 10**5
"""Number of tokens that is no limit."""

TREES = 36
"""Number of conditions in a campaign."""
MASKS = 500
"""Least number of masks that a campaign compares."""
LETTERS = ("ab", "abé", "ab .", "aé\u2003.", "ab\n.", "a b", "ab1")
"""Sets of letters, one of which makes up the phrases of a condition."""
LARGEST_SEARCH = 2500
"""Most places of a condition that is tried."""
SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 14))]
assert len(SEEDS) * MASKS >= 5000


@pytest.mark.parametrize("seed", SEEDS)
def test_masks_ends_and_values_are_those_of_the_monitors(seed: int) -> None:
    """S10, S13-S15, S18, S19: no mismatches."""
    campaign = Campaign(random.Random(seed))
    engine = Engine(VOCABULARY)
    while campaign.seen["trees"] < TREES:
        campaign.try_one(engine)
    shares = {what: number / TREES for what, number in campaign.seen.items()}
    assert campaign.seen["masks"] >= MASKS
    assert shares["long"] >= 0.6 and shares["two counts or an equality"] >= 0.25, shares


class Campaign:
    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.seen: Counter[str] = Counter()

    def try_one(self, engine: Engine) -> None:
        """Tries one condition. Skips it if the oracle's search is too long."""
        dice = self.dice
        term = Trees(dice, dice.choice(LETTERS)).term(dice.choice([1, 2, 3, 3, 4, 4]))
        following = dice.choice([b"", b"", b"b", b".\n", "é".encode()])
        by_token = in_tokens(Automaton(term), VOCABULARY) is not None
        oracle = Oracle(
            term, TOKENS, EOS, following=following, budget=LARGEST_SEARCH // (6 if by_token else 1), by_token=by_token
        )
        far = oracle.distance(oracle.start)
        if oracle.too_large:
            return
        try:
            matcher = engine.matcher(term, following, MANY, "X", HOLE)
        except ConstraintError as error:
            assert far == NEVER, (term, error)
            self.seen.update(("trees", "impossible"))
            return
        assert far < NEVER, term
        oracle.closed = matcher.masks.automaton.closed
        walks = [self._walk(oracle, matcher) for _ in range(2)]
        if oracle.too_large:
            return
        self.seen["masks"] += sum(masks for _, masks in walks)
        self.seen["trees"] += 1
        self.seen["long"] += any(long for long, _ in walks)
        self.seen["two counts or an equality"] += counts_twice_or_exactly(term)

    def _walk(self, oracle: Oracle, matcher: HoleMatcher) -> tuple[bool, int]:
        """True if a value of at least three tokens was reached; and the number of masks compared."""
        dice, place = self.dice, oracle.start
        if matcher.ending is not None:
            assert matcher.ending == "forced" and oracle.may_end(place) and not oracle.can_go_on(place), oracle.term
            return False, 0
        held, left = dice.choice(HELD), dice.choice([MANY, 1 + oracle.distance(place), 2])
        expected = oracle.mask(place, left, held)
        if oracle.too_large:
            return False, 0
        mask = matcher.allowed(held, left)
        assert set(np.flatnonzero(mask).tolist()) == expected, told(oracle, held, left, mask, expected)
        taken, masks = 0, 1
        for _ in range(10):
            text = matcher.text
            left = dice.choice([MANY, MANY, 1 + oracle.distance(place), max(oracle.distance(place), 1), 1, 2, 3])
            for tokens_left in {left, MANY}:
                expected = oracle.mask(place, tokens_left)
                if oracle.too_large:
                    return False, 0
                mask = matcher.allowed(b"", tokens_left)
                assert set(np.flatnonzero(mask).tolist()) == expected, told(oracle, text, tokens_left, mask, expected)
                masks += 1
            data = self._pick(oracle, place, text, sorted(oracle.mask(place, MANY) - EOS))
            if not data:
                break
            ending, value, place = oracle.advance(place, text, data)
            if oracle.too_large:
                return False, 0
            matcher = matcher.advance(data)
            assert (matcher.ending, matcher.value) == (ending, value), (oracle.term, text, data, ending, value)
            taken += value.startswith(text + data) or ending is None
            if ending is not None:
                break
        return taken >= 3 and (ending is not None or oracle.keeps_all(place)), masks

    def _pick(self, oracle: Oracle, place: Place, text: bytes, allowed: list[int]) -> bytes:
        """Next token. Often it leaves the hole open and is the farthest from an end, the longest or the shortest."""
        dice = self.dice
        tokens = [TOKENS[token] or b"" for token in allowed]
        if not tokens:
            return b""
        after = {data: oracle.advance(place, text, data) for data in set(tokens)}
        open_ones = [data for data in tokens if after[data][0] is None]
        if not open_ones or dice.random() < 0.1:
            return dice.choice(tokens)
        match dice.randrange(4):
            case 0:
                return max(open_ones, key=lambda data: (oracle.distance(after[data][2]), dice.random()))
            case 1:
                return max(open_ones, key=lambda data: (len(data), dice.random()))
            case 2:
                return min(open_ones, key=lambda data: (len(data), dice.random()))
        return dice.choice(open_ones)


def counts_twice_or_exactly(term: Term) -> bool:
    lengths = [atom for atom in atoms(term) if isinstance(atom, Length)]
    return len({length.unit for length in lengths}) > 1 or any(each.at_least == each.at_most for each in lengths)


def told(oracle: Oracle, text: bytes, tokens_left: int, mask: np.ndarray, expected: set[int]) -> str:
    found = set(np.flatnonzero(mask).tolist())
    unsound, missing = ([TOKENS[token] or "end" for token in each] for each in (found - expected, expected - found))
    return f"{oracle.term} after {text!r} with {tokens_left} tokens left: wrongly {unsound}, missing {missing}"
