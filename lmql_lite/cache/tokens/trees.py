"""Token trees of models, in memory or joined to a file or a server: its rows are read into the trees, and new entries
are written to it."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from threading import Lock
from typing import TypeVar
from weakref import finalize

from lmql_lite.cache.tokens.recorded import RecordedRows
from lmql_lite.cache.tokens.rows import ModelName
from lmql_lite.cache.tokens.server import TreeServer, is_redis_url
from lmql_lite.cache.tokens.tree import MAX_BYTES, TokenTree
from lmql_lite.cache.tokens.tree_file import TreeFile
from lmql_lite.errors import InputError

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
            dirty = tree.take_dirty()
            dirty.shorten()
            kept = self._rows.write(model, lambda: tree.batch(dirty), clock=self._clock)
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


@dataclass(frozen=True, slots=True, eq=False)
class TokenCache:
    """Cache of models' answers: `lq.run(query, cache=lq.TokenCache("x.tokens", max_bytes=2**30))`.

    With a `path` the cache is that file, which any number of processes may use at once; `cache="x.tokens"` is short for
    it. Without a path it is in memory, and shared by the runs that get this object, in any session.

    `max_bytes` (256 MB by default) bounds each model's entries in memory, and the paths to them.
    The least recently used entries are evicted, and asked for again when they are needed. The limit does not count what
    active runs hold: the texts that they continue or may return to, entries on the way there, and unsaved entries.
    `max_file_bytes` bounds the file: above it, the runs that were not used for the longest time go, down to 90 %.

    With `durable` a run returns only after the disk has its entries, so that a power failure loses nothing.

    Raises InputError for a path that is not the name of a file, a bound below 1, and `durable` or `max_file_bytes`
    without a file.

    >>> lq.TokenCache("x.tokens", max_bytes=2**20).max_bytes
    1048576
    """

    path: str | os.PathLike[str] | None = None
    _: KW_ONLY
    max_bytes: int = MAX_BYTES
    max_file_bytes: int | None = None
    durable: bool = False
    trees: ModelTrees = field(init=False, repr=False)
    """Trees of a cache without a path."""

    def __post_init__(self) -> None:
        if self.path is not None:
            _check_name(self.path)
        for name, size in (("max_bytes", self.max_bytes), ("max_file_bytes", self.max_file_bytes)):
            if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
                raise InputError(
                    f"{name} must be a whole number of bytes, at least 1; this is {size!r}",
                    hint="write cache=False to keep nothing",
                )
        if self.path is None and (self.durable or self.max_file_bytes is not None):
            raise InputError(
                "durable and max_file_bytes need a file, and none is named",
                hint='name one: TokenCache("x.tokens", durable=True)',
            )
        object.__setattr__(self, "trees", ModelTrees(self.max_bytes))


AnyCache = bool | str | os.PathLike[str] | TokenCache
"""Values of the option. True shares one tree among all runs; False asks the model every time."""


def _check_name(path: object) -> None:
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str):
        raise InputError(
            f"cache= is the name of a file; this is {path!r}",
            hint='cache="x.tokens", or TokenCache() for one in memory',
        )
    if not name or "\0" in name:
        raise InputError(f"{name!r} is not the name of a file", hint='for example cache="x.tokens"')
