"""The token tree in memory: nodes and facts, bounded in bytes, and what is new of both for whoever saves it."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmql_lite.cache.columns import Entries
from lmql_lite.cache.dirty_set import Changes, DirtySet, Question
from lmql_lite.cache.disk_entries import DiskEntries
from lmql_lite.cache.head import Head
from lmql_lite.cache.holding import Holds
from lmql_lite.cache.memory import NODE_BYTES, Memory
from lmql_lite.cache.nodes import ROOT, Nodes
from lmql_lite.cache.scores import Scores
from lmql_lite.cache.suffixes import Suffixes
from lmql_lite.cache.tree import Answer, Fact, Node

MAX_BYTES = 256 * 2**20
"""A row of scores is 6 kB at a vocabulary of 1,536 and 600 kB at 151,000; a head about 1 kB with all that holds it."""

LOOKS = 16
"""So many nodes are looked at for one that is added when there are too many: at least every other one of those that
were looked at twice can go, where it is not needed. Among n that a log holds, n/16 too many may wait for the hand."""


class Trie:
    """A `TokenTree`. One lock guards all that may be changed meanwhile: facts, and which nodes there are.

    `max_bytes` bounds facts and nodes that no log holds, nodes to half of it. Facts that do not fit go as `Memory`
    says, nodes from their leaves on: a hand goes round over all of them, and takes those that were not used since it
    came by the last time. It passes over what somebody holds (see `Holds`), what leads to a pin, to an unsaved fact, or
    to what a log holds: that stays as long as the tree. A node that went is made anew when somebody comes by, and what
    was known of it is asked of the model again.
    """

    root: Node = ROOT

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._nodes = Nodes()
        self._holds = Holds()
        self._memory = Memory(self._nodes, max_bytes, self._cooled)
        self._stored = DiskEntries()
        self._hand: Node = ROOT
        self._has_stale = False
        """The log that was read is gone. An entry of it is marked dirty when it is next read, so that it is written to
        the new log."""
        self._suffixes = Suffixes(self._nodes)
        self._dirty: DirtySet | None = None
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def end(self) -> int:
        """The numbers of all nodes are below."""
        return self._nodes.end

    @property
    def nbytes(self) -> int:
        """Memory of facts and nodes that no log holds, which `max_bytes` bounds."""
        return self._memory.nbytes

    @property
    def structure_nbytes(self) -> int:
        """Memory of all nodes, with the table that guesses, stored answers, and what leads to stored facts."""
        return self._nodes.nbytes + self._suffixes.nbytes + self._stored.nbytes

    # nodes

    def extend(self, node: Node, token: int) -> Node:
        nodes = self._nodes
        with self._lock:
            before = nodes.loose
            node = self._holds.hold(nodes.extend(node, token))  # before others go
            if nodes.loose > before:
                self._give_way(1)
            return node

    def lead(self, node: Node, tokens: Sequence[int]) -> Node:
        with self._lock:
            return self._lead(node, tokens)

    def extend_many(self, parents: ArrayLike, tokens: ArrayLike, *, logged: bool = False) -> NDArray[np.int32]:
        """The node of each entry, made where it is missing; entries that say the same get the same node.

        `parents[i]` is a node, or `~j` (that is `-1 - j`) for the node of entry `j` of this very call, with `j < i`.
        Both are integers of shape (entries,). Raises ValueError, before anything is added, where they are not. Nodes
        that a log holds stay; others are in nobody's hands.
        """
        with self._lock:
            before = len(self._nodes)
            nodes = self._nodes.extend_many(parents, tokens)
            if logged:
                self._nodes.log(nodes)
            self._give_way(len(self._nodes) - before)
            return nodes

    def keep(self, nodes: NDArray[np.int32]) -> None:
        """A log holds these nodes."""
        with self._lock:
            self._nodes.log(nodes)

    def walk(self, node: Node, tokens: Sequence[int]) -> tuple[Node, int]:
        with self._lock:
            node, many = self._nodes.walk(node, tokens)
            self._nodes.use(node)
            return self._holds.hold(node), many

    def path(self, node: Node) -> tuple[int, ...]:
        return self._nodes.path(node)

    def parent(self, node: Node) -> Node:
        """-1 for the root."""
        return self._nodes.parent(node)

    def token(self, node: Node) -> int:
        """The token that leads from the parent to this node."""
        return self._nodes.token(node)

    def way_to(self, node: Node) -> list[Node]:
        way = []
        while node > ROOT:
            way.append(node)
            node = self._nodes.parent(node)
        return way[::-1]

    def path_hash(self, node: Node) -> int:
        return self._nodes.path_hash(node)

    def logged(self, node: Node) -> list[tuple[int, Node]]:
        with self._lock:
            return [(token, child) for token, child in self._nodes.children(node) if self._nodes.is_logged(child)]

    def guess(self, node: Node, most: int, *, skip: bool) -> tuple[int, ...]:
        with self._lock:
            return self._suffixes.guess(node, most, skip)

    def _lead(self, node: Node, tokens: Sequence[int]) -> Node:
        nodes = self._nodes
        before = nodes.loose
        for token in tokens:
            node = nodes.extend(node, token)
        node = self._holds.hold(node)
        if nodes.loose > before:
            self._give_way(nodes.loose - before)
        return node

    def _give_way(self, added: int) -> None:
        """Others go, where there is no room for so many nodes that were added."""
        if 2 * self._memory.nbytes > self._memory.max_bytes:
            if 2 * self._nodes.loose * NODE_BYTES > self._memory.max_bytes:
                self._thin_out(LOOKS * added)
            self._memory.drop_spare()

    def _thin_out(self, looks: int) -> None:
        """Looks at so many nodes, and takes away branches that were not used since the hand came by."""
        nodes = self._nodes
        for _ in range(looks):
            self._hand = node = (self._hand + 1) % nodes.end
            if not nodes.is_there(node) or nodes.tire(node):
                continue
            while self._may_go(node):
                parent = nodes.parent(node)
                self._memory.forget([node])
                nodes.remove(node)
                node = parent

    def _may_go(self, node: Node) -> bool:
        return (
            node != ROOT
            and self._nodes.is_idle(node)
            and not self._holds.has(node)
            and not self._memory.is_pinned(node)
            and not self._stored.has(node)
        )

    # scores

    def scores(self, node: Node) -> Fact | None:
        with self._lock:
            self._use(node)
            return self._fact(node)

    def add_scores(self, node: Node, scores: Scores | Head, run: int) -> Fact:
        with self._lock:
            first = self._fact(node)
            if first is not None and not (isinstance(first.scores, Head) and isinstance(scores, Scores)):
                return first
            fact = Fact(scores, run)
            if first is None and self._dirty is not None:  # the row of a known head is no news
                self._dirty.scores(node, fact)
            self._memory.add_fact(node, fact)
            return fact

    def say(self, node: Node, tokens: Sequence[int], facts: Sequence[Fact]) -> list[Node]:
        with self._lock:
            place = tip = self._lead(node, tokens)
            way, new = [tip], []
            for fact in reversed(facts):
                place = self._nodes.parent(place)
                way.append(place)
                if self._fact(place) is None:
                    new.append((place, fact))
                    if self._dirty is not None:
                        self._dirty.scores(place, fact)
            self._memory.pin(tip)
            self._memory.add_on_the_way(new)
            return way[-2::-1]

    def hear(self, node: Node, goes_on: float) -> tuple[Fact, list[int]] | None:
        with self._lock:
            first = fact = self._fact(node)
            tokens: list[int] = []
            while fact is not None and isinstance(head := fact.scores, Head):
                if tokens and head.logprobs.item(0) != goes_on:
                    break
                self._memory.use(node)
                tokens.append(head.ids.item(0))
                below = self._nodes.find(node, tokens[-1])
                if not below:
                    break
                node, fact = below, self._fact(below)
            self._nodes.use(node)
            return (first, tokens) if first is not None and tokens else None

    def _use(self, node: Node) -> None:
        self._nodes.use(node)
        self._memory.use(node)

    def _add_fact(self, node: Node, fact: Fact) -> None:
        if self._dirty is not None:
            self._dirty.scores(node, fact)
        self._memory.add_fact(node, fact)

    def _cooled(self, node: Node, fact: Fact) -> None:
        if self._dirty is not None:
            self._dirty.cooled(node, fact)

    def forget_scores(self) -> None:
        with self._lock:
            self._stored.drop_scores()
            self._memory.forget_scores()

    def _fact(self, node: Node) -> Fact | None:
        fact = self._memory.facts.get(node) or self._stored.fact(node)
        dirty = self._dirty if self._has_stale else None
        if dirty is not None and fact is not None and not self._stored.is_fresh(node):
            dirty.scores(node, fact)
        return fact

    # answers

    def verdict(self, node: Node, question: bytes) -> Answer | None:
        return self._answer(node, question)

    def add_verdict(self, node: Node, question: bytes, answer: Answer) -> Answer:
        with self._lock:
            return self._add_answer(node, question, answer)

    def draw(self, node: Node, question: bytes, seed: int, index: int) -> Answer | None:
        return self._answer(node, (question, seed, index))

    def add_draw(self, node: Node, question: bytes, seed: int, index: int, answer: Answer) -> Answer:
        with self._lock:
            return self._add_answer(node, (question, seed, index), answer)

    def _answer(self, node: Node, question: Question) -> Answer | None:
        with self._lock:
            self._use(node)
            return self._known_answer(node, question)

    def _known_answer(self, node: Node, question: Question) -> Answer | None:
        answer = self._memory.answers.get(node, {}).get(question) or self._stored.answer(node, question)
        dirty = self._dirty if self._has_stale else None
        if dirty is not None and answer is not None and not self._stored.is_fresh(node, question):
            dirty.answer(node, question, answer)
        return answer

    def _add_answer(self, node: Node, question: Question, answer: Answer) -> Answer:
        first = self._known_answer(node, question)
        if first is not None:
            return first
        if self._dirty is not None:
            self._dirty.answer(node, question, answer)
        self._memory.add_answer(node, question, answer)
        return answer

    # what a log holds of this tree: read where memory has nothing, no news, of run 0, and nothing of `max_bytes`

    def attach(self, entries: Entries, written: NDArray[np.int64], vocabulary_size: int) -> None:
        """Entries at nodes of this tree, the first that answers a question counts; `written`, shape (entries,): when
        they were. Takes 4 bytes of the structure per node."""
        with self._lock:
            self._stored.add(entries, written, vocabulary_size, self._nodes.end)

    def written(self, node: Node) -> int | None:
        """When the fact at a node was written to the log, in unix seconds, 0 where that is not known; None for what is
        not from there. Where there are scores it is their time, else that of the latest answer."""
        with self._lock:
            return self._stored.written(node)

    def mark_stale(self) -> None:
        """Another log takes the place of the one that was read: what it says counts more than what is attached now."""
        with self._lock:
            self._stored.mark_stale()
            self._has_stale = True

    # what replaces what was known

    def supersede(self, nodes: NDArray[np.int32], *, by_own: bool) -> None:
        """The log replaces what it held of these nodes: by what stands in this tree (`by_own`), or by what another
        process learned. What is still to be written over it (`overwrite`) stays."""
        with self._lock:
            self._stored.drop(nodes)
            if by_own:
                return
            gone = set(nodes.tolist())
            if self._dirty is not None:
                gone -= self._dirty.replaced
                self._dirty.forget(gone)
            self._memory.forget(gone)

    def overwrite(self, fresh: Trie) -> None:
        """What is new in another tree takes the place of all that was known at those nodes."""
        changes = fresh.changes()
        own: dict[Node, Node] = {ROOT: ROOT}
        with self._lock:
            for node in changes.places:
                self._follow(fresh, node, own)
            nodes = {int(own[node]) for node in changes.places}
            if self._dirty is not None:
                self._dirty.replace(nodes)
            self._stored.drop(np.array(sorted(nodes), dtype=np.int32))
            self._memory.forget(nodes)
            for node, fact in changes.scores:
                self._add_fact(own[node], fact)
            for node, question, answer in changes.answers:
                self._add_answer(own[node], question, answer)

    def _follow(self, other: Trie, node: Node, own: dict[Node, Node]) -> None:
        """Comes by all nodes that lead to one of another tree; `own` are those that are known."""
        way = []
        while node not in own:
            way.append(node)
            node = other._nodes.parent(node)
        for below in reversed(way):
            own[below] = self._lead(own[node], (other._nodes.token(below),))
            node = below

    # what is new

    def record(self) -> None:
        """From now on `changes` tells what is new; the first time, all that is known by now but not attached."""
        with self._lock:
            if self._dirty is not None:
                return
            self._dirty = DirtySet(self._holds.hold)
            for node, fact in self._memory.facts.items():
                self._dirty.scores(node, fact)
            for node, answers in self._memory.answers.items():
                for question, answer in answers.items():
                    self._dirty.answer(node, question, answer)

    @property
    def is_dirty(self) -> bool:
        """Whether there are changes."""
        with self._lock:
            return self._dirty is not None and bool(self._dirty)

    @property
    def has_stale(self) -> bool:
        """Whether a log that was read is gone."""
        return self._has_stale

    def changes(self) -> Changes:
        """What was added since the last call. Raises ValueError where nothing is recorded."""
        with self._lock:
            if self._dirty is None:
                raise ValueError("changes are told of a tree that records them")
            dirty, self._dirty = self._dirty, DirtySet(self._holds.hold)
            return dirty.changes()

    # memory

    def pin(self, node: Node) -> None:
        with self._lock:
            self._memory.pin(node)

    def unpin(self, node: Node) -> None:
        with self._lock:
            self._memory.unpin(node)
