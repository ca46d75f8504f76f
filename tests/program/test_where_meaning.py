"""Meaning of conditions against an oracle: a value that guide and Python both accept meets the clause, and no other."""

from __future__ import annotations

import ast
import asyncio
import itertools
import random
import re
from collections.abc import Mapping
from types import CodeType
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.constraints.simplify import satisfies
from lmql_lite.program.ops import Hole
from lmql_lite.program.symbols import MADE
from lmql_lite.program.where import TEXT
from tests.properties.plain_where import FUNCTIONS
from tests.tables import rows

ATOMS = [atom for (atom,) in rows("program/where_meaning", "atoms of a clause")]
GIVEN: Mapping[str, Any] = {
    **FUNCTIONS,
    "n": 3,
    "v": 2,
    "w": "ab",
    "f": str.isalpha,
    "pattern": re.compile("b1|A", re.I),
    "__builtins__": __builtins__,
}
TEXTS = ["", "a b", " a", "a ", "7", "-7", "007", "1.5", "2.50", "100", "none", "YES", "2024-02-29", "b\n", "1e5"]
TEXTS += ["".join(text) for size in (1, 2, 3) for text in itertools.product("ab1A", repeat=size)]


def random_clause(dice: random.Random, depth: int = 3) -> str:
    if not depth or dice.random() < 0.3:
        return dice.choice(ATOMS)
    kind = dice.choice(["and", "or", "not"])
    parts = [random_clause(dice, depth - 1) for _ in range(1 if kind == "not" else 2)]
    return f"not ({parts[0]})" if kind == "not" else f"({parts[0]}) {kind} ({parts[1]})"


def truth(node: ast.expr, names: Mapping[str, Any]) -> bool | None:
    """None for a part that reads a number or a character which the text does not have: neither it nor its opposite is
    true (S20)."""
    match node:
        case ast.UnaryOp(ast.Not(), operand):
            found = truth(operand, names)
            return None if found is None else not found
        case ast.BoolOp(operator, parts):
            deciding = isinstance(operator, ast.Or)
            found_parts = [truth(part, names) for part in parts]
            return deciding if deciding in found_parts else None if None in found_parts else not deciding
    try:
        return bool(eval(compile(ast.Expression(node), "where", "eval"), dict(names)))
    except (ValueError, IndexError):
        return None


def value_of(hole: Hole, text: str) -> Any:
    return MADE[hole.number](text) if hole.number else text


def is_judged_true(hole: Hole, text: str) -> bool:
    """True if Python accepts a complete value."""
    names = {**GIVEN, "X": value_of(hole, text), TEXT: text}

    def evaluate(code: CodeType) -> Any:
        return eval(code, dict(names))

    async def run(code: CodeType) -> Any:
        return evaluate(code)

    async def judged() -> bool:
        return all([await each.accepts(text, evaluate, run) for each in hole.judges])

    return asyncio.run(judged())


def strict(kind: type[int] | type[float], shape: str) -> Any:
    def read(text: str) -> float:
        if not re.fullmatch(shape, str(text)):
            raise ValueError(text)
        return kind(text)

    return read


NUMBERS = {"int": strict(int, "0|-?[1-9][0-9]*"), "float": strict(float, r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")}


@pytest.mark.parametrize("seed", range(20))
def test_guide_and_python_together_accept_what_the_clause_says(seed: int) -> None:
    dice = random.Random(seed)
    compiled = 0
    for _ in range(12):
        clause = random_clause(dice)
        if "X" not in clause:
            continue
        tree = ast.parse(clause, mode="eval").body
        try:
            program = lq.compile(f'"[X]" where {clause}').program
        except lq.ConstraintError:  # nothing can fill it
            assert not [text for text in TEXTS if truth(tree, {**GIVEN, **NUMBERS, "X": text})], clause
            continue
        (hole,) = [op for op in program.parts if isinstance(op, Hole)]
        term = hole.bind(lambda code: eval(code, dict(GIVEN)))
        compiled += 1
        for text in TEXTS:
            expected = truth(tree, {**GIVEN, **NUMBERS, "X": text}) is True
            judged = satisfies(term, text.encode()) and is_judged_true(hole, text)
            assert judged == expected, (clause, text)
    assert compiled
