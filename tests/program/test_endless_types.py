"""Types without a finite value are refused when the query is compiled."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
import pytest

import lmql_lite as lq
from lmql_lite.errors import ConstraintError
from tests.tables import cases


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


@cases("program/endless_types", "a type without a finite value is refused", globals())
def test_a_type_without_a_finite_value_is_refused(annotation: Any) -> None:
    with pytest.raises(ConstraintError, match=r"nothing can fill \[X\]"):
        lq.run_sync('"J:[X: T]"', {"T": annotation}, model=lq.ScriptedModel("J:"))


@cases("program/endless_types", "a type that may end is not refused", globals())
def test_a_type_that_may_end_is_not_refused(annotation: Any, text: str) -> None:
    value = lq.run_sync('"J:[X: T]"', {"T": annotation}, model=lq.ScriptedModel("J:" + text)).variables["X"]
    assert value == annotation.model_validate_json(text)


ENDLESS = {"type": "object", "properties": {"child": {"$ref": "#/$defs/E"}}, "required": ["child"]}
DEFS = {"$defs": {"E": ENDLESS}}
E = {"$ref": "#/$defs/E"}


@cases("program/endless_types", "a part that cannot end is not begun", globals())
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
