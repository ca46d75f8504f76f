"""Token tree in memory: nodes and entries, bounded in bytes, and entries that are not saved yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmql_lite.cache.columns import Entries
from lmql_lite.cache.disk_entries import DiskEntries
from lmql_lite.cache.entry import Answer, DirtyEntries, Node, Question, ScoreEntry
from lmql_lite.cache.memory_entries import NODE_BYTES, MemoryEntries, NodeReferences, RecentPaths
from lmql_lite.cache.node_table import ROOT, NodeTable
from lmql_lite.cache.scores import Scores
from lmql_lite.cache.suffixes import DraftLengths, Suffixes
from lmql_lite.cache.top_k import TopK

MAX_BYTES = 256 * 2**20
"""Default memory limit. A row of scores takes 6 kB at a vocabulary of 1,536 and 600 kB at 151,000; a top-k entry takes
about 1 kB."""

LOOKS = 16
"""Nodes inspected for each node that is added when there are too many. At least every other unneeded node that was
inspected twice can be evicted. Among n nodes that a file holds, up to n/16 nodes too many may wait for the hand."""


class TokenTree:
    """Token tree of one model (one fingerprint). Models add entries at token paths, and decoders read them (S35).

    For its users the tree is append-only. It is safe for threads (S28): one lock guards entries and nodes.

    `max_bytes` bounds entries and nodes that no file holds, with at most half of it for nodes. `MemoryEntries` evicts
    entries. Nodes are evicted by the clock algorithm, leaves first: a hand goes round, and removes those that were not
    used since its last visit. It skips nodes that are referenced (see `Node`), and nodes that lead to a pin, to an
    unsaved entry, or to a node of a file, which stays as long as the tree. An evicted node is added again when it is
    needed, and its entries are asked of the model again.
    """

    root = Node(ROOT)

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._nodes = NodeTable()
        self._references = NodeReferences()
        self._memory = MemoryEntries(self._nodes, max_bytes, self._shortened)
        self._recent = RecentPaths(self._nodes, self._memory)
        self._disk = DiskEntries()
        self._stale: DiskEntries | None = None
        """Entries of an earlier file, which another file replaced. Each is marked dirty when it is next read, so that
        it is written to the new file."""
        self._dirty: DirtyEntries | None = None
        self._suffixes = Suffixes(self._nodes)
        self.draft_lengths = DraftLengths()
        self._hand: int = ROOT
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def nbytes(self) -> int:
        """Memory of entries and nodes that no file holds, which `max_bytes` bounds."""
        return self._memory.nbytes

    @property
    def structure_nbytes(self) -> int:
        """Memory of all nodes, with the table of suffixes, stored answers, and the index of stored top-k entries."""
        return self._nodes.nbytes + self._suffixes.nbytes + self._disk.nbytes

    # nodes

    def extend(self, node: Node, token: int) -> Node:
        """The child of `node` by `token`, added if it is missing."""
        nodes = self._nodes
        with self._lock:
            before = nodes.loose
            child = self._references.new(nodes.extend(node, token))  # before others are evicted
            if nodes.loose > before:
                self._give_way(1)
            return child

    def extend_path(self, node: Node, tokens: Sequence[int]) -> Node:
        """Extends by one token after another. Returns the last node; the reference keeps only that one."""
        with self._lock:
            return self._extend_path(node, tokens)

    def extend_many(self, parents: ArrayLike, tokens: ArrayLike, *, logged: bool = False) -> NDArray[np.int32]:
        """Numbers of the nodes of all entries: see `NodeTable.extend_many`. With `logged` a file holds the nodes, and
        they stay; otherwise nothing keeps them."""
        with self._lock:
            before = len(self._nodes)
            nodes = self._nodes.extend_many(parents, tokens)
            if logged:
                self._nodes.log(nodes)
            self._give_way(len(self._nodes) - before)
            return nodes

    def walk(self, node: Node, tokens: Sequence[int]) -> tuple[Node, int]:
        """The last existing node on the way from `node` by `tokens`, and the number of tokens that lead there."""
        with self._lock:
            last, many = self._nodes.walk(node, tokens)
            self._nodes.use(last)
            return self._references.new(last), many

    def path(self, node: int) -> tuple[int, ...]:
        """Token ids from the root to `node`."""
        return self._nodes.path(node)

    def path_hash(self, node: Node) -> int:
        """Hash of 64 bits that depends only on the token ids of the path, and is equal in every process (S3)."""
        return self._nodes.path_hash(node)

    def parent(self, node: int) -> int:
        """The parent of a node; -1 for the root."""
        return self._nodes.parent(node)

    def token(self, node: int) -> int:
        """The token that leads from the parent to this node."""
        return self._nodes.token(node)

    @property
    def outlives_file(self) -> bool:
        """True if another file replaced the one read before, so that entries of it are written to the new one."""
        return self._stale is not None

    def nodes_to(self, node: Node) -> Iterator[int]:
        """The nodes from `node` up to the root, without the root."""
        above: int = node
        while above > ROOT:
            yield above
            above = self._nodes.parent(above)

    def stored_children(self, node: int) -> list[tuple[int, int]]:
        """Token and node of the children in the file of this tree, in no particular order."""
        with self._lock:
            return [(token, child) for token, child in self._nodes.children(node) if self._nodes.is_logged(child)]

    def draft(self, node: Node, most: int, *, skip: bool) -> tuple[int, ...]:
        """Draft of at most `most` tokens after `node`, which followed the same last tokens elsewhere. With `skip` these
        may differ a little."""
        with self._lock:
            return self._suffixes.draft(node, most, skip)

    def _extend_path(self, node: int, tokens: Sequence[int]) -> Node:
        nodes = self._nodes
        before = nodes.loose
        last = self._references.new(self._recent.extend(node, tokens))
        if nodes.loose > before:
            self._give_way(nodes.loose - before)
        return last

    def _give_way(self, added: int) -> None:
        """Evicts nodes if there is no room for the `added` ones."""
        if 2 * self._memory.nbytes > self._memory.max_bytes:
            if 2 * self._nodes.loose * NODE_BYTES > self._memory.max_bytes:
                self._thin_out(LOOKS * added)
            self._memory.drop_spare()

    def _thin_out(self, looks: int) -> None:
        """Inspects `looks` nodes, and evicts branches that were not used since the hand's last visit."""
        nodes = self._nodes
        for _ in range(looks):
            self._hand = node = (self._hand + 1) % nodes.end
            if not nodes.is_there(node) or nodes.tire(node):
                continue
            while self._may_go(node):
                parent = nodes.parent(node)
                self._memory.drop([node])
                nodes.remove(node)
                node = parent

    def _may_go(self, node: int) -> bool:
        return (
            node != ROOT
            and self._nodes.is_idle(node)
            and not self._references.has(node)
            and not self._memory.is_pinned(node)
        )

    # scores

    def scores(self, node: Node) -> ScoreEntry | None:
        """Scores of the tokens after `node`; None if they are unknown or evicted."""
        with self._lock:
            self._nodes.use(node)
            self._memory.use(node)
            return self._scores(node)

    def add_scores(self, node: Node, scores: Scores | TopK, run: int) -> ScoreEntry:
        """Adds an entry. Returns the one that counts: the first, unless it has only the top k of these scores."""
        with self._lock:
            return self._add_scores(node, ScoreEntry(scores, run))

    def add_path(self, node: Node, tokens: Sequence[int], entries: Sequence[ScoreEntry]) -> list[Node]:
        """Adds a path of tokens below `node`, with the entry before each token unless one is known.

        Returns the nodes of the tokens. The last one keeps all of them, and is pinned for the caller. None of these
        entries is evicted to make room for the others.
        """
        with self._lock:
            tip = self._extend_path(node, tokens)
            place: int = tip
            way = [tip]
            new: list[tuple[int, ScoreEntry]] = []
            for entry in reversed(entries):
                place = self._nodes.parent(place)
                way.append(self._references.new(place))
                if self._scores(place) is None:
                    new.append((place, entry))
                    if self._dirty is not None:
                        self._dirty.scores[way[-1]] = entry
            self._memory.pin(tip)
            self._memory.add_above_pin(new)
            return way[-2::-1]

    def best_path(self, node: Node, goes_on: float) -> tuple[ScoreEntry, list[int], Node | None] | None:
        """The top-k entry at `node`, its best token followed by best tokens with the log-probability `goes_on`, and the
        node after them. None without a top-k entry; whole scores do not count as one."""
        with self._lock:
            place: int = node
            first = entry = self._scores(place)
            tokens: list[int] = []
            below = 0
            while entry is not None and isinstance(best := entry.scores, TopK):
                if tokens and best.logprobs.item(0) != goes_on:
                    break
                self._memory.use(place)
                tokens.append(best.ids.item(0))
                below = self._nodes.find(place, tokens[-1])
                if not below:
                    break
                place, entry = below, self._scores(below)
            self._nodes.use(place)
            behind = self._references.new(place) if below else None
            return (first, tokens, behind) if first is not None and tokens else None

    def drop_scores(self) -> None:
        """Removes all scores; nodes and answers stay."""
        with self._lock:
            self._disk.drop_scores()
            self._memory.drop_scores()

    def _add_scores(self, node: int, entry: ScoreEntry) -> ScoreEntry:
        first = self._scores(node)
        if first is not None and not (isinstance(first.scores, TopK) and isinstance(entry.scores, Scores)):
            return first
        if first is None and self._dirty is not None:  # a file stores only the top k
            self._dirty.scores[self._references.new(node)] = entry
        self._memory.add_scores(node, entry)
        return entry

    def _scores(self, node: int) -> ScoreEntry | None:
        entry = self._memory.scores.get(node) or self._disk.scores(node)
        if self._stale is None or self._disk.scores(node) is not None:
            return entry
        entry = entry or self._stale.scores(node)
        if entry is not None and self._dirty is not None:
            self._dirty.scores[self._references.new(node)] = entry
        return entry

    def _shortened(self, node: int, entry: ScoreEntry) -> None:
        """Replaces dirty scores by their top-k entry, so that they do not stay in memory."""
        if self._dirty is not None and node in self._dirty.scores:
            self._dirty.scores[self._references.new(node)] = entry

    # answers

    def greedy_answer(self, node: Node, question: bytes) -> Answer | None:
        """The best token for a question that scores cannot decide (S1). A question is a digest of 16 bytes."""
        return self._known_answer(node, question)

    def add_greedy_answer(self, node: Node, question: bytes, answer: Answer) -> Answer:
        """Adds an answer. Returns the one that counts: the first."""
        with self._lock:
            return self._add_answer(node, question, answer)

    def sampled_answer(self, node: Node, question: bytes, seed: int, index: int) -> Answer | None:
        """The token sampled for a question under a seed (S1). The question includes the sampling policy."""
        return self._known_answer(node, (question, seed, index))

    def add_sampled_answer(self, node: Node, question: bytes, seed: int, index: int, answer: Answer) -> Answer:
        """Adds an answer. Returns the one that counts: the first."""
        with self._lock:
            return self._add_answer(node, (question, seed, index), answer)

    def _known_answer(self, node: Node, question: Question) -> Answer | None:
        with self._lock:
            self._nodes.use(node)
            self._memory.use(node)
            return self._answer(node, question)

    def _add_answer(self, node: Node, question: Question, answer: Answer) -> Answer:
        first = self._answer(node, question)
        if first is not None:
            return first
        if self._dirty is not None:
            self._dirty.answers[self._references.new(node), question] = answer
        self._memory.add_answer(node, question, answer)
        return answer

    def _answer(self, node: int, question: Question) -> Answer | None:
        answer = self._memory.answers.get(node, {}).get(question) or self._disk.answer(node, question)
        if self._stale is None or self._disk.answer(node, question) is not None:
            return answer
        answer = answer or self._stale.answer(node, question)
        if answer is not None and self._dirty is not None:
            self._dirty.answers[self._references.new(node), question] = answer
        return answer

    # entries of this tree's file: they are read if memory has none, and do not count for `max_bytes`

    def attach(self, entries: Entries, written: NDArray[np.int64], vocabulary_size: int) -> None:
        """Adds entries of the file, at nodes of this tree. `written`, shape (entries,): their times of writing."""
        with self._lock:
            self._nodes.log(entries.nodes.astype(np.int32))
            self._disk.add(entries, written, vocabulary_size, self._nodes.end)

    def attach_nodes(self, nodes: NDArray[np.int32]) -> None:
        """Marks nodes as held by the file, so that they stay."""
        with self._lock:
            self._nodes.log(nodes)

    def written(self, node: int) -> int | None:
        """Time at which the scores of a node, or else its latest answer, were written to the file, in Unix seconds. 0
        if the time is not known, None if there is no entry."""
        with self._lock:
            return self._disk.written(node)

    def stale_times(self, nodes: NDArray[np.int64]) -> list[int | None]:
        """`written` for the file before this one; [] if there was none."""
        with self._lock:
            return [] if self._stale is None else [self._stale.written(node) for node in nodes.tolist()]

    def mark_stale(self) -> None:
        """Marks all entries of the file as stale, because another file replaced it."""
        with self._lock:
            self._stale, self._disk = self._disk, DiskEntries()

    def supersede(self, nodes: NDArray[np.int32], *, by_own: bool) -> None:
        """Drops entries at these nodes that the file replaces by those of this tree (`by_own`) or of another process.
        Unsaved entries that replace them (`replace_with`) stay."""
        with self._lock:
            self._drop_stored(nodes)
            if not by_own:
                gone = set(nodes.tolist())
                if self._dirty is not None:
                    gone -= self._dirty.replaced
                    self._dirty.drop(gone)
                self._memory.drop(gone)

    def replace_with(self, fresh: TokenTree) -> None:
        """Replaces all entries at the nodes of another tree's new entries by those."""
        new = fresh.take_dirty()
        own: dict[int, Node] = {ROOT: self.root}
        with self._lock:
            for node in new.nodes:
                self._follow(fresh, node, own)
            nodes = {own[node] for node in new.nodes}
            if self._dirty is not None:
                self._dirty.drop(nodes)
                self._dirty.replaced |= nodes
            self._drop_stored(np.array(sorted(nodes), dtype=np.int32))
            self._memory.drop(nodes)
            for node, entry in new.scores.items():
                self._add_scores(own[node], entry)
            for (node, question), answer in new.answers.items():
                self._add_answer(own[node], question, answer)

    def _drop_stored(self, nodes: NDArray[np.int32]) -> None:
        self._disk.drop(nodes)
        if self._stale is not None:
            self._stale.drop(nodes)

    def _follow(self, other: TokenTree, node: int, own: dict[int, Node]) -> None:
        """Adds the nodes on the path to a node of another tree; `own` are the known ones."""
        way = []
        while node not in own:
            way.append(node)
            node = other._nodes.parent(node)
        for below in reversed(way):
            own[below] = self._extend_path(own[node], (other._nodes.token(below),))
            node = below

    # entries that no file holds yet

    def record(self) -> None:
        """Marks all entries in memory, and new ones from now on, as dirty."""
        with self._lock:
            if self._dirty is not None:
                return
            new = self._references.new
            self._dirty = DirtyEntries({new(node): entry for node, entry in self._memory.scores.items()})
            for node, answers in self._memory.answers.items():
                self._dirty.answers |= {(new(node), question): answer for question, answer in answers.items()}

    @property
    def is_dirty(self) -> bool:
        with self._lock:
            return bool(self._dirty)

    def take_dirty(self) -> DirtyEntries:
        """Entries added since the last call. Raises ValueError if `record` was not called."""
        with self._lock:
            if self._dirty is None:
                raise ValueError("this tree does not record which entries are new")
            dirty, self._dirty = self._dirty, DirtyEntries()
            return dirty

    # memory

    def pin(self, node: Node) -> None:
        """Keeps the entries of `node` and of all nodes above it for a run (S9). Pins are counted."""
        with self._lock:
            self._memory.pin(node)

    def unpin(self, node: Node) -> None:
        """Removes one pin. Raises ValueError if there is none."""
        with self._lock:
            self._memory.unpin(node)
