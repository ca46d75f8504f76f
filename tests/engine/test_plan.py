"""A plan says before anything is spent what a run asks."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.constraints.language import Language
from lmql_lite.engine.forms import Way
from lmql_lite.engine.plan import Plan
from lmql_lite.models.base import CompletionRequest
from tests.servers.scored import ScoredCompleter
from tests.tables import cases
from tests.test_examples import EXAMPLES, INPUTS

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


def test_a_hole_is_told_with_its_conditions() -> None:
    source = """
def is_funny(text): return True
"Q:[JOKE]" where STOPS_AT(JOKE, "?") and len(JOKE) < 20 and is_funny(JOKE)
"""
    (hole,) = planned(source).holes
    assert (hole.name, hole.span.line) == ("JOKE", 3)
    assert hole.conditions == ('STOPS_AT(JOKE, "?")', "len(JOKE) < 20")
    assert hole.judged == ("is_funny(JOKE)",)
    assert hole.later == ()


def test_max_tokens_bounds_every_hole_and_the_caller_overrules_the_header() -> None:
    source = 'argmax(max_tokens=30)\n    "a[X]"\n'
    assert planned(source).max_tokens == 30
    assert planned(source, max_tokens=5).max_tokens == 5
    unknown = planned('n = len(open("x").name)\nargmax(max_tokens=n)\n    "a[X]"\n')
    assert (unknown.max_tokens, unknown.unknown) == (None, ("max_tokens",))


def test_holes_of_one_segment_have_one_number_S16() -> None:
    plan = planned('"a[A]b[B]" where STOPS_AT(A, "x") and STOPS_AT(B, "x")\nx = 1\n"c[C]"')
    assert [hole.segment for hole in plan.holes] == [1, 1, 2]


@cases("engine/plan", "what only a run finds out is said to be so", globals())
def test_what_only_a_run_finds_out_is_said_to_be_so(source: str, later: tuple[str, ...]) -> None:
    assert planned(source).holes[-1].later == later


def test_expressions_of_inputs_are_foreseen_and_no_statement_is_run(tmp_path: Path) -> None:
    source = """
import pathlib
pathlib.Path("made").write_text("x")
"a[X]" where X in [str(age) for age in range(1, 120)] and len(X) <= size
for item in names:
    "{item}[Y]" where Y in (item, item)
names.append("d")
"[Z]" where Z in names and len(Z) < len(pathlib)
"""
    plan = planned(source, {"size": 2, "names": ["ab", "cd"]})
    later = [hole.later for hole in plan.holes]
    assert later == [(), ("Y in (item, item)",), ("Z in names", "len(Z) < len(pathlib)")]
    assert not (tmp_path / "made").exists()


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


def test_text_that_is_not_known_is_a_missing_input() -> None:
    assert planned('"{place}:[X]"').missing == ("place",) and planned('"{place}:[X]"', {"place": "Rome"}).missing == ()


def test_a_distribution_is_a_problem_where_the_server_scores_nothing() -> None:
    (problem,) = planned('"a[X]" distribution X in ["b", "c"]').problems
    assert problem == "<query>:1:3: [X] has a distribution, but the server cannot score texts"


def test_what_nothing_can_meet_is_a_problem_S22() -> None:
    (problem,) = planned('"a[X]" where len(X) < n and "long" in X', {"n": 3}).problems
    assert "cannot hold together" in problem


def test_what_is_wrong_is_refused_as_a_run_would() -> None:
    with pytest.raises(lq.InputError, match="the query has no input 'y'"):
        planned('"a[X]"', {"y": 1})
    with pytest.raises(lq.InputError, match="max_cost needs prices"):
        planned('"a[X]"', max_cost=1)
    with pytest.raises(lq.ModelError, match="no model is called"):
        planned('"a[X]"', model="gpt-9")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.lq")), ids=lambda path: path.stem)
def test_an_example_has_a_plan_without_problems(path: Path) -> None:
    query, inputs = lq.compile(path), INPUTS.get(path.stem, {})
    plan = query.plan(inputs, model="demo")
    assert {hole.way for hole in plan.holes} == {"masks"}
    assert (plan.problems, plan.missing) == ((), ())


def test_a_plan_can_be_made_inside_a_running_loop() -> None:
    async def inside() -> Plan:
        return planned('"a[X]"')

    assert asyncio.run(inside()).holes[0].name == "X"


def test_a_plan_is_data_that_json_holds() -> None:
    from lmql_lite.apps.plan_view import plan_object

    found = json.loads(json.dumps(plan_object(planned('while True:\n    "a[X]"'))))
    assert (found["holes"][0]["line"], found["holes"][0]["column"]) == (2, 7)
