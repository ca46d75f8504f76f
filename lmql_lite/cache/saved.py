"""The trees of one log: what it holds is read into them, what is new in them is written to it.

A log numbers nodes in its own order; these books hold which node of a tree has which number. Only nodes that somebody
knows a fact of are written, and those on the way to them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.changes import Changes
from lmql_lite.cache.facts import Columns, joined, picked, rows
from lmql_lite.cache.frames import DIGEST_BYTES, Batch, Draws, Entry, Heads, Model, Verdicts
from lmql_lite.cache.head import Head
from lmql_lite.cache.log import Log, Lost, News, Renumbered
from lmql_lite.cache.tree import Answer, Fact, Node
from lmql_lite.cache.trie import MAX_BYTES, Trie

UNKNOWN = -1
FACTS_PER_BATCH = 100_000
REPLACED_PER_BATCH = 10_000
"""Nodes, whose facts stand in one batch: what one replaces, another would replace again."""


class LoggedHeads:
    """Heads as they were logged, made when they are read. `written`, shape (heads,): when they were."""

    def __init__(self, heads: Heads, vocabulary_size: int, written: NDArray[np.int64] | None = None) -> None:
        self._ends = np.cumsum(heads.sizes)
        self._ids, self._logprobs, self._rest = heads.ids, heads.logprobs, heads.rest
        self._vocabulary_size = vocabulary_size
        self._written = np.zeros(len(self._ends), np.int64) if written is None else written

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, place: int, /) -> Head | None:
        row = slice(int(self._ends[place - 1]) if place else 0, int(self._ends[place]))
        return Head(self._ids[row], self._logprobs[row], float(self._rest[place]), self._vocabulary_size)

    def written(self, place: int) -> int:
        return int(self._written[place])


class Logged:
    """The facts of a few batches at nodes of a tree, but for lost ones. `known` tells the node of each number."""

    def __init__(self, batches: Sequence[Batch], known: NDArray[np.int64]) -> None:
        times = np.array([batch.written for batch in batches], dtype=np.int64)
        self._heads, self._head_times = _located([batch.heads for batch in batches], times, known)
        self._verdicts, self._verdict_times = _located([batch.verdicts for batch in batches], times, known)
        self._draws, self._draw_times = _located([batch.draws for batch in batches], times, known)

    @property
    def nodes(self) -> NDArray[np.int32]:
        """Where the facts are, each node once."""
        return np.unique(np.concatenate([self._heads.nodes, self._verdicts.nodes, self._draws.nodes])).astype(np.int32)

    def attach_to(self, tree: Trie, vocabulary_size: int) -> None:
        if len(self._heads.nodes):
            heads = LoggedHeads(self._heads, vocabulary_size, self._head_times)
            tree.attach(self._heads.nodes.astype(np.int32), heads)
        if len(self._verdicts.nodes) or len(self._draws.nodes):
            tree.attach_answers(self._verdicts, self._draws, (self._verdict_times, self._draw_times))


def _located(
    parts: Sequence[Columns], times: NDArray[np.int64], known: NDArray[np.int64]
) -> tuple[Columns, NDArray[np.int64]]:
    """The rows of all parts at nodes of the tree, and the time of each."""
    many = np.array([len(part.nodes) for part in parts])
    facts = joined([parts[place] for place in np.flatnonzero(many).tolist()] or parts[:1])
    at, written = known[facts.nodes], np.repeat(times, many)
    facts = replace(facts, nodes=at)
    kept = np.flatnonzero(at != UNKNOWN)
    if len(kept) == len(at):
        return facts, written
    return (rows(facts, kept) if isinstance(facts, Heads) else picked(facts, kept)), written[kept]


class Books:
    """One model: its tree, and the numbers of its nodes in the log."""

    def __init__(self, number: int, tree: Trie) -> None:
        self.number = number
        self.tree = tree
        self._nodes = array("q", [tree.root])
        """Of each number its node, UNKNOWN where that was lost."""
        self._numbers = array("q", [0])
        """Of each node its number, 0 where it has none; the root's is 0."""
        self._sure = 1

    def take_back(self) -> None:
        """The last batches were not kept, and their numbers are void."""
        for node in self._nodes[self._sure :]:
            self._numbers[node] = 0
        del self._nodes[self._sure :]

    def _book(self, first: int, nodes: NDArray[np.int64]) -> None:
        """The numbers from `first` on are those of these nodes; a node that has a number keeps it."""
        self._nodes.frombytes(nodes.tobytes())
        self._open_accounts()
        numbers = np.frombuffer(self._numbers, dtype=np.int64)
        new = np.flatnonzero(nodes != UNKNOWN)[::-1]  # of two numbers of one node the first is written last
        new = new[numbers[nodes[new]] == 0]
        numbers[nodes[new]] = first + new

    def _open_accounts(self) -> None:
        """One for every node that the tree has by now."""
        self._numbers.frombytes(bytes(8 * max(len(self.tree) - len(self._numbers), 0)))

    # Reading -----------------------------------------------------------------------------------------------------

    def lose(self, first: int, count: int) -> None:
        """Nodes of which only the numbers are known."""
        missing = first + count - len(self._nodes)
        self._nodes.extend([UNKNOWN] * max(missing, 0))

    def admit(self, batches: Sequence[Batch], vocabulary_size: int) -> None:
        """Batches without a gap between them; one that replaces is alone."""
        first = batches[0].first
        self.lose(first, 0)
        parents = np.concatenate([batch.parents for batch in batches])
        tokens = np.concatenate([batch.tokens for batch in batches])
        self._book(first, self._admit_nodes(first, parents, tokens))
        logged = Logged(batches, np.frombuffer(self._nodes, dtype=np.int64))
        if batches[0].replaces:
            self.tree.renounce(logged.nodes)
        logged.attach_to(self.tree, vocabulary_size)

    def settle(self, batches: Sequence[Batch], vocabulary_size: int) -> None:
        """One's own batches are kept: what memory has no room for is read from there from now on."""
        for batch in batches:
            logged = Logged([batch], np.frombuffer(self._nodes, dtype=np.int64))
            if batch.replaces:
                self.tree.detach(logged.nodes)
            logged.attach_to(self.tree, vocabulary_size)

    def _admit_nodes(self, first: int, parents: NDArray[np.int64], tokens: NDArray[np.int32]) -> NDArray[np.int64]:
        inside = parents >= first
        before = np.frombuffer(self._nodes, dtype=np.int64)[np.where(inside, 0, parents)]
        if not (before[~inside] == UNKNOWN).any():
            above = np.where(inside, first - 1 - parents, before)
            return self.tree.extend_many(above, tokens, quiet=True).astype(np.int64)
        nodes: list[Node] = []  # what hangs on lost nodes is lost with them
        for parent, token in zip(parents.tolist(), tokens.tolist(), strict=True):
            node = nodes[parent - first] if parent >= first else self._nodes[parent]
            nodes.append(UNKNOWN if node == UNKNOWN else int(self.tree.extend_many([node], [token], quiet=True)[0]))
        return np.array(nodes, dtype=np.int64)

    # Writing -----------------------------------------------------------------------------------------------------

    def batches(self, changes: Changes, written: int) -> list[Batch]:
        """What is new, numbered to follow the log; first what replaces what the log says."""
        self._sure = len(self._nodes)
        self._open_accounts()
        replaced = sorted(changes.replaced & changes.places)
        batches = []
        for begin in range(0, len(replaced), REPLACED_PER_BATCH):
            some = changes.at(frozenset(replaced[begin : begin + REPLACED_PER_BATCH]))
            batches.append(self._batch(some.scores, some.verdicts, some.draws, written, replaces=True))
        rest = changes.at(changes.places - changes.replaced) if replaced else changes
        for begin in range(0, max(len(rest.scores), len(rest.verdicts), len(rest.draws)), FACTS_PER_BATCH):
            cut = slice(begin, begin + FACTS_PER_BATCH)
            batches.append(self._batch(rest.scores[cut], rest.verdicts[cut], rest.draws[cut], written, replaces=False))
        return batches

    def _batch(
        self,
        scores: tuple[tuple[Node, Fact], ...],
        verdicts: tuple[tuple[Node, bytes, Answer], ...],
        draws: tuple[tuple[Node, bytes, int, int, Answer], ...],
        written: int,
        *,
        replaces: bool,
    ) -> Batch:
        first = len(self._nodes)
        parents: list[int] = []
        tokens: list[int] = []
        for node in (fact[0] for facts in (scores, verdicts, draws) for fact in facts):
            for parent, token, new in self._way_to(node):
                parents.append(self._numbers[parent])
                self._numbers[new] = len(self._nodes)
                self._nodes.append(new)
                tokens.append(token)
        return Batch(
            self.number,
            first,
            np.array(parents, dtype=np.int64),
            np.array(tokens, dtype=np.int32),
            self._heads(scores),
            self._verdicts(verdicts),
            self._draws(draws),
            written,
            replaces,
        )

    def _way_to(self, node: Node) -> list[tuple[Node, int, Node]]:
        """Parent, token and node of all that have no number yet, from above."""
        way = []
        while node != self.tree.root and not self._numbers[node]:
            parent, token = self.tree.step_to(node)
            way.append((parent, token, node))
            node = parent
        return way[::-1]

    def _heads(self, facts: tuple[tuple[Node, Fact], ...]) -> Heads:
        rows = [
            (self._numbers[node], fact.scores if isinstance(fact.scores, Head) else fact.scores.head())
            for node, fact in facts
        ]
        return Heads(
            np.array([number for number, _ in rows], dtype=np.int64),
            np.array([len(head.ids) for _, head in rows], dtype=np.int64),
            np.array([head.rest for _, head in rows], dtype=np.float32),
            np.concatenate([np.zeros(0, np.int32), *(head.ids for _, head in rows)]),
            np.concatenate([np.zeros(0, np.float32), *(head.logprobs for _, head in rows)]),
        )

    def _verdicts(self, facts: tuple[tuple[Node, bytes, Answer], ...]) -> Verdicts:
        return Verdicts(
            self._numbers_of(node for node, _, _ in facts),
            _digests(question for _, question, _ in facts),
            np.array([answer.token for _, _, answer in facts], dtype=np.int32),
            np.array([answer.logprob for _, _, answer in facts], dtype=np.float32),
        )

    def _draws(self, facts: tuple[tuple[Node, bytes, int, int, Answer], ...]) -> Draws:
        return Draws(
            self._numbers_of(node for node, *_ in facts),
            _digests(question for _, question, *_ in facts),
            np.array([seed for _, _, seed, _, _ in facts], dtype=np.uint64),
            np.array([index for _, _, _, index, _ in facts], dtype=np.uint32),
            np.array([answer.token for *_, answer in facts], dtype=np.int32),
            np.array([answer.logprob for *_, answer in facts], dtype=np.float32),
        )

    def _numbers_of(self, nodes: Iterable[Node]) -> NDArray[np.int64]:
        return np.array([self._numbers[node] for node in nodes], dtype=np.int64)


def _digests(questions: Iterable[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(questions), dtype=np.uint8).reshape(-1, DIGEST_BYTES)


class SavedTrees:
    """One log, and a tree for each model that has facts in it. Runs of several threads and event loops may share it.

    `max_bytes` bounds the facts of each tree that are in no column of the log; `runs` numbers the runs on these trees
    (S31); `clock` tells when facts are written.
    """

    def __init__(self, log: Log, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.time) -> None:
        self.max_bytes = max_bytes
        self.runs = itertools.count(1)
        self._log = log
        self._clock = clock
        self._models: dict[int, Model] = {}
        self._books: dict[str, Books] = {}
        self._trees: dict[str, Trie] = {}
        self._lock = Lock()
        """Held from a look at the log until what it says is in the books."""

    @property
    def notices(self) -> tuple[str, ...]:
        return tuple(self._log.notices)

    def tree(self, fingerprint: str) -> Trie:
        tree = self._trees.get(fingerprint)
        if tree is None:
            tree = self._trees.setdefault(fingerprint, Trie(self.max_bytes))
            tree.record()
        return tree

    async def follow(self) -> None:
        """Reads what others have written since the last look."""
        await asyncio.to_thread(self._lock.acquire)
        try:
            self._admit_all(await self._log.follow())
        finally:
            self._lock.release()

    async def save(self, fingerprint: str, name: str, vocabulary_size: int) -> bool:
        """Writes what is new in a model's tree. True once it is kept (S34). What cannot be kept now never is."""
        tree = self.tree(fingerprint)
        if not tree.has_news:
            return True
        await asyncio.to_thread(self._lock.acquire)
        try:
            model = Model(0, fingerprint, name, vocabulary_size)
            written: list[Batch] = []
            kept = await self._log.append(lambda news: self._number(news, model, written))
            if kept and written:
                self._books[fingerprint].settle(written, vocabulary_size)
            elif not kept:
                tree.changes()
                if fingerprint in self._books:
                    self._books[fingerprint].take_back()
            return kept
        finally:
            self._lock.release()

    async def close(self) -> None:
        await self._log.close()

    def _number(self, news: list[News], model: Model, written: list[Batch]) -> list[Entry]:
        """What is to be written; its batches are also put into `written`."""
        self._admit_all(news)
        changes = self.tree(model.fingerprint).changes()  # only now: what the log has just taken back is no news
        if not changes.places:
            return []
        declared: list[Entry] = []
        if model.fingerprint not in self._books:
            model = replace(model, number=max(self._models, default=0) + 1)
            declared.append(model)
            self._admit(model)
        written += self._books[model.fingerprint].batches(changes, int(self._clock()))
        return [*declared, *written]

    def _admit_all(self, news: Iterable[News]) -> None:
        """In order; batches that follow one another without a gap at once."""
        run: list[Batch] = []
        for each in news:
            if run and not (isinstance(each, Batch) and _goes_with(each, run[-1])):
                self._admit_run(run)
                run = []
            if isinstance(each, Batch):
                run.append(each)
            else:
                self._admit(each)
        if run:
            self._admit_run(run)

    def _admit_run(self, batches: list[Batch]) -> None:
        model = self._models[batches[0].model]
        self._books[model.fingerprint].admit(batches, model.vocabulary_size)

    def _admit(self, news: Model | Lost | Renumbered) -> None:
        match news:
            case Model(number, fingerprint):
                self._models[number] = news
                self._books.setdefault(fingerprint, Books(number, self.tree(fingerprint)))
            case Lost(model, first, count):
                if model in self._models:
                    self._books[self._models[model].fingerprint].lose(first, count)
            case Renumbered():
                self._models, self._books = {}, {}
                for tree in self._trees.values():
                    tree.outdate()


def _goes_with(batch: Batch, before: Batch) -> bool:
    return batch.model == before.model and batch.first == before.stop and not (batch.replaces or before.replaces)
