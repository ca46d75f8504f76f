"""Conditions on places inside a record: they guide through the schema, and Python judges what cannot (S21)."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
import pytest
import typing_extensions
from pydantic import Field

import lmql_lite as lq
from lmql_lite.models.openai.model import OpenAIModel
from tests.servers.kinds import LLAMA_CPP, SGLANG, VLLM, Config
from tests.servers.stub import serving
from tests.tables import cases


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Rank(enum.Enum):
    """The order of the members is not that of their values."""

    LOW = "low"
    HIGH = "high"

    def __lt__(self, other: Rank) -> bool:
        return self is Rank.LOW and other is Rank.HIGH


class Ranked(pydantic.BaseModel):
    rank: Rank


class P(pydantic.BaseModel):
    name: str
    age: int


class Line(pydantic.BaseModel):
    sku: str
    price: float
    count: int = 1


class Invoice(pydantic.BaseModel):
    customer: str
    lines: list[Line] = Field(min_length=1, max_length=3)


class Pair(pydantic.BaseModel):
    """Both places share one definition."""

    buyer: P
    seller: P


class Bounded(pydantic.BaseModel):
    age: int = Field(ge=0, le=120)
    code: str = Field(pattern="^[a-z]+$", max_length=5)
    share: float = Field(gt=0, lt=1)


class Maybe(pydantic.BaseModel):
    age: int | None = None
    size: int | str = 3
    color: Color = Color.RED
    kind: Literal["a", "b", 3] = "a"
    ok: bool = False
    tags: list[str] = []


class Renamed(pydantic.BaseModel):
    age: int = Field(alias="Age-In-Years")
    name: str = Field(validation_alias="n")


class Node(pydantic.BaseModel):
    value: int
    child: Node | None = None


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    name: str


class Home(pydantic.BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


class Dated(pydantic.BaseModel):
    day: datetime.date


class Trimmed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(str_strip_whitespace=True)
    name: str


class Doubled(pydantic.BaseModel):
    age: Annotated[int, pydantic.AfterValidator(lambda age: age * 2)]


@dataclasses.dataclass
class Point:
    x: int
    y: int = 7


@dataclasses.dataclass
class Moved:
    x: int

    def __post_init__(self) -> None:
        self.x += 100


class Spot(NamedTuple):
    x: int
    label: str = "here"


class Keys(typing_extensions.TypedDict, total=False):
    a: int
    b: str


RAW = {
    "type": "object",
    "properties": {"age": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["age"],
}
SHARED = {
    "$defs": {"P": {"type": "object", "properties": {"age": {"type": ["integer", "null"]}}, "required": ["age"]}},
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/P"}, "b": {"$ref": "#/$defs/P"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
BESIDE = {
    "$defs": {"N": {"type": "integer", "minimum": 5}},
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/N", "minimum": 1}},
    "required": ["a"],
}
NAMES = {
    "Color": Color,
    "Level": Level,
    "Rank": Rank,
    "Decimal": Decimal,
    "limit": 30,
    "names": ["Ann", "Bob"],
    "none": None,
}


def filled(annotation: Any, where: str, wanted: str, **options: Any) -> lq.Result:
    given = {name: value for name, value in NAMES.items() if re.search(rf"\b{name}\b", where)}
    source = f'"[X: T]" where {where}'
    model = lq.ScriptedModel(wanted)
    return lq.run_sync(source, inputs={"T": annotation, **given}, model=model, session=lq.Session(), **options)


@cases("program/places", "guided", globals())
def test_a_condition_on_a_place_guides(annotation: Any, where: str, unfit: str, fit: str) -> None:
    """Python rejects nothing, since no value that it rejects can be generated."""
    value = filled(annotation, where, unfit, max_tokens=100, max_backtracks=0).variables["X"]
    assert eval(where, {**NAMES, "X": value, "re": re, "date": datetime.date})


@cases("program/places", "guided", globals())
def test_a_condition_on_a_place_allows_each_value_that_meets_it(
    annotation: Any, where: str, unfit: str, fit: str
) -> None:
    assert filled(annotation, where, fit).prompt == fit


@cases("program/places", "what does not guide is left to python", globals())
def test_what_does_not_guide_is_left_to_python(annotation: Any, where: str, wanted: str) -> None:
    assert filled(annotation, where, wanted).prompt == wanted


def test_a_condition_leaves_the_bounds_of_a_reference_as_they_are() -> None:
    assert filled(BESIDE, "X['a'] < 90", '{"a": 2}').variables["X"]["a"] >= 5


@cases("program/places", "a condition that no value of the type meets is refused by name", globals())
def test_a_condition_that_no_value_of_the_type_meets_is_refused_by_name(
    annotation: Any, where: str, named: str
) -> None:
    with pytest.raises(lq.ConstraintError, match="nothing can fill") as caught:
        filled(annotation, where, "{}")
    assert named in str(caught.value)


@cases("program/places", "a place that no value has is an error with what to write", globals())
def test_a_place_that_no_value_has_is_an_error_with_what_to_write(annotation: Any, where: str, hint: str) -> None:
    with pytest.raises(lq.ConstraintError, match="no value of its type meets") as caught:
        filled(annotation, where, "{}")
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("where", ["X['a'] in 0", "X['a'] in 2.5", "X['a'] in None"])
def test_a_place_is_not_looked_for_in_a_single_value(where: str) -> None:
    with pytest.raises(lq.QueryError, match="a place is one of a list"):
        lq.compile(f'"[X: dict[str, str]]" where {where}')


def test_a_contradiction_that_is_written_out_is_found_when_the_query_is_compiled() -> None:
    with pytest.raises(lq.ConstraintError, match="`X\\['a'\\] > 3` and `X\\['a'\\] < 2` cannot hold together"):
        lq.compile("\"[X: dict[str, int]]\" where X['a'] > 3 and X['a'] < 2")


class Long(Trimmed):
    name: str = Field(min_length=40, max_length=40)


class Shouted(Trimmed):
    name: str = Field(pattern="^ABBA")


class Doubled32(pydantic.BaseModel):
    age: Annotated[int, Field(gt=45, lt=47), pydantic.AfterValidator(lambda age: age * 2)]


@cases("program/places", "a condition that only python judges ends with a remedy that works", globals())
def test_a_condition_that_only_python_judges_ends_with_a_remedy_that_works(
    annotation: Any, where: str, wanted: str, mended: Any
) -> None:
    with pytest.raises(lq.ConstraintError) as caught:
        filled(annotation, where, wanted, max_tokens=60)
    assert "put it into the type" in (caught.value.hint or "")
    assert filled(mended, where, wanted, max_tokens=60).variables["X"]


@pytest.mark.parametrize("config", [VLLM, SGLANG, LLAMA_CPP], ids=lambda config: config.kind)
def test_a_server_gets_the_condition_in_the_schema(config: Config) -> None:
    with serving(config, 'As JSON: {"a": 35}') as server:
        model = OpenAIModel("stub", base_url=server.base_url)
        source = '"As JSON: [X: dict[str, int]]" where X["a"] > 30'
        assert lq.run_sync(source, model=model, session=lq.Session()).variables["X"] == {"a": 35}
    assert re.search(r"minimum\W+31\b", str(server.bodies[0]))
    assert "x-core" not in str(server.bodies)


def test_the_first_example_of_the_readme_is_guided(session: lq.Session) -> None:
    class Person(P):
        city: str

    wanted = 'Ada.\nAs JSON: {"name": "Ada", "age": 136, "city": "London"}\n'
    source = '"{text}\\nAs JSON: [WHO: Person]\\n" where 0 < WHO.age < 120'
    inputs, model = {"text": "Ada.", "Person": Person}, lq.ScriptedModel(wanted)
    result = lq.run_sync(source, inputs=inputs, model=model, session=session, max_backtracks=0)
    assert result.variables["WHO"].age == 13


class Event(pydantic.BaseModel):
    at: datetime.datetime
    opens: datetime.time = datetime.time(1)


NINE, TEN = datetime.datetime(2024, 1, 1, 9), datetime.datetime(2024, 1, 1, 10)


@cases("program/places", "moments")
def test_a_condition_on_a_datetime_of_a_record_is_judged_by_python(condition: str, begun: str) -> None:
    """A value that meets it, or the error that names it: never Python's error about time zones."""
    names = {"Event": Event, "nine": NINE, "ten": TEN, "noon": datetime.time(12)}
    inputs = {name: value for name, value in names.items() if name == "Event" or name in condition}
    model = lq.ScriptedModel(f'J:{{"at": "{begun}", "opens": "10:00"}}\n', certainty=6)
    query = f'"J:[X: Event]\\n" where {condition}\nreturn {condition}'
    try:
        assert lq.run_sync(query, inputs, model=model, max_tokens=120).value is True
    except lq.ConstraintError as error:
        assert "has no value that meets" in error.message and error.span and error.span.source in condition


@cases("program/places", "holes")
def test_a_condition_on_a_datetime_hole_is_judged_by_python(annotation: str, condition: str, begun: str) -> None:
    """A value that meets it, or the error that names it."""
    names = {"nine": NINE, "ten": TEN, "noon": datetime.time(12)}
    model = lq.ScriptedModel(f"J:{begun}\n", certainty=4)
    query = f'"J:[X: {annotation}]\\n" where {condition}\nreturn {condition}'
    inputs = {name: value for name, value in names.items() if name in condition}
    try:
        assert lq.run_sync(query, inputs, model=model, max_backtracks=200).value is True
    except lq.ConstraintError as error:
        assert "has no value that meets" in error.message and error.span and error.span.source in condition


@cases("program/places", "days of holes")
def test_a_condition_on_the_day_of_a_date_found_no_value(annotation: str, condition: str) -> None:
    names = {"may": datetime.date(2024, 5, 1), "june": datetime.date(2024, 6, 2)}
    inputs = {name: value for name, value in names.items() if name in condition}
    model = lq.ScriptedModel("J:2019-05-05\n")
    query = f'"J:[X: {annotation}]\\n" where {condition}\nreturn {condition}'
    assert lq.run_sync(query, inputs, model=model, max_backtracks=2).value is True


def test_a_datetime_hole_is_not_compared_with_a_time_zone() -> None:
    aware = NINE.replace(tzinfo=datetime.UTC)
    with pytest.raises(lq.ConstraintError) as caught:
        lq.run_sync('"J:[X: datetime.datetime]" where X > aware', {"aware": aware}, model=lq.ScriptedModel("J:2"))
    assert "AwareDatetime" in str(caught.value.hint)
