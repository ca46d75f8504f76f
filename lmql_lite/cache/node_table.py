"""Structure of a token tree: nodes as columns, with one hash table of children. It has no entries and no locks."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmql_lite.cache.node_batch import checked, levels, merged, stretches
from lmql_lite.cache.sampling import mix

ROOT: int = 0

# The search for a child begins at a slot from the high bits of this sum. Both factors are below 2**30, so that the sum
# of two products is below 2**62, and equal in Python's integers and in int64.
_PARENT_FACTOR = 668_265_263
_TOKEN_FACTOR = 374_761_393
_LOW_BITS = 13
_ROOM = 1.55
"""Minimum slots of the table per node. The table grows by a quarter, so that there are seldom many more."""

_AT_ONCE = 65_536
"""Number of nodes entered into a grown table at once."""

_USED, _LOGGED = 1, 2

_MANY = 1000
"""Minimum entries of a batch that is checked for containing only new nodes."""


class NodeTable:
    """Columns of nodes: parent, token, first child, next and previous sibling (int32) and marks take 21 bytes per node,
    and up to 2 are reserved for new nodes. The hash of the path (uint64) takes 8 more once it is asked for.

    The hash table of node numbers adds 6 to 8 bytes. It has open addressing with linear probing, is at most two thirds
    full, and marks free slots with 0, since the root is not a child. It finds the child by a token in about two probes,
    whatever the number of siblings, and many children in a few numpy steps. The sibling chains list children.

    The number of a removed node is reused. The owner ensures that one thread at a time finds, adds and removes; the
    path of an existing node may be read meanwhile.
    """

    def __init__(self) -> None:
        self._tokens = array("i", [-1])
        self._parents = array("i", [-1])
        self._hashes = array("Q", [0])
        self._first = array("i", [0])
        self._next = array("i", [0])
        self._previous = array("i", [0])
        self._marks = bytearray(1)
        self._table = array("i", bytes(4 * 61))
        self._free = array("i")
        self.loose = 0
        """Number of nodes that no file holds."""
        self.reused = 0
        """Nodes that reuse the number of a removed one."""

    def __len__(self) -> int:
        return self.end - len(self._free)

    @property
    def end(self) -> int:
        """Upper bound of the numbers of nodes."""
        return len(self._next)

    @property
    def nbytes(self) -> int:
        """Memory of columns and table, including reserved space."""
        columns: tuple[Any, ...] = (
            self._tokens, self._parents, self._hashes, self._first, self._next, self._previous, self._marks,
            self._table, self._free,
        )  # fmt: skip
        return sum(column.__sizeof__() for column in columns)

    def find(self, node: int, token: int) -> int:
        """The child of `node` by `token`; 0 if there is none, since the root is not a child."""
        if not self._first[node]:
            return 0
        parents, tokens, table = self._parents, self._tokens, self._table
        slot = (node * _PARENT_FACTOR + token * _TOKEN_FACTOR >> _LOW_BITS) % len(table)
        while child := table[slot]:
            if parents[child] == node and tokens[child] == token:
                return child
            slot -= 1  # from the first place on to the last one
        return 0

    def walk(self, node: int, tokens: Sequence[int]) -> tuple[int, int]:
        """The last existing node on the way from `node` by `tokens`, and the number of tokens that lead there."""
        # `find` inlined, since a warm run consists of walks
        parents, column, table = self._parents, self._tokens, self._table
        size = len(table)
        for many, token in enumerate(tokens):
            slot = (node * _PARENT_FACTOR + token * _TOKEN_FACTOR >> _LOW_BITS) % size
            while child := table[slot]:
                if parents[child] == node and column[child] == token:
                    break
                slot -= 1
            else:
                return node, many
            node = child
        return node, len(tokens)

    def path(self, node: int) -> tuple[int, ...]:
        """Token ids from the root to `node`."""
        ids = []
        while node > ROOT:
            ids.append(self._tokens[node])
            node = self._parents[node]
        return tuple(reversed(ids))

    def path_hash(self, node: int) -> int:
        """Hash of the path to a node, computed on request, with missing ones above; 0 stands for a missing hash."""
        hashes, way = self._hashes, []
        missing = self.end - len(hashes)
        if missing > 0:  # for all nodes, since a node with a reused number may be below a newer one
            hashes.frombytes(bytes(hashes.itemsize * missing))
        while node > ROOT and not hashes[node]:
            way.append(node)
            node = self._parents[node]
        path_hash = hashes[node]
        for node in reversed(way):
            path_hash = hashes[node] = mix(path_hash, self._tokens[node])
        return path_hash

    def parent(self, node: int) -> int:
        """The parent of a node; -1 for the root."""
        return self._parents[node]

    def token(self, node: int) -> int:
        """The token that leads from the parent to this node."""
        return self._tokens[node]

    def suffix(self, node: int) -> tuple[int, int, int]:
        """The last three tokens of a path, newest first; -1 above the root."""
        tokens, parents = self._tokens, self._parents
        above = parents[node]
        above = above if above > ROOT else ROOT
        second = parents[above]
        return tokens[node], tokens[above], tokens[second if second > ROOT else ROOT]

    def children(self, node: int) -> Iterator[tuple[int, int]]:
        """Token and node of each child, in no particular order."""
        child = self._first[node]
        while child:
            yield self._tokens[child], child
            child = self._next[child]

    def columns(self, nodes: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Parents and tokens of nodes, int32, as copies."""
        return _numbers(self._parents)[nodes], _numbers(self._tokens)[nodes]

    def is_there(self, node: int) -> bool:
        """True if a number below `end` belongs to a node other than the root, and is not free."""
        return self._parents[node] >= ROOT

    def use(self, node: int) -> None:
        """Marks a node as used. New nodes are marked already."""
        self._marks[node] |= _USED

    def tire(self, node: int) -> bool:
        """Removes the mark of `use`. Returns True if the node had it."""
        mark = self._marks[node]
        self._marks[node] = mark & ~_USED
        return mark & _USED > 0

    def log(self, nodes: NDArray[np.int32]) -> None:
        """Marks nodes as held by the file."""
        marks = np.frombuffer(self._marks, np.uint8)
        new = np.sort(nodes[marks[nodes] & _LOGGED == 0])  # may contain duplicates
        marks[new] |= _LOGGED
        self.loose -= int(np.count_nonzero(np.diff(new))) + (len(new) > 0)

    def is_logged(self, node: int) -> bool:
        return self._marks[node] & _LOGGED > 0

    def is_idle(self, node: int) -> bool:
        """True for a leaf that is not used and in no file."""
        return not self._marks[node] and not self._first[node]

    def extend(self, node: int, token: int) -> int:
        """The child of `node` by `token`, added if it is missing, and marked as used. Raises OverflowError if the token
        does not fit into int32."""
        parents, tokens, table = self._parents, self._tokens, self._table
        slot = (node * _PARENT_FACTOR + token * _TOKEN_FACTOR >> _LOW_BITS) % len(table)
        while child := table[slot]:
            if parents[child] == node and tokens[child] == token:
                self._marks[child] |= _USED
                return child
            slot -= 1  # from the first place on to the last one
        elder = self._first[node]
        if self._free:
            child = self._free[-1]
            self._tokens[child] = token  # the only assignment that can fail
            self._free.pop()
            self.reused += 1
            parents[child], self._marks[child] = node, _USED
            self._next[child] = elder
        else:
            child = len(tokens)
            tokens.append(token)
            parents.append(node)
            self._first.append(0)
            self._previous.append(0)
            self._marks.append(_USED)
            self._next.append(elder)
        self._first[node] = child
        if elder:
            self._previous[elder] = child
        self.loose += 1
        if _ROOM * child < len(table):
            table[slot] = child
        else:
            self._grow()
        return child

    def remove(self, leaf: int) -> None:
        """Removes a node without children. Its number may be reused."""
        parent, before, after = self._parents[leaf], self._previous[leaf], self._next[leaf]
        if before:
            self._next[before] = after
        else:
            self._first[parent] = after
        if after:
            self._previous[after] = before
        self._leave_table(leaf)
        self._tokens[leaf] = self._parents[leaf] = -1
        self._next[leaf] = self._previous[leaf] = 0
        if leaf < len(self._hashes):
            self._hashes[leaf] = 0
        self._free.append(leaf)
        self.loose -= 1

    def _leave_table(self, node: int) -> None:
        """Backward-shift deletion: displaced nodes move up, so that probe chains have no gaps."""
        table, size = self._table, len(self._table)
        gap = self._slot(node)
        while table[gap] != node:
            gap -= 1
        place = gap
        while other := table[place := place - 1]:
            if (self._slot(other) - place) % size >= gap - place:
                table[gap], gap = other, place
        table[gap] = 0

    def _slot(self, node: int) -> int:
        """Slot at which the search for a node begins."""
        word = self._parents[node] * _PARENT_FACTOR + self._tokens[node] * _TOKEN_FACTOR
        return (word >> _LOW_BITS) % len(self._table)

    def extend_many(self, parents: ArrayLike, tokens: ArrayLike) -> NDArray[np.int32]:
        """The node of each entry, added if it is missing; equal entries get the same node.

        `parents[i]` is a node, or `~j` (that is `-1 - j`) for the node of entry `j < i` of the same call. Both
        arguments are integers of shape (entries,); otherwise raises ValueError before anything is added.
        """
        above, ids = checked(parents, tokens, self.end)
        if len(above) >= _MANY and (added := self._add_new(above, ids)) is not None:
            return added
        nodes = np.zeros(len(above), dtype=np.int32)
        for entries, wide in stretches(levels(above)):
            if wide:
                over = above[entries]
                nodes[entries] = self._level(np.where(over < 0, nodes[np.maximum(~over, 0)], over), ids[entries])
            else:
                self._one_by_one(entries, above, ids, nodes)
        return nodes

    def _add_new(self, above: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int32] | None:
        """The nodes of entries that are all new, added at once, as for a file that is read into an empty tree.

        Adds nothing and returns None if some entries are known or too many are equal.
        """
        outer = np.flatnonzero(above >= 0)
        if self._find_many(above[outer], ids[outer]).any():
            return None
        known = self.end
        stands_for = merged(above, ids, known)
        if stands_for is None:
            return None
        new = np.flatnonzero(stands_for == np.arange(len(above)))
        numbers = np.arange(known, known + len(new), dtype=np.int32)
        nodes = np.zeros(len(above), dtype=np.int32)
        nodes[new] = numbers
        nodes = nodes[stands_for]
        above, tokens = above[new], ids[new].astype(np.int32)
        parents = np.where(above < 0, nodes[np.maximum(~above, 0)], above)
        eldest = np.concatenate((_numbers(self._first), np.zeros(len(new), dtype=np.int32)))
        youngest = eldest.copy()
        youngest[parents] = numbers
        siblings = eldest[parents]
        others = np.flatnonzero(youngest[parents] != numbers)  # they follow the youngest, in any order
        if others.size:
            others = others[np.argsort(parents[others], kind="stable")]
            over, begins = np.unique(parents[others], return_index=True)
            siblings[others[:-1]] = numbers[others[1:]]
            siblings[others[np.append(begins[1:], len(others)) - 1]] = eldest[over]
            siblings[youngest[over] - known] = numbers[others[begins]]
        self._tokens.frombytes(tokens.tobytes())
        self._parents.frombytes(parents.astype(np.int32).tobytes())
        self._first.frombytes(bytes(numbers.nbytes))
        _numbers(self._first)[parents] = youngest[parents]
        self._chain(numbers, siblings)
        self._enter(numbers, parents, tokens)
        return nodes

    def _one_by_one(
        self, entries: NDArray[np.intp], above: NDArray[np.int64], ids: NDArray[np.int64], nodes: NDArray[np.int32]
    ) -> None:
        # memoryviews read and write Python's integers three times as fast as numpy
        over, token_of, node_of = above.data, ids.data, nodes.data
        for entry in entries.tolist():
            node, token = over[entry], token_of[entry]
            if node < 0:
                node = node_of[~node]
            node_of[entry] = self.extend(node, token)

    def _level(self, parents: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int32]:
        """The nodes of entries of which none is the parent of another."""
        nodes = self._find_many(parents, tokens)
        missing = np.flatnonzero(nodes == 0)
        if missing.size:
            words = (parents[missing] << 32) | (tokens[missing] & 0xFFFF_FFFF)
            distinct, which = np.unique(words, return_inverse=True)
            nodes[missing] = self.end + which.reshape(-1)
            self._add_many(distinct >> 32, distinct.astype(np.uint32).view(np.int32))
        return nodes

    def _find_many(self, parents: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int32]:
        column, above, table = _numbers(self._tokens), _numbers(self._parents), _numbers(self._table)
        nodes = np.zeros(len(parents), dtype=np.int32)
        slots = _slots(parents, tokens, len(table))
        left = np.flatnonzero(_numbers(self._first)[parents])  # nodes without children need no search
        slots = slots[left]
        while left.size:
            seen = table[slots]
            hit = (above[seen] == parents[left]) & (column[seen] == tokens[left])  # the root is not a child
            nodes[left[hit]] = seen[hit]
            on = (seen != 0) & ~hit
            left, slots = left[on], slots[on] - 1
        return nodes

    def _add_many(self, parents: NDArray[np.int64], tokens: NDArray[np.int32]) -> None:
        """Adds new children without duplicates, sorted by parent."""
        new = np.arange(self.end, self.end + len(parents), dtype=np.int32)
        eldest = np.concatenate(([True], parents[1:] != parents[:-1]))
        youngest = np.concatenate((eldest[1:], [True]))
        siblings = new + np.int32(1)
        siblings[youngest] = _numbers(self._first)[parents[youngest]]
        self._tokens.frombytes(tokens.tobytes())
        self._parents.frombytes(parents.astype(np.int32).tobytes())
        self._first.frombytes(bytes(new.nbytes))
        _numbers(self._first)[parents[eldest]] = new[eldest]
        self._chain(new, siblings)
        self._enter(new, parents, tokens)

    def _chain(self, new: NDArray[np.int32], siblings: NDArray[np.int32]) -> None:
        """Sets the next siblings of new nodes, 0 for none."""
        self._next.frombytes(siblings.tobytes())
        self._previous.frombytes(bytes(new.nbytes))
        self.loose += len(new)
        self._marks += bytes([_USED]) * len(new)
        before = np.flatnonzero(siblings)
        _numbers(self._previous)[siblings[before]] = new[before]

    def _enter(self, new: NDArray[np.int32], parents: NDArray[np.int64], tokens: NDArray[np.int32]) -> None:
        if _ROOM * self.end > len(self._table):
            self._grow()
        else:
            _enter(_numbers(self._table), new, parents, tokens)

    def _grow(self) -> None:
        size = len(self._table)
        while _ROOM * self.end > size:
            size += size // 4
        table = array("i", bytes(4 * size))
        parents, tokens = _numbers(self._parents), _numbers(self._tokens)
        for start in range(0, self.end, _AT_ONCE):  # all at once would take ten times the memory of the table
            new = np.flatnonzero(parents[start : start + _AT_ONCE] >= ROOT).astype(np.int32) + np.int32(start)
            _enter(_numbers(table), new, parents[new], tokens[new])
        self._table = table


def _numbers(column: array[int]) -> NDArray[np.int32]:
    """numpy view of a column. The view must not be kept, because a viewed array cannot grow."""
    return np.frombuffer(column, dtype=np.int32)


def _slots(parents: NDArray[Any], tokens: NDArray[Any], size: int) -> NDArray[np.int64]:
    words = parents.astype(np.int64) * _PARENT_FACTOR + tokens.astype(np.int64) * _TOKEN_FACTOR
    return (words >> _LOW_BITS) % size


def _enter(table: NDArray[np.int32], new: NDArray[np.int32], parents: NDArray[Any], tokens: NDArray[Any]) -> None:
    """Puts nodes into the table, all at once. Nodes whose slot is taken, possibly by one another, try the next slot."""
    slots = _slots(parents, tokens, len(table))
    while new.size:
        free = table[slots] == 0
        table[slots[free]] = new[free]
        on = table[slots] != new
        new, slots = new[on], slots[on] - 1
