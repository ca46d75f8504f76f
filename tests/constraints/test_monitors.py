"""The oracle of the campaign, tested against plain Python on all texts up to a length."""

from __future__ import annotations

import itertools
import random
import re
from functools import cache

import pytest

from lmql_lite.constraints.terms import (
    And,
    Begins,
    Choice,
    Constant,
    Contains,
    Ends,
    Lacks,
    Length,
    Matches,
    Not,
    Or,
    Stop,
    StopPattern,
    Term,
)
from lmql_lite.constraints.units import Occurrences
from tests.constraints.derivatives import Reader, derivative, nullable
from tests.constraints.monitors import CANDIDATES, NEVER, Oracle
from tests.constraints.trees import LETTER_PATTERNS, PATTERNS, STOP_PATTERNS, Trees, atoms

LETTERS = ("ab .é\n", "ab .é\u2003")
"""Two sets of letters: the texts over both together would be too many."""
LONGEST = 5
BYTES = sorted(set("".join(LETTERS).encode()))
TOKENS = (None, *(bytes([byte]) for byte in BYTES), b"ab", b"a ", b". ", b"a\xc3", b"\xe2\x80")
EOS = frozenset({0})


def plainly(term: Term, text: str, tokens: int) -> bool:
    """True if the condition holds as Python would evaluate it, with `STOPS_*` as true."""
    match term:
        case Constant(holds):
            return holds
        case Length(at_least, at_most, unit):
            sentences = len(re.split(r"(?<=[.!?])\s+", text.strip())) if text.strip() else 0
            lines = len(text.removesuffix("\n").split("\n")) if text else 0
            counts = {"characters": len(text), "words": len(text.split()), "sentences": sentences, "lines": lines}
            counts["tokens"] = tokens
            length = text.count(unit.phrase.decode()) if isinstance(unit, Occurrences) else counts[unit]
            return at_least <= length <= (NEVER if at_most is None else at_most)
        case Choice(options):
            return text.encode() in options
        case Matches(pattern, flags):
            return re.compile(pattern, flags).fullmatch(text) is not None
        case Contains(phrase):
            return phrase.decode() in text
        case Begins(phrases):
            return text.encode().startswith(phrases)
        case Ends(phrases):
            return text.encode().endswith(phrases)
        case Lacks(phrases):
            return all(phrase.decode() not in text for phrase in phrases)
        case Not(part):
            return not plainly(part, text, tokens)
        case And(terms):
            return all(plainly(part, text, tokens) for part in terms)
        case Or(terms):
            return any(plainly(part, text, tokens) for part in terms)
    return True


def guards(term: Term, stop: Term, text: str, tokens: int) -> bool:
    match term:
        case And(terms):
            return plainly(term, text, tokens) and any(guards(part, stop, text, tokens) for part in terms)
        case Or(terms):
            return any(guards(part, stop, text, tokens) for part in terms)
    return term is stop


def stops(term: Term) -> list[Stop | StopPattern]:
    match term:
        case And(terms) | Or(terms):
            return [stop for part in terms for stop in stops(part)]
        case Stop() | StopPattern():
            return [term]
    return []


def stopped(term: Term, text: str) -> str | None:
    """The value if a stop ends the hole exactly after this text, of which each byte is a token; else None."""
    for stop in stops(term):
        pattern = re.escape(stop.phrase.decode()) if isinstance(stop, Stop) else stop.pattern
        starts = [start for start in range(len(text)) if re.compile(pattern).fullmatch(text[start:])]
        if starts:
            value = text if stop.inclusive else text[: starts[0]]
            if guards(term, stop, value, len(text.encode())):
                return value
    return None


@cache
def texts_over(letters: str) -> list[str]:
    return ["".join(text) for size in range(LONGEST + 1) for text in itertools.product(letters, repeat=size)]


def nearest_ends(term: Term, letters: str) -> dict[str, int]:
    """Maps each text that the hole can reach to the bytes to its nearest end, among texts up to LONGEST letters."""
    reached = {""}
    ends: set[str] = set()
    for text in texts_over(letters):
        if text and text[:-1] not in reached:
            continue
        if text and stopped(term, text) is not None:
            ends.add(text)
            continue
        reached.add(text)
        if plainly(term, text, len(text.encode())):
            ends.add(text)
    nearest: dict[str, int] = dict.fromkeys((text for text in reached if len(text) < LONGEST), NEVER)
    for end in ends:
        for size in range(len(end) + 1):
            if end[:size] in nearest:
                nearest[end[:size]] = min(nearest[end[:size]], len(end[size:].encode()))
    return nearest


@pytest.mark.parametrize("seed", range(6))
def test_distances_and_ends_are_those_of_all_texts_up_to_a_length(seed: int) -> None:
    """The oracle never finds a longer way than plain Python, and no shorter one within Python's reach."""
    dice = random.Random(seed)
    letters = LETTERS[seed % 2]
    # `.` distinguishes the line feed, which then has to be among the letters
    trees = Trees(dice, letters, patterns=[each for each in LETTER_PATTERNS if "\n" in letters or each[0] != "."])
    compared = 0
    for _ in range(25):
        term = trees.term(dice.randint(1, 4))
        oracle = Oracle(term, TOKENS, EOS, budget=20_000)
        nearest = nearest_ends(term, letters)
        for text in dice.sample(sorted(nearest), min(len(nearest), 60)):
            place = oracle.after(text)
            assert oracle.may_end(place) == plainly(term, text, len(text.encode())), (term, text)
            far = oracle.distance(place)
            if oracle.too_large:
                break
            # plain Python may miss an end that is farther away or needs other characters
            room = LONGEST - len(text)
            assert far <= nearest[text], (term, text)
            assert far == nearest[text] or far > room or not is_plain(term, letters), (term, text)
            compared += 1
    assert compared > 200


def is_plain(term: Term, letters: str) -> bool:
    """True if no other character can bring an end nearer than these letters. One of four bytes is four tokens, and a
    line feed ends a line."""
    others = {"tokens"} if "\n" in letters else {"tokens", "lines"}
    return not any(isinstance(atom, Length) and atom.unit in others for atom in atoms(term))


@pytest.mark.parametrize("pattern", [*PATTERNS, *STOP_PATTERNS])
def test_derivatives_match_what_python_matches(pattern: str) -> None:
    compiled = re.compile(pattern)
    dice = random.Random(pattern)
    characters = [*"abz09- .\n!é\u2003", dice.choice(CANDIDATES)]
    texts = [text for size in range(4) for text in map("".join, itertools.product(characters, repeat=size))]
    texts += ["".join(dice.choices(characters, k=dice.randint(4, 9))) for _ in range(300)]
    texts += ["2024-01", "-10", "ab ab", "a.b!", "é é"]
    for text in texts:
        expression = Reader(pattern).read()
        for character in text:
            expression = derivative(expression, character)
        assert nullable(expression) == (compiled.fullmatch(text) is not None), text


def test_tokens_are_counted_as_they_are_chosen_and_bytes_stand_in_for_those_to_come() -> None:
    """S15, S19."""
    two = Length(2, 2, unit="tokens")
    tokens = (None, b"ab", b"a", b"\xc3", b"\xa9", "é".encode(), b"aab")
    oracle = Oracle(And((two, Contains(b"b"))), tokens, EOS)
    _, _, place = oracle.advance(oracle.start, b"", b"a")
    assert oracle.mask(oracle.start, NEVER) == {1, 2, 5, 6}
    assert oracle.mask(place, NEVER) == {1, 6}
    assert oracle.advance(place, b"a", b"ab") == ("bound", b"aab", oracle.advance(place, b"a", b"ab")[2])
    assert Oracle(Length(0, 1, unit="tokens"), tokens, EOS).mask(oracle.start, NEVER) == {0, 1, 2, 5, 6}
    stopping = Oracle(And((Stop(b"a", True), Length(1, 1, unit="tokens"))), tokens, EOS)
    assert stopping.mask(stopping.start, NEVER) == {1, 2, 5, 6}
    assert stopping.advance(stopping.start, b"", b"aab")[:2] == ("stop", b"a")


def test_a_value_is_cut_before_the_longest_match_that_ends_there() -> None:
    term = StopPattern("a?b", 0, False)
    oracle = Oracle(term, (None, b"xaby", b"ab", b"xb"), EOS)
    assert oracle.advance(oracle.start, b"", b"xaby")[:2] == ("stop", b"x")
    assert oracle.advance(oracle.start, b"", b"ab")[:2] == ("stop", b"")
    assert oracle.advance(oracle.start, b"", b"xb")[:2] == ("stop", b"x")
