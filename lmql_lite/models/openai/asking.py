"""Asking a server in a form that it takes: what it refuses is left out or put otherwise from then on.

Servers refuse fields that they do not know, and models of one server differ in what they take. A refusal costs nothing.
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
    """A request on its way: as it was finally sent, and what comes back."""

    body: Body
    answer: Answer
    is_shortened: bool
    """It asks for fewer tokens than wished for: the server's context has no room for more."""

    @property
    def width(self) -> int:
        """How many alternatives it asks for."""
        found = (self.body.get(name) for name in WIDTHS)
        return next((width for width in found if isinstance(width, int) and not isinstance(width, bool)), 0)


class Asker:
    """Remembers for texts and for turns, which are different routes, what a server does not take."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._refused: dict[bool, set[str]] = {False: set(), True: set()}
        self._widths: dict[bool, int] = {}
        """How many alternatives it gives at most, where it has refused more."""

    def narrowed(self, endpoint: Endpoint) -> Endpoint:
        """What is left of an endpoint's abilities after what was refused."""
        refused = self._refused[endpoint.chat_only]
        width = 0 if refused.intersection(WIDTHS) else self._widths.get(endpoint.chat_only, endpoint.alternatives)
        return replace(
            endpoint,
            alternatives=min(width, endpoint.alternatives),
            takes_seeds=endpoint.takes_seeds and "seed" not in refused,
        )

    @asynccontextmanager
    async def asked(self, server: Server, chat: bool, body: Body) -> AsyncIterator[Request]:
        """Posts the request; leaving the block closes it. Raises Refusal where the server takes it in no form."""
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
        """What to ask instead, as far as the refusal says it. Raises the refusal where it says nothing."""
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
        elif name not in PUSHED:  # one grammar may be refused, and the next one not
            refused.add(name)
        return changed
