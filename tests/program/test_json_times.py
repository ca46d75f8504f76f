"""Dates, times and other texts in JSON: all that pydantic reads may be written, and means what was written."""

from __future__ import annotations

import datetime
import ipaddress
import pathlib
import uuid
from decimal import Decimal
from typing import Annotated, Any

import pydantic
import pytest

import lmql_lite as lq
from lmql_lite.errors import ConstraintError


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
        (pydantic.PastDatetime, "2019-05-05T10:00:00"),
        (pydantic.FutureDate, "2999-01-01"),
        (pydantic.FutureDatetime, "2999-01-01 00:00Z"),
        (ipaddress.IPv4Address, "10.0.0.1"),
        (ipaddress.IPv6Address, "2001:db8::1"),
        (ipaddress.IPv4Network, "10.0.0.0/8"),
        (ipaddress.IPv6Network, "2001:db8::/32"),
        (ipaddress.IPv4Interface, "10.0.0.1/8"),
        (ipaddress.IPv6Interface, "2001:db8::1/32"),
        (pydantic.IPvAnyAddress, "::1"),
        (pydantic.AnyUrl, "mailto:a@b.org"),
        (pydantic.HttpUrl, "https://example.com/a?b=c#d"),
        (pydantic.HttpUrl, "http://[::1]:80/"),
        (pydantic.FileUrl, "file:///a/b"),
        (pydantic.PostgresDsn, "postgres://u:p@a.org,b.org:5432/db"),
        (pathlib.Path, "/a b/c"),
        (pydantic.ByteSize, "3.5 MiB"),
        (pydantic.SecretStr, "open sesame"),
        (pydantic.Base64Str, "YWJjZA=="),
        (uuid.UUID, "0b2a9b0e-7c1d-1b6e-9f3a-1c2d3e4f5a6b"),
    ],
    ids=str,
)
def test_a_time_in_a_record_is_the_one_that_the_model_writes(annotation: Any, text: str) -> None:
    model = lq.ScriptedModel(f'J: ["{text}"]\n')
    value = lq.run_sync('"J: [X: T]\\n"', {"T": list[annotation]}, model=model).variables["X"]
    assert value == [pydantic.TypeAdapter(annotation).validate_python(text)]


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (Decimal, "about 12"),
        (pydantic.UUID4, "none"),
        (datetime.date, "2023-02-30"),
        (ipaddress.IPv4Network, "none"),
        (ipaddress.IPv6Interface, "none"),
        (pydantic.IPvAnyAddress, "none"),
        (pydantic.RedisDsn, "http://a.org"),
    ],
    ids=str,
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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("date-time", "2020-01-01T10:00:00"),
        ("date-time", "2020-01-01 10:00Z"),
        ("date-time", "2024-02-29"),
        ("time", "10:00"),
        ("time", "10:00:00.5+01:00"),
        ("date", "2024-02-29"),
        ("duration", "P1DT2H"),
        ("uuid", "0b2a9b0e-7c1d-1b6e-9f3a-1c2d3e4f5a6b"),
        ("email", "a.b+c@d-e.co.uk"),
        ("ipv4", "1.2.3.4"),
        ("ipv6", "::1"),
        ("hostname", "a.b.org"),
        ("uri", "https://a.org/b?c=d#e"),
    ],
)
def test_a_format_of_a_schema_allows_the_text(name: str, text: str) -> None:
    schema = {"type": "array", "items": {"type": "string", "format": name}}
    model = lq.ScriptedModel(f'J: ["{text}"]\n')
    assert lq.run_sync('"J: [X: T]\\n"', {"T": schema}, model=model).variables["X"] == [text]


@pytest.mark.parametrize(
    ("schema", "text", "found"),
    [
        ({"type": "string", "format": "date"}, "2023-02-30", "2023-02-20"),
        ({"type": "string", "format": "date", "pattern": "^2024"}, "2024-02-29", "2024-02-29"),
        ({"format": "date-time", "maxLength": 10}, "2024-02-29T10:00", "2024-02-29"),
        ({"enum": [{"format": "date"}]}, "", {"format": "date"}),
    ],
    ids=str,
)
def test_a_format_of_a_schema_guides(schema: dict[str, Any], text: str, found: Any) -> None:
    schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    model = lq.ScriptedModel(f'J: ["{text}"]\n')
    value = lq.run_sync('"J: [X: T]\\n"', {"T": schema}, model=model).variables["X"][0]
    assert value == found


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ({"type": "string", "format": "uuid", "maxLength": 5}, "its pattern, format and length contradict each other"),
        ({"type": "string", "format": "date", "maxLength": 5}, "its pattern, format and length contradict each other"),
        ({"type": "string", "pattern": "^a$", "minLength": 3}, "its pattern, format and length contradict each other"),
        ({"allOf": [{"pattern": "^a$"}, {"pattern": "^b$"}], "type": "string"}, "its pattern, format and length"),
        ({"type": "integer", "minimum": 3, "maximum": 4, "multipleOf": 10}, "no number within its bounds"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "its parts ask for different types"),
        ({"enum": []}, "its list of alternatives is empty"),
    ],
    ids=str,
)
def test_a_schema_that_contradicts_itself_is_refused_in_a_sentence(schema: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConstraintError, match=rf"nothing can fill \[X\].*{sentence}") as caught:
        lq.run_sync('"J: [X: T]\\n"', {"T": schema}, model=lq.ScriptedModel("J: "))
    assert "Regex" not in str(caught.value)
