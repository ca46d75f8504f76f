"""Access control of every route by Host, Origin and token; the headers of every response, and JSON responses.

A page of another site can send requests to this machine. With a domain name that resolves to this machine, it can even
read the responses; only the `Host` header reveals this. Cookies do not distinguish ports, so there are none.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


def reply(found: Mapping[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(found), status, media_type="application/json")


class RequestRefused(Exception):
    """Refusal of a request: HTTP status, one sentence, and a hint."""

    def __init__(self, status: int, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint

    def response(self) -> Response:
        return reply({"error": {"message": self.message, "hint": self.hint}}, self.status)


MAX_FAILURES = 30
"""Wrong tokens in a minute; the right one is always let in."""

FIXED = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def policy(nonce: str) -> str:
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )


class Guard:
    """Middleware around an application that listens on one port of this machine. The nonce of a response is in
    `state`."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        nonce = secrets.token_urlsafe(16)
        scope["state"] = {"nonce": nonce}

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({"Content-Security-Policy": policy(nonce), **FIXED})
                if message["status"] == 401:
                    headers["WWW-Authenticate"] = "Bearer"
            await send(message)

        try:
            self._check(scope)
        except RequestRefused as refused:
            await refused.response()(scope, receive, send_guarded)
        else:
            await self._app(scope, receive, send_guarded)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            raise RequestRefused(
                403, "this server answers only under its own address", "open the address that it printed"
            )
        if any(origin != f"http://{hosts[0].lower()}" for origin in origins):
            raise RequestRefused(
                403, "a page of another site may not ask this server", "open the address that it printed"
            )
        if scope["method"] == "OPTIONS":
            raise RequestRefused(403, "no other site may ask this server")
        if scope["path"].startswith("/api/"):
            self._check_token(headers.getlist("authorization"))

    def _check_token(self, given: list[str]) -> None:
        kind, _, token = (given[0] if len(given) == 1 else "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(token.encode(), self._token):
            return
        now = time.monotonic()
        flooded = len(self._failures) == MAX_FAILURES and now - self._failures[0] < 60
        self._failures.append(now)
        if flooded:
            raise RequestRefused(
                429, "there were too many wrong tokens in the last minute", "open the address it printed"
            )
        sentence = "the token is not that of this server" if given else "there is no token in this request"
        raise RequestRefused(401, sentence, "open the address that `lq playground` printed; each start has a new token")
