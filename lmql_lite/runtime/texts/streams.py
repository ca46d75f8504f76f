"""A request to a server while it is answered: what arrives becomes facts of the tree, and whoever reads there waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from lmql_lite.cache.texts import Manner, Texts
from lmql_lite.cache.tree import Node
from lmql_lite.models.base import Piece, Spent
from lmql_lite.runtime.budget import Bill
from lmql_lite.runtime.ledger import Ledger

Moved = Callable[["Stream", Node | None], None]
"""Told before the tip of a stream moves, with where it goes; None when it is over."""


class Stream:
    """One answer, piece by piece. It goes on as long as somebody follows it.

    `tip` is where the next piece will be written; pieces that arrive together are written together. `bill` bounds what
    the request costs. The run that asked pays; if it leaves and others stay, one of them takes over (S32).
    """

    def __init__(
        self,
        pieces: AsyncGenerator[Piece, None],
        texts: Texts,
        tip: Node,
        manner: Manner,
        ledger: Ledger,
        bill: Bill,
        ends: Callable[[bytes], bool],
        moved: Moved,
    ) -> None:
        self.tip = tip
        self.manner = manner
        self.ends = ends
        self.said = 0
        """Tokens so far."""
        self.is_over = False
        self.ran_out = False
        """It ended where it had said as much as it was asked for."""
        self._pieces = pieces
        self._texts = texts
        self._ledger = ledger
        self._bill = bill
        self._moved = moved
        self._followers: list[Ledger] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._arrived: list[Piece] = []
        """Not yet written."""
        self._spent: Spent | None = None
        """As far as the server has said it."""
        self._error: Exception | None = None
        texts.tree.pin(tip)
        self._task = asyncio.create_task(self._read())

    async def next(self) -> None:
        """Returns when there is news: another piece, or the end. Raises what the request has failed with: a ModelError,
        or a fault of the Completer's own."""
        if not self.is_over:
            news = asyncio.get_running_loop().create_future()
            self._waiting.append(news)
            await news
        if self._error is not None:
            raise self._error

    @property
    def is_closed(self) -> bool:
        return self._task.done()

    def follow(self, ledger: Ledger) -> None:
        self._followers.append(ledger)

    def leave(self, ledger: Ledger) -> None:
        """One reader goes elsewhere; the last one ends the request."""
        self._write()
        self._followers.remove(ledger)
        if self._followers:
            self._ledger = self._followers[0]
            return
        self._texts.tree.unpin(self.tip)
        if not self.is_over:
            self._end()
            self._task.cancel()

    async def closed(self) -> None:
        """Waits, where nobody follows it any more, until its request is closed."""
        if not self._followers and not self.is_closed:
            await asyncio.wait([self._task])

    async def over(self) -> None:
        """Waits for the end."""
        while not self.is_over:
            await self.next()

    async def _read(self) -> None:
        try:
            async with aclosing(self._pieces) as pieces:
                async for piece in pieces:
                    if not self._arrived:
                        asyncio.get_running_loop().call_soon(self._write)
                    self._arrived.append(piece)
                    self._spent = piece.spent or self._spent
        except Exception as error:  # for those who read; nobody waits for this task
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        """Nothing more will be written. A request that was closed before its end does not say its tokens (S32)."""
        if not self.is_over:
            self._write()
            self.is_over = True
            self._ledger.pay(replace(self._bill, spent=self._spent))
            self._moved(self, None)
            self._wake()

    def _write(self) -> None:
        """What has arrived becomes facts, and its last place is pinned: what is said ahead of readers stays (S9)."""
        pieces, self._arrived = self._arrived, []
        if not pieces or self.is_over:
            return
        before, words = self.tip, [piece for piece in pieces if piece.data]
        if words:
            way = self._texts.say(before, words, self.manner, self._ledger.run)
            self._ledger.arrive(way, [len(word.data) for word in words])
            self.said += len(words)
            self._move(way[-1])
        last = pieces[-1]
        self.ran_out = last.finish == "length"
        if last.finish == "stop" and last.ended_by is None:
            self._texts.write(self.tip, b"", None, self.manner, self._ledger.run)
        self._wake()

    def _move(self, tip: Node) -> None:
        self._moved(self, tip)
        before, self.tip = self.tip, tip
        self._texts.tree.unpin(before)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for news in waiting:
            if not news.done():
                news.set_result(None)
