"""Entries of a tree in memory, bounded in bytes and evicted by least recent use of their nodes (S9). Also recent long
paths, so that texts with a common beginning walk only their new part, and reference counts of nodes."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lmql_lite.cache.entry import Answer, Node, Question, ScoreEntry
from lmql_lite.cache.node_table import ROOT, NodeTable
from lmql_lite.cache.scores import Scores
from lmql_lite.cache.top_k import TopK
from lmql_lite.tokens import common_length

SCORES_BYTES, ANSWER_BYTES = 600, 650
"""Memory of Python's objects: of scores without their numbers, and of an answer."""
NODE_BYTES = 48
"""Maximum memory of a node with its places in the tables."""


class MemoryEntries:
    """Entries by node. `shortened` is called when scores are reduced to their top k.

    Eviction first reduces a whole row to its top-k entry and moves the node to the end of the queue; the next time it
    drops all entries of that node. Nodes on the path to a pin are skipped. If there are no others, rows above pinned
    nodes are reduced to top-k entries, but not dropped. The latest entries always stay.
    """

    def __init__(self, nodes: NodeTable, max_bytes: int, shortened: Callable[[int, ScoreEntry], None]) -> None:
        self.scores: dict[int, ScoreEntry] = {}
        self.answers: dict[int, dict[Question, Answer]] = {}
        self._nbytes = 0
        """Memory of the entries."""
        self.max_bytes = max_bytes
        self._nodes = nodes
        self._shortened = shortened
        self._spare: OrderedDict[int, None] = OrderedDict()  # evictable nodes, least recently used first
        self._whole = 0
        """Whole rows among the scores, which can be reduced to their top k."""
        self._pins: dict[int, int] = {}
        self._pinned: dict[int, int] = {}  # nodes on the path to a pin: pins here, and children in this table

    @property
    def nbytes(self) -> int:
        """Memory of the entries, and of the nodes that no file holds."""
        return self._nbytes + NODE_BYTES * self._nodes.loose

    def use(self, node: int) -> None:
        if node in self._spare:
            self._spare.move_to_end(node)

    def add_scores(self, node: int, entry: ScoreEntry) -> None:
        node = int(node)  # a plain int does not keep the node
        before = self.scores.get(node)
        if before is not None:
            self._count(before, -1)
        self.scores[node] = entry
        self._count(entry, 1)
        self._keep(node)

    def add_above_pin(self, entries: Iterable[tuple[int, ScoreEntry]]) -> None:
        """Adds scores at nodes on the path to a pin that have no entries. None of them is evicted for the others."""
        for node, entry in entries:
            self.scores[node] = entry
            self._count(entry, 1)
        self.make_room()

    def add_answer(self, node: int, question: Question, answer: Answer) -> None:
        node = int(node)
        self.answers.setdefault(node, {})[question] = answer
        self._nbytes += ANSWER_BYTES
        self._keep(node)

    def drop(self, nodes: Iterable[int]) -> None:
        """Removes all entries of these nodes."""
        for node in nodes:
            self._spare.pop(node, None)
            self._drop(node)

    def drop_scores(self) -> None:
        for node, entry in self.scores.items():
            self._count(entry, -1)
            if node not in self.answers:
                self._spare.pop(node, None)
        self.scores.clear()

    # pins

    def is_pinned(self, node: int) -> bool:
        """True for a node on the path to a pin."""
        return node in self._pinned

    def pin(self, node: int) -> None:
        node = int(node)
        self._pins[node] = self._pins.get(node, 0) + 1
        while node >= ROOT:
            count = self._pinned.get(node, 0)
            self._pinned[node] = count + 1
            if count:  # all nodes above are pinned too, so a run that moves on pins one node
                return
            self._spare.pop(node, None)
            node = self._nodes.parent(node)

    def unpin(self, node: int) -> None:
        """Removes one pin. Raises ValueError if there is none."""
        if node not in self._pins:
            raise ValueError(f"node {node} is not pinned")
        node = int(node)
        self._pins[node] -= 1
        if not self._pins[node]:
            del self._pins[node]
        while node >= ROOT:
            self._pinned[node] -= 1
            if self._pinned[node]:
                break
            del self._pinned[node]
            if node in self.scores or node in self.answers:
                self._spare[node] = None
            node = self._nodes.parent(node)
        if self._nbytes > self.max_bytes - NODE_BYTES * self._nodes.loose:
            self.make_room()

    # room

    def drop_spare(self) -> None:
        """Evicts entries of unpinned nodes until the rest fits."""
        most = self.max_bytes - NODE_BYTES * self._nodes.loose
        while self._nbytes > most and self._spare:
            node = next(iter(self._spare))
            if self._shorten(node):
                self._spare.move_to_end(node)
            else:
                del self._spare[node]
                self._drop(node)

    def make_room(self, newest: int | None = None) -> None:
        self.drop_spare()
        if self._whole and self._nbytes > self.max_bytes - NODE_BYTES * self._nodes.loose:
            self.shorten_rows(newest)  # all rows at once, to avoid this for every new row

    def shorten_rows(self, newest: int | None = None) -> None:
        """Reduces all rows to their top-k entries, except the newest and those that a run asks for."""
        for node in self.scores:
            if node not in self._pins and node != newest:
                self._shorten(node)

    def _keep(self, node: int) -> None:
        """Keeps the entry just written here, and evicts others for it."""
        spare = self._spare
        if self._nbytes > self.max_bytes - NODE_BYTES * self._nodes.loose:
            spare.pop(node, None)
            self.make_room(newest=node)
        if node in spare:
            spare.move_to_end(node)
        elif node not in self._pinned:
            spare[node] = None

    def _count(self, entry: ScoreEntry, change: int) -> None:
        scores = entry.scores
        if isinstance(scores, Scores):
            self._whole += change
            self._nbytes += change * (SCORES_BYTES + scores.logprobs.nbytes)
        else:
            self._nbytes += change * (SCORES_BYTES + scores.ids.nbytes + scores.logprobs.nbytes)

    def _shorten(self, node: int) -> bool:
        """Reduces whole scores to their top-k entry. Returns False if there are none."""
        entry = self.scores.get(node)
        if entry is None or isinstance(entry.scores, TopK):
            return False
        self._count(entry, -1)
        entry = self.scores[node] = ScoreEntry(entry.scores.top_k(), entry.run)
        self._count(entry, 1)
        self._shortened(node, entry)
        return True

    def _drop(self, node: int) -> None:
        entry = self.scores.pop(node, None)
        if entry is not None:
            self._count(entry, -1)
        self._nbytes -= ANSWER_BYTES * len(self.answers.pop(node, ()))


WAITING = 1000
"""Number of released references that are applied at once."""


class NodeReferences:
    """Reference counts of the `Node` objects of one tree. The number of a node with a living object is not reused.

    A run holds nodes in many places (steps of its path, requests in flight, drafts). All of them keep the tree's
    object, so that no code has to release a node explicitly. Only one thread at a time may use this.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._gone: deque[int] = deque()
        self._class = _counted(self._gone)

    def new(self, node: int) -> Node:
        """A `Node` for this number. While it lives, the node stays."""
        counts = self._counts
        counts[node] = counts.get(node, 0) + 1
        if len(self._gone) > WAITING:
            self._settle()
        return self._class(node)

    def has(self, node: int) -> bool:
        if self._gone:
            self._settle()
        return node in self._counts

    def _settle(self) -> None:
        while self._gone:
            node = self._gone.popleft()
            count = self._counts[node] - 1
            if count:
                self._counts[node] = count
            else:
                del self._counts[node]


def _counted(gone: deque[int]) -> type[Node]:
    """`Node` class of one tree. Objects hold only a number, because every token of every run is one."""

    class CountedNode(Node):
        __slots__ = ()

        def __del__(self) -> None:
            gone.append(int(self))  # runs on any thread at any moment, so it must not wait for a lock

    return CountedNode


PATHS = 4
LEAST, MOST = 256, 65_536
"""Bounds on the tokens of a kept path: shorter ones are fast to walk, longer ones would keep too many nodes."""


@dataclass(frozen=True, slots=True)
class RecentPath:
    """The nodes of a path: each token's node, from `start` on."""

    start: int
    tokens: Sequence[int]
    nodes: array[int]


class RecentPaths:
    """Extends a tree by many tokens at once. A kept path is pinned, so that its nodes stay, and so that a run below it
    pins only the nodes between."""

    def __init__(self, nodes: NodeTable, entries: MemoryEntries) -> None:
        self._nodes, self._entries = nodes, entries
        self._paths: list[RecentPath] = []

    def extend(self, node: int, tokens: Sequence[int]) -> int:
        """The node after the last token. Missing nodes are added."""
        extend = self._nodes.extend
        if not LEAST <= len(tokens) <= MOST:
            for token in tokens:
                node = extend(node, token)
            return node
        start, known, path = int(node), 0, None
        for each in self._paths:
            if each.start == start and (length := common_length(each.tokens, tokens)) > known:
                known, path = length, each
        way = path.nodes[:known] if path is not None else array("i")
        if known:
            node = way[-1]
        for token in tokens[known:]:
            node = extend(node, token)
            way.append(node)
        if path is not None and 2 * known >= len(tokens):
            self._paths.remove(path)
            self._paths.append(path)
        else:
            self._keep(RecentPath(start, tokens, way))
        return node

    def _keep(self, path: RecentPath) -> None:
        self._entries.pin(path.nodes[-1])
        self._paths.append(path)
        if len(self._paths) > PATHS:
            self._entries.unpin(self._paths.pop(0).nodes[-1])
