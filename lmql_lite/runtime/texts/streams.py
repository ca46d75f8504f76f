"""A request to a server while it is answered: what arrives becomes facts of the tree, and whoever reads there waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from lmql_lite.cache.texts import Manner, Texts
from lmql_lite.cache.tree import Node
from lmql_lite.errors import ModelError
from lmql_lite.models.base import Piece, Spent
from lmql_lite.runtime.budget import Bill
from lmql_lite.runtime.ledger import Ledger

Moved = Callable[["Stream", Node | None], None]
"""Told before the tip of a stream moves, with where it goes; None when it is over."""


class Stream:
    """One answer, piece by piece. It goes on as long as somebody follows it.

    `tip` is where the next piece will be written; `bill` bounds what the request costs. The run that asked pays; if it
    leaves and others stay, one of them takes over (S32).
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
        self._error: ModelError | None = None
        texts.tree.pin(tip)
        self._task = asyncio.create_task(self._read())

    async def next(self) -> None:
        """Returns when there is news: another piece, or the end. Raises ModelError where the request has failed."""
        if not self.is_over:
            news = asyncio.get_running_loop().create_future()
            self._waiting.append(news)
            await news
        if self._error is not None:
            raise self._error

    def follow(self, ledger: Ledger) -> None:
        self._followers.append(ledger)

    def leave(self, ledger: Ledger) -> None:
        """One reader goes elsewhere; the last one ends the request."""
        self._followers.remove(ledger)
        if self._followers:
            self._ledger = self._followers[0]
            return
        self._texts.tree.unpin(self.tip)
        if not self.is_over:
            self._end(None)
            self._task.cancel()

    async def over(self) -> None:
        """Waits for the end."""
        while not self.is_over:
            await self.next()

    async def _read(self) -> None:
        spent: Spent | None = None
        try:
            async with aclosing(self._pieces) as pieces:
                async for piece in pieces:
                    self._write(piece)
                    spent = piece.spent
        except ModelError as error:
            self._error = error
        finally:
            self._end(spent)

    def _end(self, spent: Spent | None) -> None:
        """Nothing more will be written. A request that was closed before its end does not say what it cost (S32)."""
        if not self.is_over:
            self.is_over = True
            self._ledger.pay(replace(self._bill, spent=spent))
            self._moved(self, None)
            self._wake()

    def _write(self, piece: Piece) -> None:
        run, before, tree = self._ledger.run, self.tip, self._texts.tree
        tip = self._texts.walk(before, piece.data)
        if tip != before:  # pinned before it is written: what is said ahead of its readers stays (S9)
            tree.pin(tip)
        if piece.data:
            self.said += 1
            self._ledger.arrived.append(self._texts.walk(before, piece.data[:1]))
            told = piece.token, piece.alternatives
            self._texts.write(before, piece.data, piece.logprob, self.manner, run, *told)
        self.ran_out = piece.finish == "length"
        if piece.finish == "stop" and piece.ended_by is None:
            self._texts.write(tip, b"", None, self.manner, run)
        self._moved(self, tip)
        self.tip = tip
        if tip != before:
            tree.unpin(before)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for news in waiting:
            if not news.done():
                news.set_result(None)
