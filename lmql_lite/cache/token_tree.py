"""The token tree in memory: nodes and entries, bounded in bytes, and those that are not saved yet."""

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
from lmql_lite.cache.suffixes import Suffixes
from lmql_lite.cache.top_k import TopK

MAX_BYTES = 256 * 2**20
"""A row of scores is 6 kB at a vocabulary of 1,536 and 600 kB at 151,000; a top-k entry about 1 kB with its objects."""

LOOKS = 16
"""Nodes that are looked at for one that is added when there are too many: at least every other one of those that were
looked at twice can go, where it is not needed. Among n that a file holds, n/16 too many may wait for the hand."""


class TokenTree:
    """Reports of one model (one fingerprint), by token path. Models add entries, decoders read them (S35).

    Append-only to its users, and safe for threads (S28): one lock guards entries and nodes.

    `max_bytes` bounds entries and nodes that no file holds, nodes to half of it. Entries are evicted as `MemoryEntries`
    says, nodes from their leaves on: a hand goes round over all of them, and takes those that were not used since it
    came by the last time. It passes over nodes that are at hand (see `Node`), that lead to a pin, to an unsaved
    entry, or to what a file holds: that stays as long as the tree. A node that was evicted is made anew when it is
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
        """Entries of the file that was read before this one, which took its place. They are still read; each is then
        marked dirty, so that it is written to the new file."""
        self._dirty: DirtyEntries | None = None
        self._suffixes = Suffixes(self._nodes)
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
        """Memory of all nodes, with the table of suffixes, stored answers, and what leads to stored top-k entries."""
        return self._nodes.nbytes + self._suffixes.nbytes + self._disk.nbytes

    # nodes

    def extend(self, node: Node, token: int) -> Node:
        """The child of `node` by `token`; added where it is missing."""
        nodes = self._nodes
        with self._lock:
            before = nodes.loose
            child = self._references.new(nodes.extend(node, token))  # before others go
            if nodes.loose > before:
                self._give_way(1)
            return child

    def extend_path(self, node: Node, tokens: Sequence[int]) -> Node:
        """`extend`, by one token after the other. Returns the last node; those on the way are not kept."""
        with self._lock:
            return self._extend_path(node, tokens)

    def extend_many(self, parents: ArrayLike, tokens: ArrayLike, *, logged: bool = False) -> NDArray[np.int32]:
        """Numbers of the nodes of all entries: see `NodeTable.extend_many`. With `logged` a file holds them, and they
        stay; else nothing keeps them."""
        with self._lock:
            before = len(self._nodes)
            nodes = self._nodes.extend_many(parents, tokens)
            if logged:
                self._nodes.log(nodes)
            self._give_way(len(self._nodes) - before)
            return nodes

    def walk(self, node: Node, tokens: Sequence[int]) -> tuple[Node, int]:
        """From `node` by `tokens` as far as nodes exist: the last one, and how many tokens lead there. Adds none."""
        with self._lock:
            last, many = self._nodes.walk(node, tokens)
            self._nodes.use(last)
            return self._references.new(last), many

    def path(self, node: int) -> tuple[int, ...]:
        """Token ids from the root to `node`."""
        return self._nodes.path(node)

    def path_hash(self, node: Node) -> int:
        """64 bits that depend on the token ids of the path alone, so that they are equal in every process (S3)."""
        return self._nodes.path_hash(node)

    def parent(self, node: int) -> int:
        """-1 for the root."""
        return self._nodes.parent(node)

    def token(self, node: int) -> int:
        """The token that leads from the parent to this node."""
        return self._nodes.token(node)

    @property
    def outlives_file(self) -> bool:
        """True if another file took the place of the one that was read: what is read is written to that one."""
        return self._stale is not None

    def nodes_to(self, node: Node) -> Iterator[int]:
        """The nodes from `node` up to the root, without that."""
        above: int = node
        while above > ROOT:
            yield above
            above = self._nodes.parent(above)

    def stored_children(self, node: int) -> list[tuple[int, int]]:
        """Token and node of the children that stand in the file of this tree, in no particular order."""
        with self._lock:
            return [(token, child) for token, child in self._nodes.children(node) if self._nodes.is_logged(child)]

    def draft(self, node: Node, most: int, *, skip: bool) -> tuple[int, ...]:
        """At most `most` tokens that may follow `node`, since they followed the same last tokens elsewhere; with `skip`
        also where these differ a little. A draft is worth scoring, and no more."""
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
        """Evicts others, where there is no room for so many nodes that were added."""
        if 2 * self._memory.nbytes > self._memory.max_bytes:
            if 2 * self._nodes.loose * NODE_BYTES > self._memory.max_bytes:
                self._thin_out(LOOKS * added)
            self._memory.drop_spare()

    def _thin_out(self, looks: int) -> None:
        """Looks at so many nodes, and evicts branches that were not used since the hand came by."""
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
        """The scores of what may follow `node`; None where they are not known, or evicted."""
        with self._lock:
            self._nodes.use(node)
            self._memory.use(node)
            return self._scores(node)

    def add_scores(self, node: Node, scores: Scores | TopK, run: int) -> ScoreEntry:
        """Adds an entry, and returns the one that counts: the first, unless that has only the top k of these scores."""
        with self._lock:
            return self._add_scores(node, ScoreEntry(scores, run))

    def add_path(self, node: Node, tokens: Sequence[int], entries: Sequence[ScoreEntry]) -> list[Node]:
        """Adds a path of tokens below `node`, with the entry before each token where none is known.

        Returns the nodes that the tokens lead to. The last one keeps all of them, and is pinned for the caller; none of
        these entries is evicted to make room for the others.
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
        """The top-k entry at `node`, its best token and those that are best below it as long as they have the
        log-probability `goes_on`, and the node behind them. None without a top-k entry; whole scores are none."""
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
        """Drops all scores; nodes and answers stay."""
        with self._lock:
            self._disk.drop_scores()
            self._memory.drop_scores()

    def _add_scores(self, node: int, entry: ScoreEntry) -> ScoreEntry:
        first = self._scores(node)
        if first is not None and not (isinstance(first.scores, TopK) and isinstance(entry.scores, Scores)):
            return first
        if first is None and self._dirty is not None:  # a file has no more than the top k
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
        """Only this is left of scores: they are not to be kept alive for being dirty."""
        if self._dirty is not None and node in self._dirty.scores:
            self._dirty.scores[self._references.new(node)] = entry

    # answers

    def greedy_answer(self, node: Node, question: bytes) -> Answer | None:
        """The best token for a question that scores cannot decide (S1). A question is a digest of 16 bytes."""
        return self._known_answer(node, question)

    def add_greedy_answer(self, node: Node, question: bytes, answer: Answer) -> Answer:
        """Adds an answer, and returns the one that counts: the first."""
        with self._lock:
            return self._add_answer(node, question, answer)

    def sampled_answer(self, node: Node, question: bytes, seed: int, index: int) -> Answer | None:
        """The token that was sampled for a question under a seed (S1). The question includes the sampling policy."""
        return self._known_answer(node, (question, seed, index))

    def add_sampled_answer(self, node: Node, question: bytes, seed: int, index: int, answer: Answer) -> Answer:
        """Adds an answer, and returns the one that counts: the first."""
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

    # the file that holds entries of this tree: they are read where memory has none, and take nothing of `max_bytes`

    def attach(self, entries: Entries, written: NDArray[np.int64], vocabulary_size: int) -> None:
        """Adds entries of the file, at nodes of this tree; `written`, shape (entries,): when they were."""
        with self._lock:
            self._nodes.log(entries.nodes.astype(np.int32))
            self._disk.add(entries, written, vocabulary_size, self._nodes.end)

    def attach_nodes(self, nodes: NDArray[np.int32]) -> None:
        """Keeps nodes that the file holds."""
        with self._lock:
            self._nodes.log(nodes)

    def written(self, node: int) -> int | None:
        """When an entry at a node was written to the file, in unix seconds, 0 where that is not known; None where there
        is none. Where there are scores it is their time, else that of the latest answer."""
        with self._lock:
            return self._disk.written(node)

    def stale_times(self, nodes: NDArray[np.int64]) -> list[int | None]:
        """`written`, of the file that was read before this one; [] where there was none."""
        with self._lock:
            return [] if self._stale is None else [self._stale.written(node) for node in nodes.tolist()]

    def mark_stale(self) -> None:
        """Another file took the place of the one that was read."""
        with self._lock:
            self._stale, self._disk = self._disk, DiskEntries()

    def supersede(self, nodes: NDArray[np.int32], *, by_own: bool) -> None:
        """The file replaces its entries at these nodes: by those of this tree (`by_own`), or by those of another
        process. Entries that are still to be written in their place (`replace_with`) stay."""
        with self._lock:
            self._drop_stored(nodes)
            if not by_own:
                gone = set(nodes.tolist())
                if self._dirty is not None:
                    gone -= self._dirty.replaced
                    self._dirty.drop(gone)
                self._memory.drop(gone)

    def replace_with(self, fresh: TokenTree) -> None:
        """Lets the new entries of another tree take the place of all entries at their nodes."""
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
        """Makes the nodes that lead to one of another tree; `own` are those that are known."""
        way = []
        while node not in own:
            way.append(node)
            node = other._nodes.parent(node)
        for below in reversed(way):
            own[below] = self._extend_path(own[node], (other._nodes.token(below),))
            node = below

    # entries that no file holds yet

    def record(self) -> None:
        """Marks entries as dirty from now on, and all that are in memory now."""
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
        """Entries that were added since the last call. Raises ValueError where `record` was not called."""
        with self._lock:
            if self._dirty is None:
                raise ValueError("this tree does not record which entries are new")
            dirty, self._dirty = self._dirty, DirtyEntries()
            return dirty

    # memory

    def pin(self, node: Node) -> None:
        """Keeps the entries of `node` and of all nodes above it, for a run that stands there (S9). Pins are counted."""
        with self._lock:
            self._memory.pin(node)

    def unpin(self, node: Node) -> None:
        """Takes one pin back. Raises ValueError where there is none."""
        with self._lock:
            self._memory.unpin(node)
