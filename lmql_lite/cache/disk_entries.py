"""Entries of a tree that its log holds: they stay as the columns in which they were read, and are read one by one."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.columns import QUESTION_BYTES, Entries, GreedyAnswers, SampledAnswers, TopKs, rows
from lmql_lite.cache.dirty_set import Question
from lmql_lite.cache.head import Head
from lmql_lite.cache.tree import Answer, Fact, Node

UNSIFTED = 2**16
"""Rows that are added at least before those that are not in use any more are let go of, if they are half of all."""


class DiskEntries:
    """Entries by node. Where several answer the same, the first one counts, unless it is stale: of a log whose place
    another one took."""

    def __init__(self) -> None:
        self._numbers = array("i")
        """For each node the number of its top-k entry, all columns counted on; -1 where it has none."""
        self._columns: list[_TopKColumns] = []
        self._begins: list[int] = []
        self._end = self._stale = 0
        self._full = UNSIFTED
        self._greedy = _Answers(QUESTION_BYTES)
        self._sampled = _Answers(QUESTION_BYTES + 12)

    @property
    def nbytes(self) -> int:
        """Memory beside the top-k entries themselves."""
        return self._numbers.__sizeof__() + self._greedy.nbytes + self._sampled.nbytes

    def add(self, entries: Entries, written: NDArray[np.int64], vocabulary_size: int, known: int) -> None:
        """Entries at nodes of a tree that has `known` nodes; `written`, shape (entries,): when they were."""
        topks, greedy, sampled = entries.topks, entries.greedy, entries.sampled
        first = len(topks.nodes)
        second = first + len(greedy.nodes)
        if first:
            self._add_topks(topks, vocabulary_size, written[:first], known)
        self._greedy.add(greedy, greedy.questions, written[first:second], known)
        seeds = sampled.seeds.astype("<u8").view(np.uint8).reshape(-1, 8)
        indices = sampled.indices.astype("<u4").view(np.uint8).reshape(-1, 4)
        keys = np.concatenate([sampled.questions, seeds, indices], axis=1)
        self._sampled.add(sampled, keys, written[second:], known)

    def _add_topks(self, topks: TopKs, vocabulary_size: int, written: NDArray[np.int64], known: int) -> None:
        if self._end > self._full:
            self._sift()
        numbers = _of_nodes(self._numbers, known)
        places = np.flatnonzero(numbers[topks.nodes] < self._stale)[::-1]  # of two of one node the first comes last
        numbers[topks.nodes[places]] = self._end + places
        self._columns.append(_TopKColumns(topks, vocabulary_size, written))
        self._begins.append(self._end)
        self._end += len(topks.nodes)

    def _sift(self) -> None:
        """Lets go of top-k entries that another one took the place of, or that were dropped."""
        numbers = _of_nodes(self._numbers, 0)
        there = numbers >= 0
        self._full = 2 * self._end + UNSIFTED
        if 2 * np.count_nonzero(there) > self._end:  # too little would go
            return
        used = np.sort(numbers[there]).astype(np.int64)
        numbers[there] = np.searchsorted(used, numbers[there])
        cuts = np.searchsorted(used, [*self._begins, self._end]).tolist()
        kept = [
            (begin, columns.only(used[begin:end] - before))
            for columns, before, begin, end in zip(self._columns, self._begins, cuts, cuts[1:], strict=False)
            if begin < end
        ]
        self._begins, self._columns = [begin for begin, _ in kept], [columns for _, columns in kept]
        self._stale, self._end = int(np.searchsorted(used, self._stale)), len(used)
        self._full = 2 * self._end + UNSIFTED

    def fact(self, node: Node) -> Fact | None:
        if node >= len(self._numbers):  # every new node of a run comes here
            return None
        place = self._place(node)
        return None if place is None else Fact(place[0].head(place[1]), 0)

    def answer(self, node: Node, question: Question) -> Answer | None:
        answers, key = self._asked(question)
        return answers.find(node, key)

    def has(self, node: Node) -> bool:
        """True where anything is known of a node."""
        has_topk = node < len(self._numbers) and self._numbers[node] >= 0
        return has_topk or self._greedy.has(node) or self._sampled.has(node)

    def is_fresh(self, node: Node, question: Question | None = None) -> bool:
        """True where the log that is read now has scores of this node, or answers the question."""
        if question is None:
            return node < len(self._numbers) and self._numbers[node] >= self._stale
        answers, key = self._asked(question)
        return answers.is_fresh(node, key)

    def written(self, node: Node) -> int | None:
        """When the scores of a node were written, else when its latest answer was; None where there is neither."""
        place = self._place(node)
        if place is not None:
            return place[0].written(place[1])
        times = [time for time in (self._greedy.written(node), self._sampled.written(node)) if time is not None]
        return max(times, default=None)

    def drop(self, nodes: NDArray[np.int32]) -> None:
        """All that is known of these nodes is superseded."""
        _of_nodes(self._numbers, 0)[nodes[nodes < len(self._numbers)]] = -1
        self._greedy.drop(nodes)
        self._sampled.drop(nodes)

    def drop_scores(self) -> None:
        self._numbers, self._columns, self._begins = array("i"), [], []
        self._end = self._stale = 0

    def mark_stale(self) -> None:
        """Another log takes the place of the one that was read: what is added from now on counts more than this."""
        self._stale = self._end
        self._greedy.mark_stale()
        self._sampled.mark_stale()

    def _asked(self, question: Question) -> tuple[_Answers, bytes]:
        """Place of the answer, and its key."""
        if isinstance(question, bytes):
            return self._greedy, question
        digest, seed, index = question
        return self._sampled, digest + seed.to_bytes(8, "little") + index.to_bytes(4, "little")

    def _place(self, node: Node) -> tuple[_TopKColumns, int] | None:
        number = self._numbers[node] if node < len(self._numbers) else -1
        if number < 0:
            return None
        columns = bisect_right(self._begins, number) - 1
        return self._columns[columns], number - self._begins[columns]


class _TopKColumns:
    """Top-k entries as they were read, made when they are asked for.

    Of an entry of 8 tokens 56 bytes are kept, 72 where a token has a number above 65,535; a file has some 40 of it.
    """

    def __init__(self, topks: TopKs, vocabulary_size: int, written: NDArray[np.int64]) -> None:
        self._ends = _narrow(np.cumsum(topks.sizes))
        self._ids, self._logprobs, self._rest = _narrow(topks.ids), topks.logprobs, topks.rest
        self._vocabulary_size = vocabulary_size
        # those of one record have one time
        self._begins = np.flatnonzero(np.append(np.ones(min(len(written), 1), np.bool_), written[1:] != written[:-1]))
        self._times = written[self._begins]

    def head(self, place: int) -> Head:
        row = slice(int(self._ends[place - 1]) if place else 0, int(self._ends[place]))
        ids = self._ids[row].astype(np.int32)
        return Head(ids, self._logprobs[row], float(self._rest[place]), self._vocabulary_size)

    def written(self, place: int) -> int:
        return int(self._times[np.searchsorted(self._begins, place, side="right") - 1])

    def only(self, places: NDArray[np.int64]) -> _TopKColumns:
        """Some of them, in this order."""
        borders = np.append(0, self._ends).astype(np.int64)
        whole = TopKs(np.arange(len(self._ends)), borders[1:] - borders[:-1], self._rest, self._ids, self._logprobs)
        written = self._times[np.searchsorted(self._begins, places, side="right") - 1]
        return _TopKColumns(rows(whole, places), self._vocabulary_size, written)


class _Answers:
    """Answers by node and key, in the order in which they came: 40 bytes each, the key not counted."""

    def __init__(self, key_bytes: int) -> None:
        self._key_bytes = key_bytes
        self._keys = bytearray()
        self._tokens, self._logprobs, self._written = array("i"), array("f"), array("q")
        self._last = array("i")
        """For each node its last row, -1 where it has none."""
        self._before = array("i")
        """For each row the one before it of the same node."""
        self._stale = 0
        self._full = UNSIFTED

    @property
    def nbytes(self) -> int:
        columns: tuple[Any, ...] = (
            self._keys, self._tokens, self._logprobs, self._written, self._last, self._before
        )  # fmt: skip
        return sum(column.__sizeof__() for column in columns)

    def add(
        self,
        answers: GreedyAnswers | SampledAnswers,
        keys: NDArray[np.uint8],
        written: NDArray[np.int64],
        known: int,
    ) -> None:
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
        before[is_first] = np.where(known_before < self._stale, -1, known_before)
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
        rows_used = last[last >= 0]
        while rows_used.size:
            used[rows_used] = True
            rows_used = before[rows_used]
            rows_used = rows_used[rows_used >= 0]
        numbers = (np.cumsum(used) - 1).astype(np.int32)
        last[last >= 0] = numbers[last[last >= 0]]
        kept = before[used]
        self._before = array("i", np.where(kept >= 0, numbers[kept], kept).tobytes())
        self._keys = bytearray(np.frombuffer(self._keys, np.uint8).reshape(-1, self._key_bytes)[used].tobytes())
        self._tokens = array("i", np.frombuffer(self._tokens, np.int32)[used].tobytes())
        self._logprobs = array("f", np.frombuffer(self._logprobs, np.float32)[used].tobytes())
        self._written = array("q", np.frombuffer(self._written, np.int64)[used].tobytes())
        self._stale = int(np.count_nonzero(used[: self._stale]))
        self._full = 2 * len(self._tokens) + UNSIFTED

    def find(self, node: Node, key: bytes) -> Answer | None:
        """The first answer that was given."""
        if node >= len(self._last):  # most nodes have none, and every token asks
            return None
        found = self._row(node, key)
        return None if found < 0 else Answer(self._tokens[found], self._logprobs[found], 0)

    def has(self, node: Node) -> bool:
        return node < len(self._last) and self._last[node] >= 0

    def is_fresh(self, node: Node, key: bytes) -> bool:
        """True where the log that is read now gives one."""
        return self._row(node, key) >= self._stale

    def written(self, node: Node) -> int | None:
        """When the latest of those that count was."""
        times = {bytes(self._key(row)): self._written[row] for row in self._rows(node)}
        return max(times.values(), default=None)

    def drop(self, nodes: NDArray[np.int32]) -> None:
        _of_nodes(self._last, 0)[nodes[nodes < len(self._last)]] = -1

    def mark_stale(self) -> None:
        self._stale = len(self._tokens)

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


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    """Numbers from 0 in as few bytes as the highest of them takes."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _of_nodes(column: array[int], known: int) -> NDArray[np.int32]:
    """A column of one number per node, as numpy sees it, -1 for nodes that are new. Not to be kept: see `Nodes`."""
    column.frombytes(b"\xff" * 4 * (known - len(column)))
    return np.frombuffer(column, dtype=np.int32)
