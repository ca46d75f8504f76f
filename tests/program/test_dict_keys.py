"""Keys of a dict that JSON cannot spell are refused when the query is compiled; the others guide or are read."""

from __future__ import annotations

import datetime
import enum
import uuid
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pydantic
import pytest

import lmql_lite as lq
from lmql_lite.errors import ConstraintError
from tests.tables import cases


class Color(enum.Enum):
    RED = "red"


class Place(enum.Enum):
    FIRST = 1


class Level(enum.IntEnum):
    LOW = 1


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    name: str


@dataclass(frozen=True)
class Point:
    x: int


class Pair(NamedTuple):
    x: int


@cases("program/dict_keys", "a key that is no text is refused when the query is compiled", globals())
def test_a_key_that_is_no_text_is_refused_when_the_query_is_compiled(key: Any) -> None:
    model = lq.ScriptedModel('J: {"1": 5}\n')
    with pytest.raises(ConstraintError, match="cannot be spelled as text") as caught:
        lq.run_sync('"J: [X: T]\\n"', {"T": dict[key, int]}, model=model)
    assert "key of a dict" in (caught.value.hint or "")


def test_a_key_that_is_no_text_is_refused_inside_a_record() -> None:
    class Board(pydantic.BaseModel):
        cells: dict[tuple[int, int], int]

    with pytest.raises(ConstraintError, match="cannot be spelled as text"):
        lq.run_sync('"J: [X: T]\\n"', {"T": Board}, model=lq.ScriptedModel("J: "))


@cases("program/dict_keys", "a key that is a text is read as its type", globals())
def test_a_key_that_is_a_text_is_read_as_its_type(key: Any, text: str, value: Any) -> None:
    model = lq.ScriptedModel(f'J: {{"{text}": 5}}\n')
    assert lq.run_sync('"J: [X: T]\\n"', {"T": dict[key, int]}, model=model).variables["X"] == {value: 5}


@pytest.mark.parametrize("key", [int, float, bool, Color, Literal["a", 1], datetime.date, uuid.UUID], ids=str)
def test_a_key_of_another_type_is_not_begun(key: Any) -> None:
    model = lq.ScriptedModel('J: {"zz": 5}\n')
    value = lq.run_sync('"J: [X: T]\\n"', {"T": dict[key, int]}, model=model, max_backtracks=0).variables["X"]
    assert isinstance(value, dict)
