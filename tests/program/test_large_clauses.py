"""Clauses with thousands of parts: work that grows with their number, and not with its square. Counted, not timed."""

from __future__ import annotations

import ast
import random
from functools import partial
from typing import ClassVar

import pytest

import lmql_lite as lq
from lmql_lite.constraints.simplify import satisfies, simplify
from lmql_lite.constraints.terms import And, Choice, Not, Term
from lmql_lite.errors import Span
from lmql_lite.lang.source import span_of
from lmql_lite.program import holes as of_program


class CountedText(str):
    """A text that counts how often all of it is read."""

    __slots__ = ()
    reads: ClassVar[list[str]] = []

    def split(self, *arguments: object) -> list[str]:  # type: ignore[override]
        self.reads.append("split")
        return super().split("\n")

    def encode(self, *arguments: str) -> bytes:
        self.reads.append("encode")
        return super().encode(*arguments)


class CountedOption(bytes):
    """An option that counts how often it is compared."""

    compared: ClassVar[list[bytes]] = []

    def __eq__(self, other: object) -> bool:
        self.compared.append(self)
        return super().__eq__(other)

    __hash__ = bytes.__hash__


def test_the_place_of_every_part_of_a_long_clause_is_found_in_one_reading_of_its_text() -> None:
    lines = [f"f(é, 'ê', {number}) +" for number in range(200)]
    text = CountedText("(" + "\n".join(lines) + " 0)")
    around = Span("test.lq", text, 0, len(text))
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    text.reads.clear()
    places = {span_of(call, around).source for call in calls}
    assert places == {line.removesuffix(" +") for line in lines}
    assert len(text.reads) <= 2


def test_options_are_not_looked_for_one_by_one_where_they_are_many() -> None:
    some = tuple(CountedOption(b"%d" % number) for number in range(2000))
    others = tuple(CountedOption(b"%d" % (number + 1000)) for number in range(2000))
    CountedOption.compared.clear()
    both = simplify(And((Choice(some), Choice(others))))
    one = simplify(And((Choice(some), Not(Choice(others)))))
    assert both == Choice(some[1000:]) and one == Choice(some[:1000])
    assert len(CountedOption.compared) <= 20 * len(some)


@pytest.mark.parametrize("seed", range(20))
def test_the_options_that_stay_are_those_that_meet_all_of_the_condition(seed: int) -> None:
    dice = random.Random(seed)
    texts = [bytes(dice.choices(b"ab", k=dice.randint(0, 3))) for _ in range(30)]

    def term(depth: int) -> Term:
        if depth == 0:
            return Choice(tuple(dice.sample(texts, 12)))
        kind = dice.choice([Not, And, And])
        return Not(term(depth - 1)) if kind is Not else And((term(depth - 1), term(depth - 1)))

    whole = And((Choice(tuple(texts)), term(dice.randint(0, 3))))
    kept = simplify(whole)
    expected = tuple(dict.fromkeys(text for text in texts if satisfies(whole, text)))
    assert kept == Choice(expected) or not expected


def test_the_clauses_of_a_conflict_are_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    simplify = of_program.simplify
    monkeypatch.setattr(of_program, "simplify", lambda term: asked.append(1) or simplify(term))
    bans = [f'not "{number}" in X' for number in range(300)]
    clauses = [*bans[:150], 'X in ["cat", "x77"]', *bans[150:200], "len(X) == 3", *bans[200:], 'X != "cat"']
    together = r'`not "77" in X`, .* and `X != "cat"` cannot hold together'
    with pytest.raises(lq.ConstraintError, match=together) as caught:
        lq.compile(f'argmax\n    "[X]"\nwhere {" and ".join(clauses)}')
    assert caught.value.message.count("`") == 6
    assert len(asked) <= 100


@pytest.mark.parametrize("seed", range(30))
def test_a_conflict_is_found_and_none_of_its_clauses_can_be_spared(seed: int) -> None:
    dice = random.Random(seed)
    parts = ["int(X) > 5", "int(X) < 3", "int(X) == 4", 'X in ["a", "bb", "4"]', 'X in ["a", "cc"]', 'not "a" in X',
             "len(X) == 2", "len(X) > 3", 'X != "4"', "len(X) < 9", 'not "c" in X', 'X != "bb"']  # fmt: skip
    clauses = dice.sample(parts, dice.randint(1, 7))
    compiled = partial(_compiles, dice)
    if compiled(clauses):
        return
    with pytest.raises(lq.ConstraintError) as caught:
        lq.compile(f'"[X]" where {" and ".join(clauses)}')
    named = [clause for clause in clauses if f"`{clause}`" in caught.value.message]
    assert named and not compiled(named)
    assert all(compiled([other for other in named if other != each]) for each in named if len(named) > 1)


def _compiles(dice: random.Random, clauses: list[str]) -> bool:
    try:
        lq.compile(f'"[X]" where {" and ".join(clauses)}')
    except lq.ConstraintError:
        return False
    return True
