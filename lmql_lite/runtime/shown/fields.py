"""The fields of a line: how each is written as JSON, and what is taken for one when it is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, get_args

from lmql_lite.constraints.matcher import Ending
from lmql_lite.errors import Span
from lmql_lite.runtime.shown.plain import number, plain, whole

Object = Mapping[str, Any]

_DIGITS = re.compile(r"-?[0-9]{1,100}")


class Wrong(Exception):
    """What is read is no line of a run; the message says why."""


@dataclass(frozen=True, slots=True)
class Codec:
    """How a field is written, and read. `of` raises Wrong."""

    to: Callable[[Any], Any]
    of: Callable[[Any], Any]


def field_of(found: Object, name: str) -> Any:
    if name not in found:
        raise Wrong(f"it has no field {name!r}")
    return found[name]


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Wrong(f"{_shown(value)} is no text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"{_shown(value)} is neither true nor false")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    if type(value) is not int:
        raise Wrong(f"{_shown(value)} is no whole number")
    return value


def _float(value: Any) -> float:
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if type(value) not in (int, float):
        raise Wrong(f"{_shown(value)} is no number")
    return float(value)


def object_of(value: Any) -> Object:
    if not isinstance(value, dict):
        raise Wrong(f"{_shown(value)} is no object")
    return value


def list_of(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Wrong(f"{_shown(value)} is no list")
    return value


def _shown(value: Any) -> str:
    written = json.dumps(value)
    return written if len(written) <= 40 else f"{written[:37]}..."


def one_of(names: tuple[str, ...]) -> Codec:
    def of(value: Any) -> str:
        if value not in names:
            raise Wrong(f"{_shown(value)} is none of {', '.join(names)}")
        return str(value)

    return Codec(_same, of)


def maybe(codec: Codec) -> Codec:
    return Codec(
        lambda value: None if value is None else codec.to(value),
        lambda value: None if value is None else codec.of(value),
    )


def each_of(codec: Codec) -> Codec:
    return Codec(
        lambda values: [codec.to(each) for each in values],
        lambda values: tuple(codec.of(each) for each in list_of(values)),
    )


def named(codec: Codec) -> Codec:
    return Codec(
        lambda values: {name: codec.to(each) for name, each in values.items()},
        lambda values: {name: codec.of(each) for name, each in object_of(values).items()},
    )


def _span_to(span: Span) -> dict[str, Any]:
    begin = span.text.rfind("\n", 0, span.start) + 1
    end = span.text.find("\n", span.end)
    lines = span.text[begin : end if end >= 0 else len(span.text)]
    covered = span.text[begin : span.end]
    return {
        "file": public(span.name),
        "line": span.line,
        "column": span.column,
        "end_line": span.line + covered.count("\n"),
        "end_column": len(covered) - covered.rfind("\n"),
        "text": lines,
    }


def _span_of(value: Any) -> Span:
    """The span in the text of its lines alone."""
    found = object_of(value)
    text, line, column = (
        TEXT.of(field_of(found, "text")),
        _whole(field_of(found, "line")),
        _whole(field_of(found, "column")),
    )
    end_line, end_column = _whole(field_of(found, "end_line")), _whole(field_of(found, "end_column"))
    rows = text.split("\n")
    if not 0 <= end_line - line < len(rows) or min(line, column, end_column) < 1:
        raise Wrong("a span ends before it begins")
    end = sum(len(row) + 1 for row in rows[: end_line - line]) + end_column - 1
    return Span(TEXT.of(field_of(found, "file")), text, column - 1, min(end, len(text)), line)


def public(name: str) -> str:
    """Where a file is on somebody's disk is told to nobody."""
    for path in (PurePosixPath(name), PureWindowsPath(name)):
        if path.is_absolute():
            return path.name
    return name


TEXT = Codec(_same, _text)
FLAG = Codec(_same, _flag)
WHOLE = Codec(whole, _whole)
FLOAT = Codec(number, _float)
VALUE = Codec(plain, _same)
SPAN = Codec(_span_to, _span_of)
ENDING = one_of(get_args(Ending))
