"""Plan of a run (`lq run --dry-run`), for people and as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from lmql_lite.apps.terminal import money
from lmql_lite.engine.forms import Way
from lmql_lite.engine.plan import Plan, PlannedHole

HOW: dict[Way, str] = {
    "masks": "token by token, under a mask",
    "grammar": "held to a grammar; a token that runs past a stop and does not fit cannot be generated",
    "schema": "held to its JSON Schema",
    "stops": "until the server meets a stop string",
    "freely": "freely; what does not fit is asked for again",
    "told": "by a sentence in the prompt that tells what may be answered (tell_answers=False leaves it out)",
    "scores": "by the scores of its options",
    "later": "as its conditions allow, once their values are known",
}
LATER = "  (depends on the run)"


def plan_lines(plan: Plan) -> Iterator[str]:
    limit = "a number of tokens that depends on the run" if plan.max_tokens is None else f"{plan.max_tokens:,} tokens"
    yield f"{plan.model}, {plan.decoder}; a hole has at most {limit}"
    for hole in plan.holes:
        yield ""
        yield from _hole_lines(plan, hole)
    yield ""
    yield from _budget_lines(plan)
    if plan.missing:
        yield f"inputs that are not given: {', '.join(plan.missing)}"
    if plan.unknown:
        yield f"options of the header that depend on the run: {', '.join(plan.unknown)}"
    if not plan.is_met:
        yield "Only a paid probe can tell what this server supports: the plan assumes one that supports little."
    yield from (f"this would end the run: {problem}" for problem in plan.problems)


def _hole_lines(plan: Plan, hole: PlannedHole) -> Iterator[str]:
    yield f"[{hole.name}]  line {hole.span.line}"
    later = set(hole.later)
    for number, clause in enumerate(hole.conditions):
        yield f"    {'where' if not number else '':<6} {_line(clause)}{LATER if clause in later else ''}"
    yield from (f"    judged {_line(clause)}  (by Python, when the value is complete)" for clause in hole.judged)
    yield from (f"    later  {_line(clause)}{LATER}" for clause in sorted(later.difference(hole.conditions)))
    together = [f"[{other.name}]" for other in plan.holes if other.segment == hole.segment and other is not hole]
    others = f", in one segment with {', '.join(together)}" if together else ""
    yield f"    asked  {HOW[hole.way]}{others}"


def _line(clause: str) -> str:
    return " ".join(clause.split())


def _budget_lines(plan: Plan) -> Iterator[str]:
    limits = {"requests": plan.budget.max_requests, "tokens": plan.budget.max_total_tokens}
    bounds = [f"{limit:,} {unit}" for unit, limit in limits.items() if limit is not None]
    bounds += [] if plan.budget.max_cost is None else [f"a cost of {money(plan.budget.max_cost)}"]
    if bounds:
        yield f"the run ends before it passes {' or '.join(bounds)}"


def plan_object(plan: Plan) -> dict[str, Any]:
    """The plan as JSON data. Null means that a value depends on the run."""
    places = ({"line": span.line, "column": span.column} for span in (hole.span for hole in plan.holes))
    found = asdict(plan)
    for hole, place in zip(found["holes"], places, strict=True):
        del hole["span"]
        hole |= place
    return found
