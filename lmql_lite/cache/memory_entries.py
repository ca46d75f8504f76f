"""Entries of a tree in memory, bounded in bytes: those of the node that was used longest ago go first (S9); and its
last long paths, so that texts with one beginning walk only what is new of them; and the count of nodes that are at
hand."""

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
"""Memory of Python's objects: of scores beside the numbers themselves, and of an answer."""
NODE_BYTES = 48
"""Memory of a node at most, with its places in the tables."""


class MemoryEntries:
    """Entries by node. `shortened` is called where only the top k is left of scores.

    A whole row becomes its top-k entry first, and goes round once more; next time all entries of that node go. Nodes on
    the way to a pin are passed over; where there are no others, rows above the pinned nodes become top-k entries, and
    no more than that. What was written last always stays.
    """

    def __init__(self, nodes: NodeTable, max_bytes: int, shortened: Callable[[int, ScoreEntry], None]) -> None:
        self.scores: dict[int, ScoreEntry] = {}
        self.answers: dict[int, dict[Question, Answer]] = {}
        self._nbytes = 0
        """Of the entries."""
        self.max_bytes = max_bytes
        self._nodes = nodes
        self._shortened = shortened
        self._spare: OrderedDict[int, None] = OrderedDict()  # whose entries may go, the longest unused first
        self._whole = 0
        """Whole rows among the scores: only they can become less."""
        self._pins: dict[int, int] = {}
        self._pinned: dict[int, int] = {}  # on the way to a pin: pins here, and children that are in this table

    @property
    def nbytes(self) -> int:
        """Of the entries, and of the nodes that no file holds."""
        return self._nbytes + NODE_BYTES * self._nodes.loose

    def use(self, node: int) -> None:
        if node in self._spare:
            self._spare.move_to_end(node)

    def add_scores(self, node: int, entry: ScoreEntry) -> None:
        node = int(node)  # a key that keeps no node
        before = self.scores.get(node)
        if before is not None:
            self._count(before, -1)
        self.scores[node] = entry
        self._count(entry, 1)
        self._keep(node)

    def add_above_pin(self, entries: Iterable[tuple[int, ScoreEntry]]) -> None:
        """Scores at nodes that lead to a pin, and of which nothing is known: none of them goes for the rest of them."""
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
        """Forgets all entries of these nodes."""
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
        """True for a node on the way to a pin."""
        return node in self._pinned

    def pin(self, node: int) -> None:
        node = int(node)
        self._pins[node] = self._pins.get(node, 0) + 1
        while node >= ROOT:
            count = self._pinned.get(node, 0)
            self._pinned[node] = count + 1
            if count:  # so is all above: a run that moves on pins one node
                return
            self._spare.pop(node, None)
            node = self._nodes.parent(node)

    def unpin(self, node: int) -> None:
        """Raises ValueError where there is no pin."""
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
        """Drops the entries of spare nodes for which there is no room."""
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
            self.shorten_rows(newest)  # all at once, so that this is not done for every row

    def shorten_rows(self, newest: int | None = None) -> None:
        """Makes all rows their top-k entries, but the newest and those that a run asks for."""
        for node in self.scores:
            if node not in self._pins and node != newest:
                self._shorten(node)

    def _keep(self, node: int) -> None:
        """Keeps what was written here, whatever has to go for it."""
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
        """Makes whole scores their top-k entry; False where there are none."""
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
"""Nodes that were let go of, and are counted at once."""


class NodeReferences:
    """Counts the `Node` objects of one tree: the number of a node with such an object is not reused.

    A run has its nodes in many places (steps of its path, requests in flight, drafts). All of them keep the object that
    the tree gave, so that no code has to say when a node is not needed any more. One thread at a time may be here.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._gone: deque[int] = deque()
        self._class = _counted(self._gone)

    def new(self, node: int) -> Node:
        """An object for this number; while it lives, the node stays."""
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
    """A class for each tree, so that an object is a number and nothing else: every token of every run is one."""

    class CountedNode(Node):
        __slots__ = ()

        def __del__(self) -> None:
            gone.append(int(self))  # on any thread and at any moment, so that no lock may be waited for

    return CountedNode


PATHS = 4
LEAST, MOST = 256, 65_536
"""Tokens of a path that is kept: walking fewer is quick, and more would keep too many nodes."""


@dataclass(frozen=True, slots=True)
class RecentPath:
    """Nodes to which each of the tokens leads, from `start` on."""

    start: int
    tokens: Sequence[int]
    nodes: array[int]


class RecentPaths:
    """Extends a tree by many tokens. A path that is kept is pinned, so that its nodes stay, and so that a run that
    stands below it pins only what lies between."""

    def __init__(self, nodes: NodeTable, entries: MemoryEntries) -> None:
        self._nodes, self._entries = nodes, entries
        self._paths: list[RecentPath] = []

    def extend(self, node: int, tokens: Sequence[int]) -> int:
        """The node after the last token; nodes are added where they are missing."""
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
