"""The types of holes: which texts spell a value, what text becomes, what cannot be a type."""

from __future__ import annotations

import ast
import dataclasses
import datetime
import enum
import re
import subprocess
import sys
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, NewType

import pydantic
import pytest

import lmql_lite as lq
from lmql_lite.constraints.simplify import satisfies
from lmql_lite.errors import ConstraintError, QueryError, Span
from lmql_lite.lang.keywords import TYPES
from lmql_lite.program.bytecode import NotWritten
from lmql_lite.program.json_types import JsonType, closed
from lmql_lite.program.ops import Hole
from lmql_lite.program.types import NAMES, TextType, typed, written_type

SPAN = Span("test.lq", "[X: T]", 4, 5)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)
    friends: list[Person] = []


class Picky(pydantic.BaseModel):
    even: int

    @pydantic.field_validator("even")
    @classmethod
    def is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("this is odd")
        return value


class Pair(NamedTuple):
    one: int
    two: str


UserId = NewType("UserId", int)


@pytest.mark.parametrize(
    ("annotation", "spelled"),
    [
        (int, {"42": 42, "-7": -7, "0": 0}),
        (float, {"3.50": 3.5, "-0.1": -0.1, "2": 2.0}),
        (bool, {"True": True, "False": False}),
        (datetime.date, {"2026-11-21": datetime.date(2026, 11, 21)}),
        (datetime.datetime, {"2026-11-21T09:30:00": datetime.datetime(2026, 11, 21, 9, 30)}),
        (datetime.datetime, {"2026-11-21 09:30": datetime.datetime(2026, 11, 21, 9, 30)}),
        (datetime.time, {"09:30": datetime.time(9, 30), "09:30:00.5": datetime.time(9, 30, 0, 500000)}),
        (str, {"": "", "é\n": "é\n"}),
        ("[a-z]+", {"abc": "abc"}),
        (re.compile("[a-z]+", re.IGNORECASE), {"aBc": "aBc"}),
        (Literal["a", "b c"], {"a": "a", "b c": "b c"}),
        (Literal[1, None, Color.RED], {"1": 1, "None": None, "red": Color.RED}),
        (Color, {"red": Color.RED, "blue": Color.BLUE}),
        (Size, {"1": Size.SMALL, "2": Size.LARGE}),
        (UserId, {"42": 42}),
        (Annotated[int, pydantic.Field(gt=3, le=5)], {"4": 4, "5": 5}),
        (Annotated[str, pydantic.Field(max_length=3)], {"abc": "abc"}),
        (Annotated[str, "a note"], {"abc": "abc"}),
    ],
    ids=str,
)
def test_plain_types_are_plain_text(annotation: Any, spelled: dict[str, Any]) -> None:
    spec = typed(annotation, "X", SPAN)
    assert isinstance(spec, TextType)
    for text, value in spelled.items():
        assert satisfies(spec.term, text.encode())
        assert spec.convert(text) == value and type(spec.convert(text)) is type(value)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "4.5"),
        (int, "04"),
        (float, "1e5"),
        (float, ".5"),
        (bool, "true"),
        (datetime.date, "2026-02-30"),
        (datetime.datetime, "2026-02-03 10:00:60"),
        (datetime.time, "24:00"),
        (Color, "RED"),
        ("[a-z]+", "ab1"),
        (Annotated[int, pydantic.Field(gt=3, le=5)], "3"),
        (Annotated[int, pydantic.Field(gt=3, le=5)], "6"),
        (Annotated[str, pydantic.Field(max_length=3)], "abcd"),
    ],
    ids=str,
)
def test_other_texts_are_none_of_a_type(annotation: Any, text: str) -> None:
    spec = typed(annotation, "X", SPAN)
    assert isinstance(spec, TextType) and not satisfies(spec.term, text.encode())


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, bool], '{"a": true}', {"a": True}),
        (int | None, "null", None),
        (int | None, "3", 3),
        (int | str, '"3"', "3"),
        (tuple[int, str], '[1, "a"]', (1, "a")),
        (set[int], "[1, 1]", {1}),
        (Point, '{"x": 1, "y": 2.5}', Point(1, 2.5)),
        (Pair, '[1, "a"]', Pair(1, "a")),
        (
            Person,
            '{"name": "Al", "age": 3, "friends": [{"name": "Bo", "age": 4}]}',
            Person(name="Al", age=3, friends=[Person(name="Bo", age=4)]),
        ),
        (list[datetime.date], '["2026-11-21"]', [datetime.date(2026, 11, 21)]),
        (list[Color], '["red"]', [Color.RED]),
        (Any, '{"a": [null]}', {"a": [None]}),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a": 1}', {"a": 1}),
    ],
    ids=str,
)
def test_all_other_types_are_json(annotation: Any, text: str, value: Any) -> None:
    spec = typed(annotation, "X", SPAN)
    assert isinstance(spec, JsonType)
    assert spec.convert(text) == value and type(spec.convert(text)) is type(value)


@pytest.mark.parametrize(
    ("annotation", "judges"),
    [
        (Person, False),
        (list[Point], False),
        (dict[str, int | None], False),
        (dict[int, str], True),
        (Picky, True),
        (list[datetime.date], True),
        (Annotated[int, pydantic.AfterValidator(abs)], True),
        (Annotated[int, pydantic.Field(gt=3)], False),
        (Annotated[int, pydantic.Field(multiple_of=3)], True),
        (int, False),
    ],
    ids=str,
)
def test_whether_values_that_the_model_may_say_can_be_refused(annotation: Any, judges: bool) -> None:
    assert typed(annotation, "X", SPAN).judges is judges


def test_a_value_that_is_refused_says_where_and_why() -> None:
    with pytest.raises(ValueError, match=r"^0\.even: Value error, this is odd$"):
        typed(list[Picky], "X", SPAN).convert('[{"even": 3}]')


def test_a_class_has_no_properties_but_its_own() -> None:
    schema = closed(pydantic.TypeAdapter(Person).json_schema())
    assert schema["$defs"]["Person"]["additionalProperties"] is False
    tricky = {"type": "object", "properties": {"properties": {"type": "object", "properties": {}}}}
    assert closed(tricky)["properties"]["properties"]["additionalProperties"] is False
    mapping = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert closed(mapping) == mapping


def lambda_type() -> Callable[[int], int]:
    return lambda number: number


@pytest.mark.parametrize(
    "annotation",
    [
        42,
        ["a", "b"],
        ("a",),
        lambda_type(),
        len,
        re,
        object(),
        typing.Callable[[int], int],
        type,
        b"abc",
        typing.Optional,
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_is_no_type_is_refused_with_a_sentence(annotation: Any) -> None:
    with pytest.raises(ConstraintError, match=r"the type of \[X\] cannot be spelled as text; this is ") as caught:
        typed(annotation, "X", SPAN)
    assert caught.value.span == SPAN and caught.value.hint
    if isinstance(annotation, list | tuple):
        assert "Literal" in caught.value.hint


@pytest.mark.parametrize(
    ("annotation", "sentence"),
    [
        (enum.Enum("Nothing", []), "its type lists no value"),
        (Literal["1", 1], "two values of the type of [X] are spelled '1'"),
        (Literal[b"a"], "lists b'a', which has no plain spelling"),
        (enum.Enum("Odd", {"A": (1, 2)}), "which has no plain spelling"),
        ("(?=a)", "[X]"),
        ("(", "[X]"),
        ({"a": {1}}, "is not JSON"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no value has this type, minimum (3) is greater"),
        (pydantic.Json[int], "cannot be spelled as text"),
        (Annotated[list[int], pydantic.Field(min_length=3, max_length=2)], "no value has this type"),
    ],
    ids=str,
)
def test_types_without_values_or_without_a_grammar(annotation: Any, sentence: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        typed(annotation, "X", SPAN)
    assert sentence in caught.value.message or sentence == "[X]"
    assert caught.value.span == SPAN


# As it is written ----------------------------------------------------------------------------------------------------


def of(text: str, own: frozenset[str] = frozenset()) -> Any:
    return written_type(ast.parse(text, mode="eval").body, own)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("int", int),
        ("date", datetime.date),
        ("datetime.date", datetime.date),
        ("datetime", datetime),
        ("list[int]", list[int]),
        ("dict[str, list[float]]", dict[str, list[float]]),
        ("int | None", int | None),
        ("Optional[int]", int | None),
        ("Literal['a', -1]", Literal["a", -1]),
        ("{'type': 'integer'}", {"type": "integer"}),
        ("'[a-z]+'", "[a-z]+"),
        ("re.compile('a', re.I)", re.compile("a", re.IGNORECASE)),
    ],
)
def test_a_type_that_is_written_out_is_known_at_once(text: str, value: object) -> None:
    assert of(text) == value


@pytest.mark.parametrize(
    "text", ["Person", "models.Person", "list[Person]", "make()", "int[3]", "'a' | 3", "x[0]", "f'{a}'"]
)
def test_others_are_known_when_the_query_runs(text: str) -> None:
    with pytest.raises(NotWritten):
        of(text)


def test_a_name_of_the_query_is_its_own() -> None:
    assert set(NAMES) == set(TYPES)
    for name in ("int", "date", "datetime.date", "list[int]", "re.compile('a')"):
        with pytest.raises(NotWritten):
            of(name, frozenset({"int", "date", "datetime", "list", "re"}))


# In a query ----------------------------------------------------------------------------------------------------------


def hole(source: str) -> Hole:
    return next(op for op in lq.compile(source).program.parts if isinstance(op, Hole))


def test_the_compiler_knows_what_is_written_and_leaves_the_rest_to_the_run() -> None:
    known = hole('"[X: int]" where X < 5 and len(X) == 1')
    assert known.type is not None and known.type.spec is not None and not known.judges
    later = hole('"[X: T]" where X < 5')
    assert later.type is not None and later.type.spec is None
    assert lq.compile('"[X: T] [Y: Literal[1, 2]] [Z: date]"').inputs == ("T",)
    own = hole('date = int\n"[X: date]"')
    assert own.type is not None and own.type.spec is None and own.type.offered == ()


def test_which_conditions_on_a_typed_hole_guide_and_which_judge() -> None:
    assert not hole('"[X: int]" where 0 < X < 120 and X != 7 and X in [1, 2, 3] and "1" in X').judges
    assert len(hole('"[X: float]" where 0.5 < X <= 1').judges) == 1
    assert not hole('"[X: date]" where X.startswith("2026") and X != day').judges
    assert not hole("\"[X: Literal['a', 'b']]\" where X != 'a'").judges
    assert len(hole('"[X: list[int]]" where 1 < len(X) < 5').judges) == 1
    assert len(hole('"[X: int]" where X % 2 == 0').judges) == 1
    assert len(hole('"[X: list[int]]" where len(X) != 3 and X[0] > 2').judges) == 2
    assert len(hole('"[X: dict[str, int]]" where len(X) < 3').judges) == 1
    assert len(hole('"[X: datetime]" where X < then').judges) == 1


@pytest.mark.parametrize(
    ("source", "where", "sentence"),
    [
        ('"[X: list[int]]" where STOPS_AT(X, "]")', 'STOPS_AT(X, "]")', "STOPS_AT cannot be honoured"),
        ('"[X: list[int]]" where len(TOKENS(X)) < 9', "len(TOKENS(X)) < 9", "TOKENS cannot be honoured"),
        ('"[X: int | None]" where INT(X) or X is None', "INT(X) or X is None", "INT cannot be honoured"),
        ('"[X: 42]"', "42", r"the type of \[X\] cannot be spelled as text"),
        ("\"[X: Literal['1', 1]]\"", "Literal['1', 1]", "are spelled"),
        ("\"[X: {'not': {}}]\"", "{'not': {}}", "cannot guide a model"),
        ("'[X: r\"(?=a)\"]'", 'r"(?=a)"', "look"),
    ],
)
def test_mistakes_are_found_when_the_query_is_compiled(source: str, where: str, sentence: str) -> None:
    with pytest.raises(QueryError, match=sentence) as caught:
        lq.compile(source)
    assert caught.value.span is not None and caught.value.span.source == where
    assert caught.value.hint or "spelled" in caught.value.message


def test_a_plain_type_loads_nothing() -> None:
    code = """
import sys
from lmql_lite.lang.query import parse
from lmql_lite.lang.source import Source
from lmql_lite.program.compiler import compile
query = parse(Source("q.lq", '"[X: int] [Y: date] [Z: Literal[1, 2]]" where X < 5'))
compile(query)
heavy = {"pydantic", "llguidance", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
