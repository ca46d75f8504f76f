"""The token tree in memory: nodes in columns, scores bounded in bytes."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from threading import Lock

from lmql_lite.cache.scores import Scores, mix
from lmql_lite.cache.tree import Fact, Node

SCORES_BYTES = 256 * 2**20
"""Dense rows are 6 kB at a vocabulary of 1,536 and 600 kB at 151,000: they are what must be bounded."""


class Trie:
    """A `TokenTree`. Dropping a row of scores only means that the model is asked once more."""

    root: Node = 0

    def __init__(self, scores_bytes: int = SCORES_BYTES) -> None:
        self._parents = array("q", [-1])
        self._tokens = array("q", [-1])
        self._hashes = array("Q", [0])
        self._children: dict[tuple[Node, int], Node] = {}
        self._facts: OrderedDict[Node, Fact] = OrderedDict()
        self._facts_bytes = 0
        self._scores_bytes = scores_bytes
        self._verdicts: dict[tuple[Node, bytes], bytes] = {}
        self._draws: dict[tuple[Node, bytes, int, int], bytes] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._parents)

    def extend(self, node: Node, token: int) -> Node:
        child = self._children.get((node, token))
        return child if child is not None else self._add(node, token)

    def _add(self, node: Node, token: int) -> Node:
        with self._lock:
            child = self._children.setdefault((node, token), len(self._parents))
            if child == len(self._parents):
                self._hashes.append(mix(self._hashes[node], token))
                self._tokens.append(token)
                self._parents.append(node)
            return child

    def path(self, node: Node) -> tuple[int, ...]:
        ids = []
        while node != self.root:
            ids.append(self._tokens[node])
            node = self._parents[node]
        return tuple(reversed(ids))

    def path_hash(self, node: Node) -> int:
        return self._hashes[node]

    def scores(self, node: Node) -> Fact | None:
        with self._lock:
            fact = self._facts.get(node)
            if fact is not None:
                self._facts.move_to_end(node)
            return fact

    def add_scores(self, node: Node, scores: Scores, run: int) -> Fact:
        with self._lock:
            fact = self._facts.get(node)
            if fact is None:
                fact = self._facts[node] = Fact(scores, run)
                self._facts_bytes += scores.nbytes
                while self._facts_bytes > self._scores_bytes and len(self._facts) > 1:
                    self._facts_bytes -= self._facts.popitem(last=False)[1].scores.nbytes
            return fact

    def forget_scores(self) -> None:
        """Drops every row; nodes stay."""
        with self._lock:
            self._facts.clear()
            self._facts_bytes = 0

    def verdict(self, node: Node, question: bytes) -> bytes | None:
        return self._verdicts.get((node, question))

    def add_verdict(self, node: Node, question: bytes, answer: bytes) -> bytes:
        with self._lock:
            return self._verdicts.setdefault((node, question), answer)

    def draw(self, node: Node, question: bytes, seed: int, index: int) -> bytes | None:
        return self._draws.get((node, question, seed, index))

    def add_draw(self, node: Node, question: bytes, seed: int, index: int, answer: bytes) -> bytes:
        with self._lock:
            return self._draws.setdefault((node, question, seed, index), answer)
