"""Entries of a tree's file. They stay in the columns in which they were read, and are decoded one by one."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.columns import QUESTION_BYTES, Entries, TopKs
from lmql_lite.cache.entry import Answer, Question, ScoreEntry
from lmql_lite.cache.top_k import TopK

KEY_BYTES = QUESTION_BYTES + 13
"""Bytes of an answer's key: its question, seed and index, and a flag for a sampled one."""


class DiskEntries:
    """Entries by node. The first answer to a question counts."""

    def __init__(self) -> None:
        self._numbers = array("i")
        """Index of each node's top-k entry over all columns; -1 for none."""
        self._columns: list[_TopKColumns] = []
        self._begins: list[int] = []
        self._end = 0
        self._answers = _Answers()

    @property
    def nbytes(self) -> int:
        """Memory without the top-k entries themselves."""
        return self._numbers.__sizeof__() + self._answers.nbytes

    def add(self, entries: Entries, written: NDArray[np.int64], vocabulary_size: int, known: int) -> None:
        """Adds entries at nodes of a tree with `known` nodes. `written`, shape (entries,): their times of writing."""
        topks, greedy, sampled = entries.topks, entries.greedy, entries.sampled
        first = len(topks.nodes)
        if first:
            numbers = _of_nodes(self._numbers, known)
            places = np.flatnonzero(numbers[topks.nodes] < 0)[::-1]  # reversed, so that the first one wins
            numbers[topks.nodes[places]] = self._end + places
            self._columns.append(_TopKColumns(topks, vocabulary_size, written[:first]))
            self._begins.append(self._end)
            self._end += first
        if first == len(entries):
            return
        keys = np.zeros((len(entries) - first, KEY_BYTES), np.uint8)
        keys[:, :QUESTION_BYTES] = np.concatenate([greedy.questions, sampled.questions])
        drawn = keys[len(greedy.nodes) :, QUESTION_BYTES:]
        drawn[:, :8] = sampled.seeds.astype("<u8").view(np.uint8).reshape(-1, 8)
        drawn[:, 8:12] = sampled.indices.astype("<u4").view(np.uint8).reshape(-1, 4)
        drawn[:, 12] = 1
        self._answers.add(
            np.concatenate([greedy.nodes, sampled.nodes]),
            keys,
            np.concatenate([greedy.tokens, sampled.tokens]),
            np.concatenate([greedy.logprobs, sampled.logprobs]),
            written[first:],
            known,
        )

    def scores(self, node: int) -> ScoreEntry | None:
        if node >= len(self._numbers):  # a node that the run has just added
            return None
        place = self._place(node)
        return None if place is None else ScoreEntry(place[0].top_k(place[1]), 0)

    def answer(self, node: int, question: Question) -> Answer | None:
        return self._answers.find(node, question)

    def written(self, node: int) -> int | None:
        """Time of writing of a node's scores, or else of its latest answer; None without either."""
        place = self._place(node)
        return self._answers.written(node) if place is None else place[0].written(place[1])

    def drop(self, nodes: NDArray[np.int32]) -> None:
        """Removes the entries of these nodes, which are superseded."""
        _of_nodes(self._numbers, 0)[nodes[nodes < len(self._numbers)]] = -1
        self._answers.drop(nodes)

    def drop_scores(self) -> None:
        self._numbers, self._columns, self._begins, self._end = array("i"), [], [], 0

    def _place(self, node: int) -> tuple[_TopKColumns, int] | None:
        number = self._numbers[node] if node < len(self._numbers) else -1
        if number < 0:
            return None
        columns = bisect_right(self._begins, number) - 1
        return self._columns[columns], number - self._begins[columns]


class _TopKColumns:
    """Top-k entries in columns, made into objects on request.

    An entry of 8 tokens takes 56 bytes, or 72 with a token id above 65,535; in a file it takes about 40.
    """

    def __init__(self, topks: TopKs, vocabulary_size: int, written: NDArray[np.int64]) -> None:
        self._ends = _narrow(np.cumsum(topks.sizes))
        self._ids, self._logprobs, self._rest = _narrow(topks.ids), topks.logprobs, topks.rest
        self._vocabulary_size = vocabulary_size
        # entries of one record have one time
        self._begins = np.flatnonzero(np.append(np.ones(min(len(written), 1), np.bool_), written[1:] != written[:-1]))
        self._times = written[self._begins]

    def top_k(self, place: int) -> TopK:
        row = slice(int(self._ends[place - 1]) if place else 0, int(self._ends[place]))
        ids = self._ids[row].astype(np.int32)
        return TopK(ids, self._logprobs[row], float(self._rest[place]), self._vocabulary_size)

    def written(self, place: int) -> int:
        return int(self._times[np.searchsorted(self._begins, place, side="right") - 1])


class _Answers:
    """Answers by node and key, in the order of their arrival: 53 bytes each."""

    def __init__(self) -> None:
        self._keys = bytearray()
        self._tokens, self._logprobs, self._written = array("i"), array("f"), array("q")
        self._last = array("i")
        """Last row of each node; -1 for none."""
        self._before = array("i")
        """For each row the previous row of the same node."""

    @property
    def nbytes(self) -> int:
        columns: tuple[Any, ...] = (
            self._keys, self._tokens, self._logprobs, self._written, self._last, self._before
        )  # fmt: skip
        return sum(column.__sizeof__() for column in columns)

    def add(
        self,
        nodes: NDArray[np.int64],
        keys: NDArray[np.uint8],
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32],
        written: NDArray[np.int64],
        known: int,
    ) -> None:
        last = _of_nodes(self._last, known)
        order = np.argsort(nodes, kind="stable")
        at, numbers = nodes[order], (len(self._tokens) + order).astype(np.int32)
        is_first = np.concatenate(([True], at[1:] != at[:-1]))
        before = np.concatenate((numbers[:1], numbers[:-1]))
        before[is_first] = last[at[is_first]]
        last[at] = numbers  # of several rows of one node the last is kept
        column = np.empty_like(before)
        column[order] = before
        self._keys += keys.tobytes()
        self._tokens.frombytes(tokens.tobytes())
        self._logprobs.frombytes(logprobs.tobytes())
        self._written.frombytes(written.tobytes())
        self._before.frombytes(column.tobytes())

    def find(self, node: int, question: Question) -> Answer | None:
        """The first answer to a question; None for a miss."""
        if node >= len(self._last):  # the common case: most nodes have no answers, and every token asks
            return None
        key, found = _key(question), -1
        for row in self._rows(node):
            if self._key(row) == key:
                found = row
        return None if found < 0 else Answer(self._tokens[found], self._logprobs[found], 0)

    def written(self, node: int) -> int | None:
        """Time of writing of the latest answer that counts."""
        times = {bytes(self._key(row)): self._written[row] for row in self._rows(node)}
        return max(times.values(), default=None)

    def drop(self, nodes: NDArray[np.int32]) -> None:
        _of_nodes(self._last, 0)[nodes[nodes < len(self._last)]] = -1

    def _rows(self, node: int) -> Iterator[int]:
        """Rows of a node, last first."""
        row = self._last[node] if node < len(self._last) else -1
        while row >= 0:
            yield row
            row = self._before[row]

    def _key(self, row: int) -> bytearray:
        return self._keys[row * KEY_BYTES : (row + 1) * KEY_BYTES]


def _key(question: Question) -> bytes:
    if isinstance(question, bytes):
        return question.ljust(KEY_BYTES, b"\0")
    digest, seed, index = question
    return digest + seed.to_bytes(8, "little") + index.to_bytes(4, "little") + b"\1"


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    """Numbers from 0, in the fewest bytes that hold the highest one."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _of_nodes(column: array[int], known: int) -> NDArray[np.int32]:
    """numpy view of a column with one number per node, -1 for new nodes. The view must not be kept, because a viewed
    array cannot grow."""
    column.frombytes(b"\xff" * 4 * (known - len(column)))
    return np.frombuffer(column, dtype=np.int32)
