"""The tree as a draft model: forward passes and time with guesses and without, on the demo model. Part of `tree.py`."""

from __future__ import annotations

import difflib
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import lmql_lite as lq
from lmql_lite.models.demo import DemoModel

RECORDS = """
"{name} is {age} years old and lives in {city}.\\nAs JSON: [RECORD]" where STOPS_AT(RECORD, "}") and len(RECORD) < 90
"""
NAMES = (
    *("Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Frances", "Radia", "Tim", "Linus"),
    *("Margaret", "Ken", "Dennis", "Bjarne", "Guido", "James", "Anna", "Peter", "Maria", "Paul"),
)
CITIES = ("London", "Paris", "Rome", "Berlin", "Madrid", "Vienna", "Oslo", "Prague", "Lisbon", "Dublin")

NOISE = """
sample(temperature=3.0, max_tokens=50)
    "{words}\\n[TEXT]"
where len(TOKENS(TEXT)) > 45
"""
"""Nothing in such a text stands in another one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One way through all rows. `answers`: of each row the tokens that the model chose."""

    passes: int
    seconds: float
    prompts: tuple[str, ...]
    answers: tuple[tuple[int, ...], ...]


def records(many: int) -> list[Mapping[str, Any]]:
    dice = random.Random(1)
    return [
        {"name": dice.choice(NAMES), "age": dice.randrange(20, 90), "city": dice.choice(CITIES)} for _ in range(many)
    ]


def noises(many: int, model: DemoModel) -> list[Mapping[str, Any]]:
    dice = random.Random(2)
    texts = [data.decode() for data in model.tokenizer.vocabulary if data and data.isascii() and data.strip().isalpha()]
    return [{"words": " ".join(dice.choice(texts).strip() for _ in range(10))} for _ in range(many)]


def through(query: lq.Query, rows: Sequence[Mapping[str, Any]], model: DemoModel, *, speculate: bool) -> Measured:
    """Every row once, in a session of its own; seconds are those of the processor."""
    session = lq.Session(model)
    passes, began = 0, time.process_time()
    results = [
        query.run_sync(row, session=session, speculate=speculate, seed=number) for number, row in enumerate(rows)
    ]
    seconds = time.process_time() - began
    passes = sum(result.usage.forward_passes or 0 for result in results)
    prompts = tuple(result.prompt for result in results)
    answers = tuple(tuple(token.id for token in result.tokens if token.hole) for result in results)
    return Measured(passes, seconds, prompts, answers)


def differing(answers: Sequence[Sequence[int]]) -> float:
    """The mean share of tokens in which a row differs from the one before it."""
    alike = [difflib.SequenceMatcher(None, one, other, autojunk=False).ratio() for one, other in pairwise(answers)]
    return 1 - statistics.mean(alike)
