"""Python values as what JSON can say: every value has a stated form, and nothing raises."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from lmql_lite.plain import plain


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: int
    when: date


class Person(BaseModel):
    name: str
    points: list[Point]


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("no")


class Own:
    def __str__(self) -> str:
        return "my own"


DAY = date(2026, 2, 28)
FORMS: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "flag": (True, True),
    "text": ("é\u2028\x00", "é\u2028\x00"),
    "number": (0.1, 0.1),
    "nan": (math.nan, "NaN"),
    "infinity": (-math.inf, "-Infinity"),
    "largest exact int": (2**53 - 1, 2**53 - 1),
    "larger int": (-(2**53), "-9007199254740992"),
    "int without digits": (16**5000, "0x1" + 5000 * "0"),
    "bytes": (b"\xff\x00", {"base64": "/wA="}),
    "enum": (Colour.RED, "red"),
    "int enum": (Level.HIGH, 3),
    "dataclass": (Point(1, DAY), {"x": 1, "when": "2026-02-28"}),
    "pydantic": (Person(name="A", points=[Point(1, DAY)]), {"name": "A", "points": [{"x": 1, "when": "2026-02-28"}]}),
    "a class is no value of it": (Point, str(Point)),
    "tuple": ((1, (2,)), [1, [2]]),
    "set": ({3, 1, 2}, [1, 2, 3]),
    "mixed set": (frozenset({"a", 1}), ["a", 1]),
    "mapping": (Counter("aab"), {"a": 2, "b": 1}),
    "keys that are no text": ({1: "a", None: "b", (1, 2): "c"}, {"1": "a", "null": "b", "[1, 2]": "c"}),
    "keys of one text": ({1: "a", "1": "b"}, [[1, "a"], ["1", "b"]]),
    "array": (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    "scalar of numpy": (np.float32(0.5), 0.5),
    "datetime": (datetime(2026, 2, 28, 1, 2), "2026-02-28T01:02:00"),
    "other library types": ([timedelta(1), Decimal("1.10"), PurePosixPath("a/b")], ["1 day, 0:00:00", "1.10", "a/b"]),
    "own class": (Own(), "my own"),
    "own class that raises": ([Odd()], ["<Odd>"]),
}


@pytest.mark.parametrize(("value", "form"), FORMS.values(), ids=FORMS.keys())
def test_every_kind_of_value_has_its_form(value: Any, form: Any) -> None:
    assert plain(value) == form
    assert type(plain(value)) is type(form)
    json.dumps(plain(value), allow_nan=False)


def test_what_contains_itself_ends() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert plain(ring) == [1, "..."]
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    json.dumps(plain(deep))


def test_the_same_object_twice_is_no_ring() -> None:
    shared = [1]
    assert plain([shared, shared]) == [[1], [1]]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates() | st.decimals(),
    lambda each: (
        st.lists(each, max_size=4)
        | st.dictionaries(st.text() | st.integers() | st.none() | st.booleans(), each, max_size=4)
        | st.tuples(each, each)
    ),
    max_leaves=12,
)


@given(ANYTHING)
def test_it_is_json_and_stays_what_it_is(value: Any) -> None:
    once = plain(value)
    assert json.loads(json.dumps(once, allow_nan=False)) == once
    assert plain(once) == once
