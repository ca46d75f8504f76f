"""Failures of a server as errors of one sentence: error responses, and problems on the way to a response."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

from lmql_lite.errors import AuthenticationError, ModelError, RateLimitError
from lmql_lite.models.openai.address import NAME_A_KEY, NO_KEY, Address
from lmql_lite.models.openai.gate import wanted_pause

Problem = Literal["certificate", "tls", "unreachable", "silent", "reset"]
"""Reason why there is no response; `reset` is a connection that closed."""

_RETRIED = {408, 409, 425, 429}
"""Statuses that may pass, as the official client has them; of 5xx all but those for what a server does not have."""
_FOR_GOOD = {501, 505}
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables that name trusted certificates, in the order in which they count."""
_NO_ROUTE = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}


def is_passing(status: int) -> bool:
    """True for a status that another try may not meet."""
    return status in _RETRIED or (status >= 500 and status not in _FOR_GOOD)


class ServerRefusal(Exception):
    """Error response: a status, or an error instead of the first event, with `body` as JSON or text. Nothing was paid.

    `reason` is the server's message, `code` its word for it, `param` the field that it names, `requests` the number of
    requests sent so far. `has_no_route` is True if the server does not know the route, False if an API reports a
    missing model or feature.
    """

    def __init__(self, address: Address, status: int, headers: Mapping[str, str], body: object, path: str) -> None:
        self.status, self.headers, self.requests = status, headers, 1
        self._address, self._path = address, path
        self._is_quota = "insufficient_quota" in str(body)
        details = _details(body)
        words = _words(details, body)
        phrase = HTTPStatus(status).phrase if status in _NO_ROUTE else ""
        self.has_no_route = bool(phrase) and (not isinstance(body, dict) or words.lower() == phrase.lower())
        self.reason = "" if self.has_no_route else address.clean(words)
        self.code, self.param = (
            found if isinstance(found := details.get(name), str) else None for name in ("code", "param")
        )
        super().__init__(f"{status} {self.reason}")

    @property
    def is_temporary(self) -> bool:
        """True if the request may succeed later."""
        return is_passing(self.status) and not self._is_quota

    def as_error(self) -> ModelError:
        """The error that a caller gets: of a kind of its own where the key, or a rate limit, is the reason."""
        status, address, where = self.status, self._address, self._address.shown
        because = f": {self.reason}" if self.reason else f" with status {status}"
        if status == 401:
            does = "needs an API key" if address.key == NO_KEY else "rejects the API key"
            return AuthenticationError(f"{where} {does}{because}", hint=NAME_A_KEY)
        if status == 403:
            hint = "use a key that has access to this model"
            return AuthenticationError(f"{where} rejects this key{because}", hint=hint)
        if self.has_no_route:
            is_page = str(self.headers.get("content-type", "")).startswith("text/html")
            return address.no_api(
                "answers with a web page" if is_page else f"answers {address.clean(self._path)} with status {status}"
            )
        if status == 429 and self._is_quota:
            hint = "raise the quota, or use another key"
            return ModelError(f"the quota of this key at {where} is used up{because}", hint=hint)
        if status == 429:
            return RateLimitError(
                f"{where} rejected the request {_times(self.requests)} because of its rate limit{because}",
                hint="wait, or send fewer requests at once: lmql_lite.model(..., concurrency=4)",
                retry_after=wanted_pause(self.headers),
            )
        if status < 400:
            place = address.clean(self.headers.get("location", "another place"))
            return ModelError(f"{where} refers to {place}, which is not followed", hint="use that address")
        if status >= 500:
            return ModelError(f"{where} failed {_times(self.requests)}{because}", hint="see its own log")
        return ModelError(f"{where} refuses the request{because}")


def unreachable(address: Address, problem: Problem, timeout: float, tries: int) -> ModelError:
    """Error for a request that has no response, the last of this many, each after at most `timeout` seconds."""
    where = address.shown
    match problem:
        case "certificate":
            hint = "set SSL_CERT_FILE to a file of trusted certificates, with that of this server"
            return ModelError(f"the certificate of {where} is not trusted", hint=hint)
        case "tls":
            hint = f"did you mean {where.replace('https', 'http', 1)}?"
            return ModelError(f"{where} does not speak https", hint=hint)
        case "unreachable":
            hint = "is it running, and is this its address and port?"
            if getproxies() and not address.is_near:
                host = urlsplit(address.url).hostname
                hint = f"does the proxy that HTTPS_PROXY or HTTP_PROXY names lead there? NO_PROXY={host} leaves it out"
            return ModelError(f"no server answers at {where}", hint=hint)
        case "silent":
            return ModelError(f"{where} sent nothing for {timeout:g} s", hint="raise lmql_lite.model(..., timeout=...)")
        case "reset":
            how = f", {_times(tries)} in a row" if tries > 1 else ""
            hint = "see its own log; is it an OpenAI-compatible API?"
            return ModelError(f"{where} closes the connection without an answer{how}", hint=hint)


def _details(body: object) -> Mapping[str, Any]:
    """Fields of an error, from any of the forms that errors take."""
    body = body[0] if isinstance(body, list) and body else body  # Google's
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = body["error"]
    return body if isinstance(body, dict) else {}


def _words(details: Mapping[str, Any], body: object) -> str:
    """The server's own message."""
    if details:
        names = ("message", "error", "detail")
        words = next((details[name] for name in names if details.get(name)), details)
        return words if isinstance(words, str) else json.dumps(words, default=str)
    text = body if isinstance(body, str) else ""
    return "" if text.lstrip().startswith("<") else text


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
