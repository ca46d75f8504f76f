"""Types without a finite value are refused when the query is compiled."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
import pytest

import lmql_lite as lq
from lmql_lite.errors import ConstraintError


class Node(pydantic.BaseModel):
    child: Node


class One(pydantic.BaseModel):
    other: Other


class Other(pydantic.BaseModel):
    one: One


class Bush(pydantic.BaseModel):
    branches: Annotated[list[Bush], pydantic.Field(min_length=1)]


class Chain(pydantic.BaseModel):
    after: Chain | None


class Tree(pydantic.BaseModel):
    branches: list[Tree] = []


class Named(pydantic.BaseModel):
    minItems: Named | None
    required: int


@pytest.mark.parametrize(
    "annotation",
    [
        Node,
        One,
        Bush,
        tuple[Node, int],
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"anyOf": [{"$ref": "#"}]},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "minItems": 2},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": {"$ref": "#"}, "minItems": 2},
        {"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["a"]},
        {"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1},
        {"type": "object", "allOf": [{"properties": {"a": {"$ref": "#"}}}, {"required": ["a"]}]},
        Annotated[dict[str, Node], pydantic.Field(min_length=1)],
        Annotated[list[Node], pydantic.Field(min_length=1)],
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    ],
    ids=str,
)
def test_a_type_without_a_finite_value_is_refused(annotation: Any) -> None:
    with pytest.raises(ConstraintError, match=r"nothing can fill \[X\]"):
        lq.run_sync('"J:[X: T]"', {"T": annotation}, model=lq.ScriptedModel("J:"))


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (Chain, '{"after": null}'),
        (Tree, '{"branches": []}'),
        (Chain, '{"after": {"after": null}}'),
        (Named, '{"minItems": {"minItems": null, "required": 1}, "required": 2}'),
    ],
)
def test_a_type_that_may_end_is_not_refused(annotation: Any, text: str) -> None:
    value = lq.run_sync('"J:[X: T]"', {"T": annotation}, model=lq.ScriptedModel("J:" + text)).variables["X"]
    assert value == annotation.model_validate_json(text)


ENDLESS = {"type": "object", "properties": {"child": {"$ref": "#/$defs/E"}}, "required": ["child"]}
DEFS = {"$defs": {"E": ENDLESS}}
E = {"$ref": "#/$defs/E"}


@pytest.mark.parametrize(
    ("annotation", "begun", "value"),
    [
        (Node | None, '{"child": ', None),
        (Literal[7] | Node, '{"child": ', 7),
        (list[Node], '[{"child": ', []),
        (dict[str, Node], '{"a": ', {}),
        (dict[int, Node], '{"7": ', {}),
        (tuple[Node | Literal[7]], '[{"child": ', (7,)),
        (list[list[Node]], '[[{"child": ', [[]]),
        ({**DEFS, "anyOf": [E, {"type": "null"}]}, '{"child": ', None),
        ({**DEFS, "type": "array", "items": E}, '[{"child": ', []),
        ({**DEFS, "type": "array", "items": E, "prefixItems": [{"type": "null"}]}, '[null, {"child": ', [None]),
        ({**DEFS, "type": "array", "prefixItems": [E], "maxItems": 1}, '[{"child": ', []),
        ({**DEFS, "type": "object", "properties": {"a": E}, "additionalProperties": False}, '{"a": ', {}),
        ({**DEFS, "type": "object", "additionalProperties": E}, '{"a": ', {}),
        ({**DEFS, "type": "object", "patternProperties": {"^a$": E}, "additionalProperties": False}, '{"a": ', {}),
        ({**DEFS, "type": ["object", "null"], "properties": {"a": E}, "required": ["a"]}, '{"a": ', None),
        ({**DEFS, "type": ["array", "null"], "items": E, "minItems": 1}, '[{"child": ', None),
        ({"defs": {"E": {"type": "array", "items": {"$ref": "#/defs/E"}, "minItems": 1}, "L": {"type": "array",
          "items": {"$ref": "#/defs/E"}}}, "$ref": "#/defs/L"}, "[[", []),
    ],
    ids=str,
)  # fmt: skip
def test_a_part_that_cannot_end_is_not_begun(annotation: Any, begun: str, value: Any) -> None:
    model = lq.ScriptedModel("J:" + begun)
    found = lq.run_sync('"J:[X: T]"', {"T": annotation}, model=model, max_backtracks=0).variables["X"]
    assert found == value


def test_a_property_that_cannot_end_is_left_out_of_an_open_object() -> None:
    schema = {**DEFS, "type": "object", "properties": {"a": E}}
    model = lq.ScriptedModel('J:{"a": {"child": ')
    assert "a" not in lq.run_sync('"J:[X: T]"', {"T": schema}, model=model, max_tokens=8).variables["X"]


def test_an_optional_field_that_cannot_end_is_left_out() -> None:
    class Record(pydantic.BaseModel):
        child: Node | None = None
        name: str

    model = lq.ScriptedModel('J:{"child": {"child": ')
    value = lq.run_sync('"J:[X: T]"', {"T": Record}, model=model, max_backtracks=0).variables["X"]
    assert value.child is None


def test_a_condition_on_a_place_leaves_out_what_cannot_end() -> None:
    class Record(pydantic.BaseModel):
        age: int
        children: list[Node]

    model = lq.ScriptedModel('J:{"age": 7, "children": [{"child": ')
    value = lq.run_sync('"J:[X: T]" where X.age > 5', {"T": Record}, model=model, max_backtracks=0).variables["X"]
    assert value.children == []
