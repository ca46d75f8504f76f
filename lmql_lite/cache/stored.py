"""Heads that stay where they are stored: a tree knows which node has one, and reads it when it is asked for."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.head import Head
from lmql_lite.cache.tree import Fact, Node


class StoredHeads(Protocol):
    """Heads by their place, made when they are read. None where the store does not give one (any more)."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Head | None: ...


class Stored:
    """For each node the number of its head, int32, all stores counted on; -1 where it has none."""

    def __init__(self) -> None:
        self._numbers = array("i")
        self._stores: list[StoredHeads] = []
        self._begins: list[int] = []
        self._end = 0

    @property
    def nbytes(self) -> int:
        return self._numbers.__sizeof__()

    def add(self, nodes: NDArray[np.int32], heads: StoredHeads, known: int) -> None:
        """`nodes[i]` has the head `heads[i]`, unless it had one before; the tree has `known` nodes."""
        self._numbers.frombytes(b"\xff" * 4 * (known - len(self._numbers)))
        numbers = np.frombuffer(self._numbers, dtype=np.int32)
        places = np.flatnonzero(numbers[nodes] < 0)[::-1]  # of two heads of one node the first is written last
        numbers[nodes[places]] = self._end + places
        self._stores.append(heads)
        self._begins.append(self._end)
        self._end += len(heads)

    def fact(self, node: Node) -> Fact | None:
        number = self._numbers[node] if node < len(self._numbers) else -1
        if number < 0:
            return None
        store = bisect_right(self._begins, number) - 1
        head = self._stores[store][number - self._begins[store]]
        return None if head is None else Fact(head, 0)
