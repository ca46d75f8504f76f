"""Dates, times and other texts in JSON: all that pydantic reads may be written, and means what was written."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Annotated, Any

import pydantic
import pytest

import lmql_lite as lq


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (datetime.datetime, "2020-01-01T10:00:00"),
        (datetime.datetime, "2024-05-03 10:30"),
        (datetime.datetime, "2024-05-03T10:30"),
        (datetime.datetime, "2024-02-29"),
        (datetime.datetime, "2020-01-01T10:00:00.123456Z"),
        (datetime.datetime, "2020-01-01T10:00:00-05:30"),
        (pydantic.NaiveDatetime, "2020-01-01T10:00:00"),
        (pydantic.AwareDatetime, "2020-01-01T10:00:00+01:00"),
        (datetime.time, "10:00:00"),
        (datetime.time, "10:00"),
        (datetime.time, "10:00:00.5+12:10"),
        (datetime.timedelta, "P7D"),
        (datetime.timedelta, "-P1DT2H"),
        (datetime.timedelta, "PT1.5S"),
        (datetime.date, "2024-02-29"),
        (pydantic.PastDate, "2019-05-05"),
        (pydantic.UUID4, "0b2a9b0e-7c1d-4b6e-9f3a-1c2d3e4f5a6b"),
        (Decimal, "12.50"),
    ],
    ids=str,
)
def test_a_time_in_a_record_is_the_one_that_the_model_writes(annotation: Any, text: str) -> None:
    model = lq.ScriptedModel(f'J: ["{text}"]\n')
    value = lq.run_sync('"J: [X: T]\\n"', {"T": list[annotation]}, model=model).variables["X"]
    assert value == [pydantic.TypeAdapter(annotation).validate_python(text)]


@pytest.mark.parametrize(
    ("annotation", "text"), [(Decimal, "about 12"), (pydantic.UUID4, "none"), (datetime.date, "2023-02-30")]
)
def test_a_text_that_pydantic_refuses_is_not_begun(annotation: Any, text: str) -> None:
    model = lq.ScriptedModel(f'J: ["{text}"]\n')
    result = lq.run_sync('"J: [X: T]\\n"', {"T": list[annotation]}, model=model, max_backtracks=0)
    assert isinstance(result.variables["X"], list)


def test_a_text_that_pydantic_strips_is_tried_again() -> None:
    stripped = Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=2)]
    model = lq.ScriptedModel('J: ["  "]\n')
    value = lq.run_sync('"J: [X: T]\\n"', {"T": list[stripped]}, model=model).variables["X"]
    assert all(len(text) >= 2 and text == text.strip() for text in value)
