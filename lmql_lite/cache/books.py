"""The books of one model in a log: which node of its tree has which number there.

A log numbers nodes in its own order. Only nodes that somebody knows a fact of are written, and those on the way to
them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.changes import Changes
from lmql_lite.cache.facts import Columns, joined, picked, rows
from lmql_lite.cache.frames import DIGEST_BYTES, MAX_NODES, MAX_ROW_ENTRIES, Batch, Draws, Heads, Model, Verdicts
from lmql_lite.cache.head import HEAD_TOKENS, Head
from lmql_lite.cache.packing import AGE_SECONDS
from lmql_lite.cache.tree import Answer, Fact, Node
from lmql_lite.cache.trie import Trie

UNKNOWN = -1
FACTS_PER_BATCH = 100_000
REPLACED_PER_BATCH = 10_000
"""Nodes, whose facts stand in one batch: what one replaces, another would replace again."""


class LoggedHeads:
    """Heads as they were logged, made when they are read. `written`, shape (heads,): when they were.

    Of a head of 8 tokens 56 bytes are kept, 72 where a token has a number above 65,535; a file has some 40 of it.
    """

    def __init__(self, heads: Heads, vocabulary_size: int, written: NDArray[np.int64] | None = None) -> None:
        self._ends = _narrow(np.cumsum(heads.sizes))
        self._ids, self._logprobs, self._rest = _narrow(heads.ids), heads.logprobs, heads.rest
        self._vocabulary_size = vocabulary_size
        if written is None:
            written = np.zeros(len(self._ends), np.int64)
        # those of one batch have one time
        self._begins = np.flatnonzero(np.append(np.ones(min(len(written), 1), np.bool_), written[1:] != written[:-1]))
        self._times = written[self._begins]

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, place: int, /) -> Head | None:
        row = slice(int(self._ends[place - 1]) if place else 0, int(self._ends[place]))
        ids = self._ids[row].astype(np.int32)
        return Head(ids, self._logprobs[row], float(self._rest[place]), self._vocabulary_size)

    def written(self, place: int) -> int:
        return int(self._times[np.searchsorted(self._begins, place, side="right") - 1])

    def only(self, places: NDArray[np.int64], /) -> LoggedHeads:
        borders = np.append(0, self._ends).astype(np.int64)
        whole = Heads(np.arange(len(self)), borders[1:] - borders[:-1], self._rest, self._ids, self._logprobs)
        heads = rows(whole, places)
        written = self._times[np.searchsorted(self._begins, places, side="right") - 1]
        return LoggedHeads(heads, self._vocabulary_size, written)


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    """Numbers from 0 in as few bytes as the highest of them takes."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


class Logged:
    """The facts of a few batches at nodes of a tree, but for lost ones. `known` tells the node of each number."""

    def __init__(self, batches: Sequence[Batch], known: NDArray[np.int32]) -> None:
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
    parts: Sequence[Columns], times: NDArray[np.int64], known: NDArray[np.int32]
) -> tuple[Columns, NDArray[np.int64]]:
    """The rows of all parts at nodes of the tree, and the time of each."""
    many = np.array([len(part.nodes) for part in parts])
    facts = joined([parts[place] for place in np.flatnonzero(many).tolist()] or parts[:1])
    at, written = known[facts.nodes].astype(np.int64), np.repeat(times, many)
    facts = replace(facts, nodes=at)
    kept = np.flatnonzero(at != UNKNOWN)
    if len(kept) == len(at):
        return facts, written
    return (rows(facts, kept) if isinstance(facts, Heads) else picked(facts, kept)), written[kept]


class Books:
    """One model as the log declares it: its tree, and the numbers of its nodes there.

    Where several numbers stand for one model, its tree is in the books of each, and they number its nodes apart.
    """

    def __init__(self, model: Model, tree: Trie) -> None:
        self.model = model
        self.tree = tree
        self._nodes = array("i", [tree.root])
        """Of each number its node, UNKNOWN where that was lost."""
        self._numbers = array("q", [0])
        """Of each node its number, 0 where it has none; the root's is 0."""
        self._sure = 1

    def take_back(self) -> None:
        """The last batches were not kept, and their numbers are void."""
        for node in self._nodes[self._sure :]:
            self._numbers[node] = 0
        del self._nodes[self._sure :]

    def _book(self, first: int, nodes: NDArray[np.int32]) -> None:
        """The numbers from `first` on are those of these nodes; a node that has a number keeps it."""
        self._nodes.frombytes(nodes.tobytes())
        self._open_accounts()
        numbers = np.frombuffer(self._numbers, dtype=np.int64)
        new = np.flatnonzero(nodes != UNKNOWN)[::-1]  # of two numbers of one node the first is written last
        new = new[numbers[nodes[new]] == 0]
        numbers[nodes[new]] = first + new

    def _open_accounts(self) -> None:
        """One for every node that the tree has by now."""
        self._numbers.frombytes(bytes(8 * max(self.tree.end - len(self._numbers), 0)))

    # Reading -----------------------------------------------------------------------------------------------------

    def lose(self, first: int, count: int) -> None:
        """Nodes of which only the numbers are known."""
        missing = first + count - len(self._nodes)
        self._nodes.extend([UNKNOWN] * max(missing, 0))

    def admit(self, batches: Sequence[Batch]) -> None:
        """Batches without a gap between them; one that replaces is alone."""
        first = batches[0].first
        self.lose(first, 0)
        parents = np.concatenate([batch.parents for batch in batches])
        tokens = np.concatenate([batch.tokens for batch in batches])
        self._book(first, self._admit_nodes(first, parents, tokens))
        logged = Logged(batches, np.frombuffer(self._nodes, dtype=np.int32))
        if batches[0].replaces:
            self.tree.renounce(logged.nodes)
        logged.attach_to(self.tree, self.model.vocabulary_size)

    def settle(self, batches: Sequence[Batch]) -> None:
        """One's own batches are kept: what memory has no room for is read from there from now on."""
        self.tree.keep(np.array(self._nodes[self._sure :], dtype=np.int32))
        for batch in batches:
            logged = Logged([batch], np.frombuffer(self._nodes, dtype=np.int32))
            if batch.replaces:
                self.tree.detach(logged.nodes)
            logged.attach_to(self.tree, self.model.vocabulary_size)

    def _admit_nodes(self, first: int, parents: NDArray[np.int64], tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        inside = parents >= first
        before = np.frombuffer(self._nodes, dtype=np.int32)[np.where(inside, 0, parents)].astype(np.int64)
        if not (before[~inside] == UNKNOWN).any():
            above = np.where(inside, first - 1 - parents, before)
            return self.tree.extend_many(above, tokens, logged=True)
        nodes: list[Node] = []  # what hangs on lost nodes is lost with them
        for parent, token in zip(parents.tolist(), tokens.tolist(), strict=True):
            node = nodes[parent - first] if parent >= first else self._nodes[parent]
            nodes.append(UNKNOWN if node == UNKNOWN else int(self.tree.extend_many([node], [token], logged=True)[0]))
        return np.array(nodes, dtype=np.int32)

    # Writing -----------------------------------------------------------------------------------------------------

    def batches(self, changes: Changes, written: int) -> list[Batch]:
        """What is new, numbered to follow the log; first what replaces what the log says.

        Until it is known whether they are kept (`settle`, `take_back`), the changes hold the nodes that have numbers.
        """
        self._sure = len(self._nodes)
        self._open_accounts()
        replaced = sorted(changes.replaced & changes.places)
        batches: list[Batch] = []
        for begin in range(0, len(replaced), REPLACED_PER_BATCH):
            some = changes.at(frozenset(replaced[begin : begin + REPLACED_PER_BATCH]))
            batches += self._batches(some.scores, some.verdicts, some.draws, written, replaces=True)
        rest = changes.at(changes.places - changes.replaced) if replaced else changes
        most = min(FACTS_PER_BATCH, MAX_ROW_ENTRIES // max(map(_width, rest.scores), default=1))
        for age, some in self._by_age(rest, written):
            for begin in range(0, max(len(some.scores), len(some.verdicts), len(some.draws)), most):
                cut = slice(begin, begin + most)
                batches += self._batches(some.scores[cut], some.verdicts[cut], some.draws[cut], age, replaces=False)
        return batches

    def _by_age(self, changes: Changes, now: int) -> list[tuple[int, Changes]]:
        """What a log said that is no more is, to the hour, as old as it was there."""
        if not self.tree.outlived:
            return [(now, changes)]
        ages: dict[int, set[Node]] = {}
        for node in changes.places:
            said = self.tree.written(node)
            ages.setdefault(now if said is None else said // AGE_SECONDS * AGE_SECONDS, set()).add(node)
        return [(age, changes.at(ages[age])) for age in sorted(ages)]

    def _batches(
        self,
        scores: tuple[tuple[Node, Fact], ...],
        verdicts: tuple[tuple[Node, bytes, Answer], ...],
        draws: tuple[tuple[Node, bytes, int, int, Answer], ...],
        written: int,
        *,
        replaces: bool,
    ) -> Iterator[Batch]:
        """One, after as many as it takes for the nodes on the way to its facts: a batch has room for so many."""
        first = len(self._nodes)
        parents: list[int] = []
        tokens: list[int] = []
        for node in (fact[0] for facts in (scores, verdicts, draws) for fact in facts):
            for parent, token, new in self._way_to(node):
                parents.append(self._numbers[parent])
                self._numbers[new] = len(self._nodes)
                self._nodes.append(new)
                tokens.append(token)
        above, ids = np.array(parents, dtype=np.int64), np.array(tokens, dtype=np.int32)
        while len(ids) > MAX_NODES:
            yield Batch(self.model.number, first, above[:MAX_NODES], ids[:MAX_NODES], written=written)
            first, above, ids = first + MAX_NODES, above[MAX_NODES:], ids[MAX_NODES:]
        yield Batch(
            self.model.number,
            first,
            above,
            ids,
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


def _width(fact: tuple[Node, Fact]) -> int:
    """How many tokens its head has, at most."""
    scores = fact[1].scores
    return len(scores.ids) if isinstance(scores, Head) else HEAD_TOKENS


def _digests(questions: Iterable[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(questions), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
