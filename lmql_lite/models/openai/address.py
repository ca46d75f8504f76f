"""Address and key of a server, and the query and headers of every request. Displayed text never contains a secret."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from lmql_lite.errors import ModelError
from lmql_lite.redaction import is_secret, redacted, without

if TYPE_CHECKING:
    import openai

OFFICIAL = "https://api.openai.com/v1"
NO_KEY = "none"
"""Placeholder for servers that need no key."""
NAME_A_KEY = "set OPENAI_API_KEY, or pass api_key="
SHOWN = 300
"""Maximum number of characters quoted from a server's message."""

_SUCH_AS = "such as http://localhost:8000/v1"
_AZURE = (".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com")
_AZURE_KEYS = ("AZURE_OPENAI_AD_TOKEN", "AZURE_OPENAI_API_KEY")
_USER = re.compile(r"^(\w+://)?.*@")
_LONG_SEGMENT = re.compile(r"(?<=/)(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{24,}(?=/|$)")
"""Segment of a path that may be a key: 24 letters and digits, as gateways have them."""
_CREDENTIAL = re.compile(
    r"(?:^|[-_.])(?:key|token|sig|signature|cookie|jwt|secret|o?auth(?:entication)?)(?:$|[-_.\d])", re.I
)
_OF_EVERY_CLIENT = re.compile("accept|authorization|content-type|user-agent|x-stainless-.*", re.I)
"""Headers that the package sends by itself."""
_PAYERS = {"openai-organization", "openai-project"}
"""Headers that say who pays, and do not change the answer."""
_HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]+")


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server. `url` has no trailing slash and no query; `shown` has neither user nor key.

    `query` and `headers` go with every request; a name may occur more than once in the query. `secrets` are texts that
    must not appear in an error or a file.
    """

    url: str = field(repr=False)
    shown: str
    key: str = field(repr=False)
    query: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, base_url: str | None, api_key: str | None) -> Address:
        """Address from the arguments, else from the environment. Raises ModelError.

        The environment is read as the `openai` client reads it: OPENAI_BASE_URL, OPENAI_API_KEY, and
        OPENAI_CUSTOM_HEADERS with a `Name: value` on each line; for Azure AZURE_OPENAI_AD_TOKEN and
        AZURE_OPENAI_API_KEY.
        """
        url = (base_url or os.environ.get("OPENAI_BASE_URL") or OFFICIAL).strip()
        parts = _parts(url)
        own = parse_qsl(parts.query, keep_blank_values=True)
        where = f"{parts.scheme}://{_host(parts)}"
        if parts.fragment or any(name == "key" or is_secret(name) for name, _ in own):
            raise ModelError(
                f"base_url must contain neither '#' nor a key after '?': use {where}{parts.path}",
                hint="put the key into api_key= or OPENAI_API_KEY",
            )
        path = parts.path.rstrip("/")
        azure = str(parts.hostname).endswith(_AZURE)
        if azure and path != "/openai/v1":
            raise ModelError(
                f"{where}{parts.path} is not the address of Azure's current API",
                hint=f"use {where}/openai/v1, or hand in client=openai.AsyncAzureOpenAI(...)",
            )
        variables = (*(_AZURE_KEYS if azure else ()), "OPENAI_API_KEY")
        key = (api_key or next(filter(None, map(os.environ.get, variables)), "")).strip()
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ModelError("the API key contains a blank or a character that no key has", hint="copy it again")
        return cls._of(parts._replace(path=path), key, tuple(own), _headers())

    @classmethod
    def of_client(cls, client: openai.AsyncOpenAI) -> Address:
        """Address of a client of the user's, which adds key, headers and query by itself."""
        parts = urlsplit(str(client.base_url).rstrip("/"))
        headers = {
            name: value
            for name, value in client.default_headers.items()
            if isinstance(value, str) and not _OF_EVERY_CLIENT.fullmatch(name)
        }
        query = tuple((name, str(value)) for name, value in client.default_query.items())
        return cls._of(parts, client.api_key, query, headers)

    @classmethod
    def _of(
        cls, parts: SplitResult, key: str, query: tuple[tuple[str, str], ...], headers: Mapping[str, str]
    ) -> Address:
        hidden = [value for name, value in (*headers.items(), *query) if is_credential(name) or "auth" in name.lower()]
        hidden += [key, *(unquote(each) for each in (parts.password, parts.username if parts.password else "") if each)]
        hidden += _LONG_SEGMENT.findall(parts.path)
        shown = f"{parts.scheme}://{_host(parts)}{_LONG_SEGMENT.sub(_digest, parts.path)}"
        secrets = tuple(secret for secret in dict.fromkeys(hidden) if secret)
        url = f"{parts.scheme}://{parts.netloc}{parts.path}"
        return cls(url, shown, key or NO_KEY, query, headers, secrets)

    @property
    def variant(self) -> Mapping[str, object]:
        """Headers and query that may change the answers of a server; empty if there are none (S4).

        Credentials are not among them, nor headers that say who pays.
        """
        headers = {name.lower(): value.strip() for name, value in self.headers.items()}
        told = {name: headers[name] for name in sorted(headers) if not is_credential(name) and name not in _PAYERS}
        query = sorted((pair for pair in self.query if not is_credential(pair[0])), key=lambda pair: pair[0])
        return ({"headers": told} if told else {}) | ({"query": query} if query else {})

    @property
    def place(self) -> str:
        """Address, and a digest of the `variant` if there is one: another text for each server that may differ."""
        if not self.variant:
            return self.shown
        digest = hashlib.blake2b(json.dumps(self.variant).encode(), digest_size=4).hexdigest()
        return f"{self.shown} ({' and '.join(self.variant)} {digest})"

    @property
    def root(self) -> str:
        """Base of the server's own routes, outside the OpenAI protocol."""
        return self.url.removesuffix("/v1")

    @property
    def is_official(self) -> bool:
        """True for an API of OpenAI or Azure."""
        return f".{urlsplit(self.url).hostname}".endswith((".openai.com", *_AZURE))

    @property
    def is_near(self) -> bool:
        """True for a server on this machine."""
        return is_on_this_machine(urlsplit(self.url).hostname or "")

    @property
    def is_authorized(self) -> bool:
        """True if there is a key, or a header of the user's in its place."""
        return self.key != NO_KEY or any(is_credential(name) for name in self.headers)

    def no_api(self, what: str) -> ModelError:
        """Error for a server that does not speak the protocol; `what` is what it does instead."""
        hint = None if self.url.endswith("/v1") else f"did you mean base_url='{self.shown}/v1'?"
        return ModelError(
            f"{self.shown} is not an OpenAI-compatible API: it {what}",
            hint=hint or "base_url is the address of the API, which ends in /v1, not that of a web page",
        )

    def scrub(self, text: str) -> str:
        """The text without this server's secrets, in any form, and without what looks like one."""
        for secret in self.secrets:
            text = without(text, secret, "[key]")
        return redacted(text)

    def clean(self, text: str) -> str:
        """Server message on one line, without secrets, at most `SHOWN` characters."""
        text = " ".join(self.scrub(text[: 16 * SHOWN]).split())
        return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."

    @contextmanager
    def scrubbing(self) -> Iterator[None]:
        """Errors that leave the block quote no secret: every error of a server passes here."""
        try:
            yield
        except ModelError as error:
            error.message = self.scrub(error.message)
            error.hint = error.hint and self.scrub(error.hint)
            error.args = (error.message,)
            raise


def is_on_this_machine(host: str) -> bool:
    """True for `localhost` and the addresses of this machine's own network, 127.0.0.0/8 and ::1."""
    if host.lower() == "localhost":
        return True
    try:
        return (address := ipaddress.ip_address(host)).is_loopback or address.is_unspecified
    except ValueError:
        return False


def _parts(url: str) -> SplitResult:
    """Parts of an address. Raises ModelError for what is none."""
    public = _USER.sub(r"\1", url)
    try:
        parts = urlsplit(url)
        _ = parts.port  # a wrong one raises
    except ValueError as error:
        why = "" if "@" in url else f": {error}"
        raise ModelError(f"base_url {public!r} is not an address{why}", hint=_SUCH_AS) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        hint = f"did you mean http://{url}?" if not re.match(r"\w+:(?!\d)", url) and "@" not in url else _SUCH_AS
        raise ModelError(f"base_url {public!r} does not begin with http:// or https://", hint=hint)
    return parts


def _host(parts: SplitResult) -> str:
    """Host and port as they are shown: without user, and without the usual port."""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else str(parts.hostname)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return host if parts.port in (None, usual) else f"{host}:{parts.port}"


def _digest(segment: re.Match[str]) -> str:
    """Another text for each key, so that two addresses stay apart."""
    return f"[key-{hashlib.blake2b(segment[0].encode(), digest_size=4).hexdigest()}]"


def is_credential(name: str) -> bool:
    """True for a header or a parameter of a query whose value gives access. It may change, the answers do not."""
    return is_secret(name) or _CREDENTIAL.search(name) is not None


def _headers() -> dict[str, str]:
    """Headers of the environment, of which the last one with a name counts, in any case of its letters. Raises
    ModelError."""
    sent: dict[str, tuple[str, str]] = {}
    for line in os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines():
        name, value = (part.strip() for part in (line.partition(":")[0], line.partition(":")[2]))
        if not name or not value:
            continue
        if not _HEADER.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise ModelError(
                f"OPENAI_CUSTOM_HEADERS: {name!r} is not the name of a header with a printable value",
                hint="write a header on each line, such as X-Title: mine",
            )
        sent[name.lower()] = name, value
    return dict(sent.values())
