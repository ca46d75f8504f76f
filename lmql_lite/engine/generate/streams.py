"""Streams of a server's responses. Each arriving piece becomes an entry of the tree, for all readers that wait
there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from lmql_lite.cache.tokens.bytes import ByteTree, CacheKey
from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.engine.generate.healing import again_if_cut
from lmql_lite.engine.ledger import Ledger, OpenRequest
from lmql_lite.models.base import ServerUsage, StreamPiece


@dataclass(frozen=True, slots=True)
class Watching:
    """Callbacks of a stream to the scheduler that opened it."""

    ends: Callable[[bytes], bool]
    """True if nothing may follow a text, so that the server ends by itself."""
    moved: Callable[[Stream, Node | None], None]
    """Called before the tip of a stream moves, with the new tip; None at its end."""
    cut: str
    """Notice of an answer that broke off and is asked for again."""


class Stream:
    """One response, open while it has followers.

    `begin` is the node at which the answer begins, and `tip` the one after which the next piece is written: the text
    between them is `known`. Pieces that arrive together are written together. `ask` sends the request, `sent` is the
    request with its cost. The run that sent it pays; if that run leaves before others, one of them takes over
    (S32).
    """

    def __init__(
        self,
        ask: Callable[[], AsyncGenerator[StreamPiece, None]],
        texts: ByteTree,
        begin: Node,
        tip: Node,
        known: bytes,
        key: CacheKey,
        ledger: Ledger,
        sent: OpenRequest,
        watching: Watching,
    ) -> None:
        self.begin = begin
        self.tip = tip
        self.key = key
        self.ends = watching.ends
        self.thoughts: list[str] = []
        """Thoughts of the model so far, in parts as they arrived."""
        self.is_over = False
        self.ran_out = False
        """True if the response ended at its `max_tokens`."""
        self._pieces = again_if_cut(ask, known, self._paid)
        self._texts = texts
        self._ledger = ledger
        self._sent = sent
        self._watching = watching
        self._followers: list[Ledger] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._arrived: list[StreamPiece] = []
        """Pieces that are not written yet."""
        self._spent: ServerUsage | None = None
        """Usage as reported so far."""
        self._error: Exception | None = None
        texts.tree.pin(tip)
        with ledger.counting(sent.count):  # the context of the task that sends the request
            self._task = asyncio.create_task(self._read())

    async def next(self) -> None:
        """Waits for another piece or the end. Raises the error with which the request failed."""
        if not self.is_over:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        if self._error is not None:
            raise self._error

    @property
    def is_closed(self) -> bool:
        return self._task.done()

    def follow(self, ledger: Ledger) -> None:
        self._followers.append(ledger)

    def leave(self, ledger: Ledger) -> None:
        """Removes a follower. Without followers, the request ends."""
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
        """Waits until the request is closed, if it has no followers."""
        if not self._followers and not self.is_closed:
            await asyncio.wait([self._task])

    async def over(self) -> None:
        """Waits for the end of the response."""
        while not self.is_over:
            await self.next()

    def _paid(self, spent: ServerUsage | None) -> None:
        """Pays for an answer that broke off. Raises BudgetError if the budget does not cover the request again."""
        for follower in self._followers:
            follower.notices.append(self._watching.cut)
        self._spent = None
        self._sent.repeat(self._ledger, spent)

    async def _read(self) -> None:
        try:
            async with aclosing(self._pieces) as pieces:
                async for piece in pieces:
                    if not self._arrived:
                        asyncio.get_running_loop().call_soon(self._write)
                    self._arrived.append(piece)
                    self._spent = piece.spent or self._spent
        except Exception as error:  # raised to the readers, since nobody awaits this task
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        """Ends the stream. A request that was closed early does not report its tokens (S32)."""
        if not self.is_over:
            self._write()
            self.is_over = True
            self._sent.pay(self._ledger, self._spent)
            self._watching.moved(self, None)
            self._wake()

    def _write(self) -> None:
        """Writes the pieces that have arrived, and pins the last node, so that text ahead of the readers stays (S9)."""
        pieces, self._arrived = self._arrived, []
        if not pieces or self.is_over:
            return
        self.thoughts += [piece.thought for piece in pieces if piece.thought]
        before, words = self.tip, [piece for piece in pieces if piece.data]
        if words:
            way = self._texts.append(before, words, self.key, self._ledger.run)
            self._ledger.arrive(way, [len(word.data) for word in words])
            self._move(way[-1])
        last = pieces[-1]
        self.ran_out = last.finish == "length"
        if last.finish == "stop" and last.ended_by is None:
            self._texts.write(self.tip, b"", None, self.key, self._ledger.run)
        self._wake()

    def _move(self, tip: Node) -> None:
        self._watching.moved(self, tip)
        before, self.tip = self.tip, tip
        self._texts.tree.unpin(before)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)
