"""Facts that a log holds of a tree: they stay as the columns in which they were read, and are read one by one."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.changes import Question
from lmql_lite.cache.frames import DIGEST_BYTES, Draws, Verdicts
from lmql_lite.cache.head import Head
from lmql_lite.cache.tree import Answer, Fact, Node


class StoredHeads(Protocol):
    """Heads by their place, made when they are read. None where the store does not give one (any more)."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Head | None: ...

    def written(self, place: int) -> int:
        """When it was, in unix seconds; 0 where that is not known."""
        ...

    def only(self, places: NDArray[np.int64], /) -> StoredHeads:
        """Some of them, in this order."""
        ...


UNSIFTED = 2**16
"""So many rows at least are added before it is looked which of all of them are still in use."""


class Stored:
    """Facts by node. Where several answer the same, the first one counts, unless another log took its log's place."""

    def __init__(self) -> None:
        self._numbers = array("i")
        """For each node the number of its head, all stores counted on; -1 where it has none."""
        self._stores: list[StoredHeads] = []
        self._begins: list[int] = []
        self._end = self._outdated = 0
        self._full = UNSIFTED
        self._verdicts = StoredAnswers(DIGEST_BYTES)
        self._draws = StoredAnswers(DIGEST_BYTES + 12)

    @property
    def nbytes(self) -> int:
        """Without the heads themselves."""
        return self._numbers.__sizeof__() + self._verdicts.nbytes + self._draws.nbytes

    def add_heads(self, nodes: NDArray[np.int32], heads: StoredHeads, known: int) -> None:
        """`nodes[i]` has the head `heads[i]`, unless it had one before; the tree has `known` nodes."""
        if self._end > self._full:
            self._sift()
        numbers = _of_nodes(self._numbers, known)
        places = np.flatnonzero(numbers[nodes] < self._outdated)[::-1]  # of two heads of one node the first comes last
        numbers[nodes[places]] = self._end + places
        self._stores.append(heads)
        self._begins.append(self._end)
        self._end += len(heads)

    def _sift(self) -> None:
        """Lets go of heads that another one took the place of, or that were dropped."""
        numbers = _of_nodes(self._numbers, 0)
        there = numbers >= 0
        used = np.sort(numbers[there]).astype(np.int64)
        numbers[there] = np.searchsorted(used, numbers[there])
        cuts = np.searchsorted(used, [*self._begins, self._end]).tolist()
        kept = [
            (begin, store.only(used[begin:end] - before))
            for store, before, begin, end in zip(self._stores, self._begins, cuts, cuts[1:], strict=False)
            if begin < end
        ]
        self._begins, self._stores = [begin for begin, _ in kept], [store for _, store in kept]
        self._outdated, self._end = int(np.searchsorted(used, self._outdated)), len(used)
        self._full = 2 * self._end + UNSIFTED

    def add_answers(
        self, verdicts: Verdicts, draws: Draws, written: tuple[NDArray[np.int64], NDArray[np.int64]], known: int
    ) -> None:
        """Answers whose nodes are those of the tree, and when each of both was written."""
        self._verdicts.add(verdicts, verdicts.questions, written[0], known)
        seeds = draws.seeds.astype("<u8").view(np.uint8).reshape(-1, 8)
        indices = draws.indices.astype("<u4").view(np.uint8).reshape(-1, 4)
        self._draws.add(draws, np.concatenate([draws.questions, seeds, indices], axis=1), written[1], known)

    def fact(self, node: Node) -> Fact | None:
        if node >= len(self._numbers):  # every new node of a run comes here
            return None
        place = self._place(node)
        if place is None:
            return None
        store, row = place
        head = store[row]
        return None if head is None else Fact(head, 0)

    def answer(self, node: Node, question: Question) -> Answer | None:
        answers, key = self._asked(question)
        return answers.find(node, key)

    def has(self, node: Node) -> bool:
        """Whether anything is stored of a node."""
        has_head = node < len(self._numbers) and self._numbers[node] >= 0
        return has_head or self._verdicts.has(node) or self._draws.has(node)

    def holds_head(self, node: Node) -> bool:
        """Whether the log that is read now has one of this node."""
        return node < len(self._numbers) and self._numbers[node] >= self._outdated

    def holds_answer(self, node: Node, question: Question) -> bool:
        """Whether the log that is read now answers it."""
        answers, key = self._asked(question)
        return answers.holds(node, key)

    def written(self, node: Node) -> int | None:
        """When the head of a node was written, else when the latest answer there was; None where nothing is stored."""
        place = self._place(node)
        if place is not None:
            store, row = place
            return store.written(row)
        times = [time for time in (self._verdicts.written(node), self._draws.written(node)) if time is not None]
        return max(times, default=None)

    def drop(self, nodes: NDArray[np.int32]) -> None:
        """What is stored of these nodes counts no more."""
        _of_nodes(self._numbers, 0)[nodes[nodes < len(self._numbers)]] = -1
        self._verdicts.drop(nodes)
        self._draws.drop(nodes)

    def drop_heads(self) -> None:
        self._numbers, self._stores, self._begins = array("i"), [], []
        self._end = self._outdated = 0

    def outdate(self) -> None:
        """Another log takes the place of the one that was read: what is added from now on counts more than this."""
        self._outdated = self._end
        self._verdicts.outdate()
        self._draws.outdate()

    def _asked(self, question: Question) -> tuple[StoredAnswers, bytes]:
        """Where it is answered, and by which key."""
        if isinstance(question, bytes):
            return self._verdicts, question
        digest, seed, index = question
        return self._draws, digest + seed.to_bytes(8, "little") + index.to_bytes(4, "little")

    def _place(self, node: Node) -> tuple[StoredHeads, int] | None:
        number = self._numbers[node] if node < len(self._numbers) else -1
        if number < 0:
            return None
        store = bisect_right(self._begins, number) - 1
        return self._stores[store], number - self._begins[store]


class StoredAnswers:
    """Answers by node and key, in the order in which they came: 40 bytes each, the key not counted."""

    def __init__(self, key_bytes: int) -> None:
        self._key_bytes = key_bytes
        self._keys = bytearray()
        self._tokens, self._logprobs, self._written = array("i"), array("f"), array("q")
        self._last = array("i")
        """For each node its last row, -1 where it has none."""
        self._before = array("i")
        """For each row the one before it of the same node."""
        self._outdated = 0
        self._full = UNSIFTED

    @property
    def nbytes(self) -> int:
        columns: tuple[Any, ...] = (
            self._keys, self._tokens, self._logprobs, self._written, self._last, self._before
        )  # fmt: skip
        return sum(column.__sizeof__() for column in columns)

    def add(self, answers: Verdicts | Draws, keys: NDArray[np.uint8], written: NDArray[np.int64], known: int) -> None:
        nodes = answers.nodes
        if not len(nodes):
            return
        if len(self._tokens) > self._full:
            self._sift()
        last = _of_nodes(self._last, known)
        order = np.argsort(nodes, kind="stable")
        at, numbers = nodes[order], (len(self._tokens) + order).astype(np.int32)
        is_first = np.concatenate(([True], at[1:] != at[:-1]))
        before = np.concatenate((numbers[:1], numbers[:-1]))
        known_before = last[at[is_first]]
        before[is_first] = np.where(known_before < self._outdated, -1, known_before)
        last[at] = numbers  # of several of one node the last stays
        column = np.empty_like(before)
        column[order] = before
        self._keys += keys.tobytes()
        self._tokens.frombytes(answers.tokens.tobytes())
        self._logprobs.frombytes(answers.logprobs.tobytes())
        self._written.frombytes(written.tobytes())
        self._before.frombytes(column.tobytes())

    def _sift(self) -> None:
        """Lets go of answers that others took the place of, or that were dropped."""
        last, before = _of_nodes(self._last, 0), np.frombuffer(self._before, np.int32)
        used = np.zeros(len(before), np.bool_)
        rows = last[last >= 0]
        while rows.size:
            used[rows] = True
            rows = before[rows]
            rows = rows[rows >= 0]
        numbers = (np.cumsum(used) - 1).astype(np.int32)
        last[last >= 0] = numbers[last[last >= 0]]
        kept = before[used]
        self._before = array("i", np.where(kept >= 0, numbers[kept], kept).tobytes())
        self._keys = bytearray(np.frombuffer(self._keys, np.uint8).reshape(-1, self._key_bytes)[used].tobytes())
        self._tokens = array("i", np.frombuffer(self._tokens, np.int32)[used].tobytes())
        self._logprobs = array("f", np.frombuffer(self._logprobs, np.float32)[used].tobytes())
        self._written = array("q", np.frombuffer(self._written, np.int64)[used].tobytes())
        self._outdated = int(np.count_nonzero(used[: self._outdated]))
        self._full = 2 * len(self._tokens) + UNSIFTED

    def find(self, node: Node, key: bytes) -> Answer | None:
        """The first answer that was given."""
        if node >= len(self._last):  # most nodes have none, and every token asks
            return None
        found = self._row(node, key)
        return None if found < 0 else Answer(self._tokens[found], self._logprobs[found], 0)

    def has(self, node: Node) -> bool:
        return node < len(self._last) and self._last[node] >= 0

    def holds(self, node: Node, key: bytes) -> bool:
        """Whether the log that is read now gives one."""
        return self._row(node, key) >= self._outdated

    def written(self, node: Node) -> int | None:
        """When the latest of those that count was."""
        times = {bytes(self._key(row)): self._written[row] for row in self._rows(node)}
        return max(times.values(), default=None)

    def drop(self, nodes: NDArray[np.int32]) -> None:
        _of_nodes(self._last, 0)[nodes[nodes < len(self._last)]] = -1

    def outdate(self) -> None:
        self._outdated = len(self._tokens)

    def _row(self, node: Node, key: bytes) -> int:
        """Of the first answer that was given; -1 where none was."""
        found = -1
        for row in self._rows(node):
            if self._key(row) == key:
                found = row
        return found

    def _rows(self, node: Node) -> Iterator[int]:
        """Those of a node, the last one first."""
        row = self._last[node] if node < len(self._last) else -1
        while row >= 0:
            yield row
            row = self._before[row]

    def _key(self, row: int) -> bytearray:
        return self._keys[row * self._key_bytes : (row + 1) * self._key_bytes]


def _of_nodes(column: array[int], known: int) -> NDArray[np.int32]:
    """A column of one number per node, as numpy sees it, -1 for nodes that are new. Not to be kept: see `Nodes`."""
    column.frombytes(b"\xff" * 4 * (known - len(column)))
    return np.frombuffer(column, dtype=np.int32)
