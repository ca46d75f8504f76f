"""Redaction: removes keys from texts and data that others may read."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

HIDDEN = "[hidden]"
MIN_SECRET_LENGTH = 4
"""Minimum length of a key to search for: shorter keys are placeholders, and occur inside words."""

_SECRET = re.compile(
    r"(?:api|access|private|secret|subscription)[-_]?key|authorization|password|passwd|secret|credential", re.I
)
_NAMED_TOKEN = re.compile(r"(?:(?:access|auth|api|bearer|refresh|session|hf)[-_]?)?token", re.I)
_IN_TEXT = re.compile(
    r"(?<=://)[^/@\s]+(?=@)"  # user and password of an address
    r"|(?<=[?&])((?:[\w-]*(?:key|token|secret|password)|sig(?:nature)?|auth(?:orization)?)=)[^&#\s'\"]+"
    r"|(?-i:(?<=Bearer )\S{7,})"
    r"|\b(?:sk|pk|rk|hf|gsk|xai)[-_][\w*-]{8,}",
    re.I,
)


def redacted(text: str) -> str:
    """The text without anything that looks like a key, a bearer token, or the user and password of an address."""
    return _IN_TEXT.sub(lambda found: f"{found.group(1) or ''}{HIDDEN}", text)


def without_secrets(value: Any) -> Any:
    """JSON data in which the values of names such as `api_key` are hidden, and all texts `redacted`."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {name: _hidden(each) if is_secret(name) else without_secrets(each) for name, each in value.items()}
    return [without_secrets(each) for each in value] if isinstance(value, list) else value


@lru_cache(1024)
def is_secret(name: str) -> bool:
    """True for the name of an option, header or field whose value is a secret."""
    return bool(_SECRET.search(name) or _NAMED_TOKEN.fullmatch(name))


def without(text: str, secret: str, shown: str = HIDDEN) -> str:
    """The text without one secret, in every form in which a server may quote it: plain, JSON, URL, base64.

    >>> without("c2stMTIzNDU2Nzg5 is sk-123456789", "sk-123456789")
    '[hidden] is [hidden]'
    """
    for form in sorted(_forms(secret), key=len, reverse=True):  # one form may begin another
        text = text.replace(form, shown)
    return text


def _forms(secret: str) -> Iterator[str]:
    if len(secret) < MIN_SECRET_LENGTH:
        return
    yield secret
    yield (spelled := json.dumps(secret)[1:-1])
    yield spelled.replace("/", "\\/")
    yield quote(secret)
    yield quote(secret, safe="")
    if len(secret) < 2 * MIN_SECRET_LENGTH:
        return
    for shift in range(3):  # base64 encodes 3 bytes at a time: the secret may begin at any of them
        for encode in (b64encode, urlsafe_b64encode):
            data = b"\0" * shift + secret.encode()
            spelled = encode(data).decode()
            yield spelled[(shift * 8 + 5) // 6 : len(data) * 8 // 6]


def _hidden(value: Any) -> Any:
    """The value of a secret name with its texts hidden; a number or None is not a secret."""
    return HIDDEN if isinstance(value, str | list | dict) and value else value
