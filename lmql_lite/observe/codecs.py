"""Codecs of the fields of a line: they write a field as JSON, and check it when it is read. The type of a field in its
dataclass determines its codec."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from lmql_lite.engine.plain import number, plain, whole
from lmql_lite.errors import Span

Object = Mapping[str, Any]

_DIGITS = re.compile(r"-?[0-9]{1,100}")


class Wrong(Exception):
    """Text that is not a line of a run; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Codec:
    """Writer and reader of a field. `of` raises Wrong."""

    to: Callable[[Any], Any]
    of: Callable[[Any], Any]


class Fields:
    """Codec of a dataclass: its fields, except `without`, as an object."""

    def __init__(self, kind: type[Any], without: Collection[str] = ()) -> None:
        hints, own = get_type_hints(kind), [each for each in fields(kind) if each.name not in without]
        self._codecs = {each.name: codec_of(hints[each.name]) for each in own}
        self._optional = {
            each.name for each in own if each.default is not MISSING or each.default_factory is not MISSING
        }

    def to(self, record: Any) -> dict[str, Any]:
        return {name: codec.to(getattr(record, name)) for name, codec in self._codecs.items()}

    def of(self, found: Object) -> dict[str, Any]:
        """Values by name; a field with a default may be missing. Raises Wrong."""
        names = [name for name in self._codecs if name in found or name not in self._optional]
        return {name: self._codecs[name].of(field_of(found, name)) for name in names}


def codec_of(kind: Any) -> Codec:
    """The codec of a type that the annotation of a field names."""
    if isinstance(kind, TypeVar):
        kind = Any
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return _one_of(arguments)
    if type(None) in arguments:
        inner = codec_of(arguments[0])
        return Codec(
            lambda value: None if value is None else inner.to(value),
            lambda value: None if value is None else inner.of(value),
        )
    if get_origin(kind) is tuple:
        inner = codec_of(arguments[0])
        return Codec(lambda values: [inner.to(each) for each in values], lambda found: _tuple(inner, found))
    if get_origin(kind) is Mapping:
        inner = codec_of(arguments[1])
        return Codec(
            lambda values: {name: inner.to(each) for name, each in values.items()},
            lambda found: {name: inner.of(each) for name, each in object_of(found).items()},
        )
    raise TypeError(f"no codec for {kind}")


def field_of(found: Object, name: str) -> Any:
    if name not in found:
        raise Wrong(f"it has no field {name!r}")
    return found[name]


def object_of(value: Any) -> Object:
    if not isinstance(value, dict):
        raise Wrong(f"{_shown(value)} is not an object")
    return value


def text_of(value: Any) -> str:
    if not isinstance(value, str):
        raise Wrong(f"{_shown(value)} is not text")
    return value


def whole_of(value: Any) -> int:
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    if type(value) is not int:
        raise Wrong(f"{_shown(value)} is not a whole number")
    return value


def public(name: str) -> str:
    """The name of a file, without its absolute path."""
    for path in (PurePosixPath(name), PureWindowsPath(name)):
        if path.is_absolute():
            return path.name
    return name


def list_of(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Wrong(f"{_shown(value)} is not a list")
    return value


def _tuple(inner: Codec, found: Any) -> tuple[Any, ...]:
    return tuple(inner.of(each) for each in list_of(found))


def _one_of(names: tuple[str, ...]) -> Codec:
    def of(value: Any) -> str:
        if value not in names:
            raise Wrong(f"{_shown(value)} is none of {', '.join(names)}")
        return str(value)

    return Codec(_same, of)


def _flag_of(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"{_shown(value)} is neither true nor false")
    return value


def _float_of(value: Any) -> float:
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if type(value) not in (int, float):
        raise Wrong(f"{_shown(value)} is not a number")
    return float(value)


def _span_to(span: Span) -> dict[str, Any]:
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


def _span_of(value: Any) -> Span:
    """The span in the text of its lines alone."""
    found = object_of(value)
    text, file = text_of(field_of(found, "text")), text_of(field_of(found, "file"))
    names = ("line", "column", "end_line", "end_column")
    line, column, end_line, end_column = (whole_of(field_of(found, name)) for name in names)
    rows = text.split("\n")
    if not 0 <= end_line - line < len(rows) or min(line, column, end_column) < 1:
        raise Wrong("a span ends before it begins")
    end = sum(len(row) + 1 for row in rows[: end_line - line]) + end_column - 1
    return Span(file, text, column - 1, min(end, len(text)), line)


def _same(value: Any) -> Any:
    return value


def _shown(value: Any) -> str:
    written = json.dumps(value)
    return written if len(written) <= 40 else f"{written[:37]}..."


_SIMPLE: Mapping[Any, Codec] = {
    str: Codec(_same, text_of),
    bool: Codec(_same, _flag_of),
    int: Codec(whole, whole_of),
    float: Codec(number, _float_of),
    Any: Codec(plain, _same),
    Span: Codec(_span_to, _span_of),
}
