"""The token tree in memory: nodes that stay, facts bounded in bytes, and what is new of both for whoever saves it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmql_lite.cache.changes import Changes, News, Question
from lmql_lite.cache.frames import Draws, Verdicts
from lmql_lite.cache.head import Head
from lmql_lite.cache.nodes import ROOT, Nodes
from lmql_lite.cache.scores import Scores
from lmql_lite.cache.stored import Stored, StoredHeads
from lmql_lite.cache.suffixes import Suffixes
from lmql_lite.cache.tree import Answer, Fact, Node

MAX_BYTES = 256 * 2**20
"""A row of scores is 6 kB at a vocabulary of 1,536 and 600 kB at 151,000; a head about 1 kB with all that holds it."""

SCORES_BYTES, ANSWER_BYTES = 600, 650
"""What Python's objects take of memory: for scores beside the numbers themselves, for an answer."""


class Trie:
    """A `TokenTree`. One lock guards all writing; only nodes are read without it.

    Facts that do not fit into `max_bytes` go, those of the node that was used longest ago first: a whole row becomes
    its head and goes round once more; next time everything known of that node goes, which only means that the model
    (or the file) is asked again. Nodes on the way to a pin are passed over; where there are no others, rows above
    the pinned nodes become heads, and no more than that. What was written last always stays.
    """

    root: Node = ROOT

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._nodes = Nodes()
        self._facts: dict[Node, Fact] = {}
        self._answers: dict[Node, dict[Question, Answer]] = {}
        self._spare: OrderedDict[Node, None] = OrderedDict()  # of which all may go, the longest unused first
        self._nbytes = 0
        self._whole = 0
        """Whole rows among the facts: only they can become less."""
        self._max_bytes = max_bytes
        self._pins: dict[Node, int] = {}
        self._pinned: dict[Node, int] = {}  # on the way to a pin: pins here, and children that are in this table
        self._stored = Stored()
        self.outlived = False
        """A log that was read is no more: what it said is news when it is asked for, unless another one says it."""
        self._suffixes = Suffixes(self._nodes)
        self._news: News | None = None
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def nbytes(self) -> int:
        """Memory of the facts, which `max_bytes` bounds."""
        return self._nbytes

    @property
    def structure_nbytes(self) -> int:
        """Memory of the nodes, with the table that guesses, stored answers, and what leads to stored facts."""
        return self._nodes.nbytes + self._suffixes.nbytes + self._stored.nbytes

    # nodes

    def extend(self, node: Node, token: int) -> Node:
        child = self._nodes.find(node, token)
        if not child:
            with self._lock:
                child = self._nodes.extend(node, token)
        return child

    def extend_many(self, parents: ArrayLike, tokens: ArrayLike, *, quiet: bool = False) -> NDArray[np.int32]:
        """The node of each entry, made where it is missing; entries that say the same get the same node.

        `parents[i]` is a node, or `~j` (that is `-1 - j`) for the node of entry `j` of this very call, with `j < i`.
        Both are integers of shape (entries,). Raises ValueError, before anything is added, where they are not.
        """
        with self._lock:
            before = len(self._nodes)
            nodes = self._nodes.extend_many(parents, tokens)
            if quiet and self._news is not None:
                self._news.quiet(range(before, len(self._nodes)))
            return nodes

    def walk(self, node: Node, tokens: Sequence[int]) -> tuple[Node, int]:
        return self._nodes.walk(node, tokens)

    def path(self, node: Node) -> tuple[int, ...]:
        return self._nodes.path(node)

    def step_to(self, node: Node) -> tuple[Node, int]:
        """The parent of a node that is not the root, and the token that leads on from there."""
        return self._nodes.parent(node), self._nodes.token(node)

    def way_to(self, node: Node) -> list[Node]:
        way = []
        while node != ROOT:
            way.append(node)
            node = self._nodes.parent(node)
        return way[::-1]

    def path_hash(self, node: Node) -> int:
        return self._nodes.path_hash(node)

    def children(self, node: Node) -> Iterator[tuple[int, Node]]:
        """Token and node of each child, in no particular order."""
        return self._nodes.children(node)

    def nodes_since(self, mark: int) -> range:
        """The nodes that were added when the tree had `mark` of them, or later."""
        return range(mark, len(self._nodes))

    def guess(self, node: Node, most: int, *, skip: bool) -> tuple[int, ...]:
        with self._lock:
            return self._suffixes.guess(node, most, skip)

    # scores

    def scores(self, node: Node) -> Fact | None:
        with self._lock:
            if node in self._spare:
                self._spare.move_to_end(node)
            return self._fact(node)

    def add_scores(self, node: Node, scores: Scores | Head, run: int) -> Fact:
        with self._lock:
            first = self._fact(node)
            if first is not None and not (isinstance(first.scores, Head) and isinstance(scores, Scores)):
                return first
            fact = Fact(scores, run)
            self._add_fact(node, fact, is_news=first is None)  # the row of a known head is no news
            return fact

    def say(self, node: Node, way: Sequence[tuple[int, Head]], run: int) -> list[Node]:
        nodes = []
        with self._lock:
            for token, head in way:
                if self._fact(node) is None:
                    self._add_fact(node, Fact(head, run))
                node = self._nodes.extend(node, token)
                nodes.append(node)
        return nodes

    def _add_fact(self, node: Node, fact: Fact, is_news: bool = True) -> None:
        self._put(node, fact)
        if is_news and self._news is not None:
            self._news.scores(node, fact)
        self._keep(node)

    def forget_scores(self) -> None:
        with self._lock:
            self._stored.drop_heads()
            for node in self._facts:
                self._nbytes -= _nbytes(self._facts[node])
                if node not in self._answers:
                    self._spare.pop(node, None)
            self._facts.clear()
            self._whole = 0

    def _fact(self, node: Node) -> Fact | None:
        fact = self._facts.get(node) or self._stored.fact(node)
        if fact is not None and self._retold is not None and not self._stored.holds_head(node):
            self._retold.scores(node, fact)
        return fact

    @property
    def _retold(self) -> News | None:
        """Takes what is asked for and was said by a log that is no more."""
        return self._news if self.outlived else None

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
            if node in self._spare:
                self._spare.move_to_end(node)
            return self._known_answer(node, question)

    def _known_answer(self, node: Node, question: Question) -> Answer | None:
        answer = self._answers.get(node, {}).get(question) or self._stored.answer(node, question)
        if answer is not None and self._retold is not None and not self._stored.holds_answer(node, question):
            self._retold.answer(node, question, answer)
        return answer

    def _add_answer(self, node: Node, question: Question, answer: Answer) -> Answer:
        first = self._known_answer(node, question)
        if first is not None:
            return first
        self._answers.setdefault(node, {})[question] = answer
        self._nbytes += ANSWER_BYTES
        if self._news is not None:
            self._news.answer(node, question, answer)
        self._keep(node)
        return answer

    # what a log holds of this tree: read where memory has nothing, no news, of run 0, and nothing of `max_bytes`

    def attach(self, nodes: NDArray[np.int32], heads: StoredHeads) -> None:
        """`nodes[i]` has the head `heads[i]`, unless it had one before. Takes 4 bytes of the structure per node."""
        with self._lock:
            self._stored.add_heads(nodes, heads, len(self._nodes))

    def attach_answers(
        self, verdicts: Verdicts, draws: Draws, written: tuple[NDArray[np.int64], NDArray[np.int64]]
    ) -> None:
        """Answers at nodes of this tree, the first to a question counts; and when each of both kinds was written."""
        with self._lock:
            self._stored.add_answers(verdicts, draws, written, len(self._nodes))

    def written(self, node: Node) -> int | None:
        """When the fact at a node was written to the log, in unix seconds, 0 where that is not known; None for what is
        not from there. Where there are scores it is their time, else that of the latest answer."""
        with self._lock:
            return self._stored.written(node)

    def detach(self, nodes: NDArray[np.int32]) -> None:
        """What is attached to these nodes counts no more."""
        with self._lock:
            self._stored.drop(nodes)

    def outdate(self) -> None:
        """Another log takes the place of the one that was read: what it says counts more than what is attached now."""
        with self._lock:
            self._stored.outdate()
            self.outlived = True

    # what replaces what was known

    def renounce(self, nodes: NDArray[np.int32]) -> None:
        """The log takes back what it said of these nodes; what is to be written over it (`overwrite`) stays."""
        with self._lock:
            gone = set(nodes.tolist())
            if self._news is not None:
                gone -= self._news.replaced
                self._news.forget(gone)
            self._stored.drop(nodes)
            self._forget(gone)

    def overwrite(self, changes: Changes) -> None:
        """All that is told of another tree, from its beginning, takes the place of what was known at these nodes."""
        own = np.zeros(int(changes.nodes.max(initial=ROOT)) + 1, dtype=np.int64)
        above = np.where(changes.parents == ROOT, ROOT, ~np.searchsorted(changes.nodes, changes.parents))
        own[changes.nodes] = self.extend_many(above, changes.tokens)
        nodes = own[sorted(changes.places)]
        with self._lock:
            if self._news is not None:
                self._news.replace(set(nodes.tolist()))
            self._stored.drop(nodes.astype(np.int32))
            self._forget(nodes.tolist())
            for node, fact in changes.scores:
                self._add_fact(int(own[node]), fact)
            for node, question, answer in changes.verdicts:
                self._add_answer(int(own[node]), question, answer)
            for node, question, seed, index, answer in changes.draws:
                self._add_answer(int(own[node]), (question, seed, index), answer)

    def _forget(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self._spare.pop(node, None)
            self._drop_facts(node)

    # what is new

    def record(self) -> None:
        """From now on `changes` tells what is new; the first time, all that is known by now but not attached."""
        with self._lock:
            if self._news is not None:
                return
            self._news = News(mark=ROOT + 1)
            for node, fact in self._facts.items():
                self._news.scores(node, fact)
            for node, answers in self._answers.items():
                for question, answer in answers.items():
                    self._news.answer(node, question, answer)

    @property
    def has_news(self) -> bool:
        """Whether `changes` would tell of facts."""
        with self._lock:
            return self._news is not None and self._news.has_facts

    def changes(self) -> Changes:
        """What was added, and not quietly, since the last call. Raises ValueError where nothing is recorded."""
        with self._lock:
            if self._news is None:
                raise ValueError("changes are told of a tree that records them")
            news, self._news = self._news, News(mark=len(self._nodes))
            return news.changes(self._nodes)

    # memory

    def pin(self, node: Node) -> None:
        with self._lock:
            self._pins[node] = self._pins.get(node, 0) + 1
            while node >= ROOT:
                count = self._pinned.get(node, 0)
                self._pinned[node] = count + 1
                if count:  # so is all above: a run that moves on pins one node
                    return
                self._spare.pop(node, None)
                node = self._nodes.parent(node)

    def unpin(self, node: Node) -> None:
        with self._lock:
            if node not in self._pins:
                raise ValueError(f"node {node} is not pinned")
            self._pins[node] -= 1
            if not self._pins[node]:
                del self._pins[node]
            while node >= ROOT:
                self._pinned[node] -= 1
                if self._pinned[node]:
                    break
                del self._pinned[node]
                if node in self._facts or node in self._answers:
                    self._spare[node] = None
                node = self._nodes.parent(node)
            self._make_room()

    def _put(self, node: Node, fact: Fact) -> None:
        before = self._facts.get(node)
        self._facts[node] = fact
        self._nbytes += _nbytes(fact) - (0 if before is None else _nbytes(before))
        self._whole += isinstance(fact.scores, Scores) - (before is not None and isinstance(before.scores, Scores))

    def _keep(self, node: Node) -> None:
        """What was written here stays, whatever has to go for it."""
        if self._nbytes > self._max_bytes:
            self._spare.pop(node, None)
            self._make_room(newest=node)
        if node in self._spare:
            self._spare.move_to_end(node)
        elif node not in self._pinned:
            self._spare[node] = None

    def _make_room(self, newest: Node | None = None) -> None:
        while self._nbytes > self._max_bytes and self._spare:
            node = next(iter(self._spare))
            if self._cool(node):
                self._spare.move_to_end(node)
            else:
                self._drop(node)
        if self._nbytes > self._max_bytes and self._whole:  # all at once, so that this is not done for every row
            for node in self._facts:
                if node not in self._pins and node != newest:
                    self._cool(node)

    def _cool(self, node: Node) -> bool:
        """Makes whole scores their head; False where there are none."""
        fact = self._facts.get(node)
        if fact is None or isinstance(fact.scores, Head):
            return False
        cold = Fact(fact.scores.head(), fact.run)
        self._put(node, cold)
        if self._news is not None:
            self._news.cooled(node, cold)
        return True

    def _drop(self, node: Node) -> None:
        del self._spare[node]
        self._drop_facts(node)

    def _drop_facts(self, node: Node) -> None:
        fact = self._facts.pop(node, None)
        if fact is not None:
            self._nbytes -= _nbytes(fact)
            self._whole -= isinstance(fact.scores, Scores)
        self._nbytes -= ANSWER_BYTES * len(self._answers.pop(node, ()))


def _nbytes(fact: Fact) -> int:
    scores = fact.scores
    if isinstance(scores, Head):
        return SCORES_BYTES + scores.ids.nbytes + scores.logprobs.nbytes
    return SCORES_BYTES + scores.logprobs.nbytes
