"""Refusal of conditions whose counts multiply: searches for their ends would take minutes.

What is counted is the condition alone, before any search, so that equal conditions are always judged alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from lmql_lite.constraints.search import counted_at_once
from lmql_lite.constraints.simplify import simplify
from lmql_lite.constraints.terms import And, Length, Or, Term
from lmql_lite.constraints.units import COUNTED_ALONE, Unit

MAX_CELLS = 200_000
"""Most combinations of counts that a condition may distinguish."""
MAX_ALTERNATIVES = 64
"""Most ways of choosing an operand of each `or`. If there are more, all operands count."""
CHARACTERS_WANTED = 4
"""A least number of characters makes searches as long as a greatest number of so many times as many."""

Bounds = dict[Unit, tuple[int, int]]
"""Least number that is wanted of each unit, and greatest number that is named; 0 if there is none."""


def refuse_product(term: Term) -> None:
    """Raises TooLarge if a term wants several of words, sentences, lines and phrases in numbers that multiply."""
    cells = max((_cells(bounds) for bounds in _alternatives(simplify(term))), default=1)
    if cells > MAX_CELLS:
        sentence = f"these conditions together distinguish {cells:,} combinations of counts, more than {MAX_CELLS:,}"
        raise counted_at_once(term, sentence)


def _cells(bounds: Bounds) -> int:
    """Combinations of counts; 1 if at most one unit besides characters and tokens is wanted, which needs no product."""
    wanted = [max(pair) for unit, pair in bounds.items() if unit not in COUNTED_ALONE and pair[0] > 0]
    cells = 1
    for many in wanted if len(wanted) > 1 else ():
        cells *= many
    for unit in COUNTED_ALONE if len(wanted) > 1 else ():
        least, most = bounds.get(unit, (0, 0))
        cells *= max(CHARACTERS_WANTED * least, most, 1)
    return cells


def _alternatives(term: Term) -> list[Bounds]:
    match term:
        case Length(at_least, at_most, unit):
            return [{unit: (at_least, at_most or 0)}]
        case Or(terms):
            found = [bounds for part in terms for bounds in _alternatives(part)]
            return found if len(found) <= MAX_ALTERNATIVES else [_merged(found)]
        case And(terms):
            together: list[Bounds] = [{}]
            for part in terms:
                together = [_merged(pair) for pair in product(together, _alternatives(part))]
                together = together if len(together) <= MAX_ALTERNATIVES else [_merged(together)]
            return together
    return [{}]


def _merged(several: Iterable[Bounds]) -> Bounds:
    merged: Bounds = {}
    for bounds in several:
        for unit, (least, most) in bounds.items():
            before = merged.get(unit, (0, 0))
            merged[unit] = max(before[0], least), max(before[1], most)
    return merged
