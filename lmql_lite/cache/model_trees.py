"""Token trees of models, in memory or joined to a file or a server: its rows are read into the trees, and new entries
are written to it."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TypeVar
from weakref import finalize

from lmql_lite.cache.recorded import RecordedRows
from lmql_lite.cache.token_tree import MAX_BYTES, TokenTree
from lmql_lite.cache.tree_file import TreeFile
from lmql_lite.cache.tree_rows import VOCABULARY, ModelName
from lmql_lite.cache.tree_server import TreeServer, is_redis_url

Done = TypeVar("Done")


class ModelTrees:
    """Token trees, one per model. Runs of several threads and event loops may share them.

    Without a file they are only in memory. `max_bytes` bounds each tree in memory. With `reads_only` nothing is saved.
    `runs` numbers the runs on these trees (S31); `clock` returns the time at which entries are written.

    The file has one thread for writing and for the first look-up of a run, so that a lock or a slow disk does not block
    an event loop (S34). A job is done to its end even if its caller is cancelled.
    """

    def __init__(
        self,
        max_bytes: int = MAX_BYTES,
        rows: TreeFile | TreeServer | RecordedRows | None = None,
        clock: Callable[[], float] = time.time,
        *,
        reads_only: bool = False,
    ) -> None:
        self.max_bytes = max_bytes
        self.has_file = rows is not None
        self.notices: Sequence[str] = () if rows is None else rows.notices
        """Notices of the file so far, as sentences for the user."""
        self.runs = itertools.count(1)
        self._rows = rows
        self._records = rows is not None and not reads_only
        self._clock = clock
        self._trees: dict[str, TokenTree] = {}
        self._guard = Lock()
        self._thread: tuple[int, ThreadPoolExecutor] | None = None
        """The process of the thread of the file, and the thread."""
        self._running = 0
        """Number of runs that may still write."""
        self._is_written = False
        self._writes = 0
        """Number of writes that wait or go on."""

    @staticmethod
    async def open(
        path: str | os.PathLike[str],
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
        *,
        durable: bool = False,
        reads_only: bool = False,
        max_file_bytes: int | None = None,
    ) -> ModelTrees:
        """The trees of a file, which is created if it is missing, or of a server. With `durable` saved entries survive
        a power failure. Raises CacheError if the file cannot be used (see `TreeFile`)."""
        rows: TreeFile | TreeServer
        if is_redis_url(path):
            rows = TreeServer(str(path), durable=durable)
        else:
            rows = TreeFile(Path(path), durable=durable, reads_only=reads_only, max_bytes=max_file_bytes)
        trees = ModelTrees(max_bytes, rows, clock, reads_only=reads_only)
        finalize(trees, rows.close)  # for an owner that is freed without an event loop
        await trees._job(rows.open)
        return trees

    def tree(self, fingerprint: str) -> TokenTree:
        tree = self._trees.get(fingerprint)
        if tree is None:
            made = TokenTree(self.max_bytes, self._rows, fingerprint, records=self._records)
            tree = self._trees.setdefault(fingerprint, made)
        return tree

    async def follow(self) -> None:
        """Sees what other processes wrote since the last call."""
        if self._rows is not None:
            await self._job(self._rows.follow)

    def begin(self) -> None:
        """Counts a run that will save entries."""
        with self._guard:
            self._running += 1

    async def end(self) -> None:
        """Ends a run that was counted. After the last one, the file alone is whole."""
        with self._guard:
            self._running -= 1
            is_last = not self._running and self._is_written
            self._is_written = self._is_written and not is_last
        if is_last:
            await self.checkpoint()

    async def checkpoint(self) -> None:
        """Moves new entries from the write-ahead log into the file."""
        if isinstance(self._rows, TreeFile):
            await self._job(self._rows.checkpoint)

    async def save(self, fingerprint: str, name: str, vocabulary_size: int) -> bool:
        """Writes the dirty entries of a model's tree. Returns True once the file holds them (S34). Entries that cannot
        be written now are written with the next ones."""
        if self._rows is None:
            return True
        tree = self.tree(fingerprint)
        if not (tree.is_dirty or self._writes):  # otherwise another run is writing them, and this one waits for it
            return True
        model = ModelName(fingerprint, name, vocabulary_size)
        with self._guard:
            self._writes += 1
        return await self._job(lambda: self._write(tree, model))

    def _write(self, tree: TokenTree, model: ModelName) -> bool:
        assert self._rows is not None, "there is a file"
        try:
            if not tree.is_dirty:
                return True
            dirty, is_text = tree.take_dirty(), model.vocabulary_size == VOCABULARY
            kept = self._rows.write(model, lambda: tree.batch(dirty, is_text=is_text), clock=self._clock)
            self._is_written = self._is_written or kept
            if not kept:
                tree.put_back(dirty)
            return kept
        finally:
            with self._guard:
                self._writes -= 1

    async def close(self) -> None:
        if self._rows is not None:
            await self._job(self._rows.close)
            with self._guard:
                thread, self._thread = self._thread, None
            if thread is not None:
                thread[1].shutdown(wait=False)

    async def _job(self, work: Callable[[], Done]) -> Done:
        """Does work on the thread of the file, which does one thing after the other."""
        with self._guard:
            if self._thread is None or self._thread[0] != os.getpid():  # a fork leaves the thread behind
                thread = ThreadPoolExecutor(1, thread_name_prefix="tokens")
                finalize(self, thread.shutdown, wait=False)
                self._thread = os.getpid(), thread
            thread = self._thread[1]
        return await asyncio.get_running_loop().run_in_executor(thread, work)
