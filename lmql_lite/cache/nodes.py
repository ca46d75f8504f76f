"""The structure of a token tree: nodes as columns, children found through one table. Knows no facts and no locks."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmql_lite.cache.scores import mix
from lmql_lite.cache.tree import Node

ROOT: Node = 0

# Where the table begins to look for a child: some middle bits of this sum. Both factors stay below 2**30, so that the
# sum of two products is below 2**62 and the same in Python's integers and in int64.
_PARENT_FACTOR = 668_265_263
_TOKEN_FACTOR = 374_761_393
_LOW_BITS = 13

_WIDE = 48
"""Levels with fewer entries are quicker one by one: a vectorised level costs about 60 us, an entry alone 1.3 us."""
_MANY = 1000
"""Fewer entries are not worth a look whether all of them are new."""
_ROUNDS = 4
"""So often entries that say the same are looked for all at once: each time, those below the ones found before."""


class Nodes:
    """Parent, token, first child and next sibling (int32) and the hash of the path (uint64) of each node: 24 bytes.

    The table adds 8 to 16: an open-addressed hash table of node numbers (linear probing, at most half full, 0 is free
    since the root is nobody's child), which finds the child by a token in one or two looks however many siblings it
    has, and many children in a few numpy steps. The chains list children.

    One writer at a time, which the owner sees to. Readers need no lock: a node's columns are complete before the
    table and the chains name it, and a table that grows is replaced, never changed in place. A reader may only miss
    a node that is being added at that moment.
    """

    def __init__(self) -> None:
        self._tokens = array("i", [-1])
        self._parents = array("i", [-1])
        self._hashes = array("Q", [0])
        self._first = array("i", [0])
        self._next = array("i", [0])
        self._table = array("i", bytes(4 * 64))

    def __len__(self) -> int:
        return len(self._next)  # the column that is written last

    @property
    def nbytes(self) -> int:
        """Memory of columns and table, what is reserved for the next nodes included."""
        columns = (self._tokens, self._parents, self._hashes, self._first, self._next, self._table)
        return sum(column.__sizeof__() for column in columns)

    def find(self, node: Node, token: int) -> Node:
        """The child of `node` by `token`; 0, which is no child, where there is none."""
        parents, tokens, table = self._parents, self._tokens, self._table
        mask = len(table) - 1
        slot = (node * _PARENT_FACTOR + token * _TOKEN_FACTOR) >> _LOW_BITS & mask
        while child := table[slot]:
            if parents[child] == node and tokens[child] == token:
                return child
            slot = slot + 1 & mask
        return 0

    def walk(self, node: Node, tokens: Sequence[int]) -> tuple[Node, int]:
        """From `node` by `tokens` as far as nodes exist: the last one, and how many tokens lead there."""
        # `find`, once per token, without the calls: a walk is the reading of a warm run
        parents, column, table = self._parents, self._tokens, self._table
        mask = len(table) - 1
        for many, token in enumerate(tokens):
            slot = (node * _PARENT_FACTOR + token * _TOKEN_FACTOR) >> _LOW_BITS & mask
            while child := table[slot]:
                if parents[child] == node and column[child] == token:
                    break
                slot = slot + 1 & mask
            else:
                return node, many
            node = child
        return node, len(tokens)

    def path(self, node: Node) -> tuple[int, ...]:
        """Token ids from the root to `node`."""
        ids = []
        while node != ROOT:
            ids.append(self._tokens[node])
            node = self._parents[node]
        return tuple(reversed(ids))

    def path_hash(self, node: Node) -> int:
        return self._hashes[node]

    def parent(self, node: Node) -> Node:
        """-1 for the root."""
        return self._parents[node]

    def token(self, node: Node) -> int:
        """The token that leads from the parent to this node."""
        return self._tokens[node]

    def children(self, node: Node) -> Iterator[tuple[int, Node]]:
        """Token and node of each child, in no particular order."""
        child = self._first[node]
        while child:
            yield self._tokens[child], child
            child = self._next[child]

    def columns(self, nodes: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Parents and tokens of nodes, int32, as copies."""
        return _numbers(self._parents)[nodes], _numbers(self._tokens)[nodes]

    def extend(self, node: Node, token: int) -> Node:
        """The child of `node` by `token`, made where it is missing. Raises OverflowError if the token is no int32."""
        parents, tokens, table = self._parents, self._tokens, self._table
        mask = len(table) - 1
        slot = (node * _PARENT_FACTOR + token * _TOKEN_FACTOR) >> _LOW_BITS & mask
        while child := table[slot]:
            if parents[child] == node and tokens[child] == token:
                return child
            slot = slot + 1 & mask
        path_hash = mix(self._hashes[node], token)
        child = len(tokens)
        tokens.append(token)  # the only one that can fail
        parents.append(node)
        self._hashes.append(path_hash)
        self._first.append(0)
        self._next.append(self._first[node])
        self._first[node] = child
        if 2 * child < mask:
            table[slot] = child
        else:
            self._grow()
        return child

    def extend_many(self, parents: ArrayLike, tokens: ArrayLike) -> NDArray[np.int32]:
        """The node of each entry, made where it is missing; entries that say the same get the same node.

        `parents[i]` is a node, or `~j` (that is `-1 - j`) for the node of entry `j` of this very call, with `j < i`.
        Both are integers of shape (entries,). Raises ValueError, before anything is added, where they are not.
        """
        above, ids = _checked(parents, tokens, len(self))
        if len(above) >= _MANY and (added := self._add_new(above, ids)) is not None:
            return added
        nodes = np.zeros(len(above), dtype=np.int32)
        for entries, wide in _stretches(_levels(above)):
            if wide:
                over = above[entries]
                nodes[entries] = self._level(np.where(over < 0, nodes[np.maximum(~over, 0)], over), ids[entries])
            else:
                self._one_by_one(entries, above, ids, nodes)
        return nodes

    def _add_new(self, above: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int32] | None:
        """The nodes of entries none of which is known, all added at once, as a file is that is read into an empty tree.

        None, and nothing is added, where some are known, or where too many say the same.
        """
        outer = np.flatnonzero(above >= 0)
        if self._find_many(above[outer], ids[outer]).any():
            return None
        known = len(self)
        stands_for = _merged(above, ids, known)
        if stands_for is None:
            return None
        new = np.flatnonzero(stands_for == np.arange(len(above)))
        numbers = np.arange(known, known + len(new), dtype=np.int32)
        nodes = np.zeros(len(above), dtype=np.int32)
        nodes[new] = numbers
        nodes = nodes[stands_for]
        above, tokens = above[new], ids[new].astype(np.int32)
        parents = np.where(above < 0, nodes[np.maximum(~above, 0)], above)
        hashes = self._hashes_of(parents, tokens, _levels(np.where(above < 0, known + ~parents, 0)))
        eldest = np.concatenate((_numbers(self._first), np.zeros(len(new), dtype=np.int32)))
        youngest = eldest.copy()
        youngest[parents] = numbers
        siblings = eldest[parents]
        others = np.flatnonzero(youngest[parents] != numbers)  # they come after the youngest, in any order
        if others.size:
            others = others[np.argsort(parents[others], kind="stable")]
            over, begins = np.unique(parents[others], return_index=True)
            siblings[others[:-1]] = numbers[others[1:]]
            siblings[others[np.append(begins[1:], len(others)) - 1]] = eldest[over]
            siblings[youngest[over] - known] = numbers[others[begins]]
        self._tokens.frombytes(tokens.tobytes())
        self._parents.frombytes(parents.astype(np.int32).tobytes())
        self._hashes.frombytes(hashes.tobytes())
        self._first.frombytes(bytes(numbers.nbytes))
        self._next.frombytes(siblings.tobytes())
        _numbers(self._first)[parents] = youngest[parents]
        self._enter(numbers, parents, tokens)
        return nodes

    def _hashes_of(
        self, parents: NDArray[np.int64], tokens: NDArray[np.int32], levels: NDArray[np.int32]
    ) -> NDArray[np.uint64]:
        """Those of nodes to come, some of them below others."""
        hashes = np.concatenate((np.frombuffer(self._hashes, dtype=np.uint64), np.zeros(len(parents), dtype=np.uint64)))
        known = len(self)
        hash_of, parent_of, token_of = hashes.data, parents.data, tokens.data
        for entries, wide in _stretches(levels):
            if wide:
                hashes[known + entries] = mix_many(hashes[parents[entries]], tokens[entries])
            else:
                for entry in entries.tolist():
                    hash_of[known + entry] = mix(hash_of[parent_of[entry]], token_of[entry])
        return hashes[known:]

    def _one_by_one(
        self, entries: NDArray[np.intp], above: NDArray[np.int64], ids: NDArray[np.int64], nodes: NDArray[np.int32]
    ) -> None:
        # memoryviews give and take Python's integers, three times as quickly as numpy does
        over, token_of, node_of = above.data, ids.data, nodes.data
        for entry in entries.tolist():
            node, token = over[entry], token_of[entry]
            if node < 0:
                node = node_of[~node]
            node_of[entry] = self.extend(node, token)

    def _level(self, parents: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int32]:
        """Nodes of entries none of which is the parent of another."""
        nodes = self._find_many(parents, tokens)
        missing = np.flatnonzero(nodes == 0)
        if missing.size:
            words = (parents[missing] << 32) | (tokens[missing] & 0xFFFF_FFFF)
            distinct, which = np.unique(words, return_inverse=True)
            nodes[missing] = len(self) + which.reshape(-1)
            self._add_many(distinct >> 32, distinct.astype(np.uint32).view(np.int32))
        return nodes

    def _find_many(self, parents: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int32]:
        column, above, table = _numbers(self._tokens), _numbers(self._parents), _numbers(self._table)
        nodes = np.zeros(len(parents), dtype=np.int32)
        slots = _slots(parents, tokens, len(table))
        left = np.flatnonzero(_numbers(self._first)[parents])  # a node without children has none to be found
        slots = slots[left]
        while left.size:
            seen = table[slots]
            hit = (above[seen] == parents[left]) & (column[seen] == tokens[left])  # the root is no one's child
            nodes[left[hit]] = seen[hit]
            on = (seen != 0) & ~hit
            left, slots = left[on], (slots[on] + 1) & (len(table) - 1)
        return nodes

    def _add_many(self, parents: NDArray[np.int64], tokens: NDArray[np.int32]) -> None:
        """New children, none of them twice, sorted by parent."""
        new = np.arange(len(self), len(self) + len(parents), dtype=np.int32)
        eldest = np.concatenate(([True], parents[1:] != parents[:-1]))
        youngest = np.concatenate((eldest[1:], [True]))
        siblings = new + np.int32(1)
        siblings[youngest] = _numbers(self._first)[parents[youngest]]
        hashes = mix_many(np.frombuffer(self._hashes, dtype=np.uint64)[parents], tokens)
        self._tokens.frombytes(tokens.tobytes())
        self._parents.frombytes(parents.astype(np.int32).tobytes())
        self._hashes.frombytes(hashes.tobytes())
        self._first.frombytes(bytes(new.nbytes))
        self._next.frombytes(siblings.tobytes())
        _numbers(self._first)[parents[eldest]] = new[eldest]
        self._enter(new, parents, tokens)

    def _enter(self, new: NDArray[np.int32], parents: NDArray[np.int64], tokens: NDArray[np.int32]) -> None:
        if 2 * len(self) > len(self._table):
            self._grow()
        else:
            _enter(_numbers(self._table), new, parents, tokens)

    def _grow(self) -> None:
        size = len(self._table)
        while 2 * len(self) > size:
            size *= 2
        table = array("i", bytes(4 * size))
        new = np.arange(1, len(self), dtype=np.int32)
        _enter(_numbers(table), new, _numbers(self._parents)[1:], _numbers(self._tokens)[1:])
        self._table = table


def _numbers(column: array[int]) -> NDArray[np.int32]:
    """A column as numpy sees it. Not to be kept: an array that is looked at so cannot grow."""
    return np.frombuffer(column, dtype=np.int32)


def _slots(parents: NDArray[Any], tokens: NDArray[Any], size: int) -> NDArray[np.int64]:
    words = parents.astype(np.int64) * _PARENT_FACTOR + tokens.astype(np.int64) * _TOKEN_FACTOR
    return (words >> _LOW_BITS) & (size - 1)


def _enter(table: NDArray[np.int32], new: NDArray[np.int32], parents: NDArray[Any], tokens: NDArray[Any]) -> None:
    """Puts nodes into the table: all at once; those that find their slot taken, also by one another, go one on."""
    slots = _slots(parents, tokens, len(table))
    while new.size:
        free = table[slots] == 0
        table[slots[free]] = new[free]
        on = table[slots] != new
        new, slots = new[on], (slots[on] + 1) & (len(table) - 1)


def _checked(parents: ArrayLike, tokens: ArrayLike, known: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    above, ids = np.asarray(parents), np.asarray(tokens)
    if above.ndim != 1 or above.shape != ids.shape:
        raise ValueError(f"parents of shape {above.shape} and tokens of shape {ids.shape} are no list of entries")
    if not all(numbers.size == 0 or np.issubdtype(numbers.dtype, np.integer) for numbers in (above, ids)):
        raise ValueError("parents and tokens are integers")
    above, ids = np.ascontiguousarray(above, dtype=np.int64), np.ascontiguousarray(ids, dtype=np.int64)
    wrong = np.flatnonzero((above >= known) | (~above >= np.arange(len(above))))
    if wrong.size:
        raise ValueError(f"the parent of entry {wrong[0]} is neither a node nor an earlier entry: {above[wrong[0]]}")
    wrong = np.flatnonzero(ids != ids.astype(np.int32))
    if wrong.size:
        raise ValueError(f"the token of entry {wrong[0]} has more than 32 bits: {ids[wrong[0]]}")
    return above, ids


def _levels(above: NDArray[np.int64]) -> NDArray[np.int32]:
    """How many entries of the same call stand above each entry: chains, each entry below the last one, are followed
    in steps that double."""
    places = np.arange(len(above))
    begins = above != -places  # ~(place - 1)
    begins[:1] = True
    starts = np.flatnonzero(begins)
    chain_of = np.cumsum(begins) - 1
    depths = places - starts[chain_of]
    over = above[starts]
    inner = over < 0
    jump = np.where(inner, chain_of[np.maximum(~over, 0)], np.arange(len(starts)))
    steps = np.where(inner, depths[np.maximum(~over, 0)] + 1, 0)
    while (beyond := steps[jump]).any():
        steps += beyond
        jump = jump[jump]
    levels: NDArray[np.int32] = (steps[chain_of] + depths).astype(np.int32)
    return levels


def _stretches(levels: NDArray[np.int32]) -> Iterator[tuple[NDArray[np.intp], bool]]:
    """Entries from above, and whether they are one wide level; narrow levels wait for the next wide one."""
    widths = np.bincount(levels).tolist()
    # numpy sorts short integers by radix, ten times as quickly
    order = np.argsort(levels.astype(np.uint16) if len(widths) <= 2**16 else levels, kind="stable")
    begin = end = 0
    for width in widths:
        if width >= _WIDE:
            if begin < end:
                yield order[begin:end], False
            begin, end = end + width, end + width
            yield order[end - width : end], True
        else:
            end += width
    if begin < end:
        yield order[begin:end], False


def _merged(above: NDArray[np.int64], ids: NDArray[np.int64], known: int) -> NDArray[np.intp] | None:
    """For each entry the first one that says the same, which may be itself. None where that would take long.

    Entries that say the same have the same parent: most entries are alone below theirs, and are not looked at twice.
    """
    entries = np.arange(len(above))
    stands_for = entries.copy()
    left = np.ones(len(above), dtype=np.bool_)
    for _ in range(_ROUNDS):
        over = np.where(above < 0, known + stands_for[np.maximum(~above, 0)], above)
        youngest = np.zeros(known + len(above), dtype=np.intp)
        youngest[over] = entries
        crowded = np.zeros(known + len(above), dtype=np.bool_)
        crowded[over[youngest[over] != entries]] = True
        some = np.flatnonzero(crowded[over] & left)
        _, firsts, which = np.unique(
            (over[some] << 32) | (ids[some] & 0xFFFF_FFFF), return_index=True, return_inverse=True
        )
        if len(firsts) == len(some):
            return stands_for
        stands_for[some] = some[firsts[which.reshape(-1)]]
        stands_for = stands_for[stands_for]  # who stood for others may stand behind an earlier one now
        left = stands_for == entries
    return None


def mix_many(first: NDArray[np.uint64], second: NDArray[Any]) -> NDArray[np.uint64]:
    """`mix`, element by element."""
    with np.errstate(over="ignore"):
        words = first * np.uint64(0x9E3779B97F4A7C15) + second.astype(np.uint64) + np.uint64(0x632BE59BD9B4E019)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
