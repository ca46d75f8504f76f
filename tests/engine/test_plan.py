"""A plan says before anything is spent what a run asks, and roughly what it spends."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmql_lite as lq
from lmql_lite.constraints.language import Language
from lmql_lite.engine.plan import Plan, Spending, Way
from lmql_lite.models.base import CompletionRequest
from tests.properties.test_law_one import SCRIPT, programs, segments
from tests.servers.scored import ScoredCompleter
from tests.test_examples import EXAMPLES, INPUTS, TYPED

ABLE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "alternatives": {"alternatives": 5},
    "stops": {"stops": 4},
    "grammars": {"takes_languages": True},
    "chat": {"chat_only": True, "continues_turns": False},
}


def served(script: Any = "", **able: Any) -> ScoredCompleter:
    return ScoredCompleter(lq.ScriptedModel(script), **able)


def planned(source: str, inputs: dict[str, Any] | None = None, **options: Any) -> Plan:
    return lq.compile(source).plan(inputs, **{"model": served(takes_languages=True), **options})


# Holes ---------------------------------------------------------------------------------------------------------------


def test_a_hole_is_told_with_its_conditions_its_end_and_its_bound() -> None:
    source = """
def is_funny(text): return True
"Q:[JOKE]" where STOPS_AT(JOKE, "?") and len(JOKE) < 20 and is_funny(JOKE)
"""
    (hole,) = planned(source).holes
    assert (hole.name, hole.span.line) == ("JOKE", 3)
    assert hole.conditions == ('STOPS_AT(JOKE, "?")', "len(JOKE) < 20")
    assert hole.judged == ("is_funny(JOKE)",)
    assert hole.ends[:2] == ("after '?'", "at 19 characters")
    assert hole.most_tokens == 19 * 4, "a character has four bytes at most, a token one at least"
    assert (hole.times, hole.later) == (1, ())


@pytest.mark.parametrize(
    ("condition", "most"),
    [
        ('X in ["yes", "no"]', 3),
        ("len(TOKENS(X)) <= 7", 7),
        ("DATE(X)", 10),
        ("INT(X)", 1024),
        ('X in ["é", "ee"] or len(X) == 1', 4),
        ('REGEX(X, "a{3}b?")', 4),
        ('STOPS_AT(X, ".")', 1024),
        ('STOPS_AT(X, ".") and len(X) < 3', 8),
    ],
    ids=lambda value: str(value),
)
def test_the_longest_value_bounds_its_tokens(condition: str, most: int) -> None:
    assert planned(f'"a[X]" where {condition}').holes[0].most_tokens == most


def test_max_tokens_bounds_every_hole_and_the_caller_overrules_the_header() -> None:
    source = 'argmax(max_tokens=30)\n    "a[X]"\n'
    assert planned(source).holes[0].most_tokens == 30
    assert planned(source, max_tokens=5).holes[0].most_tokens == 5
    unknown = planned('n = len(open("x").name)\nargmax(max_tokens=n)\n    "a[X]"\n')
    assert (unknown.holes[0].most_tokens, unknown.unknown) == (None, ("max_tokens",))


def test_holes_of_one_segment_have_one_number_S16() -> None:
    plan = planned('"a[A]b[B]" where STOPS_AT(A, "x") and STOPS_AT(B, "x")\nx = 1\n"c[C]"')
    assert [hole.segment for hole in plan.holes] == [1, 1, 2]


@pytest.mark.parametrize(
    ("source", "later"),
    [
        ('"a[X]b[Y]" where Y in [X, "c"]', ('Y in [X, "c"]',)),
        ('items = []\nitems.append("b")\n"a[Y]" where Y in items', ("Y in items",)),
        ('"a[Y]" where len(Y) < limit', ("len(Y) < limit",)),
        ('from x import P\n"a[Y: P]" where Y.age > 3', ("P", "Y.age > 3")),
        ('"a[Y]" distribution Y in options', ("options",)),
    ],
    ids=["an earlier hole", "a list that changes", "an input", "a type", "options"],
)
def test_what_only_a_run_finds_out_is_said_to_be_so(source: str, later: tuple[str, ...]) -> None:
    assert planned(source).holes[-1].later == later


def test_python_without_an_effect_is_foreseen_and_nothing_else_is_run(tmp_path: Path) -> None:
    source = """
import re
import pathlib
pathlib.Path("made").write_text("x")
print(pathlib)
ages = [str(age) for age in range(1, 120)]
"a[X]" where X in ages and len(X) <= size
for item in names:
    "{item}[Y]" where Y in (item, item)
"[Z]" where REGEX(Z, re.compile("[a-c]{3}"))
"""
    plan = planned(source, {"size": 2, "names": ["ab", "cd"]})
    first, second, third = plan.holes
    assert (first.later, first.most_tokens) == ((), 2)
    assert (second.times, second.later) == (2, ("Y in (item, item)",))
    assert (third.later, third.most_tokens) == ((), 3)
    assert not (tmp_path / "made").exists()


# Loops and branches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "times"),
    [
        ('for i in range(4):\n    "[X]"', 4),
        ('for i in range(0):\n    "[X]"', 0),
        ('for i in range(3):\n    for j in "ab":\n        "[X]"', 6),
        ('while True:\n    "[X]"\n    if X == "b":\n        break', None),
        ('for i in some:\n    "[X]"', None),
        ('"[A]"\nif A == "b":\n    "[X]"', 1),
        ('for i in range(9):\n    "[A]"\n    if A:\n        break\n    "[X]"', 9),
        ('try:\n    "[A]"\nfinally:\n    "[X]"', 1),
        ('for i in "abc":\n    try:\n        "[A]"\n        if A:\n            continue\n    finally:\n     "[X]"', 3),
        ('with open(name):\n    "[X]"', 1),
    ],
    ids=["range", "no pass", "nested", "while", "unknown", "if", "break", "finally", "finally of a continue", "with"],
)
def test_how_often_a_hole_is_filled_at_most(source: str, times: int | None) -> None:
    assert planned(source).holes[-1].times == times


def test_a_loop_without_a_bound_makes_the_run_unbounded() -> None:
    plan = planned('while True:\n    "a[X]" where X in ["b", "c"]\n    if X == "b":\n        break', max_tokens=9)
    assert plan.spending == Spending(None, None, None)
    assert [loop.line for loop in plan.loops] == [1]


def test_every_branch_of_the_program_counts() -> None:
    either = planned('"[A]" where A in ["a", "b"]\nif A == "a":\n    "[X]"\nelse:\n    "c[Y]"', max_tokens=10)
    assert either.spending.requests == 3


def test_samples_and_beams_are_written_side_by_side() -> None:
    source = '"a[X]" where X in ["b", "c"]'
    once, thrice = planned(source, decoder="sample").spending, planned(source, decoder="sample", n=3).spending
    assert vars_of(thrice) == tuple(3 * (amount or 0) for amount in vars_of(once))
    query = lq.compile(source)
    plan = query.plan(model="demo", decoder="beam", n=2)
    usage = query.run_sync(model="demo", session=lq.Session(), decoder="beam", n=2)[0].usage
    assert within(usage.completion_tokens, plan.spending.completion_tokens)
    assert plan.spending.completion_tokens == 3, "of beams one more, which takes the best of each token (S24)"


@pytest.mark.parametrize(
    "source",
    ['"a[X: ask(3)]"', '"a[ask(X)]"', '"a[X]" where ask(X)', '"a[argmax(tools=[find]) X]"'],
    ids=["a query as a type", "a query around the hole", "a query in the condition", "tools"],
)
def test_a_hole_that_another_query_fills_or_in_which_tools_are_called_has_no_bound(source: str) -> None:
    @lq.query
    def ask(number: int) -> str:  # type: ignore[empty-body]
        """lq
        "{number}[Y]"
        return Y
        """

    inputs = {"find": len} if "find" in source else {"ask": ask}
    plan = planned(source + '\n"b[Z]" where Z in ["c", "d"]', inputs)
    assert plan.spending == Spending(None, None, None)


def vars_of(spending: Spending) -> tuple[int | None, ...]:
    return spending.requests, spending.prompt_tokens, spending.completion_tokens


def test_text_that_is_not_known_leaves_prompts_without_a_bound() -> None:
    source = '"{place}:[X]" where X in ["a", "b"]'
    assert planned(source).spending == Spending(1, None, 2), "the colon is said again"
    assert planned(source).missing == ("place",)
    assert planned(source, {"place": "Rome"}).spending == Spending(1, 7, 2)


# What a server is asked for ------------------------------------------------------------------------------------------


def way_of(request: CompletionRequest) -> Way:
    if isinstance(request.pushed, Language):
        return "grammar"
    return "schema" if request.pushed else "stops" if request.stops else "freely"


WAYS = [
    '"a[X]" where STOPS_AT(X, "\\n")',
    '"a[X]" where STOPS_AT(X, "\\n") and len(X) < 9',
    '"a[X]" where X in ["b", "c"]',
    '"a[X]"',
    '"a[X]" where STOPS_AT(X, "b") and str.upper(X) != "B"',
    '"a[X]b[Y]" where STOPS_AT(X, "\\n") and len(Y) < 3',
    '"a[X]"\n"b[Y]" where X in ["b", "c"] and STOPS_AT(Y, "e")',
    'for i in range(2):\n    "-[X]" where STOPS_AT(X, "\\n")',
    '"a[X: int]b[Y: list[int]]" where len(Y) < 3',
    '"a[X]b[Y]" where INT(X) and REGEX(Y, "[a-c]+")',
    'sample()\n    "a[X]"\nwhere len(X) < 4',
]


@pytest.mark.parametrize("able", ["nothing", "stops", "grammars"])
@pytest.mark.parametrize("alone", [False, True], ids=["on", "alone"])
@pytest.mark.parametrize("source", WAYS)
def test_the_plan_names_what_the_server_is_then_asked_for_S17(source: str, alone: bool, able: str) -> None:
    model, query = served("abc 12 \n", **ABLE[able]), lq.compile(source)
    options: dict[str, Any] = {"model": model, "cache": not alone, "max_tokens": 12}
    plan = query.plan(**options)
    assert not model.sent, "a plan asks for nothing"
    with suppress(lq.ConstraintError, lq.ModelError):  # some servers cannot be held to everything
        query.run_sync(session=lq.Session(), **options)
    assert way_of(model.sent[0]) == plan.holes[0].way


def test_a_distribution_is_a_problem_where_the_server_scores_nothing() -> None:
    (problem,) = planned('"a[X]" distribution X in ["b", "c"]').problems
    assert problem == "<query>:1:3: [X] has a distribution, but the server cannot score texts"


def test_what_nothing_can_meet_is_a_problem_S22() -> None:
    (problem,) = planned('n = 3\n"a[X]" where len(X) < n and "long" in X').problems
    assert "cannot hold together" in problem


def test_what_is_wrong_is_refused_as_a_run_would() -> None:
    with pytest.raises(lq.InputError, match="the query has no input 'y'"):
        planned('"a[X]"', {"y": 1})
    with pytest.raises(lq.InputError, match="max_cost needs prices"):
        planned('"a[X]"', max_cost=1)
    with pytest.raises(lq.ModelError, match="no model is called"):
        planned('"a[X]"', model="gpt-9")


# Bounds --------------------------------------------------------------------------------------------------------------


def within(spent: int | None, bound: int | None) -> bool:
    return spent is not None and (bound is None or spent <= bound)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(source=st.one_of(programs(), segments()), seed=st.integers(0, 3), certainty=st.sampled_from([0.0, 3.0, 20.0]))
def test_a_run_in_which_nothing_is_thrown_away_spends_no_more_than_its_plan_says(
    source: str, seed: int, certainty: float
) -> None:
    query = lq.compile(source)
    model = lq.ScriptedModel(SCRIPT, seed=seed, certainty=certainty)
    plan = query.plan(model=model, max_tokens=12, max_backtracks=2)
    with suppress(lq.ConstraintError):
        usage = query.run_sync(session=lq.Session(), model=model, max_tokens=12, max_backtracks=2).usage
        assert within(usage.prompt_tokens, plan.spending.prompt_tokens)
        if not usage.wasted_tokens:
            assert within(usage.completion_tokens, plan.spending.completion_tokens)


@pytest.mark.parametrize("able", sorted(ABLE))
@pytest.mark.parametrize(
    "source",
    ['"Say:[X]" where STOPS_AT(X, ".")', '"Say:[X]" where X in [" yes", " no"]'],
    ids=["a stop", "a choice"],
)
def test_a_server_whose_answers_fit_is_asked_no_more_than_the_plan_says(source: str, able: str) -> None:
    model = ScoredCompleter(lq.ScriptedModel("Say: yes. And no.", certainty=20.0), **ABLE[able])
    query = lq.compile(source)
    plan = query.plan(model=model, max_tokens=12, tell_answers=False)
    usage = query.run_sync(session=lq.Session(), model=model, max_tokens=12, tell_answers=False).usage
    assert within(model.requests, plan.spending.requests)
    assert within(usage.received_tokens, plan.spending.completion_tokens)
    assert within(
        sum(len(turn.text.encode()) for prompt in model.prompts for turn in prompt), plan.spending.prompt_tokens
    )


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.lq")), ids=lambda path: path.stem)
def test_the_demo_model_scores_no_more_than_the_plan_of_an_example_says(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO(TYPED.get(path.stem, "")))
    query, inputs = lq.compile(path), INPUTS.get(path.stem, {})
    plan = query.plan(inputs, model="demo")
    assert {hole.way for hole in plan.holes} == {"masks"}
    assert (plan.spending.requests, plan.problems, plan.missing) == (0, (), ())
    usage = query.run_sync(inputs, model="demo", session=lq.Session(), cache=True).usage
    assert within(usage.prompt_tokens, plan.spending.prompt_tokens)
    assert within(usage.completion_tokens, plan.spending.completion_tokens)


def test_prices_make_a_cost_and_none_where_there_is_no_bound() -> None:
    plan = planned('"abc[X]" where X in ["b", "c"]', prices=(1e6, 2e6))
    assert plan.spending == Spending(1, 5, 2), "abc, the value, a token that begins a text; one more is generated again"
    assert plan.cost == 5 + 2 * 2
    assert planned('"{x}[X]"', prices=(1, 1)).cost is None
    assert planned('"[X]"').cost is None


def test_a_plan_can_be_made_inside_a_running_loop() -> None:
    async def inside() -> Plan:
        return planned('"a[X]"')

    assert asyncio.run(inside()).holes[0].name == "X"


def test_a_plan_is_data_that_json_holds() -> None:
    from lmql_lite.apps.plan_view import plan_object

    found = json.loads(json.dumps(plan_object(planned('while True:\n    "a[X]"'))))
    assert found["loops"][0]["line"] == 1 and found["holes"][0]["times"] is None and found["holes"][0]["line"] == 2
