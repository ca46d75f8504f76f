"""`lq run --dry-run`: a plan for people, and as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from lmql_lite.apps.terminal import counted, money
from lmql_lite.runtime.plan import Plan, PlannedHole, PlannedLoop, Spending

HOW = {
    "masks": "token by token, under a mask",
    "grammar": "held to a grammar; a token that runs past a stop and does not fit cannot be said",
    "schema": "held to its JSON Schema",
    "stops": "until the server has said a stop",
    "freely": "freely; what does not fit is asked for again",
    "scores": "by the scores of its options",
    "later": "as its conditions allow, once what they depend on is known",
}


def plan_lines(plan: Plan) -> Iterator[str]:
    limit = "a number of tokens that only a run finds out" if plan.max_tokens is None else f"{plan.max_tokens:,} tokens"
    yield f"{plan.model}, {plan.decoder}; a hole has at most {limit}"
    for hole in plan.holes:
        yield ""
        yield from _hole_lines(plan, hole)
    yield ""
    yield from _spending_lines(plan)
    for loop in plan.loops:
        if loop.passes is None:
            yield _loop_line(loop)
    if plan.missing:
        yield f"not given, so that what depends on it is not known: {', '.join(plan.missing)}"
    if plan.unknown:
        yield f"only a run finds out what the header says of {', '.join(plan.unknown)}"
    if plan.met is not None:
        yield f"what the server can do was found out with {counted(plan.met.requests, 'request')}"
    yield from (f"this would end the run: {problem}" for problem in plan.problems)


def _hole_lines(plan: Plan, hole: PlannedHole) -> Iterator[str]:
    yield f"[{hole.name}]  line {hole.span.line}{_filled(hole)}"
    later = set(hole.later)
    for number, clause in enumerate(hole.conditions):
        unknown = "  (not known yet)" if clause in later else ""
        yield f"    {'where' if not number else '':<6} {_line(clause)}{unknown}"
    for clause in hole.judged:
        yield f"    judged {_line(clause)}  (by Python, when the value is complete)"
    for clause in sorted(later.difference(hole.conditions)):
        yield f"    later  {_line(clause)}  (not known yet)"
    bound = "" if hole.most_tokens is None else f"; at most {counted(hole.most_tokens, 'token')}"
    yield f"    ends   {', or '.join(hole.ends)}{bound}"
    together = [other.name for other in plan.holes if other.segment == hole.segment and other is not hole]
    with_others = f", in one segment with {', '.join(f'[{name}]' for name in together)}" if together else ""
    yield f"    asked  {HOW[hole.way]}{with_others}"


def _filled(hole: PlannedHole) -> str:
    if hole.always and hole.times == 1:
        return ""
    most = "any number of times" if hole.times is None else f"at most {counted(hole.times, 'time')}"
    return f", filled {most}, {'and at least once' if hole.always else 'and perhaps never'}"


def _line(clause: str) -> str:
    return " ".join(clause.split())


def _spending_lines(plan: Plan) -> Iterator[str]:
    columns = (plan.usual, plan.most)
    unbounded = "unbounded" if any(loop.passes is None for loop in plan.loops) else "not known"

    def row(name: str, *cells: str) -> str:
        return f"{name:<12}" + "".join(f"{cell:>18}" for cell in cells)

    def number(count: int | None) -> str:
        return unbounded if count is None else f"{count:,}"

    yield row("", "if what it says fits", "at most") if plan.on_server else row("", "if all is accepted", "at most")
    if plan.on_server:
        yield row("requests", *(number(each.requests) for each in columns))
    yield row("tokens in", *(number(each.prompt_tokens) for each in columns))
    yield row("tokens out", *(number(each.completion_tokens) for each in columns))
    if plan.on_server and plan.budget.prices is not None:
        costs = (plan.cost(each) for each in columns)
        yield row("cost", *(unbounded if cost is None else money(cost) for cost in costs))
    limits = {"requests": plan.budget.max_requests, "tokens": plan.budget.max_total_tokens}
    told = [f"{limit:,} {what}" for what, limit in limits.items() if limit is not None]
    told += [] if plan.budget.max_cost is None else [f"a cost of {money(plan.budget.max_cost)}"]
    if told:
        yield f"the run ends before it passes {' or '.join(told)}"


def _loop_line(loop: PlannedLoop) -> str:
    each = loop.each
    parts = [
        None if each.requests in (None, 0) else counted(each.requests or 0, "request"),
        None if each.completion_tokens is None else f"{each.completion_tokens:,} tokens out",
    ]
    told = " and ".join(part for part in parts if part)
    first = f"; its first one comes to {told}, if what it says fits" if told else ""
    return f"unbounded: the loop in line {loop.span.line} may have any number of passes{first}"


def plan_object(plan: Plan) -> dict[str, Any]:
    """Null is no bound, or not known."""
    holes = [asdict(hole) | {"span": None, "line": hole.span.line, "column": hole.span.column} for hole in plan.holes]
    for hole in holes:
        del hole["span"]
    return {
        "model": plan.model,
        "decoder": plan.decoder,
        "max_tokens": plan.max_tokens,
        "holes": holes,
        "loops": [
            {"line": loop.span.line, "passes": loop.passes, "first_pass": asdict(loop.each)} for loop in plan.loops
        ],
        "usual": _spending_object(plan, plan.usual),
        "most": _spending_object(plan, plan.most),
        "budget": asdict(plan.budget),
        "missing": plan.missing,
        "unknown": plan.unknown,
        "problems": plan.problems,
        "met": None if plan.met is None else asdict(plan.met),
    }


def _spending_object(plan: Plan, spending: Spending) -> dict[str, Any]:
    return asdict(spending) | {"cost": plan.cost(spending) if plan.on_server else None}
