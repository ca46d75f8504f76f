"""Conversion of any Python value to JSON data. It is one-way: readers get texts, numbers, lists and objects.

| value | as |
|---|---|
| None, bool, str, int below 2**53, float | themselves |
| a larger int | its digits as text, since many readers have 53 bits; in hex beyond Python's limit of digits |
| nan, inf, -inf | the texts `NaN`, `Infinity`, `-Infinity` |
| bytes | `{"base64": ...}` |
| a member of an enum | its value |
| a dataclass, a pydantic model | an object of its fields |
| a mapping | an object; a list of pairs where two keys would have the same text |
| a list, a tuple, an array | a list; a set as a sorted list |
| a date or time | ISO 8601 |
| a picture, video or clip | its text, `<image 9a8156a797ea>` |
| everything else | `str(value)` |

A value nested deeper than `DEPTH`, or inside itself, becomes the text `...`. Nothing here raises.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import date, time
from enum import Enum
from typing import Any

from lmql_lite.media import Media

DEPTH = 64
EXACT = 2**53
"""Bound up to which every whole number is a float, the only numbers of many JSON readers."""
MORE = "..."


def plain(value: Any) -> Any:
    return _plain(value, ())


def number(value: float) -> float | str:
    """A float, or the name of nan, inf or -inf, which JSON lacks."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def whole(value: int) -> int | str:
    """A whole number, or its digits if some readers would round it."""
    if -EXACT < value < EXACT:
        return int(value)
    try:
        return str(int(value))
    except ValueError:  # beyond Python's limit of digits
        return hex(value)


def _plain(value: Any, around: tuple[int, ...]) -> Any:
    """A value as JSON data; `around` are the objects that hold it."""
    match value:
        case None | bool():
            return value
        case Enum():
            return _plain(value.value, around)
        case str():
            return str(value)
        case int():
            return whole(value)
        case float():
            return number(float(value))
        case bytes() | bytearray() | memoryview():
            return {"base64": base64.b64encode(value).decode()}
        case date() | time():
            return value.isoformat()
        case Media():
            return str(value)
    if len(around) >= DEPTH or id(value) in around:
        return MORE
    try:
        return _container(value, (*around, id(value)))
    except Exception:  # a user's class may raise anything
        return f"<{type(value).__name__}>"


def _container(value: Any, around: tuple[int, ...]) -> Any:
    match value:
        case Mapping():
            return _mapping(value, around)
        case Set():
            return sorted((_plain(each, around) for each in value), key=json.dumps)
        case list() | tuple() | range():
            return [_plain(each, around) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name), around) for field in fields(value)}
    for name in ("model_dump", "tolist"):  # pydantic; numpy and torch
        dump = None if isinstance(value, type) else getattr(value, name, None)
        if callable(dump):
            return _plain(dump(), around)
    return str(value)


def _mapping(value: Mapping[Any, Any], around: tuple[int, ...]) -> Any:
    pairs = [(_plain(key, around), _plain(each, around)) for key, each in value.items()]
    names = [key if isinstance(key, str) else json.dumps(key) for key, _ in pairs]
    if len(set(names)) < len(names):
        return [list(pair) for pair in pairs]
    return {name: each for name, (_, each) in zip(names, pairs, strict=True)}
