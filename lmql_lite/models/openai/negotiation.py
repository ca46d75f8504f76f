"""Negotiation with a server: requests are sent in a form that it accepts, and fields that it refuses are left out from
then on. A refusal costs nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from lmql_lite.errors import BrokenOff, ModelError
from lmql_lite.models.base import MAX_BROKEN, Capabilities, broken_again
from lmql_lite.models.openai.decoder import Delta, Vocabulary, read
from lmql_lite.models.openai.dialects import (
    LIMITS,
    PUSHED,
    WIDTHS,
    Body,
    Dialect,
    is_about_length,
    refused_field,
    shorter,
    without,
)
from lmql_lite.models.openai.refusals import ServerRefusal, is_passing

if TYPE_CHECKING:
    from lmql_lite.models.openai.client import Client

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Exchange:
    """Accepted request, as finally sent, and the events of its response. `requests` is the number sent for it."""

    body: Body
    requests: int
    events: AsyncGenerator[dict[str, Any], None]
    is_shortened: bool
    """The request asks for fewer tokens than its caller, because the server's context has no room for more."""

    @property
    def width(self) -> int:
        """Number of alternatives that the request asks for."""
        found = (self.body.get(name) for name in WIDTHS)
        return next((width for width in found if isinstance(width, int) and not isinstance(width, bool)), 0)


class Sender:
    """Sends requests in a form that the server accepts. It remembers refused fields, separately for plain text and for
    turns, which are different routes.
    """

    def __init__(self, client: Client, name: str, vocabulary: Vocabulary) -> None:
        self.client = client
        self._name = name
        self._vocabulary = vocabulary
        self._most: dict[bool, dict[str, int]] = {False: {}, True: {}}
        """Largest number that each route takes of a field that it refused; 0 for one that is left out."""

    def narrowed(self, capabilities: Capabilities) -> Capabilities:
        """Capabilities without those that the server refused."""
        most = self._most[capabilities.chat_only]
        width = min([capabilities.alternatives, *(most[name] for name in (*WIDTHS, "include") if name in most)])
        return replace(capabilities, alternatives=width, takes_seeds=capabilities.takes_seeds and "seed" not in most)

    @asynccontextmanager
    async def send(self, dialect: Dialect, chat: bool, body: Body) -> AsyncIterator[Exchange]:
        """Posts the request; leaving the block closes it. Raises ServerRefusal if the server accepts no form of it."""
        url = dialect.route(chat, self.client.address.root)
        body = self._as_learned(chat, body)
        sent, is_shortened = 0, False
        while True:
            async with AsyncExitStack() as stack:
                try:
                    response = await stack.enter_async_context(self.client.ask(url, body))
                except ServerRefusal as refusal:
                    sent = refusal.requests = sent + refusal.requests
                    less = shorter(body, refusal.status, refusal.reason)
                    is_shortened |= less is not None
                    body = less or self._otherwise(chat, body, refusal)
                else:
                    yield Exchange(body, sent + response.requests, response.events, is_shortened)
                    return

    async def answered(
        self, dialect: Dialect, chat: bool, body: Body, read: Callable[[Exchange], Awaitable[Found]]
    ) -> tuple[Found, int]:
        """Result of `read`, and the number of requests: an answer that breaks off meanwhile is asked for again."""
        requests = tries = 0
        while True:
            try:
                async with self.send(dialect, chat, body) as exchange:
                    requests += exchange.requests
                    return await read(exchange), requests
            except BrokenOff as error:
                tries += 1
                if tries == MAX_BROKEN:
                    raise broken_again(error) from None

    def read(self, event: dict[str, Any]) -> Delta:
        """Content of an event. Raises ModelError, or BrokenOff where asking again may help, for an error in it."""
        error = event.get("error") or (event if "error" in (event.get("object"), event.get("type")) else None)
        if event.get("type") == "response.failed":
            error = event.get("response", {}).get("error")
        if error:
            reason = error.get("message", error) if isinstance(error, dict) else error
            code = error.get("code") if isinstance(error, dict) else None
            message = f"the server of {self._name} failed in the middle: {self.client.address.clean(str(reason))}"
            if not isinstance(code, int):
                raise BrokenOff(message)
            if not is_passing(code):
                raise ModelError(message)
            self.client.slow_down(code)
            raise BrokenOff(message)
        delta = read(event, self._vocabulary)
        if delta.refused is not None:
            raise ModelError(f"{self._name} {self.client.address.clean(delta.refused)}")
        return delta

    async def deltas(self, exchange: Exchange) -> AsyncGenerator[Delta, None]:
        """Contents of the events of a response. A connection that breaks after the answer has finished is its end.

        Raises ModelError, if events arrive but nothing is in them for longer than a server may be silent, and the
        errors of `read`.
        """
        latest, is_finished, timeout = time.monotonic(), False, self.client.timeout
        try:
            async for event in exchange.events:
                delta = self.read(event)
                is_finished |= bool(delta.finish)
                is_empty = not (delta.text or delta.thought or delta.finish or delta.done)
                if is_empty and time.monotonic() - latest > timeout:
                    raise ModelError(
                        f"the server of {self._name} sent events without text for {timeout:g} s",
                        hint="see its own log, or raise lmql_lite.model(..., timeout=...)",
                    )
                yield delta
                latest = latest if is_empty else time.monotonic()
        except BrokenOff:
            if not is_finished:
                raise

    def narrow(self, width: int) -> None:
        """Asks for at most so many alternatives of plain text from now on."""
        most = self._most[False]
        most |= {name: min(width, most.get(name, width)) for name in WIDTHS}

    def _as_learned(self, chat: bool, body: Body) -> Body:
        for name, most in self._most[chat].items():
            value = body.get(name)
            if name in body and not most:
                body = without(body, name, narrows=False)
            elif isinstance(value, int) and not isinstance(value, bool) and value > most:
                body = body | {name: most}
        return body

    def _otherwise(self, chat: bool, body: Body, refusal: ServerRefusal) -> Body:
        """Request to send instead, as far as the refusal names a field. Raises the refusal if it names none."""
        name = refused_field(body, refusal.reason, refusal.param) if refusal.status in (400, 422, 501) else None
        most = self._most[chat]
        is_limit = name in LIMITS and (
            is_about_length(refusal.reason) or not chat or any(one in most for one in LIMITS)
        )
        if name is None or is_limit:
            raise refusal
        is_unknown = re.search(r"unsupported|not supported|unrecognized|unknown", refusal.reason, re.I) is not None
        changed = without(body, name, narrows=not is_unknown)
        if name in WIDTHS:
            most |= dict.fromkeys(WIDTHS, int(changed.get(name, 0)))
        elif name not in PUSHED:  # the server may refuse one grammar and accept the next
            most[name] = 0
        return changed
