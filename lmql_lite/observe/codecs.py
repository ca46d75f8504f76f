"""Fields of a line: values as JSON data, and read again by the types that the fields have in their dataclass."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lmql_lite.errors import Span
from lmql_lite.plain import plain

Object = Mapping[str, Any]
TYPES: Mapping[type, str] = {str: "text", bool: "true or false", list: "a list", dict: "an object"}


class Wrong(Exception):
    """Text that is not a line of a run; the message is the reason."""


class Fields:
    """Fields of a dataclass that stand in a line; `without` are those that do not."""

    def __init__(self, kind: type[Any], without: tuple[str, ...] = ()) -> None:
        hints = get_type_hints(kind)
        self._fields = [(each, hints[each.name]) for each in fields(kind) if each.name not in without]

    def to(self, record: Any) -> dict[str, Any]:
        return {each.name: _written(getattr(record, each.name)) for each, _ in self._fields}

    def of(self, found: Object) -> dict[str, Any]:
        """Values by name; a field with a default may be missing. Raises Wrong."""
        here = [(each.name, hint) for each, hint in self._fields if each.name in found or not _has_default(each)]
        return {name: read_as(hint, field_of(found, name)) for name, hint in here}


def _has_default(each: Field[Any]) -> bool:
    return each.default is not MISSING or each.default_factory is not MISSING


def _written(value: Any) -> Any:
    return _written_span(value) if isinstance(value, Span) else plain(value)


def read_as(hint: Any, value: Any) -> Any:
    """The value of a field with this type. Raises Wrong."""
    arguments = get_args(hint)
    if type(None) in arguments:
        return None if value is None else read_as(arguments[0], value)
    if get_origin(hint) is tuple:
        return tuple(read_as(arguments[0], each) for each in read_as(list, value))
    if get_origin(hint) is Mapping:
        return {name: read_as(arguments[1], each) for name, each in read_as(dict, value).items()}
    if get_origin(hint) is Literal and value not in arguments:
        raise Wrong(f"{_shown(value)} is none of {', '.join(arguments)}")
    if hint is Span:
        return _read_span(read_as(dict, value))
    if hint in (int, float):
        return _number(hint, value)
    if hint in TYPES and not isinstance(value, hint):
        raise Wrong(f"{_shown(value)} is not {TYPES[hint]}")
    return value


def _number(kind: type[int] | type[float], value: Any) -> int | float:
    """A number; large ones, nan and infinities are texts."""
    try:
        if isinstance(value, bool) or (kind is int and isinstance(value, float)):
            raise ValueError
        return kind(value)
    except (TypeError, ValueError):
        raise Wrong(f"{_shown(value)} is not a {'whole ' if kind is int else ''}number") from None


def field_of(found: Object, name: str) -> Any:
    if name not in found:
        raise Wrong(f"it has no field {name!r}")
    return found[name]


def public(name: str) -> str:
    """The name of a file, without its absolute path."""
    for path in (PurePosixPath(name), PureWindowsPath(name)):
        if path.is_absolute():
            return path.name
    return name


def _written_span(span: Span) -> dict[str, Any]:
    begin = span.text.rfind("\n", 0, span.start) + 1
    end = span.text.find("\n", span.end)
    covered = span.text[begin : span.end]
    return {
        "file": public(span.name),
        "line": span.line,
        "column": span.column,
        "end_line": span.line + covered.count("\n"),
        "end_column": len(covered) - covered.rfind("\n"),
        "text": span.text[begin : end if end >= 0 else len(span.text)],
    }


def _read_span(found: Object) -> Span:
    """The span in the text of its lines alone."""
    text, file = (read_as(str, field_of(found, name)) for name in ("text", "file"))
    names = ("line", "column", "end_line", "end_column")
    line, column, end_line, end_column = (read_as(int, field_of(found, name)) for name in names)
    rows = text.split("\n")
    if not 0 <= end_line - line < len(rows) or min(line, column, end_column) < 1:
        raise Wrong("a span ends before it begins")
    end = sum(len(row) + 1 for row in rows[: end_line - line]) + end_column - 1
    return Span(file, text, column - 1, min(end, len(text)), line)


def _shown(value: Any) -> str:
    written = json.dumps(value)
    return written if len(written) <= 40 else f"{written[:37]}..."
