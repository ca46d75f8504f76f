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


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


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
NAMES = {"Color": Color, "Level": Level, "Decimal": Decimal, "limit": 30, "names": ["Ann", "Bob"], "none": None}

GUIDED: list[tuple[Any, str, str, str]] = [
    # a comparison of a field
    (P, "X.age > 30", '{"name": "Al", "age": 5}', '{"name": "Al", "age": 31}'),
    (P, "X.age > 17.5", '{"name": "Al", "age": 17}', '{"name": "Al", "age": 18}'),
    (P, "30 < X.age", '{"name": "Al", "age": 5}', '{"name": "Al", "age": 31}'),
    (P, "0 < X.age < 120", '{"name": "Al", "age": 500}', '{"name": "Al", "age": 119}'),
    (P, "X.age == 36", '{"name": "Al", "age": 5}', '{"name": "Al", "age": 36}'),
    (P, "X.age != 5", '{"name": "Al", "age": 5}', '{"name": "Al", "age": -1}'),
    (P, "X.age in [3, 4.0, 'x', None]", '{"name": "Al", "age": 5}', '{"name": "Al", "age": 4}'),
    (P, "X.age not in (5, 6, 50)", '{"name": "Al", "age": 5}', '{"name": "Al", "age": 7}'),
    (P, "X.age in range(40, 50)", '{"name": "Al", "age": 5}', '{"name": "Al", "age": 49}'),
    (P, "X.age not in range(50)", '{"name": "Al", "age": 5}', '{"name": "Al", "age": -5}'),
    (P, "X.age in range(0, 100, 10)", '{"name": "Al", "age": 5}', '{"name": "Al", "age": 90}'),
    (P, "X.age in {7, 8}", '{"name": "Al", "age": 5}', '{"name": "Al", "age": 8}'),
    (P, "X.age > True and not X.age > 9", '{"name": "Al", "age": 50}', '{"name": "Al", "age": 2}'),
    (P, "X.age < 3 or X.age > 60", '{"name": "Al", "age": 5}', '{"name": "Al", "age": -61}'),
    (P, "not (3 <= X.age <= 60)", '{"name": "Al", "age": 5}', '{"name": "Al", "age": 61}'),
    (P, "X.age > limit", '{"name": "Al", "age": 5}', '{"name": "Al", "age": 31}'),
    (P, "none is None or X.age > none", '{"name": "", "age": 5}', '{"name": "", "age": 5}'),
    (P, "X.age > Decimal('30.5')", '{"name": "Al", "age": 5}', '{"name": "Al", "age": 31}'),
    (P, "X.age >= Level.HIGH", '{"name": "Al", "age": 4}', '{"name": "Al", "age": 5}'),
    (P, "X.age", '{"name": "Al", "age": 0}', '{"name": "Al", "age": 1}'),
    # texts
    (P, "X.age > 17 and len(X.name) > 3", '{"name": "Al", "age": 5}', '{"name": "Al\\nx", "age": 18}'),
    (P, "len(X.name) <= 3", '{"name": "Alfred", "age": 5}', '{"name": "é\\"x", "age": 5}'),
    (P, "X.age < 3 and X.name == 'Tom'", '{"name": "Al", "age": 5}', '{"name": "Tom", "age": 2}'),
    (P, "X.name in names", '{"name": "Al", "age": 5}', '{"name": "Bob", "age": 5}'),
    (P, "X.name != ''", '{"name": "", "age": 5}', '{"name": " ", "age": 5}'),
    (P, "X.name", '{"name": "", "age": 5}', '{"name": " ", "age": 5}'),
    (P, "not X.name", '{"name": "Al", "age": 5}', '{"name": "", "age": 5}'),
    (P, "X.name.startswith('B')", '{"name": "Al", "age": 5}', '{"name": "Bo", "age": 5}'),
    (P, "X.name.startswith(('(', 'C.'))", '{"name": "Cx", "age": 5}', '{"name": "C.x", "age": 5}'),
    (
        Bounded,
        "X.code.endswith('b')",
        '{"age": 5, "code": "a", "share": 0.5}',
        '{"age": 5, "code": "ab", "share": 0.5}',
    ),
    (Bounded, "'bb' in X.code", '{"age": 5, "code": "a", "share": 0.5}', '{"age": 5, "code": "abbb", "share": 0.5}'),
    (P, "re.fullmatch(r'[A-Z][a-z]{1,5}', X.name)", '{"name": "al", "age": 5}', '{"name": "Al", "age": 5}'),
    (P, "len(X.name) < 9 and re.search(r'\\d+$', X.name)", '{"name": "al", "age": 5}', '{"name": "x\u0663", "age": 5}'),
    (P, "re.compile('[a-c]').match(X.name)", '{"name": "Al", "age": 5}', '{"name": "cd", "age": 5}'),
    # several places, nested places, items
    (
        Pair,
        "X.buyer.age > 30",
        '{"buyer": {"name": "A", "age": 5}, "seller": {"name": "B", "age": 5}}',
        '{"buyer": {"name": "A", "age": 31}, "seller": {"name": "B", "age": 5}}',
    ),
    (
        Pair,
        "X.buyer.age > 30 or X.seller.name == 'Z'",
        '{"buyer": {"name": "A", "age": 5}, "seller": {"name": "B", "age": 5}}',
        '{"buyer": {"name": "A", "age": 5}, "seller": {"name": "Z", "age": 5}}',
    ),
    (
        Invoice,
        "len(X.lines) == 2",
        '{"customer": "Z", "lines": [{"sku": "a", "price": 1.5, "count": 1}]}',
        '{"customer": "Z", "lines": [{"sku": "a", "price": 1.5}, {"sku": "", "price": 1.5, "count": 3}]}',
    ),
    (
        Invoice,
        "X.lines[0].price > 9 and X.customer == 'Ann'",
        '{"customer": "Z", "lines": [{"sku": "a", "price": 1}]}',
        '{"customer": "Ann", "lines": [{"sku": "a", "price": 9.5}]}',
    ),
    (
        Invoice,
        "X.lines[-1].count == 2 and len(X.lines) == 2",
        '{"customer": "", "lines": [{"sku": "a", "price": 1}, {"sku": "b", "price": 1}]}',
        '{"customer": "", "lines": [{"sku": "a", "price": 1}, {"sku": "b", "price": 1, "count": 2}]}',
    ),
    (
        Invoice,
        "all(line.count > 1 for line in X.lines)",
        '{"customer": "", "lines": [{"sku": "a", "price": 1}]}',
        '{"customer": "", "lines": [{"sku": "a", "price": 1, "count": 2}]}',
    ),
    (
        Invoice,
        "any(line.count > 1 for line in X.lines)",
        '{"customer": "", "lines": [{"sku": "a", "price": 1}]}',
        '{"customer": "", "lines": [{"sku": "a", "price": 1}, {"sku": "a", "price": 1, "count": 2}]}',
    ),
    (list[P], "all(p.age > 17 for p in X)", '[{"name": "A", "age": 5}]', "[]"),
    (list[P], "len(X) == 1 and 17 < X[0].age", '[{"name": "A", "age": 5}]', '[{"name": "A", "age": 18}]'),
    (list[list[int]], "X[0][1] > 5", "[[1, 2, 3]]", "[[1, 6], []]"),
    (Annotated[list[str], Field(max_length=3)], "'a' in X", '["b", "c", "d"]', '["b", "c", "a"]'),
    (list[str], "'a' in X and len(X) == 2", '["b", "c"]', '["b", "a"]'),
    (list[str], "'a' not in X or len(X) == 7", '["b"]', '["b"]'),
    (list[int], "3 not in X", "[1, 3]", "[1, 30]"),
    (list[int], "len(X) != 1", "[1]", "[]"),
    (set[int], "len(X) >= 2", "[1]", "[1, 1, 2]"),
    (tuple[int, str], "X[0] > 5", '[3, "a"]', '[6, "a"]'),
    (tuple[int, ...], "X[1] > 5 and len(X) < 4", "[3, 3]", "[3, 6, 3]"),
    (Spot, "X.x > 5 and X[1] == 'a'", '[3, "a"]', '[6, "a"]'),
    (Point, "X.y > 7", '{"x": 3}', '{"x": 3, "y": 8}'),
    (Point, "X.y > 6", '{"x": 3, "y": 2}', '{"x": 3}'),
    (
        Node,
        "X.child.child.value > 5",
        '{"value": 1, "child": null}',
        '{"value": 1, "child": {"value": 2, "child": {"value": 6, "child": {"value": 1}}}}',
    ),
    # items by key
    (dict[str, int], "'k' in X", '{"a": 1}', '{"k": 1, "a": 1}'),
    (dict[str, int], "X['k'] > 5", '{"a": 1}', '{"k": 6, "a": 1}'),
    (dict[str, int], "X.get('k', 9) > 5", '{"k": 1}', "{}"),
    (dict[str, int], "len(X) < 2", '{"a": 1, "b": 2}', '{"a": 1}'),
    (dict[str, int], "all(n > 5 for n in X.values())", '{"a": 1}', '{"a": 6}'),
    (dict[str, dict[str, int]], "X['a']['b'] in [7, 8]", '{"a": {"b": 1}}', '{"a": {"b": 8}}'),
    (dict[str, list[int]], "len(X['a']) == 2", '{"a": [1]}', '{"a": [1, 2]}'),
    (Keys, "X['a'] > 5", '{"b": "x"}', '{"a": 6, "b": "x"}'),
    (Keys, "X.get('a') is None", '{"a": 6}', '{"b": "x"}'),
    (RAW, "X['age'] > 5", '{"age": 1}', '{"age": 6}'),
    (RAW, "len(X['tags']) > 1", '{"age": 1}', '{"age": 1, "tags": ["a", "b"]}'),
    (SHARED, "X['a']['age'] > 5", '{"a": {"age": null}, "b": {"age": 1}}', '{"a": {"age": 6}, "b": {"age": null}}'),
    # defaults, unions, listed values, other names
    (Maybe, "X.age > 30", '{"age": null}', '{"age": 31}'),
    (Maybe, "X.age is None or X.age > 30", '{"age": 5}', "{}"),
    (Maybe, "X.age is not None", "{}", '{"age": 5}'),
    (Maybe, "X.size == 'big'", '{"size": 4}', '{"size": "big"}'),
    (Maybe, "X.color == Color.BLUE", "{}", '{"color": "blue"}'),
    (Maybe, "X.color in [Color.RED]", '{"color": "blue"}', "{}"),
    (Maybe, "X.kind != 'a'", "{}", '{"kind": 3}'),
    (Maybe, "X.ok", "{}", '{"ok": true}'),
    (Maybe, "not X.ok", '{"ok": true}', "{}"),
    (Maybe, "X.ok is True and X.ok == 1", '{"ok": false}', '{"ok": true}'),
    (Maybe, "X.tags", "{}", '{"tags": ["a"]}'),
    (Renamed, "X.age > 30 and X.name == 'A'", '{"Age-In-Years": 5, "n": "x"}', '{"Age-In-Years": 31, "n": "A"}'),
    (Home, "X.pet.lives < 3", '{"pet": {"kind": "dog", "name": "Rex"}}', '{"pet": {"kind": "cat", "lives": 2}}'),
    (Home, "X.pet.kind == 'cat'", '{"pet": {"kind": "dog", "name": "Rex"}}', '{"pet": {"kind": "cat", "lives": 9}}'),
    (Bounded, "X.age > 100", '{"age": 5, "code": "a", "share": 0.5}', '{"age": 120, "code": "a", "share": 0.5}'),
    (
        Bounded,
        "X.code.startswith('b')",
        '{"age": 5, "code": "a", "share": 0.5}',
        '{"age": 5, "code": "ba", "share": 0.5}',
    ),
    (
        Bounded,
        "0.25 <= X.share < 0.5",
        '{"age": 5, "code": "a", "share": 0.7}',
        '{"age": 5, "code": "a", "share": 0.25}',
    ),
    (Bounded, "X.share == 0.5", '{"age": 5, "code": "a", "share": 0.7}', '{"age": 5, "code": "a", "share": 0.5}'),
    (
        Bounded,
        "X.share in (0.5, 0.25, 4)",
        '{"age": 5, "code": "a", "share": 0.7}',
        '{"age": 5, "code": "a", "share": 0.25}',
    ),
    (Bounded, "X.share != 0.7", '{"age": 5, "code": "a", "share": 0.7}', '{"age": 5, "code": "a", "share": 0.75}'),
    # dates
    (Dated, "X.day == date(2024, 5, 1)", '{"day": "2019-05-05"}', '{"day": "2024-05-01"}'),
    (Dated, "X.day in [date(2024, 5, 1), date(2024, 6, 1)]", '{"day": "2019-05-05"}', '{"day": "2024-06-01"}'),
]


def filled(annotation: Any, where: str, wanted: str, **options: Any) -> lq.Result:
    given = {name: value for name, value in NAMES.items() if re.search(rf"\b{name}\b", where)}
    source = f'"[X: T]" where {where}'
    model = lq.ScriptedModel(wanted)
    return lq.run_sync(source, inputs={"T": annotation, **given}, model=model, session=lq.Session(), **options)


@pytest.mark.parametrize(("annotation", "where", "unfit", "fit"), GUIDED)
def test_a_condition_on_a_place_guides(annotation: Any, where: str, unfit: str, fit: str) -> None:
    """Python rejects nothing, since no value that it rejects can be generated."""
    value = filled(annotation, where, unfit, max_tokens=100, max_backtracks=0).variables["X"]
    assert eval(where, {**NAMES, "X": value, "re": re, "date": datetime.date})


@pytest.mark.parametrize(("annotation", "where", "unfit", "fit"), GUIDED)
def test_a_condition_on_a_place_allows_each_value_that_meets_it(
    annotation: Any, where: str, unfit: str, fit: str
) -> None:
    assert filled(annotation, where, fit).prompt == fit


@pytest.mark.parametrize(
    ("annotation", "where", "wanted"),
    [
        (Doubled, "X.age > 30", '{"age": 20}'),
        (Moved, "X.x > 30", '{"x": 2}'),
        (Trimmed, "len(X.name) == 2", '{"name": " ab "}'),
        (Trimmed, "X.name == 'ab'", '{"name": " ab "}'),
        (set[int], "len(X) == 1", "[7, 7]"),
        (set[int], "len(X) < 2", "[7, 7]"),
        (dict[int, int], "X[5] > 3", '{"5": 4}'),
        (Any, "X > 3", "4"),
        (P, "X.age > 3 if X.name == 'A' else X.age < 3", '{"name": "B", "age": 1}'),
        (P, "X.age < len(X.name)", '{"name": "Bo", "age": 1}'),
        (P, "sum([X.age]) > 3", '{"name": "Bo", "age": 4}'),
        (list[P], "all(p.age > 17 or p.name == 'A' for p in X)", '[{"name": "A", "age": 1}, {"name": "B", "age": 18}]'),
        (list[P], "all(p.age > 17 for p in X if p.name == 'A')", '[{"name": "B", "age": 1}]'),
        (list[int], "all(none for n in X)", "[]"),
        (list[int], "all(not (3 < n < 6) for n in X)", "[1, 8]"),
        (list[str], "X == ['a']", '["a"]'),
        (list[str], "not (X and len(X) > 1)", "[]"),
        (Maybe, "X.tags == []", "{}"),
        (Maybe, "X.tags in [[]]", "{}"),
        (list[str], "X[0] in 'cab'", '["ab"]'),
        (list[str], "X[0] in ''", '[""]'),
    ],
)
def test_a_place_whose_value_may_differ_from_its_json_is_left_to_python(
    annotation: Any, where: str, wanted: str
) -> None:
    assert filled(annotation, where, wanted).prompt == wanted


@pytest.mark.parametrize(
    ("annotation", "where", "named"),
    [
        (Bounded, "X.age > 200", "no value of its type meets `X.age > 200`"),
        (Bounded, "X.age > 10 and X.age < 5", "`X.age > 10` and `X.age < 5` cannot hold together"),
        (Bounded, "X.share > 1", "no value of its type meets `X.share > 1`"),
        (Bounded, "X.code == 'Ab'", "no value of its type meets `X.code == 'Ab'`"),
        (Bounded, "X.code in ['abcdef']", "no value of its type meets `X.code in ['abcdef']`"),
        (P, "X.age == 17.5", "no value of its type meets `X.age == 17.5`"),
        (P, "X.age > 'a'", "no value of its type meets `X.age > 'a'`"),
        (P, "X.name > 3", "no value of its type meets `X.name > 3`"),
        (P, "X.name.startswith('a') and X.name.endswith('b') and len(X.name) < 2", "cannot hold together"),
        (P, "X.agee > 3", "no value of its type meets `X.agee > 3`"),
        (Invoice, "len(X.lines) == 4", "no value of its type meets `len(X.lines) == 4`"),
        (list[P], "len(X) > 0 and len(X) < 1", "cannot hold together"),
        (tuple[int, str], "X[2] == 1", "no value of its type meets `X[2] == 1`"),
        (Keys, "X['c'] == 1", "no value of its type meets `X['c'] == 1`"),
        (Home, "X.pet.kind == 'cow'", "no value of its type meets `X.pet.kind == 'cow'`"),
        (P, "X.age > limit and X.age < 20", "`X.age > limit` and `X.age < 20` cannot hold together"),
    ],
)
def test_a_condition_that_no_value_of_the_type_meets_is_refused_by_name(
    annotation: Any, where: str, named: str
) -> None:
    with pytest.raises(lq.ConstraintError, match="nothing can fill") as caught:
        filled(annotation, where, "{}")
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "where", "hint"),
    [
        (P, "X.agee > 3", "did you mean age?"),
        (P, "X.zip > 3", "its fields are name, age"),
        (P, "X['age'] > 3", "write .age"),
        (Pair, "X.buyer['age'] > 3", "write .age"),
        (Keys, "X.a > 3", 'write ["a"]'),
        (dict[str, int], "X.a > 3", 'write ["a"]'),
        (RAW, "X.age > 3", 'write ["age"]'),
        (Point, "X.z > 3", "its fields are x, y"),
    ],
)
def test_a_place_that_no_value_has_is_an_error_with_what_to_write(annotation: Any, where: str, hint: str) -> None:
    with pytest.raises(lq.ConstraintError, match="no value of its type meets") as caught:
        filled(annotation, where, "{}")
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("where", ["X[0] in 0", "X[0] not in 2.5", "X[0] in None"])
def test_a_place_is_not_looked_for_in_a_single_value(where: str) -> None:
    with pytest.raises(lq.QueryError, match="a place is one of a list"):
        lq.compile(f'"[X: list[str]]" where {where}')


def test_a_contradiction_that_is_written_out_is_found_when_the_query_is_compiled() -> None:
    with pytest.raises(lq.ConstraintError, match="`X\\[0\\] > 3` and `X\\[0\\] < 2` cannot hold together"):
        lq.compile('"[X: list[int]]" where X[0] > 3 and X[0] < 2')


class Long(Trimmed):
    name: str = Field(min_length=40, max_length=40)


class Shouted(Trimmed):
    name: str = Field(pattern="^ABBA")


class Doubled32(pydantic.BaseModel):
    age: Annotated[int, Field(gt=45, lt=47), pydantic.AfterValidator(lambda age: age * 2)]


@pytest.mark.parametrize(
    ("annotation", "where", "wanted", "mended"),
    [
        (list[str], "'a' in X", '["b", "c", "d"]', Annotated[list[str], Field(max_length=3)]),
        (Doubled, "X.age == 92", '{"age": 311111}', Doubled32),
        (Trimmed, "len(X.name) == 40", '{"name": "abc"}', Long),
        (Trimmed, "X.name.startswith('ABBA')", '{"name": "abc"}', Shouted),
    ],
)
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
MOMENTS: list[tuple[str, str]] = [
    ("X.at > nine", "2019-05-05T10:00:00"),
    ("X.at > nine", "2023-12-31"),
    ("nine <= X.at < ten", "2019-05-05T10:00:00"),
    ("not X.at < nine", "2019-05-05T10:00:00"),
    ("X.at == nine", "2019-05-05T10:00:00"),
    ("X.at in [nine, ten]", "2019-05-05T10:00:00"),
    ("X.at.year > 2030", "2019-05-05T10:00:00"),
    ("X.at.year % 4 == 0 and X.at.year > 9000", "2019-05-05T10:00:00"),
    ("X.at.hour in (13, 14)", "2019-05-05 10:00"),
    ("X.at.minute == 30", "2019-05-05 10:00"),
    ("X.at.second == 0 and X.at.day == 31", "2019-05-05T10:00:59"),
    ("X.opens > noon", "2019-05-05"),
    ("X.opens.minute == 30", "2019-05-05"),
]


@pytest.mark.parametrize(("condition", "begun"), MOMENTS)
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


HOLES: list[tuple[str, str, str]] = [
    ("datetime.datetime", "X > nine", "2019-05-05T10:00:00"),
    ("datetime.datetime", "not X < nine", "2019-05-05T10:00:00"),
    ("datetime.datetime", "nine <= X < ten", "2019-05-05T10:00:00"),
    ("datetime.datetime", "X == nine", "2019-05-05T10:00:00"),
    ("datetime.datetime", "X != nine", "2024-01-01T09:00:00"),
    ("datetime.datetime", "X in [nine, ten]", "2019-05-05T10:00:00"),
    ("datetime.datetime", "X.year == 2024", "2019-05-05T10:00:00"),
    ("datetime.datetime", "X.month in [1, 2] or X.day == 31", "2019-05-05T10:00:00"),
    ("datetime.datetime", "X.hour == 12 and X.minute == 30", "2019-05-05"),
    ("datetime.datetime", "not X.second == 0", "2019-05-05"),
    ("datetime.time", "X > noon", "10:00:00"),
    ("datetime.time", "X.minute == 30", "10:00"),
]


@pytest.mark.parametrize(("annotation", "condition", "begun"), HOLES)
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


def test_a_datetime_hole_is_not_compared_with_a_time_zone() -> None:
    aware = NINE.replace(tzinfo=datetime.UTC)
    with pytest.raises(lq.ConstraintError) as caught:
        lq.run_sync('"J:[X: datetime.datetime]" where X > aware', {"aware": aware}, model=lq.ScriptedModel("J:2"))
    assert "AwareDatetime" in str(caught.value.hint)
