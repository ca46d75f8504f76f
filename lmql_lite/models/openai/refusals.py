"""Failures of a server as errors of one sentence: error responses, and problems on the way to a response."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from lmql_lite.errors import AuthenticationError, ModelError, RateLimitError
from lmql_lite.models.openai.address import NAME_A_KEY, NO_KEY, Address
from lmql_lite.models.openai.gate import wanted_pause
from lmql_lite.models.openai.network_environment import CERTIFICATES, EnvironmentProxy

Problem = Literal["certificate", "tls", "unreachable", "silent", "strange", "reset"]
"""Reason why there is no response; `reset` is a connection that closed."""

_RETRIED = {408, 409, 425, 429}
"""Statuses that may pass, as the official client has them; of 5xx all but those for what a server does not have."""
_FOR_GOOD = {501, 505}
_NO_ROUTE = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}


def is_passing(status: int) -> bool:
    """True for a status that another try may not meet."""
    return status in _RETRIED or (status >= 500 and status not in _FOR_GOOD)


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """Error response: a status, or an error instead of the first event, with `body` as JSON or text."""

    status: int
    headers: Mapping[str, str]
    body: object
    path: str

    @property
    def details(self) -> Mapping[str, Any]:
        """Fields of the error, from any of the forms that errors take."""
        body = self.body[0] if isinstance(self.body, list) and self.body else self.body
        if isinstance(body, dict) and isinstance(body.get("error"), dict):
            body = body["error"]
        return body if isinstance(body, dict) else {}

    def detail(self, name: str) -> str | None:
        found = self.details.get(name)
        return found if isinstance(found, str) else None

    @property
    def message(self) -> str:
        """The server's own words."""
        if self.details:
            names = ("message", "error", "detail", "msg")
            words = next((self.details[name] for name in names if self.details.get(name)), self.details)
            return words if isinstance(words, str) else json.dumps(words, default=str)
        text = self.body if isinstance(self.body, str) else ""
        return "" if text.lstrip().startswith("<") else text

    @property
    def is_quota(self) -> bool:
        """True for an exhausted quota, which does not return by waiting."""
        return "insufficient_quota" in str(self.body)

    @property
    def is_temporary(self) -> bool:
        """True if the request may succeed later. The server's own `x-should-retry` decides where it is sent."""
        word = self.headers.get("x-should-retry", "").lower()
        if word in ("true", "false"):
            return word == "true"
        return is_passing(self.status) and not self.is_quota

    @property
    def has_no_route(self) -> bool:
        """True if the server does not know the route, False if an API reports a missing model or feature."""
        if self.status not in _NO_ROUTE:
            return False
        return not isinstance(self.body, dict) or self.message.lower() == HTTPStatus(self.status).phrase.lower()


class ServerRefusal(ModelError):
    """Refusal by the server, with an HTTP status; nothing was paid.

    `reason` is the server's message, `code` its word for it, `param` the field that it names, `requests` the number of
    requests sent so far.
    """

    def __init__(self, address: Address, error: ErrorResponse, requests: int) -> None:
        self.status = error.status
        self.reason = "" if error.has_no_route else address.clean(error.message)
        self.code = error.detail("code")
        self.param = error.detail("param")
        self.requests = requests
        self._error = error
        message, hint = self._sentence(address)
        super().__init__(message, hint=hint)

    def as_error(self) -> ModelError:
        """The error that a caller gets: of a kind of its own where the key, or a rate limit, is the reason."""
        if self.status in (401, 403):
            return AuthenticationError(self.message, hint=self.hint)
        if self.status == 429 and not self._error.is_quota:
            return RateLimitError(self.message, hint=self.hint, retry_after=wanted_pause(self._error.headers))
        return self

    def _sentence(self, address: Address) -> tuple[str, str | None]:
        """Message and remedy."""
        error, status, where = self._error, self.status, address.shown
        because = f": {self.reason}" if self.reason else f" with status {status}"
        message, hint = f"{where} refuses the request{because}", None
        if status == 401:
            does = "needs an API key" if address.key == NO_KEY else "rejects the API key"
            message, hint = f"{where} {does}{because}", NAME_A_KEY
        elif status == 403:
            message, hint = f"{where} rejects this key{because}", "use a key that has access to this model"
        elif error.has_no_route:
            is_page = str(error.headers.get("content-type", "")).startswith("text/html")
            answers = "with a web page" if is_page else f"{address.clean(error.path)} with status {status}"
            no_api = address.no_api(f"answers {answers}")
            message, hint = no_api.message, no_api.hint
        elif status == 429 and error.is_quota:
            message, hint = (
                f"the quota of this key at {where} is used up{because}",
                "raise the quota, or use another key",
            )
        elif status == 429:
            message = f"{where} rejected the request {_times(self.requests)} because of its rate limit{because}"
            hint = "wait, or send fewer requests at once: lmql_lite.model(..., concurrency=4)"
        elif status >= 500:
            message, hint = f"{where} failed {_times(self.requests)}{because}", "see its own log"
        return message, hint


def unreachable(address: Address, problem: Problem, timeout: float, tries: int) -> ModelError:
    """Error for a request that has no response, the last of this many, each after at most `timeout` seconds."""
    where, proxy = address.shown, EnvironmentProxy.of(address.url)
    match problem:
        case "certificate":
            named = [f"{name}={os.environ[name]}" for name in CERTIFICATES if os.environ.get(name)]
            now = f"; now {named[0]} names them" if named else ""
            message = f"the certificate of {where} is not trusted"
            hint = f"set SSL_CERT_FILE to a file of trusted certificates{now}"
        case "tls":
            message, hint = f"{where} does not speak https", f"did you mean {where.replace('https', 'http', 1)}?"
        case "unreachable" if proxy is not None:
            message = f"the proxy {proxy.shown} does not lead to {where}"
            hint = f"{proxy.variable} names it; NO_PROXY={proxy.host} leaves the proxy out for this server"
        case "unreachable":
            message, hint = f"no server answers at {where}", "is it running, and is this its address and port?"
        case "silent":
            message = f"{where} sent nothing for {timeout:g} s"
            hint = "raise lmql_lite.model(..., timeout=...)"
        case "strange":
            return address.no_api("does not answer as HTTP servers do")
        case "reset":
            how = f", {_times(tries)} in a row" if tries > 1 else ""
            message = f"{where} closes the connection without an answer{how}"
            hint = "see its own log; is it an OpenAI-compatible API?"
    return ModelError(message, hint=hint)


def in_band(event: Mapping[str, Any] | None, headers: Mapping[str, str], path: str) -> ErrorResponse | None:
    """Refusal in the place of the first event: OpenRouter sends those of other servers with status 200."""
    error = (event or {}).get("error")
    code = error.get("code") if isinstance(error, dict) else None
    if not isinstance(code, int) or isinstance(code, bool) or not 400 <= code < 600:
        return None
    return ErrorResponse(code, headers, event, path)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
