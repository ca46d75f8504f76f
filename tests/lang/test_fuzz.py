"""Whatever the text: a tree, or a QueryError with sound places; nothing else, and soon."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmql_lite.errors import QueryError
from lmql_lite.lang.query import parse
from lmql_lite.lang.scope import check
from lmql_lite.lang.source import Source

QUICK = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

SECONDS = 5
"""A hang, not a slow machine."""

SCRAPS = r"""
' " [ ] { } ( ) [[ ]] {{ }} \ # : ; , . = == := @ * !r :>8 _ 0 x é 😀 $ ? “ f' b' r' \N{ \x \u12
where from distribution in argmax sample(n=2) [X] [X:int] {y} {:user} "[X]" X len(X)<3 if x: else: elif for i while
break continue return def f(): class C: lambda: match x: case 1: try: except: finally: with async await yield
import and not
"""
SPACES = [" ", "\t", "\n", "\r\n", "\n    ", "\\\n", "\f", "\u2028", "\0", "\ud800", "\r"]
PIECES = ['"""', *SCRAPS.split(), *SPACES, *SPACES[:4] * 4]


def survives(text: str) -> None:
    started = time.perf_counter()
    try:
        check(parse(Source("q", text)))
    except QueryError as error:
        for problem in error.problems:
            assert problem.span is not None
            assert 0 <= problem.span.start <= problem.span.end <= len(text)
            assert problem.message and problem.report()
    assert time.perf_counter() - started < SECONDS


@QUICK
@given(st.text(max_size=200))
def test_any_text(text):
    survives(text)


@QUICK
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_scraps_of_the_language(text):
    survives(text)


@QUICK
@given(st.data())
def test_damaged_queries(good_texts, data):
    text = data.draw(st.sampled_from(good_texts))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        gone = data.draw(st.integers(0, 8))
        text = text[:at] + data.draw(st.sampled_from(["", *PIECES])) + text[at + gone :]
    survives(text)


@QUICK
@given(st.data())
def test_shuffled_lines(good_texts, data):
    lines = [
        line
        for text in data.draw(st.lists(st.sampled_from(good_texts), min_size=1, max_size=3))
        for line in text.splitlines()
    ]
    lines = data.draw(st.lists(st.sampled_from(lines), max_size=25))
    survives("\n".join(" " * data.draw(st.integers(0, 4)) + line for line in lines))


def test_every_beginning_of_every_query(good_texts):
    """Somebody is typing."""
    for text in good_texts:
        for end in range(0, len(text), 3):
            survives(text[:end])


@pytest.mark.parametrize("piece", ["[[", "} ", "[1] ", "\\x ", "{x!r y} ", "[x(", "{y}", "[X: int]"])
def test_the_time_for_a_line_grows_with_its_length(piece):
    def seconds(size: int) -> float:
        started = time.process_time()
        survives(f'"{piece * (size // len(piece))}"')
        return time.process_time() - started

    seconds(100)
    assert seconds(32_000) < 100 * max(seconds(2_000), 0.005)  # 256 times, if it grew with the square
