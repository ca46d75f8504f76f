"""Dates, times and other texts in JSON: all that pydantic reads may be written, and means what was written."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

import lmql_lite as lq
from lmql_lite.errors import ConstraintError
from tests.tables import cases


@cases("program/json_times", "a time in a record is the one that the model writes", globals())
def test_a_time_in_a_record_is_the_one_that_the_model_writes(annotation: Any, text: str) -> None:
    model = lq.ScriptedModel(f'J: ["{text}"]\n')
    value = lq.run_sync('"J: [X: T]\\n"', {"T": list[annotation]}, model=model).variables["X"]
    assert value == [pydantic.TypeAdapter(annotation).validate_python(text)]


@cases("program/json_times", "a text that pydantic refuses is not begun", globals())
def test_a_text_that_pydantic_refuses_is_not_begun(annotation: Any, text: str) -> None:
    model = lq.ScriptedModel(f'J: ["{text}"]\n')
    result = lq.run_sync('"J: [X: T]\\n"', {"T": list[annotation]}, model=model, max_backtracks=0)
    assert isinstance(result.variables["X"], list)


@cases("program/json_times", "a format of a schema allows the text")
def test_a_format_of_a_schema_allows_the_text(name: str, text: str) -> None:
    schema = {"type": "array", "items": {"type": "string", "format": name}}
    model = lq.ScriptedModel(f'J: ["{text}"]\n')
    assert lq.run_sync('"J: [X: T]\\n"', {"T": schema}, model=model).variables["X"] == [text]


@cases("program/json_times", "a format of a schema guides", globals())
def test_a_format_of_a_schema_guides(schema: dict[str, Any], text: str, found: Any) -> None:
    schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    model = lq.ScriptedModel(f'J: ["{text}"]\n')
    value = lq.run_sync('"J: [X: T]\\n"', {"T": schema}, model=model).variables["X"][0]
    assert value == found


@cases("program/json_times", "a schema that contradicts itself is refused in a sentence", globals())
def test_a_schema_that_contradicts_itself_is_refused_in_a_sentence(schema: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConstraintError, match=rf"nothing can fill \[X\].*{sentence}") as caught:
        lq.run_sync('"J: [X: T]\\n"', {"T": schema}, model=lq.ScriptedModel("J: "))
    assert "Regex" not in str(caught.value)
