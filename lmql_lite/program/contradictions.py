"""Clauses that leave no text for their hole, as far as that is seen without an automaton and before anything runs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from lmql_lite.constraints.simplify import simplify
from lmql_lite.constraints.terms import And, Choice, Constant, Term
from lmql_lite.errors import ConstraintError
from lmql_lite.lang import nodes
from lmql_lite.program.conditions import reach
from lmql_lite.program.lower import Lowering, mentioned
from lmql_lite.program.subjects import Subject


class Known(NamedTuple):
    """A clause that is the same in every run: its values are written out."""

    clause: nodes.Expression
    term: Term
    reach: tuple[float, float]


def refuse_contradiction(hole: str, clauses: Iterable[nodes.Expression], bare: Subject) -> None:
    """Raises ConstraintError, naming as few clauses as it takes. What is not seen here is found when the hole opens."""
    guilty = _conflict([known for clause in clauses if (known := _known(clause, hole, bare))])
    if not guilty:
        return
    *others, last = (f"`{each.clause.span.source}`" for each in guilty)
    reason = f"{', '.join(others)} and {last} cannot hold together" if others else f"{last} holds for no text"
    hint = "take one of them away, or join them by `or`" if others else "look at its bounds, its spaces and its case"
    if not others and not mentioned(guilty[-1].clause, [hole]):
        reason, hint = f"{last} is false", f"write a condition on {hole}"
    if guilty[-1].term == Choice(()):
        hint = "the list of options is empty"
    raise ConstraintError(f"nothing can fill [{hole}]: {reason}", span=guilty[-1].clause.span, hint=hint)


def _known(clause: nodes.Expression, hole: str, bare: Subject) -> Known | None:
    lowering = Lowering(clause.span, hole, bare)
    try:
        condition = lowering.condition(clause.tree.body)
        return Known(clause, condition.bind(lowering.written), reach(condition, lowering.written))
    except Exception:  # a value is not written out, or it is a wrong one, which is said elsewhere
        return None


def _conflict(known: list[Known]) -> list[Known]:
    """Clauses that cannot hold together, though they could without any of them; none where all may hold."""
    lowest, highest = -math.inf, math.inf
    for at, after in enumerate(known):
        lowest, highest = max(lowest, after.reach[0]), min(highest, after.reach[1])
        if lowest > highest:
            return _apart(known[: at + 1])
    return _needed(known) if _is_impossible(known) else []


def _needed(known: list[Known]) -> list[Known]:
    """Of clauses that cannot hold together those that are left when each one that can be spared is taken away.

    The shortest end of the list that leaves no text begins with a clause that cannot be spared: it is found by halves.
    """
    needed: list[Known] = []
    while not _is_impossible(needed):
        rest = known
        start = bisect_left(range(len(rest)), True, key=lambda at: not _is_impossible([*needed, *rest[at + 1 :]]))
        needed, known = [*needed, rest[start]], rest[start + 1 :]
    return needed


def _apart(known: list[Known]) -> list[Known]:
    """The last clause, and the first one that its number cannot meet; the last alone where no number meets it."""
    after = known[-1]
    before = next(each for each in known if max(each.reach[0], after.reach[0]) > min(each.reach[1], after.reach[1]))
    return [after] if before is after else [before, after]


def _is_impossible(known: Iterable[Known]) -> bool:
    return simplify(And(tuple(each.term for each in known))) == Constant(False)
