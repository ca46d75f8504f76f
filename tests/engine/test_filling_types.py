"""Holes with a type: the value is an instance of it, the prompt keeps the text, conditions and cache do as ever."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from tests.engine.watched import shown, watched
from tests.tables import cases

PERSON = """
from pydantic import BaseModel

class Person(BaseModel):
    name: str
    age: int

"""
BOB = '{"name": "Bob", "age": 42}'


@dataclasses.dataclass
class Point:
    x: int
    y: int


def run(source: str, script: str, session: lq.Session, **inputs: Any) -> lq.Result:
    return lq.run_sync(source, inputs=inputs, model=lq.ScriptedModel(script), session=session)


@cases("engine/filling_types", "the value is of the type and the prompt keeps the text", globals())
def test_the_value_is_of_the_type_and_the_prompt_keeps_the_text(
    annotation: str, text: str, value: object, session: lq.Session
) -> None:
    result = run(f'"It is [X: {annotation}]\\n."\nreturn X', f"It is {text}\n.", session)
    assert result.prompt == f"It is {text}\n."
    assert result.value == result["X"] == value and type(result.value) is type(value)


def test_in_a_function_the_types_of_its_module_are_known(session: lq.Session) -> None:
    @lq.query(model=lq.ScriptedModel('{"x": 1, "y": 2}'), session=session)
    def place() -> Any:
        """lq
        "[X: Point]"
        return X
        """

    assert place() == Point(1, 2)


@cases("engine/filling_types", "conditions are kept", globals())
def test_conditions_are_kept(annotation: str, where: str, script: str, holds: Any, session: lq.Session) -> None:
    source = f'from datetime import date\nbanned = ["a"]\n"x [X: {annotation}]" where {where}'
    assert holds(run(source, "x " + script, session)["X"])


VALIDATED = """
from pydantic import BaseModel, field_validator

class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def is_even(cls, value):
        if value % 2:
            raise ValueError("this is odd")
        return value

"""


def test_what_the_demo_model_draws_is_always_of_the_type() -> None:
    source = """
from pydantic import BaseModel, Field

class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(gt=17, lt=100)
    pets: list[str] = Field(max_length=2)
    city: str | None = None

sample(temperature=1.2)
    "A person as JSON:\\n[WHO: Person]\\n[AGE: int] [DAY: date]"
where 3 < AGE < 1000 and DAY.year > 1999
"""
    query, session = lq.compile(source), lq.Session()
    for seed in range(8):
        try:
            result = query.run_sync(session=session, seed=seed, max_tokens=200, max_backtracks=500)
        except lq.ConstraintError as error:
            assert "is not complete within" in error.message
            continue
        who = result["WHO"]
        assert len(who.name) <= 12 and 17 < who.age < 100 and len(who.pets) <= 2
        assert 3 < result["AGE"] < 1000 and result["DAY"].year > 1999


def test_json_is_shown_as_it_comes_where_it_cannot_be_refused_S33() -> None:
    model = lq.ScriptedModel("[1, 2, 3]")
    assert len(shown('"[X: list[int]]"', hole="X", model=model)) > 3
    assert shown('"[X: list[int]]" where X[0] == 1', hole="X", model=model) == ["[1, 2, 3]"]
    even = lq.ScriptedModel('{"number": 2}')
    assert shown(VALIDATED + '"[X: Even]"', hole="X", model=even) == ['{"number": 2}']


def test_the_event_shows_the_text_and_the_result_the_value(session: lq.Session) -> None:
    closed = watched(PERSON + '"[X: Person]"', model=lq.ScriptedModel(BOB), until=events.HoleClosed)[-1]
    assert isinstance(closed, events.HoleClosed) and closed.value == BOB
    assert json.loads(BOB) == run(PERSON + '"[X: Person]"', BOB, session)["X"].model_dump()


def test_a_date_that_is_given_stays_an_input_in_a_where_clause() -> None:
    query = lq.compile('"Today is {date}: [X]" where date in X and len(X) < 12')
    assert query.inputs == ("date",)


@cases("engine/filling_types", "a key or a value that json has no word for guides", globals())
def test_a_key_or_a_value_that_json_has_no_word_for_guides(
    annotation: Any, script: str, value: object, session: lq.Session
) -> None:
    """No draw is refused: the model is let say nothing else."""
    result = run('argmax(max_backtracks=0)\n"[X: T]"', script, session, T=annotation)
    found = result.variables["X"]
    assert found == value if script != '{"one": "a"}' else all(isinstance(key, int) for key in found)


@cases("engine/filling_types", "a number in json is never infinite", globals())
def test_a_number_in_json_is_never_infinite(annotation: Any, script: str, session: lq.Session) -> None:
    with pytest.raises(lq.ConstraintError, match="too large for a float"):
        run('"[X: T]"', script, session, T=annotation)
