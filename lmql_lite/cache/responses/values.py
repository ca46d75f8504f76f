"""Lossless encoding of answers as JSON, in value and type. Unknown types are refused, never written as their repr."""

from __future__ import annotations

import base64
import json
from typing import Any

from lmql_lite.cache.responses.request import Reply, scalar

TAG = "$"
"""Key that marks an object as a value that JSON lacks."""

_parse = json.JSONDecoder().decode
_write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class UnknownType(TypeError):
    """A value has no lossless encoding. The sentence names its type."""


def encoded(value: Any) -> str:
    """JSON text of an answer, encodable as UTF-8. Raises UnknownType."""
    try:
        text = _write(_plain(value, False))
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a character, which UTF-8 cannot encode
            text = json.dumps(_plain(value, True), separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise UnknownType("the answer has an integer of more digits than Python reads") from None
    except RecursionError:
        raise UnknownType("the answer is nested too deeply to be kept") from None
    return text


def decoded(text: str) -> Any:
    """The answer in a text of `encoded`. Raises ValueError for any other text."""
    return _value(_parse(text))


def _plain(value: Any, by_bytes: bool) -> Any:
    kind = type(value)
    if kind is str:
        return _tagged("text", value.encode("utf-8", "surrogatepass").hex()) if by_bytes else value
    if value is None or kind is bool or kind is int:
        return value
    if kind is float:
        return value if value - value == 0 else _tagged("float", str(value))
    if kind is list:
        return [_plain(each, by_bytes) for each in value]
    if kind is tuple:
        return _tagged("tuple", [_plain(each, by_bytes) for each in value])
    if kind is dict:
        if TAG not in value and not by_bytes and all(type(name) is str for name in value):
            return {name: _plain(each, by_bytes) for name, each in value.items()}
        return _tagged("dict", [[_plain(name, by_bytes), _plain(each, by_bytes)] for name, each in value.items()])
    if kind is bytes:
        return _tagged("bytes", base64.b64encode(value).decode())
    if kind is Reply:
        parts = (value.text, value.usage, value.finish_reason, value.tool_calls)
        return _tagged("reply", [_plain(each, by_bytes) for each in parts])
    if (plain := scalar(value)) is not value:
        return _plain(plain, by_bytes)
    raise UnknownType(f"an answer of type {kind.__qualname__} cannot be kept; return text, numbers, lists or a Reply")


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {TAG: kind, "v": value}


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    if TAG not in plain:
        return {name: _value(each) for name, each in plain.items()}
    inner = plain.get("v")
    match plain[TAG]:
        case "text":
            return bytes.fromhex(inner or "").decode("utf-8", "surrogatepass")
        case "float":
            return float(inner or "")
        case "tuple" if isinstance(inner, list):
            return tuple(_value(each) for each in inner)
        case "dict" if isinstance(inner, list):
            return {_value(name): _value(each) for name, each in inner}
        case "bytes":
            return base64.b64decode(inner or "", validate=True)
        case "reply" if isinstance(inner, list):
            return Reply(*(_value(each) for each in inner))
    raise ValueError(f"unknown kind of value {plain[TAG]!r}")
