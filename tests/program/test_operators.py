"""Every operator of a `where` clause: which term it becomes, and that the term says what Python says."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

from lmql_lite.constraints import terms
from lmql_lite.constraints.simplify import satisfies
from lmql_lite.constraints.terms import (
    And,
    Choice,
    Length,
    Stop,
    Term,
    contains,
    is_closed,
)
from tests.program.test_conditions import condition, term
from tests.tables import cases


@cases("program/operators", "lengths", vars(terms))
def test_lengths(text: str, expected: Term) -> None:
    """S15: characters, words, sentences and tokens."""
    assert term(text, {"n": 3}) == expected


@cases("program/operators", "stops that are patterns", vars(terms))
def test_stops_that_are_patterns(text: str, expected: Term) -> None:
    """S13, S14."""
    assert term(text, {"END": re.compile("end|fin")}) == expected


TEXTS = tuple("".join(each) for size in range(5) for each in itertools.product("aB1\n ", repeat=size))


@cases("program/operators", "a term holds where python says so")
def test_a_term_holds_where_python_says_so(text: str) -> None:
    """Law 3."""
    values: Mapping[str, object] = {"re": re, "n": 0, "pattern": re.compile("a.1?|B", re.S), "EARLIER": ["a", "aB"]}
    bound = term(text, values)
    held = []
    for value in TEXTS:
        expected = bool(eval(text, {**values, "X": value}))
        held.append(satisfies(bound, value.encode()))
        assert held[-1] == expected, value
    assert any(held)


@cases("program/operators", "a pattern of the whole text ends it", vars(terms))
def test_a_pattern_of_the_whole_text_ends_it(text: str, ends: bool) -> None:
    """S18: what is only looked for in a text does not."""
    assert is_closed(term(text)) == ends


def test_a_search_for_a_phrase_says_what_containing_it_says() -> None:
    for value in TEXTS:
        assert satisfies(term("re.search('aB', X)"), value.encode()) == satisfies(contains(b"aB"), value.encode())


@cases("program/operators", "the middle of a chain is evaluated once", vars(terms))
def test_the_middle_of_a_chain_is_evaluated_once(text: str, expected: Term) -> None:
    calls: list[int] = []

    def count() -> int:
        calls.append(2)
        return len(calls) + 1

    assert term(text, {"count": count, "KNOWN": []}) == expected
    assert len(calls) == 1


def test_the_middle_of_a_chain_under_not_and_or_is_evaluated_once() -> None:
    calls: list[int] = []

    def count() -> int:
        calls.append(2)
        return 2

    term("not 5 < count() < int(X) or 1 < count() < len(X)", {"count": count})
    assert len(calls) == 1, "the first part decides"


def test_each_run_evaluates_anew() -> None:
    read = condition("1 < n() < len(X)")
    numbers = iter((2, 3))
    bound = [read.bind(lambda code: eval(code, {"n": lambda: next(numbers)})) for _ in range(2)]
    assert [each.terms[1] for each in bound if isinstance(each, And)] == [Length(3, None), Length(4, None)]


def test_special_tokens_are_text() -> None:
    """S12."""
    assert term("X in ['<|endoftext|>', '</s>']") == Choice((b"<|endoftext|>", b"</s>"))
    assert term("STOPS_AT(X, '<|im_end|>')") == Stop(b"<|im_end|>", True)
