"""Types without a finite value are refused when the query is compiled."""

from __future__ import annotations

from typing import Annotated, Any

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


@pytest.mark.parametrize(
    "annotation",
    [
        Node,
        One,
        Bush,
        tuple[Node, int],
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"anyOf": [{"$ref": "#"}]},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    ],
    ids=str,
)
def test_a_type_without_a_finite_value_is_refused(annotation: Any) -> None:
    with pytest.raises(ConstraintError, match=r"nothing can fill \[X\]"):
        lq.run_sync('"J:[X: T]"', {"T": annotation}, model=lq.ScriptedModel("J:"))


@pytest.mark.parametrize(("annotation", "text"), [(Chain, '{"after": null}'), (Tree, '{"branches": []}')])
def test_a_type_that_may_end_is_not_refused(annotation: Any, text: str) -> None:
    value = lq.run_sync('"J:[X: T]"', {"T": annotation}, model=lq.ScriptedModel("J:" + text)).variables["X"]
    assert value == annotation.model_validate_json(text)
