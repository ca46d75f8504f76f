"""Whatever the text: a program, or an error with sound places; nothing else, and soon.

The first problem of a damaged query stands in the line of the damage or below, unless the lines above it are no query
by themselves. More of them, by first number and count: `python -m tests.properties.test_damaged_texts 900000 10000`.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmql_lite.errors import ConstraintError, QueryError
from lmql_lite.lang.query import parse
from lmql_lite.lang.scope import check
from lmql_lite.lang.source import Source
from lmql_lite.program.compiler import compile

ROOT = Path(__file__).parents[2]
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
BEFORE_HEADER = "before the decoder header"
"""Part of the sentences about lines that are wrong because of a line below them."""
TEXTS = [
    *re.split(r"^### .+\n", (ROOT / "tests/lang/good_queries.txt").read_text("utf-8"), flags=re.MULTILINE)[1::2],
    *(each.read_text("utf-8") for each in sorted((ROOT / "examples").rglob("*.lq"))),
]


def first_problem(text: str) -> QueryError | ConstraintError | None:
    """The first problem of a text; None for one that compiles. Everything but an error of the language fails."""
    started = time.perf_counter()
    first = None
    try:
        query = parse(Source("q", text))
        check(query)
        compile(query)
    except (QueryError, ConstraintError) as error:
        for problem in error.problems:
            assert problem.span is not None
            assert 0 <= problem.span.start <= problem.span.end <= len(text)
            assert problem.message and problem.report()
        first = error.problems[0]
    assert time.perf_counter() - started < SECONDS
    return first


GOOD = [text for text in TEXTS if first_problem(text) is None]


class Damage:
    """A good text with up to three pieces put in or taken out, determined by one number."""

    def __init__(self, number: int) -> None:
        dice = random.Random(number)
        self.text = dice.choice(GOOD)
        first = len(self.text)
        for _ in range(dice.randint(1, 3)):
            at, gone = dice.randint(0, len(self.text)), dice.choice([0, 0, 1, 2, 8])
            self.text = self.text[:at] + dice.choice(["", *PIECES]) + self.text[at + gone :]
            first = min(first, at)
        self.line = self.text.count("\n", 0, first) + 1


def outcome(number: int) -> str:
    damage = Damage(number)
    problem = first_problem(damage.text)
    if problem is None:
        return "compiled"
    assert problem.span
    above = "\n".join(damage.text.split("\n")[: damage.line - 1])
    if problem.span.line >= damage.line or BEFORE_HEADER in problem.message or first_problem(above):
        return "refused"
    return f"above: {problem.message}"


@pytest.mark.parametrize("first", range(0, 800, 100))
def test_damaged_queries(first):
    assert {outcome(number) for number in range(first, first + 100)} == {"compiled", "refused"}


@QUICK
@given(st.text(max_size=200))
def test_any_text(text):
    first_problem(text)


@QUICK
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_scraps_of_the_language(text):
    first_problem(text)


@QUICK
@given(st.lists(st.sampled_from([line for text in GOOD for line in text.splitlines()]), max_size=25), st.data())
def test_shuffled_lines(lines, data):
    first_problem("\n".join(" " * data.draw(st.integers(0, 4)) + line for line in lines))


def test_every_beginning_of_every_query():
    """Somebody is typing."""
    for text in GOOD:
        for end in range(0, len(text), 5):
            first_problem(text[:end])


@pytest.mark.parametrize("piece", ["[[", "} ", "[1] ", "\\x ", "{x!r y} ", "[x(", "{y}", "[X: int]"])
def test_the_time_for_a_line_grows_with_its_length(piece):
    def seconds(size: int) -> float:
        started = time.process_time()
        first_problem(f'"{piece * (size // len(piece))}"')
        return time.process_time() - started

    seconds(100)
    assert seconds(32_000) < 100 * max(seconds(2_000), 0.005)  # 256 times, if it grew with the square


def campaign(first: int, count: int) -> None:
    """Writes the number of each text that is not as it should be, and the counts at the end."""
    counts: Counter[str] = Counter()
    started = time.monotonic()
    for number in range(first, first + count):
        try:
            found = outcome(number)
        except Exception as error:
            found = f"crash: {type(error).__name__}: {error}"
        counts[found] += 1
        if found not in ("compiled", "refused"):
            sys.stderr.write(f"{number} {found}\n")
    seconds = time.monotonic() - started
    sys.stderr.write(f"{first} to {first + count - 1} in {seconds:.0f} s: {dict(counts.most_common())}\n")


if __name__ == "__main__":
    campaign(int(sys.argv[1]), int(sys.argv[2]))
