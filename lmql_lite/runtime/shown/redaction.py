"""What is written down for others to read has no keys in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "[hidden]"

_SECRET = re.compile(r"(?:api|access|private|secret)[-_]?key|authorization|password|passwd|secret|credentials?", re.I)
_NAMED_TOKEN = re.compile(r"(?:(?:access|auth|api|bearer|refresh|session|hf)[-_]?)?token", re.I)
_IN_TEXT = re.compile(
    r"(?<=://)[^/@\s]+(?=@)"  # user and password of an address
    r"|(?<=[?&])((?:[\w-]*(?:key|token|secret|password)|sig(?:nature)?|auth(?:orization)?)=)[^&#\s'\"]+"
    r"|(?-i:(?<=Bearer )\S{7,})"
    r"|\b(?:sk|pk|rk|hf|gsk)[-_][\w-]{8,}",
    re.I,
)


def redacted(text: str) -> str:
    """Without what looks like a key, a bearer token, or the user and password of an address."""
    return _IN_TEXT.sub(lambda found: f"{found.group(1) or ''}{HIDDEN}", text)


def without_secrets(value: Any) -> Any:
    """JSON data in which the values of names such as `api_key` are hidden, and all texts `redacted`."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {name: _hidden(each) if _is_secret(name) else without_secrets(each) for name, each in value.items()}
    return [without_secrets(each) for each in value] if isinstance(value, list) else value


def _is_secret(name: str) -> bool:
    return bool(_SECRET.search(name) or _NAMED_TOKEN.fullmatch(name))


def _hidden(value: Any) -> Any:
    """Texts are hidden; a number or None under such a name is none."""
    return HIDDEN if isinstance(value, str | list | dict) and value else value
