"""The engine against the oracle: random conditions, random reachable places, whole masks."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lmql_lite.constraints.atoms import NEVER
from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.hole_matcher import Engine, HoleMatcher
from lmql_lite.constraints.step_table import NOWHERE
from lmql_lite.constraints.terms import (
    And,
    Begins,
    Choice,
    Constant,
    Contains,
    Ends,
    Length,
    Matches,
    Not,
    Or,
    Stop,
    Term,
)
from lmql_lite.constraints.token_distance import in_tokens
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ConstraintError, Span
from tests.constraints.oracle import ALPHABET, Oracle, atoms, is_whole, satisfied

WORDS = (b"ab", b"ab", b"ab", b"aab", b"aabz", b"ba", b"bb", b"zz", b"zab", b"abz", b"bzbz", b"aaaa",
         "é".encode(), "é".encode(), "bé".encode(), "aéb".encode(), "ê".encode(), "éb".encode(),
         b"a\xc3", b"\xa9b", b"\xa9", b"\xaa\xc3", b"b\xff", b"ab\xff", b"ab\xff", b"ab\xff", b"\xc3z", b"\xff",
         b"z\xc3\xa9\xc3")  # fmt: skip
"""Equal tokens, whole and broken characters, and tokens that run past a stop, some of them into invalid UTF-8."""
TOKENS = (None, None, None, *(bytes([byte]) for byte in ALPHABET), *WORDS)
EOS = frozenset({1, 2})
VOCABULARY = Vocabulary(TOKENS, EOS)
HOLE = Span("test.lq", "[X]", 0, 3)
MANY = 10**5
"""Number of tokens that is no limit."""


def groups(terms: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    several = st.lists(terms, max_size=3).map(tuple)
    return st.builds(And, several) | st.builds(Or, several) | st.builds(And, several)


PHRASES = st.sampled_from([b"a", b"b", b"ab", b"aab", b"ba", b"bb", b"zz", "é".encode(), "bé".encode(), b"aba"])
OPTIONS = st.sampled_from([b"", b"a", b"ab", b"aab", b"abz", b"b", b"bb", b"zz", "é".encode(), "ébé".encode()])
STOPS = st.builds(Stop, PHRASES, st.booleans())
LENGTHS = st.builds(
    lambda low, more: Length(low, None if more > 4 else low + more), st.integers(0, 4), st.integers(0, 6)
)
EDGES = st.builds(
    lambda kind, phrases: kind(tuple(phrases)), st.sampled_from([Begins, Ends]), st.lists(PHRASES, max_size=4)
)
CHOICES = st.builds(lambda options: Choice(tuple(options)), st.lists(OPTIONS, max_size=4))
PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "é", "ab", "(?s:.)", "[ab]", "[^a]", "[éê]", "[^bê]", "[a-bê]"]),
    lambda parts: (
        st.lists(parts, min_size=2, max_size=3).map("".join)
        | st.lists(parts, min_size=2, max_size=3).map(lambda each: f"(?:{'|'.join(each)})")
        | st.builds(lambda part, often: f"(?:{part}){often}", parts, st.sampled_from(["*", "+", "?", "{2}", "{1,2}"]))
    ),
    max_leaves=4,
)
COUNTED = st.builds(
    "{}{}".format, st.sampled_from(["a", "[abé]", "(?s:.)", "[^a]"]), st.sampled_from(["{2}", "{1,3}", "{2,}"])
)
"""`z` and `ë` stand for all characters that no pattern names."""
MATCHES = st.builds(Matches, PATTERNS | COUNTED, st.just(0), st.booleans())
PLAIN = st.recursive(
    LENGTHS | CHOICES | EDGES | MATCHES | st.builds(Contains, PHRASES) | st.builds(Constant, st.booleans()),
    lambda terms: st.builds(Not, terms) | groups(terms),
    max_leaves=3,
)
TERMS = st.recursive(STOPS | PLAIN, lambda terms: groups(terms), max_leaves=5)
EXAMPLES = 120
SETTINGS = settings(derandomize=True, deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))


def opened(term: Term, following: bytes = b"") -> tuple[HoleMatcher, Oracle]:
    """Matcher and oracle of the same condition. Skips conditions that are too large to try or impossible."""
    automaton = Automaton(term)
    # the oracle cannot count tokens that pass a stop; only the engine can
    by_token = in_tokens(automaton, VOCABULARY) is not None and not automaton.has_stops
    texts = tuple(data for data in TOKENS if data and b"\xff" not in data) if by_token else ()
    oracle = Oracle(term, automaton.closed, following, texts)
    assume(not oracle.too_large)
    assume(oracle.distance(b"") < MANY)
    return Engine(VOCABULARY).matcher(term, following, MANY, "X", HOLE), oracle


def expected(oracle: Oracle, held: bytes, text: bytes, tokens_left: int) -> set[int]:
    allowed = {
        token
        for token, data in enumerate(TOKENS)
        if data
        and (oracle.allows_after(held, text, data, tokens_left) if held else oracle.allows(text, data, tokens_left))
    }
    return allowed | (EOS if not held and oracle.may_end(text) else set())


def assert_allowed(matcher: HoleMatcher, oracle: Oracle, held: bytes, text: bytes, left: int) -> None:
    """Compares the whole mask; if tokens may pass a stop, with those of a limit in bytes and of no limit."""
    found, least = chosen(matcher.allowed(held, left)), expected(oracle, held, text, left)
    if oracle.tokens or left == MANY or matcher.masks.in_tokens is None:
        assert found == least, (text, left)
    else:
        assert least <= found <= expected(oracle, held, text, MANY), (text, left)


def chosen(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(mask).tolist())


@SETTINGS
@given(TERMS, st.sampled_from([b"", b"", b"b", b"abz", "é".encode()]), st.integers(0, 2**32))
def test_masks_endings_values_and_forced_bytes_are_those_of_the_oracle(term: Term, following: bytes, seed: int) -> None:
    """S13, S14, S15, S18: along random walks, for the whole mask."""
    matcher, oracle = opened(term, following)
    dice = random.Random(seed)
    if matcher.ending is not None:
        assert oracle.may_end(b"") and not any(oracle.goes_on(b"", byte) for byte in ALPHABET)
        return
    for _ in range(6):
        text = matcher.text
        assert matcher.masks.automaton.distance(matcher.state, matcher.count) == oracle.distance(text)
        left = dice.choice([MANY, 1 + oracle.distance(text), 1, 2, 3])
        assert_allowed(matcher, oracle, b"", text, left)
        assert matcher.forced() == oracle.forced(text), text
        if dice.random() < 0.5:
            forced = matcher.forced()
            token = forced or dice.choice(sorted(expected(oracle, b"", text, MANY) - EOS) or [b""])
        else:
            token = dice.choice(sorted(expected(oracle, b"", text, MANY) - EOS) or [b""])
        data = token if isinstance(token, bytes) else TOKENS[token]
        if not data:
            return
        ending, value = oracle.advance(text, data)
        matcher = matcher.advance(data)
        assert (matcher.ending, matcher.value) == (ending, value), (text, data)
        assert matcher.text == text + data
        assert matcher.value.startswith(matcher.text[: matcher.certain])
        if ending is not None:
            assert is_whole(value) and satisfied(term, value)
            return


@SETTINGS
@given(TERMS, st.sampled_from([b"", b"b", b"abz"]), st.integers(1, 8), st.integers(0, 2**32))
def test_no_walk_ends_in_a_dead_end_or_takes_too_many_tokens(
    term: Term, following: bytes, more: int, seed: int
) -> None:
    """S13, S19: whatever allowed tokens are chosen, the hole ends in time, with a value for which `where` is true."""
    matcher, oracle = opened(term, following)
    dice = random.Random(seed)
    limit = oracle.distance(b"") + dice.choice([0, more])
    value = matcher.value
    for left in range(limit, -1, -1):
        if matcher.ending is not None:
            value = matcher.value
            break
        tokens = sorted(chosen(matcher.allowed(b"", max(left, 1))))
        if left == 0:
            assert set(tokens) >= EOS, "the bound must be a valid end"
            value = matcher.text
            break
        assert tokens, f"dead end after {matcher.text!r}"
        token = dice.choice(tokens)
        if token in EOS:
            value = matcher.end("end-of-text").value
            break
        matcher = matcher.advance(TOKENS[token] or b"")
    assert is_whole(value) and satisfied(term, value), value


@SETTINGS
@given(st.lists(TERMS, min_size=1, max_size=3).map(lambda terms: And(tuple(terms))), st.integers(0, 2**32))
def test_distances_are_exact_in_whatever_order_they_are_asked(term: Term, seed: int) -> None:
    """S19: also distances that use results of earlier searches."""
    oracle = Oracle(term, False)
    assume(not oracle.too_large)
    automaton = Automaton(term)
    places = [(b"", automaton.start, 0)]
    for text, state, count in places:
        if len(text) < 4 and (not text or oracle.stopped(text) is None):
            for byte in ALPHABET:
                after, counted = automaton.step(state, count, byte)
                if after != NOWHERE:
                    places.append((text + bytes([byte]), after, counted))
    for text, state, count in random.Random(seed).sample(places, min(len(places), 60)):
        assert min(automaton.distance(state, count), 10**6) == oracle.distance(text), text


@SETTINGS
@given(TERMS, st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=4), st.integers(0, 2**32))
def test_held_text_must_be_agreed_with_and_what_goes_beyond_is_judged(term: Term, held: list[int], seed: int) -> None:
    """S10: token healing."""
    matcher, oracle = opened(term)
    assume(matcher.ending is None)
    prefix = bytes(held)
    left = random.Random(seed).choice([MANY, 1, 2])
    assert_allowed(matcher, oracle, prefix, b"", left)


@SETTINGS
@given(TERMS, st.lists(st.sampled_from(ALPHABET), max_size=8))
def test_longest_valid_is_where_walking_byte_by_byte_gets_stuck(term: Term, said: list[int]) -> None:
    matcher, oracle = opened(term)
    assume(matcher.ending is None)
    data = bytes(said)
    length = matcher.longest_valid(data)
    assert length == oracle.longest_valid(b"", data)
    for end in range(length):
        if matcher.ending is None:
            matcher = matcher.advance(data[end : end + 1])
    assert matcher.ending is not None or matcher.text == data[:length]


@SETTINGS
@given(TERMS)
def test_what_nothing_can_fill_is_an_error_beforehand(term: Term) -> None:
    """S22, law 3: and no other condition is an error."""
    oracle = Oracle(term, False)
    assume(not oracle.too_large)
    try:
        Engine(VOCABULARY).matcher(term, b"", MANY, "X", HOLE)
    except ConstraintError as error:
        assert oracle.distance(b"") >= 10**6 and error.span == HOLE
    else:
        assert oracle.distance(b"") < 10**6


@SETTINGS
@given(st.builds(lambda choice, rest: And((choice, rest)), CHOICES, TERMS) | groups(CHOICES | PLAIN))
def test_a_closed_condition_is_one_that_only_listed_texts_meet(term: Term) -> None:
    """S18."""
    automaton = Automaton(term)
    oracle = Oracle(term, False)
    assume(not oracle.too_large and automaton.closed and not oracle.patterns)
    assert oracle.values <= set(oracle.options)
    assert any(isinstance(atom, Choice) for atom in atoms(term)) or automaton.distance(0, 0) >= NEVER


def test_a_token_that_could_be_kept_but_comes_too_late_does_not_leave_a_choice() -> None:
    """S18: mask and advance agree. Byte by byte, the character has too many tokens; as one token it is kept."""
    term = And((Choice((b"ab", b"abz", "abéb".encode())), Length(0, 3, "tokens")))
    matcher = Engine(VOCABULARY).matcher(term, b"", MANY, "X", HOLE).advance(b"ab")
    token = TOKENS.index("é".encode())
    assert token in chosen(matcher.allowed(b"", MANY))
    assert matcher.advance("é".encode()).ending is None, "it is kept"
    assert token not in chosen(matcher.allowed(b"", 1)), "and then one more is needed"
