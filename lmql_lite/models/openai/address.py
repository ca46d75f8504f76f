"""Address and key of a server. Text that is shown never contains the key."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from lmql_lite.errors import ModelError

OFFICIAL = "https://api.openai.com/v1"
NO_KEY = "none"
"""Placeholder sent to servers that want no key: the client cannot omit the header."""
NAME_A_KEY = "set OPENAI_API_KEY, or name api_key="
SHOWN = 300
"""Maximum number of characters quoted from a server's message."""

_SUCH_AS = "such as http://localhost:8000/v1"
_KEYS = re.compile(r"\b(?:sk|pk|rk|key|hf|gsk)[-_][\w*.-]{6,}|(?<=Bearer )\S+")


@dataclass(frozen=True, slots=True)
class Address:
    """Address and key of a server. `url` has no trailing slash; `shown` has no user and password."""

    url: str = field(repr=False)
    shown: str
    key: str = field(repr=False)

    @classmethod
    def of(cls, base_url: str | None, api_key: str | None) -> Address:
        """Address from the arguments, else from the environment, as the `openai` client reads it. Raises ModelError."""
        url = (base_url or os.environ.get("OPENAI_BASE_URL") or OFFICIAL).strip().rstrip("/")
        public = re.sub(r"(?<=//)[^/@]*@", "", url)
        try:
            parts = urlsplit(url)
            port = f":{parts.port}" if parts.port else ""
        except ValueError as error:
            raise ModelError(f"base_url {public!r} is no address: {error}", hint=_SUCH_AS) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            hint = f"did you mean http://{url}?" if not re.match(r"\w+:(?!\d)", url) and "@" not in url else _SUCH_AS
            raise ModelError(f"base_url {public!r} does not begin with http:// or https://", hint=hint)
        if parts.query or parts.fragment:
            raise ModelError(
                f"base_url may have no '?' and no '#': {parts.scheme}://{parts.hostname}{port}{parts.path} would do",
                hint="a key belongs in api_key= or OPENAI_API_KEY",
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        default = {"http": ":80", "https": ":443"}[parts.scheme]
        shown = f"{parts.scheme}://{host}{'' if port == default else port}{parts.path}"
        key = (api_key or os.environ.get("OPENAI_API_KEY") or "").strip()
        if not key and parts.hostname == urlsplit(OFFICIAL).hostname:
            raise ModelError(f"{shown} wants an API key, and none is named", hint=NAME_A_KEY)
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ModelError("the API key holds characters that no key has", hint="was it copied in one piece?")
        return cls(url, shown, key or NO_KEY)

    @property
    def root(self) -> str:
        """Base of the server's own routes, outside the OpenAI protocol."""
        return self.url.removesuffix("/v1")

    @property
    def is_official(self) -> bool:
        host = urlsplit(self.url).hostname or ""
        return host == "openai.com" or host.endswith(".openai.com")

    def clean(self, text: str) -> str:
        """Server message on one line, without keys, at most `SHOWN` characters."""
        if self.key != NO_KEY:
            text = text.replace(self.key, "[key]")
        text = " ".join(_KEYS.sub("[key]", text).split())
        return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
