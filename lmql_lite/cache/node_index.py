"""Places of the nodes of one tree in a log: the record, and the node within it.

Records hang on one another by address (D19). The numbers here are a reader's own: nobody else has to agree on them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.columns import ANCHORS, NODES, PARENTS, Record
from lmql_lite.cache.framing import FrameError
from lmql_lite.cache.tree import Node

_ROOT = b""
"""In the place of an address: the root, a record of one node that stands in no file."""


class NodeIndex:
    """Nodes of the records of one model, numbered in the order in which they were read or written."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._nodes = array("i", [root])
        """Of each number its node."""
        self._numbers = array("i", [0])
        """Of each node its last number, 0 where it has none; the root's is 0. Whoever wrote a node again could not read
        it where it stood first, and others cannot either."""
        self._addresses = [_ROOT]
        self._begins = [0]
        """Of each record the number of its first node."""
        self._range_of = {_ROOT: (0, 1)}
        """By address, the numbers of a record's nodes: from, to."""

    @property
    def end(self) -> int:
        """All numbers are below."""
        return len(self._nodes)

    def has(self, node: Node) -> bool:
        """True where a record may hang on this node."""
        return node == self._root or (node < len(self._numbers) and self._numbers[node] > 0)

    def knows_all(self, records: Iterable[tuple[bytes, Sequence[bytes]]]) -> bool:
        """True where records, given by address and parents, hang on known ones and on one another."""
        new: set[bytes] = set()
        for address, parents in records:
            if any(each not in self._range_of and each not in new for each in parents):
                return False
            new.add(address)
        return True

    def add(self, addresses: Sequence[bytes], many: NDArray[np.int64], nodes: NDArray[np.int32]) -> None:
        """Records that were read or written, in order, and their nodes: of each as `many` says."""
        ends = len(self._nodes) + np.cumsum(many)
        for address, begin, end in zip(addresses, (ends - many).tolist(), ends.tolist(), strict=True):
            self._range_of[address] = begin, end
            if begin < end:  # on others nothing can hang
                self._addresses.append(address)
                self._begins.append(begin)
        missing = int(nodes.max(initial=-1)) + 1 - len(self._numbers)
        if missing > 0:
            self._numbers.frombytes(bytes(4 * missing))
        numbers = np.arange(len(self._nodes), len(self._nodes) + len(nodes), dtype=np.int32)
        np.frombuffer(self._numbers, np.int32)[nodes] = numbers
        self._nodes.frombytes(nodes.tobytes())

    def nodes_from(self, begin: int) -> NDArray[np.int32]:
        """The nodes with numbers from `begin` on."""
        return np.array(self._nodes[begin:], np.int32)

    def anchors(self, nodes: Sequence[Node]) -> tuple[tuple[bytes, ...], NDArray[np.int64], NDArray[np.int64]]:
        """Places of the nodes that a record hangs on: its `parents`, `anchor_records` and `anchor_nodes`."""
        numbers = np.array([self._numbers[node] if node != self._root else 0 for node in nodes], np.int64)
        records = np.searchsorted(self._begins, numbers, side="right") - 1
        offsets = numbers - np.array(self._begins, np.int64)[records]
        used, which = np.unique(np.append(0, records), return_inverse=True)  # the root is always the first
        parents = tuple(self._addresses[record] for record in used[1:].tolist())
        return parents, which.reshape(-1)[1:].astype(np.int64), offsets

    def resolved(self, whole: Record, counts: NDArray[np.int64], addresses: Sequence[bytes]) -> NDArray[np.int64]:
        """Meaning of each place of these records: a node, or `~i` for the i-th of all their own nodes.

        `addresses` are theirs; they may hang on one another. FrameError where an anchor is not there.
        """
        first = self.end
        ends = first + np.cumsum(counts[:, NODES])
        ranges: list[tuple[int, int]] = []
        new: dict[bytes, tuple[int, int]] = {}
        at = 0
        own = list(zip(addresses, (ends - counts[:, NODES]).tolist(), ends.tolist(), strict=True))
        for (address, begin, end), many in zip(own, counts[:, PARENTS].tolist(), strict=True):
            ranges.append((0, 1))
            ranges += [new.get(each) or self._range_of[each] for each in whole.parents[at : at + many]]
            new[address] = begin, end
            at += many
        bounds = np.array(ranges, np.int64)
        tables = np.cumsum(counts[:, PARENTS] + 1) - counts[:, PARENTS] - 1
        hangs_on = bounds[np.repeat(tables, counts[:, ANCHORS]) + whole.anchor_records]
        numbers = hangs_on[:, 0] + whole.anchor_nodes
        if (numbers >= hangs_on[:, 1]).any():
            raise FrameError("the record hangs on a node that is not there")
        known = np.frombuffer(self._nodes, np.int32)
        places = np.zeros(len(whole.anchor_records) + len(whole.tokens), np.int64)
        starts = np.cumsum(counts[:, ANCHORS] + counts[:, NODES]) - counts[:, ANCHORS] - counts[:, NODES]
        is_anchor = np.zeros(len(places), np.bool_)
        before = np.cumsum(counts[:, ANCHORS]) - counts[:, ANCHORS]
        is_anchor[np.arange(len(numbers)) + np.repeat(starts - before, counts[:, ANCHORS])] = True
        places[is_anchor] = np.where(numbers < first, known[np.minimum(numbers, first - 1)], ~(numbers - first))
        places[~is_anchor] = ~np.arange(len(whole.tokens))
        return places
