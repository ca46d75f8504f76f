"""Texts that begin, end or stop with one of many phrases: one machine, whose size is their total length."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from lmql_lite.constraints.atoms import DEAD, NEVER, Beginnings, starts_character
from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.hole_matcher import Engine
from lmql_lite.constraints.phrases import Endings, StopPhrases
from lmql_lite.constraints.terms import And, Begins, Choice, Ends, Lacks, Length, Not, Stop, Term
from lmql_lite.constraints.token_distance import in_tokens
from lmql_lite.constraints.units import Occurrences
from lmql_lite.constraints.vocabulary import Vocabulary
from tests.constraints.monitors import Oracle
from tests.constraints.test_campaign import EOS, HOLE, MANY, TOKENS, VOCABULARY

LETTERS = "abé—"


def some_phrases(dice: random.Random, most: int, longest: int) -> tuple[bytes, ...]:
    several = ("".join(dice.choices(LETTERS, k=dice.randint(1, longest))) for _ in range(dice.randint(1, most)))
    return tuple(text.encode() for text in several)


def after(machine: Beginnings | Endings, data: bytes) -> int:
    state = 0
    for byte in data:
        moves = machine.moves(state)
        state = moves.special.get(byte, moves.other)
    return state


@pytest.mark.parametrize("seed", range(20))
def test_a_machine_holds_where_python_says_so_and_knows_what_is_missing(seed: int) -> None:
    dice = random.Random(seed)
    phrases = some_phrases(dice, 6, 4)
    begins, ends = Beginnings(phrases), Endings(phrases)
    texts = ["".join(text).encode() for size in range(4) for text in itertools.product(LETTERS, repeat=size)]
    for text in dice.sample(texts, 60):
        assert begins.holds(after(begins, text)) == text.startswith(phrases)
        assert ends.holds(after(ends, text)) == text.endswith(phrases)
        for at in range(len(text) + 1):
            begun = ((phrase, size) for phrase in phrases for size in range(1, len(phrase) + 1))
            rests = [phrase[size:] for phrase, size in begun if text[:at].endswith(phrase[:size])]
            rests += [text[at:whole] + phrase for whole in whole_ends(text, at) for phrase in phrases]
            unfinished = min(whole_ends(text, at)) - at
            need = ends.need(after(ends, text[:at]), unfinished)
            assert need.num_bytes == min(map(len, rests))
            assert need.num_characters == min(sum(map(starts_character, rest)) for rest in rests)
            possible = [rest for rest in texts if rest[:at] == text[:at] and rest.startswith(phrases)]
            state = after(begins, text[:at])
            if possible:
                assert begins.need(state, unfinished).num_bytes <= min(len(rest) - at for rest in possible)
            elif not any(phrase.startswith(text[:at]) for phrase in phrases):
                assert state == DEAD and begins.need(state, unfinished).num_bytes == NEVER


def whole_ends(text: bytes, at: int) -> list[int]:
    """First place from `at` on that is not inside a character, as a list of one."""
    return [next(end for end in range(at, len(text) + 1) if end == len(text) or starts_character(text[end]))]


EDGES = (Begins, Ends, Ends, "stops", "length")
TIMES = ("times", "times", "times", "stops", "length", "lacks")


@pytest.mark.parametrize(
    ("seed", "kinds"), [*((seed, EDGES) for seed in range(12)), *((seed, TIMES) for seed in range(12))]
)
def test_masks_of_conditions_with_many_phrases_are_those_of_the_monitors(seed: int, kinds: Sequence[object]) -> None:
    dice = random.Random(seed)
    engine = Engine(VOCABULARY)

    def atom() -> Term:
        kind = dice.choice(kinds)
        if kind == "times":
            least = dice.randint(0, 3)
            most = dice.choice([least, least + 1, None])
            return Length(least, most, Occurrences(dice.choice(some_phrases(dice, 3, 3))))
        if kind == "lacks":
            return Lacks(some_phrases(dice, 2, 3))
        if kind == "stops":
            inclusive = dice.random() < 0.5
            stops = tuple(Stop(phrase, inclusive) for phrase in dict.fromkeys(some_phrases(dice, 8, 3)))
            return And(stops)
        if kind == "length":
            return Length(dice.randint(0, 3), dice.randint(3, 6))
        assert kind in (Begins, Ends)
        edge = (Begins if kind is Begins else Ends)(some_phrases(dice, 12, 4))
        return Not(edge) if dice.random() < 0.3 else edge

    compared = 0
    while compared < 60:
        term = And(tuple(atom() for _ in range(dice.randint(1, 4))))
        by_token = in_tokens(Automaton(term), VOCABULARY) is not None
        oracle = Oracle(term, TOKENS, EOS, budget=2500 // (6 if by_token else 1), by_token=by_token)
        if oracle.distance(oracle.start) >= MANY or oracle.too_large:
            continue
        matcher, place, text = engine.matcher(term, b"", MANY, "X", HOLE), oracle.start, b""
        while matcher.ending is None and len(text) < 12:
            left = dice.choice([MANY, oracle.distance(place) + 1, 2])
            expected = oracle.mask(place, left)
            if oracle.too_large:
                break
            assert set(np.flatnonzero(matcher.allowed(b"", left)).tolist()) == expected, (term, text, left)
            compared += 1
            onwards = sorted(oracle.mask(place, MANY) - EOS)
            if not onwards:
                break
            data = TOKENS[dice.choice(onwards)]
            assert data is not None
            ending, text, place = oracle.advance(place, text, data)
            matcher = matcher.advance(data)
            assert (matcher.ending, matcher.value) == (ending, text), term


def test_many_endings_have_no_more_states_than_letters() -> None:
    dice = random.Random(1)
    phrases = tuple(bytes(dice.choices(b"abcdefgh ", k=10)) for _ in range(500))
    letters = sum(map(len, phrases))
    for term in (Ends(phrases), Not(Ends(phrases)), And(tuple(Stop(phrase, inclusive=True) for phrase in phrases))):
        automaton = Automaton(term)
        waiting, seen = [automaton.start], {automaton.start}
        while waiting:
            new = {after for after, _ in automaton.steps(waiting.pop())} - seen - {0}
            seen |= new
            waiting += new
        assert len(seen) <= letters + 10
        assert len(automaton._machines) == 1


def test_more_beginnings_than_a_regular_expression_may_have_steps() -> None:
    phrases = tuple(b"%d!" % number for number in range(25_000))
    engine = Engine(Vocabulary((None, *(bytes([byte]) for byte in range(256)), b"24999!"), frozenset({0})))
    for term, held in ((Begins(phrases), b""), (Ends(phrases), b"x")):
        matcher = engine.matcher(term, b"", MANY, "X", HOLE).advance(held)
        mask = matcher.allowed(b"", 7)
        assert mask[257] and matcher.advance(b"24999!").may_end
        assert not matcher.advance(b"2").may_end
    both = engine.matcher(And((Begins(phrases), Choice((b"x", b"17!b")))), b"", MANY, "X", HOLE)
    assert both.forced() == b"17!b"


def test_stops_that_end_at_once_are_told_with_their_lengths() -> None:
    found = StopPhrases([b"abc", b"bc", b"c", b"x"])
    state = after(found, b"aabc")
    assert sorted(found.found(state)) == sorted((found.number(text), len(text)) for text in (b"abc", b"bc", b"c"))
    assert found.under_way(state) == 3 and found.under_way(after(found, b"ab")) == 2
    assert not found.found(after(found, b"ab"))
