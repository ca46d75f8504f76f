"""Token trees of models, in memory or joined to a file: entries of the file are read into the trees, and new ones are
written to the file."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from pathlib import Path
from weakref import finalize

import numpy as np
from aiofiles.os import wrap

from lmql_lite.cache.columns import QUESTION_BYTES, Entries, GreedyAnswers, Model, SampledAnswers, TopKs
from lmql_lite.cache.entry import DirtyEntries, ScoreEntry
from lmql_lite.cache.framing import LogFrame
from lmql_lite.cache.log_file import LogFile
from lmql_lite.cache.record_io import Lost, RecordReader, payloads, record_groups
from lmql_lite.cache.redis_log import RedisLog, is_redis_url
from lmql_lite.cache.token_tree import MAX_BYTES, TokenTree
from lmql_lite.cache.top_k import TopK


def open_log(path: str | os.PathLike[str], *, durable: bool) -> LogFile | RedisLog:
    """The log at a path or URL, not opened yet."""
    if is_redis_url(path):
        return RedisLog(str(path), durable=durable)
    return LogFile(Path(path), durable=durable)


class ModelTrees:
    """Token trees, one per model. Runs of several threads and event loops may share them.

    Without a file they are only in memory. `max_bytes` bounds the part of each tree that the file does not hold: its
    entries, and nodes that lead to none of the file's entries. With `reads_only` nothing is saved. `runs` numbers the
    runs on these trees (S31); `clock` returns the time at which entries are written.

    Reading and writing the file is one job on a thread. It completes under the file's lock even if the caller is
    cancelled, and does not block the event loop. One thread at a time works for all callers.
    """

    def __init__(
        self,
        max_bytes: int = MAX_BYTES,
        file: LogFile | RedisLog | None = None,
        clock: Callable[[], float] = time.time,
        *,
        reads_only: bool = False,
    ) -> None:
        self.max_bytes = max_bytes
        self.has_file = file is not None
        self.notices: Sequence[str] = () if file is None else file.notices
        """Notices of the file so far, as sentences for the user."""
        self.runs = itertools.count(1)
        self._file = file
        self._records = file is not None and not reads_only
        self._clock = clock
        self._trees: dict[str, TokenTree] = {}
        self._reader = RecordReader(lambda model: partial(self.tree(model.fingerprint).extend_many, logged=True))
        self._is_writing = False

    @staticmethod
    async def open(
        path: str | os.PathLike[str],
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
        *,
        durable: bool = False,
        reads_only: bool = False,
    ) -> ModelTrees:
        """The trees of a file, which is created if it is missing; `follow` reads it. With `durable` saved entries
        survive a power failure. Raises CacheError if the file cannot be used (see `LogFile`)."""
        file = open_log(path, durable=durable)
        try:
            await wrap(file.open)()
        except asyncio.CancelledError:  # the thread may still be opening it, and then closes it
            asyncio.get_running_loop().run_in_executor(None, file.close)
            raise
        trees = ModelTrees(max_bytes, file, clock, reads_only=reads_only)
        finalize(trees, file.close)  # for an owner that is freed without an event loop
        return trees

    @staticmethod
    def read(path: str | os.PathLike[str]) -> ModelTrees:
        """The trees of a file in its present state. They neither follow the file nor save to it. Raises CacheError as
        in `open`."""
        file = LogFile(Path(path), durable=False)
        trees = ModelTrees(MAX_BYTES, file, reads_only=True)
        file.open()
        try:
            file.follow(trees._admit)
        finally:
            file.close()
        return trees

    def tree(self, fingerprint: str) -> TokenTree:
        tree = self._trees.get(fingerprint)
        if tree is None:
            tree = self._trees.setdefault(fingerprint, TokenTree(self.max_bytes))
            if self._records:
                tree.record()
        return tree

    async def follow(self) -> None:
        """Reads entries that other processes wrote since the last call."""
        if self._file is not None:
            await wrap(self._file.follow)(self._admit)

    async def save(self, fingerprint: str, name: str, vocabulary_size: int) -> bool:
        """Writes the dirty entries of a model's tree. Returns True once the file holds them (S34). Entries that cannot
        be written now are never written."""
        if self._file is None:
            return True
        tree = self.tree(fingerprint)
        if not (tree.is_dirty or self._is_writing):  # otherwise another run is writing them, and this one waits for it
            return True
        model = Model(fingerprint, name, vocabulary_size)
        kept: bool = await wrap(self._file.append)(self._admit, partial(self._payloads, model, tree))
        if not kept:
            tree.take_dirty()
        return kept

    async def close(self) -> None:
        if self._file is not None:
            await wrap(self._file.close)()

    def _admit(self, frames: Sequence[LogFrame], is_other: bool) -> bool:
        if is_other:
            self._reader.start_over()
            for tree in list(self._trees.values()):
                tree.mark_stale()
        is_whole = True
        for added in self._reader.read(frames):
            if isinstance(added, Lost):
                is_whole = False
                continue
            tree = self.tree(added.model.fingerprint)
            if added.replaces:
                tree.supersede(np.unique(added.entries.nodes), by_own=False)
            tree.attach(added.entries, added.written, added.model.vocabulary_size)
        return is_whole

    def _payloads(self, model: Model, tree: TokenTree) -> Generator[bytes, None, None]:
        """Payloads of the dirty entries, which are read from the file once memory evicts them."""
        self._is_writing = True
        try:
            dirty = tree.take_dirty()  # taken late, so that entries which the file has just superseded are not written
            index, everything = self._reader.index(model.fingerprint), _columns(dirty)
            written = np.full(len(everything), int(self._clock()))
            for place, time_then in enumerate(tree.stale_times(everything.nodes)):
                written[place] = written[place] if time_then is None else time_then
            replaced = np.isin(everything.nodes, list(dirty.replaced))
            for entries, age, replaces in record_groups(everything, written, replaced):
                begin = index.end
                yield from payloads(index, tree, model, entries, written=age, replaces=replaces)
                tree.attach_nodes(index.nodes_from(begin))
                if replaces:
                    tree.supersede(np.unique(entries.nodes), by_own=True)
                tree.attach(entries, np.full(len(entries), age), model.vocabulary_size)
        finally:
            self._is_writing = False


def _columns(dirty: DirtyEntries) -> Entries:
    topks = [_top_k(entry) for entry in dirty.scores.values()]
    greedy = [(node, asked, answer) for (node, asked), answer in dirty.answers.items() if isinstance(asked, bytes)]
    sampled = [
        (node, *asked, answer) for (node, asked), answer in dirty.answers.items() if not isinstance(asked, bytes)
    ]
    return Entries(
        TopKs(
            np.array(list(dirty.scores), np.int64),
            np.array([len(one.ids) for one in topks], np.int64),
            np.array([one.rest for one in topks], np.float32),
            np.concatenate([np.zeros(0, np.int32), *(one.ids for one in topks)]),
            np.concatenate([np.zeros(0, np.float32), *(one.logprobs for one in topks)]),
        ),
        GreedyAnswers(
            np.array([node for node, _, _ in greedy], np.int64),
            _questions(question for _, question, _ in greedy),
            np.array([answer.token for _, _, answer in greedy], np.int32),
            np.array([answer.logprob for _, _, answer in greedy], np.float32),
        ),
        SampledAnswers(
            np.array([node for node, *_ in sampled], np.int64),
            _questions(question for _, question, *_ in sampled),
            np.array([seed for _, _, seed, _, _ in sampled], np.uint64),
            np.array([index for _, _, _, index, _ in sampled], np.uint32),
            np.array([answer.token for *_, answer in sampled], np.int32),
            np.array([answer.logprob for *_, answer in sampled], np.float32),
        ),
    )


def _top_k(entry: ScoreEntry) -> TopK:
    return entry.scores if isinstance(entry.scores, TopK) else entry.scores.top_k()


def _questions(questions: Iterable[bytes]) -> np.typing.NDArray[np.uint8]:
    return np.frombuffer(b"".join(questions), dtype=np.uint8).reshape(-1, QUESTION_BYTES)
