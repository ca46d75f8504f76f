"""Every operator of a `where` clause: which term it becomes, and that the term says what Python says."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

import pytest

from lmql_lite.constraints.simplify import satisfies
from lmql_lite.constraints.terms import (
    And,
    Choice,
    Constant,
    Contains,
    Length,
    Not,
    Or,
    Stop,
    StopPattern,
    Term,
    is_closed,
)
from tests.program.test_conditions import condition, term


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("len(WORDS(X)) < 5", Length(0, 4, "words")),
        ("len(WORDS(X)) <= 5", Length(0, 5, "words")),
        ("len(WORDS(X)) == 5", Length(5, 5, "words")),
        ("len(WORDS(X)) != 5", Not(Length(5, 5, "words"))),
        ("len(WORDS(X)) >= 5", Length(5, None, "words")),
        ("len(WORDS(X)) > 5", Length(6, None, "words")),
        ("5 > len(SENTENCES(X))", Length(0, 4, "sentences")),
        ("2 <= len(SENTENCES(X)) < n", And((Length(2, None, "sentences"), Length(0, 2, "sentences")))),
        ("len(TOKENS(X)) < 20", Length(0, 19, "tokens")),
        ("10 < len(TOKENS(X)) <= 20", And((Length(11, None, "tokens"), Length(0, 20, "tokens")))),
        ("not len(TOKENS(X)) > 20", Length(0, 20, "tokens")),
        ("len(CHARS(X)) < 5", Length(0, 4)),
        ("len(X.split()) < 5", Length(0, 4, "words")),
        ("len(X) in [1, 2, 3]", Length(1, 3)),
        ("len(X) in {7, 1, 3, 2, -4, 2.5, 8.0}", Or((Length(1, 3), Length(7, 8)))),
        ("len(X) in range(3, 9)", Length(3, 8)),
        ("len(X) in range(9, -4, -1)", Length(0, 9)),
        ("len(X) in range(3, 9, 2)", Or((Length(3, 3), Length(5, 5), Length(7, 7)))),
        ("len(X) in range(-5, 0)", Constant(False)),
        ("len(X) in range(9, 9)", Constant(False)),
        ("len(X) in ()", Constant(False)),
        ("len(X) not in (4, 5)", Not(Length(4, 5))),
        ("len(WORDS(X)) in range(10**18)", Length(0, 10**18 - 1, "words")),
        ("len(TOKENS(X)) in [n, n + 1]", Length(3, 4, "tokens")),
    ],
)
def test_lengths(text: str, expected: Term) -> None:
    """S15: characters, words, sentences and tokens."""
    assert term(text, {"n": 3}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("STOPS_AT(X, re.compile('[.!?]'))", StopPattern("[.!?]", 0, True)),
        ("STOPS_BEFORE(X, re.compile('a{1,64}'))", StopPattern("a{1,64}", 0, False)),
        ("STOPS_AT(X, re.compile('stop', re.I))", StopPattern("stop", re.I, True)),
        ("STOPS_AT(X, re.compile('(?i)stop'))", StopPattern("stop", re.I, True)),
        ("STOPS_AT(X, re.compile('(?x) a + # one'))", StopPattern(" a + # one\n", re.X, True)),
        (
            "STOPS_AT(X, ['a', re.compile('b+'), 'c'])",
            And((Stop(b"a", True), StopPattern("b+", 0, True), Stop(b"c", True))),
        ),
        (
            "STOPS_AT(X, {re.compile('b'), 'c', 'a'})",
            And((Stop(b"a", True), StopPattern("b", 0, True), Stop(b"c", True))),
        ),
        ("STOPS_BEFORE(X, END)", StopPattern("end|fin", 0, False)),
        ("len(X) > 2 and STOPS_AT(X, END)", And((Length(3, None), StopPattern("end|fin", 0, True)))),
    ],
)
def test_stops_that_are_patterns(text: str, expected: Term) -> None:
    """S13, S14."""
    assert term(text, {"END": re.compile("end|fin")}) == expected


TEXTS = tuple("".join(each) for size in range(5) for each in itertools.product("aB1\n ", repeat=size))


@pytest.mark.parametrize(
    "text",
    [
        "re.search('a1', X)",
        "re.search('aB$', X) is None",
        "re.search('^a', X) is not None",
        "not re.search('^ab?$', X)",
        "re.search('(?m)^a$', X)",
        "re.search('^$', X)",
        "re.search(r'\\Aa.*1\\Z', X, re.S)",
        "re.search('A.b', X, re.I | re.S)",
        "re.search('b', X, flags=re.I)",
        "re.search('(?i)A(?-i:B)', X)",
        "re.search('(?x) a \\n 1 # digits', X)",
        "re.search('', X)",
        "re.match('a+B', X)",
        "re.match('^a', X)",
        "re.match('a$', X)",
        "re.match('(?m)a$', X) is None",
        "re.match('a|B', X) and len(X) == 2",
        "re.fullmatch('ab', X, re.I)",
        "pattern.search(X)",
        "pattern.match(X) is not None",
        "not pattern.fullmatch(X)",
        "re.compile('b1', re.I).search(X)",
        "X.isalpha()",
        "X.lower() == 'ab'",
        "X.lower() != 'ab'",
        "'b1' == X.lower()",
        "X.lower() in ['ab', 'b', 'B']",
        "X.lower() not in ('ab', 'b')",
        "X.strip() in ['a', 'B1', ' a']",
        "X.strip() == ''",
        "X.rstrip() == '\\na' or X.lstrip() == 'a '",
        "X.strip().lower() == 'ab'",
        "X.lower().strip() in {'b': 1}",
        "not X.strip() != 'a'",
        "X in 'aB1 a'",
        "X not in 'aB1'",
        "X in ''",
        "X in {'a': 1, 'B': 2}.keys()",
        "X in {'a': 'B', 'B': '1'}.values()",
        "X in (w + '1' for w in 'aB')",
        "X in EARLIER and X != EARLIER[0]",
        "X not in {'a', 'aB'}",
        "X != ''",
        "len(X) in [1, 3] and not len(X) in range(3, 9)",
        "len(X.split()) == 2",
        "len(X.split()) != 1",
        "n < len(X) in (3, 4)",
    ],
)
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


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("re.fullmatch('[0-9]+', X)", True),
        ("re.search('^[0-9]+$', X)", True),
        ("re.match('[0-9]+\\\\Z', X)", True),
        ("re.search('[0-9]+$', X)", False),
        ("re.match('[0-9]+', X)", False),
        ("re.search('(?m)^[0-9]+$', X)", False),
    ],
)
def test_a_pattern_of_the_whole_text_ends_it(text: str, ends: bool) -> None:
    """S18: what is only looked for in a text does not."""
    assert is_closed(term(text)) == ends


def test_a_part_of_a_text_is_any_part() -> None:
    """As in Python."""
    assert term("X in 'aba'") == Choice((b"", b"a", b"ab", b"aba", b"b", b"ba"))


def test_a_search_for_a_phrase_says_what_containing_it_says() -> None:
    for value in TEXTS:
        assert satisfies(term("re.search('aB', X)"), value.encode()) == satisfies(Contains(b"aB"), value.encode())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 < count() < len(X)", And((Constant(True), Length(3, None)))),
        ("3 < count() < len(X)", Constant(False)),
        ("1 < count() in KNOWN < len(X)", And((Constant(True), Constant(False)))),
        ("None is not count() != 5 > len(X)", And((Constant(True), Constant(True), Length(0, 4)))),
    ],
)
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
