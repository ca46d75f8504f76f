"""Connection to a server with the OpenAI protocol, from any number of event loops and threads.

Each event loop has a client of its own (`sdk.py`), which is made with its first request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lmql_lite.errors import ModelError
from lmql_lite.models.openai.address import Address
from lmql_lite.models.openai.gate import Traffic

if TYPE_CHECKING:
    import openai

    from lmql_lite.models.openai.sdk import Client, Response

TIMEOUT = 300.0
"""Read timeout in seconds: a long prompt on a slow machine takes minutes."""
CONCURRENCY = 32
"""Maximum number of simultaneous requests to one server."""
PROBE_TIMEOUT = 20.0
"""Read timeout of a free route in seconds, unless a timeout is given."""


@dataclass(frozen=True, slots=True)
class _Own:
    """Client of one event loop. It closes when the loop ends, as every async generator of a loop does."""

    client: Client
    turn: asyncio.Lock
    keeper: AsyncGenerator[Client, None]


class Connection:
    """Connection to one server."""

    def __init__(
        self,
        address: Address,
        *,
        timeout: float | None = None,
        concurrency: int = CONCURRENCY,
        lent: openai.AsyncOpenAI | None = None,
    ) -> None:
        """`lent` is a client of the user's, which is not closed."""
        self.address = address
        self.traffic = Traffic(timeout or TIMEOUT, timeout or PROBE_TIMEOUT, concurrency)
        self._lent = lent
        self._owned: WeakKeyDictionary[asyncio.AbstractEventLoop, _Own] = WeakKeyDictionary()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Exclusive turn among the callers of this event loop."""
        async with (await self._own()).turn:
            yield

    async def fetch(self, url: str, body: Mapping[str, object] | None = None) -> Any:
        """See `Client.fetch`."""
        return await (await self._own()).client.fetch(url, body)

    @asynccontextmanager
    async def ask(self, url: str, body: Mapping[str, object]) -> AsyncIterator[Response]:
        """See `Client.ask`."""
        async with (await self._own()).client.ask(url, body) as response:
            yield response

    def lower_concurrency(self, concurrency: int) -> None:
        """Lowers the maximum number of simultaneous requests from now on."""
        self.traffic.concurrency = min(self.traffic.concurrency, concurrency)
        for own in list(self._owned.values()):
            own.client.gate.lower_concurrency(self.traffic.concurrency)

    def slow_down(self, status: int) -> None:
        """See `Client.slow_down`."""
        self._owned[asyncio.get_running_loop()].client.slow_down(status)

    async def _own(self) -> _Own:
        loop = asyncio.get_running_loop()
        own = self._owned.get(loop)
        if own is None:
            keeper = self._kept(loop)
            own = self._owned.setdefault(loop, _Own(await anext(keeper), asyncio.Lock(), keeper))
        return own

    async def _kept(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Client, None]:
        try:
            from lmql_lite.models.openai.sdk import Client
        except ImportError as error:
            raise ModelError(
                f"the package openai is missing or too old: {error}", hint="pip install -U 'openai>=3.20,<4'"
            ) from None
        client = Client(self.address, self.traffic, self._lent)
        try:
            yield client
        finally:
            self._owned.pop(loop, None)
            await client.close()
