"""Makes the records of entries at nodes of a tree: the one writer of runs and of tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from lmql_lite.cache.codec import encode
from lmql_lite.cache.columns import MAX_NODES, Entries, Model, Record
from lmql_lite.cache.framing import address_of
from lmql_lite.cache.node_index import NodeIndex
from lmql_lite.cache.tree import Node

ENTRIES_PER_RECORD = 100_000


class Tree(Protocol):
    """Where the entries stand."""

    def parent(self, node: Node) -> Node: ...

    def token(self, node: Node) -> int: ...


def payloads(
    index: NodeIndex, tree: Tree, model: Model, entries: Entries, *, written: int, replaces: bool
) -> Iterator[bytes]:
    """Payload of a record with these entries, after as many as the nodes on the way to them need.

    Who takes the next one has written the one before: it is in the index then.
    """
    while True:
        anchors: dict[Node, int] = {}
        new: list[Node] = []
        _find(index, tree, entries, anchors, new)
        own, rest = new[:MAX_NODES], new[MAX_NODES:]
        places = anchors | {node: len(anchors) + place for place, node in enumerate(own)}
        above = np.array([places[tree.parent(node)] for node in own], np.int64)
        tokens = np.array([tree.token(node) for node in own], np.int32)
        here = Entries() if rest else _at_places(entries, places)
        record = Record(model, *index.anchors(list(anchors)), above, tokens, here, written, replaces and not rest)
        payload = encode(record)
        yield payload
        index.add([address_of(payload)], np.array([len(own)]), np.array(own, np.int32))
        if not rest:
            return


def _find(index: NodeIndex, tree: Tree, entries: Entries, anchors: dict[Node, int], new: list[Node]) -> None:
    """Fills in the nodes that stand in the log, with their places, and the others from above, each once."""
    seen: set[Node] = set()
    for node in entries.nodes.tolist():
        way: list[Node] = []
        while node not in seen:
            seen.add(node)
            if index.has(node):
                anchors[node] = len(anchors)
                break
            way.append(node)
            node = tree.parent(node)
        new += reversed(way)


def _at_places(entries: Entries, places: dict[Node, int]) -> Entries:
    return entries.moved(lambda nodes: np.array([places[node] for node in nodes.tolist()], np.int64))
