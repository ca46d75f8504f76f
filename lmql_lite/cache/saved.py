"""The trees of one log: what it holds is read into them, what is new in them is written to it.

A log numbers nodes in its own order; these books hold which node of a tree has which number. Only nodes that somebody
knows a fact of are written, and those on the way to them.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable
from dataclasses import replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.changes import Changes
from lmql_lite.cache.frames import DIGEST_BYTES, Batch, Draws, Entry, Heads, Model, Verdicts
from lmql_lite.cache.head import Head
from lmql_lite.cache.log import Log, Lost, News, Renumbered
from lmql_lite.cache.tree import Answer, Fact, Node
from lmql_lite.cache.trie import Trie

UNKNOWN = -1
FACTS_PER_BATCH = 100_000


class LoggedHeads:
    """The heads of one batch, made when they are read."""

    def __init__(self, heads: Heads, vocabulary_size: int) -> None:
        self._heads = heads
        self._ends = np.cumsum(heads.sizes)
        self._vocabulary_size = vocabulary_size

    def __len__(self) -> int:
        return len(self._heads.nodes)

    def __getitem__(self, place: int, /) -> Head | None:
        end = int(self._ends[place])
        row = slice(end - int(self._heads.sizes[place]), end)
        heads = self._heads
        return Head(heads.ids[row], heads.logprobs[row], float(heads.rest[place]), self._vocabulary_size)


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

    def admit(self, batch: Batch, vocabulary_size: int) -> None:
        self.lose(batch.first, 0)
        self._book(batch.first, self._admit_nodes(batch))
        known = np.frombuffer(self._nodes, dtype=np.int64)
        at = known[batch.heads.nodes]
        kept = np.flatnonzero(at != UNKNOWN)
        if kept.size < at.size:  # some hang on nodes that were lost
            self._admit_heads_singly(batch.heads, at, kept, vocabulary_size)
        elif at.size:
            self.tree.attach(at.astype(np.int32), LoggedHeads(batch.heads, vocabulary_size))
        verdicts, draws = batch.verdicts, batch.draws
        for row, node in enumerate(known[verdicts.nodes].tolist()):
            if node != UNKNOWN:
                answer = Answer(int(verdicts.tokens[row]), float(verdicts.logprobs[row]), 0)
                self.tree.add_verdict(node, verdicts.questions[row].tobytes(), answer, quiet=True)
        for row, node in enumerate(known[draws.nodes].tolist()):
            if node != UNKNOWN:
                answer = Answer(int(draws.tokens[row]), float(draws.logprobs[row]), 0)
                seed, index = int(draws.seeds[row]), int(draws.indices[row])
                self.tree.add_draw(node, draws.questions[row].tobytes(), seed, index, answer, quiet=True)

    def _admit_nodes(self, batch: Batch) -> NDArray[np.int64]:
        parents, first = batch.parents, batch.first
        inside = parents >= first
        above = np.where(inside, ~(parents - first), 0)
        before = np.frombuffer(self._nodes, dtype=np.int64)[np.where(inside, 0, parents)]
        if not (before[~inside] == UNKNOWN).any():
            above = np.where(inside, above, before)
            return self.tree.extend_many(above, batch.tokens, quiet=True).astype(np.int64)
        nodes: list[Node] = []  # what hangs on lost nodes is lost with them
        for parent, token in zip(parents.tolist(), batch.tokens.tolist(), strict=True):
            node = nodes[parent - first] if parent >= first else self._nodes[parent]
            nodes.append(UNKNOWN if node == UNKNOWN else int(self.tree.extend_many([node], [token], quiet=True)[0]))
        return np.array(nodes, dtype=np.int64)

    def _admit_heads_singly(
        self, heads: Heads, at: NDArray[np.int64], kept: NDArray[np.intp], vocabulary_size: int
    ) -> None:
        rows = LoggedHeads(heads, vocabulary_size)
        for row in kept.tolist():
            head = rows[row]
            assert head is not None, "a batch has its own heads"
            self.tree.add_scores(int(at[row]), head, 0, quiet=True)

    # Writing -----------------------------------------------------------------------------------------------------

    def batches(self, changes: Changes) -> Iterable[Batch]:
        """What is new, numbered to follow the log."""
        self._sure = len(self._nodes)
        self._open_accounts()
        scores, verdicts, draws = changes.scores, changes.verdicts, changes.draws
        for begin in range(0, max(len(scores), len(verdicts), len(draws)), FACTS_PER_BATCH):
            some = slice(begin, begin + FACTS_PER_BATCH)
            first = len(self._nodes)
            parents: list[int] = []
            tokens: list[int] = []
            for node in (fact[0] for facts in (scores[some], verdicts[some], draws[some]) for fact in facts):
                for parent, token, new in self._way_to(node):
                    parents.append(self._numbers[parent])
                    self._numbers[new] = len(self._nodes)
                    self._nodes.append(new)
                    tokens.append(token)
            yield Batch(
                self.number,
                first,
                np.array(parents, dtype=np.int64),
                np.array(tokens, dtype=np.int32),
                self._heads(scores[some]),
                self._verdicts(verdicts[some]),
                self._draws(draws[some]),
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
    """One log, and a tree for each model that has facts in it. Runs of several threads and event loops may share it."""

    def __init__(self, log: Log) -> None:
        self._log = log
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
            tree = self._trees.setdefault(fingerprint, Trie())
            tree.record()
        return tree

    async def follow(self) -> None:
        """Reads what others have written since the last look."""
        await asyncio.to_thread(self._lock.acquire)
        try:
            for news in await self._log.follow():
                self._admit(news)
        finally:
            self._lock.release()

    async def save(self, fingerprint: str, name: str, vocabulary_size: int) -> bool:
        """Writes what is new in a model's tree. True once it is kept (S34)."""
        changes = self.tree(fingerprint).changes()
        if not (changes.scores or changes.verdicts or changes.draws):
            return True
        await asyncio.to_thread(self._lock.acquire)
        try:
            model = Model(0, fingerprint, name, vocabulary_size)
            kept = await self._log.append(lambda news: self._number(news, model, changes))
            if not kept and fingerprint in self._books:
                self._books[fingerprint].take_back()
            return kept
        finally:
            self._lock.release()

    async def close(self) -> None:
        await self._log.close()

    def _number(self, news: list[News], model: Model, changes: Changes) -> list[Entry]:
        for each in news:
            self._admit(each)
        entries: list[Entry] = []
        books = self._books.get(model.fingerprint)
        if books is None:
            model = replace(model, number=max(self._models, default=0) + 1)
            entries.append(model)
            self._admit(model)
            books = self._books[model.fingerprint]
        return [*entries, *books.batches(changes)]

    def _admit(self, news: News) -> None:
        match news:
            case Model(number, fingerprint):
                self._models[number] = news
                self._books.setdefault(fingerprint, Books(number, self.tree(fingerprint)))
            case Batch(model):
                declared = self._models[model]
                self._books[declared.fingerprint].admit(news, declared.vocabulary_size)
            case Lost(model, first, count):
                if model in self._models:
                    self._books[self._models[model].fingerprint].lose(first, count)
            case Renumbered():
                self._models, self._books = {}, {}
