"""Requests in a form that the server accepts: refused fields are left out or renamed from then on.

Servers refuse fields that they do not know, and the models of one server differ in what they accept. A refusal costs
nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from lmql_lite.models.base import Endpoint
from lmql_lite.models.openai.client import Answer, Connection, Refusal
from lmql_lite.models.openai.dialects import (
    LIMITS,
    PUSHED,
    WIDTHS,
    Body,
    Server,
    is_about_length,
    refused_field,
    shorter,
    without,
)


@dataclass(frozen=True, slots=True)
class Request:
    """An accepted request: the body that was finally sent, and the answer."""

    body: Body
    answer: Answer
    is_shortened: bool
    """The request asks for fewer tokens than its caller, because the server's context has no room for more."""

    @property
    def width(self) -> int:
        """Number of alternatives that the request asks for."""
        found = (self.body.get(name) for name in WIDTHS)
        return next((width for width in found if isinstance(width, int) and not isinstance(width, bool)), 0)


class Asker:
    """Memory of what a server refuses, separately for plain text and for turns, which are different routes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._refused: dict[bool, set[str]] = {False: set(), True: set()}
        self._widths: dict[bool, int] = {}
        """Maximum number of alternatives per route, where the server refused more."""

    def narrowed(self, endpoint: Endpoint) -> Endpoint:
        """Capabilities of the endpoint without those that the server refused."""
        refused = self._refused[endpoint.chat_only]
        width = 0 if refused.intersection(WIDTHS) else self._widths.get(endpoint.chat_only, endpoint.alternatives)
        return replace(
            endpoint,
            alternatives=min(width, endpoint.alternatives),
            takes_seeds=endpoint.takes_seeds and "seed" not in refused,
        )

    @asynccontextmanager
    async def asked(self, server: Server, chat: bool, body: Body) -> AsyncIterator[Request]:
        """Posts the request; leaving the block closes it. Raises Refusal if the server accepts no form of it."""
        url = server.route(chat, self._connection.address.root)
        body = self._as_learned(chat, body)
        sent, is_shortened = 0, False
        while True:
            async with AsyncExitStack() as stack:
                try:
                    answer = await stack.enter_async_context(self._connection.ask(url, body))
                except Refusal as refusal:
                    sent = refusal.requests = sent + refusal.requests
                    less = shorter(body, refusal.status, refusal.told)
                    is_shortened |= less is not None
                    body = less or self._otherwise(chat, body, refusal)
                else:
                    yield Request(body, replace(answer, requests=sent + answer.requests), is_shortened)
                    return

    def _as_learned(self, chat: bool, body: Body) -> Body:
        for name in [name for name in body if name in self._refused[chat]]:
            body = without(body, name)
        width = self._widths.get(chat)
        for name in WIDTHS:
            value = body.get(name)
            if width is not None and isinstance(value, int) and not isinstance(value, bool) and value > width:
                body = body | {name: width}
        return body

    def _otherwise(self, chat: bool, body: Body, refusal: Refusal) -> Body:
        """Request to send instead, as far as the refusal names a field. Raises the refusal if it names none."""
        name = refused_field(body, refusal.told, refusal.param) if refusal.status in (400, 422, 501) else None
        refused = self._refused[chat]
        is_limit = name in LIMITS and (is_about_length(refusal.told) or not chat or refused.intersection(LIMITS))
        if name is None or is_limit:
            raise refusal
        changed = without(body, name)
        if name in WIDTHS and name in changed:
            self._widths[chat] = int(changed[name])
        elif name in WIDTHS:
            refused.update(WIDTHS)
        elif name not in PUSHED:  # the server may refuse one grammar and accept the next
            refused.add(name)
        return changed
