"""The trees of one log: what it holds is read into them, what is new in them is written to it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from lmql_lite.cache.columns import (
    AGE_SECONDS,
    MAX_TOKENS,
    QUESTION_BYTES,
    Entries,
    GreedyAnswers,
    Model,
    SampledAnswers,
    TopKs,
)
from lmql_lite.cache.dirty_set import Changes
from lmql_lite.cache.framing import Frame
from lmql_lite.cache.head import HEAD_TOKENS, Head
from lmql_lite.cache.record_reader import Lost, RecordReader
from lmql_lite.cache.record_writer import ENTRIES_PER_RECORD, payloads
from lmql_lite.cache.tokens_file import TokensFile
from lmql_lite.cache.tree import Fact, Node
from lmql_lite.cache.trie import MAX_BYTES, Trie

REPLACED_PER_RECORD = 10_000
"""Nodes whose entries stand in one record: what one replaces, another would replace again."""


class SavedTrees:
    """One log, and a tree for each model that has entries in it. Runs of several threads and event loops may share it.

    `max_bytes` bounds what each tree has that the log does not hold: entries, and nodes on the way to none of its
    entries. With `reads_only` nothing is saved. `runs` numbers the runs on these trees (S31); `clock` gives the time at
    which entries are written.

    What is new is read, and written, where the log has it done: one after the other, and whoever waits for it.
    """

    def __init__(
        self,
        log: TokensFile,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
        *,
        reads_only: bool = False,
    ) -> None:
        self.max_bytes = max_bytes
        self.reads_only = reads_only
        self.runs = itertools.count(1)
        self._log = log
        self._clock = clock
        self._trees: dict[str, Trie] = {}
        self._reader = RecordReader(lambda model: partial(self.tree(model.fingerprint).extend_many, logged=True))
        self._is_writing = False

    @property
    def notices(self) -> tuple[str, ...]:
        return tuple(self._log.notices)

    def tree(self, fingerprint: str) -> Trie:
        tree = self._trees.get(fingerprint)
        if tree is None:
            tree = self._trees.setdefault(fingerprint, Trie(self.max_bytes))
            if not self.reads_only:
                tree.record()
        return tree

    async def follow(self) -> None:
        """Reads what others have written since the last look."""
        await self._log.follow(self._admit)

    async def save(self, fingerprint: str, name: str, vocabulary_size: int) -> bool:
        """Writes what is new in a model's tree. True once it is kept (S34). What cannot be kept now never is."""
        tree = self.tree(fingerprint)
        if not tree.is_dirty and not self._is_writing:  # else another run is writing it, and is waited for
            return True
        model = Model(fingerprint, name, vocabulary_size)
        kept = await self._log.append(self._admit, partial(self._payloads, model, tree))
        if not kept:
            tree.changes()
        return kept

    async def close(self) -> None:
        await self._log.close()

    def _admit(self, frames: Sequence[Frame], is_other: bool) -> bool:
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

    def _payloads(self, model: Model, tree: Trie) -> Generator[bytes, None, None]:
        """What is new in a tree. What is kept of it is read from the log from now on where memory has no room."""
        self._is_writing = True
        try:
            changes = tree.changes()  # only now: what the log has just superseded is not new
            index = self._reader.index(model.fingerprint)
            for entries, written, replaces in _batches(changes, tree, int(self._clock())):
                begin = index.end
                yield from payloads(index, tree, model, entries, written=written, replaces=replaces)
                tree.keep(index.nodes_from(begin))
                if replaces:
                    tree.supersede(np.unique(entries.nodes), by_own=True)
                tree.attach(entries, np.full(len(entries), written), model.vocabulary_size)
        finally:
            self._is_writing = False


def _batches(changes: Changes, tree: Trie, now: int) -> Iterator[tuple[Entries, int, bool]]:
    """Entries that one record can hold, when they were written, and whether they replace; those that do come first."""
    replaced = sorted(changes.replaced & changes.places)
    for begin in range(0, len(replaced), REPLACED_PER_RECORD):
        some = changes.at(frozenset(replaced[begin : begin + REPLACED_PER_RECORD]))
        yield _entries(some), now, True
    rest = changes.at(changes.places - changes.replaced) if replaced else changes
    most = min(ENTRIES_PER_RECORD, MAX_TOKENS // max((_width(fact) for _, fact in rest.scores), default=1))
    for age, some in _by_age(rest, tree, now):
        for begin in range(0, max(len(some.scores), len(some.answers)), most):
            cut = slice(begin, begin + most)
            yield _entries(some._replace(scores=some.scores[cut], answers=some.answers[cut])), age, False


def _by_age(changes: Changes, tree: Trie, now: int) -> Iterable[tuple[int, Changes]]:
    """Entries of a log that is gone are, to the hour, as old as they were there."""
    if not tree.has_stale:
        return [(now, changes)]
    ages: dict[int, set[Node]] = {}
    for node in changes.places:
        written = tree.written(node)
        ages.setdefault(now if written is None else written // AGE_SECONDS * AGE_SECONDS, set()).add(node)
    return [(age, changes.at(ages[age])) for age in sorted(ages)]


def _entries(changes: Changes) -> Entries:
    heads = [fact.scores if isinstance(fact.scores, Head) else fact.scores.head() for _, fact in changes.scores]
    greedy = [(node, question, answer) for node, question, answer in changes.answers if isinstance(question, bytes)]
    sampled = [
        (node, *question, answer) for node, question, answer in changes.answers if not isinstance(question, bytes)
    ]
    return Entries(
        TopKs(
            np.array([node for node, _ in changes.scores], np.int64),
            np.array([len(head.ids) for head in heads], np.int64),
            np.array([head.rest for head in heads], np.float32),
            np.concatenate([np.zeros(0, np.int32), *(head.ids for head in heads)]),
            np.concatenate([np.zeros(0, np.float32), *(head.logprobs for head in heads)]),
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


def _width(fact: Fact) -> int:
    """Tokens of its top-k entry, at most."""
    return len(fact.scores.ids) if isinstance(fact.scores, Head) else HEAD_TOKENS


def _questions(questions: Iterable[bytes]) -> np.typing.NDArray[np.uint8]:
    return np.frombuffer(b"".join(questions), dtype=np.uint8).reshape(-1, QUESTION_BYTES)
