"""Facts in memory, bounded in bytes: those of the node that was used longest ago go first (S9)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from lmql_lite.cache.dirty_set import Question
from lmql_lite.cache.head import Head
from lmql_lite.cache.nodes import ROOT, Nodes
from lmql_lite.cache.scores import Scores
from lmql_lite.cache.tree import Answer, Fact, Node

SCORES_BYTES, ANSWER_BYTES = 600, 650
"""What Python's objects take of memory: for scores beside the numbers themselves, for an answer."""
NODE_BYTES = 48
"""What a node takes of memory at most, with its places in the tables."""


class Memory:
    """What is known of nodes. `cooled` is told where only a head is left of scores.

    A whole row becomes its head first, and goes round once more; next time everything known of that node goes. Nodes
    on the way to a pin are passed over; where there are no others, rows above the pinned nodes become heads, and no
    more than that. What was written last always stays.
    """

    def __init__(self, nodes: Nodes, max_bytes: int, cooled: Callable[[Node, Fact], None]) -> None:
        self.facts: dict[Node, Fact] = {}
        self.answers: dict[Node, dict[Question, Answer]] = {}
        self._nbytes = 0
        """Of the facts."""
        self.max_bytes = max_bytes
        self._nodes = nodes
        self._cooled = cooled
        self._spare: OrderedDict[Node, None] = OrderedDict()  # of which all may go, the longest unused first
        self._whole = 0
        """Whole rows among the facts: only they can become less."""
        self._pins: dict[Node, int] = {}
        self._pinned: dict[Node, int] = {}  # on the way to a pin: pins here, and children that are in this table

    @property
    def nbytes(self) -> int:
        """Of the facts, and of the nodes that no log holds."""
        return self._nbytes + NODE_BYTES * self._nodes.loose

    @property
    def _most(self) -> int:
        """Bytes that facts may take, beside those nodes."""
        return self.max_bytes - NODE_BYTES * self._nodes.loose

    def use(self, node: Node) -> None:
        if node in self._spare:
            self._spare.move_to_end(node)

    def add_fact(self, node: Node, fact: Fact) -> None:
        node = int(node)  # a key that holds nothing
        before = self.facts.get(node)
        if before is not None:
            self._count(before, -1)
        self.facts[node] = fact
        self._count(fact, 1)
        self._keep(node)

    def add_on_the_way(self, facts: Iterable[tuple[Node, Fact]]) -> None:
        """At nodes that lead to a pin, and of which nothing is known: none of it can go for the rest of it."""
        for node, fact in facts:
            self.facts[node] = fact
            self._count(fact, 1)
        self.make_room()

    def add_answer(self, node: Node, question: Question, answer: Answer) -> None:
        node = int(node)
        self.answers.setdefault(node, {})[question] = answer
        self._nbytes += ANSWER_BYTES
        self._keep(node)

    def forget(self, nodes: Iterable[Node]) -> None:
        """All that is known of these nodes."""
        for node in nodes:
            self._spare.pop(node, None)
            self._drop(node)

    def forget_scores(self) -> None:
        for node, fact in self.facts.items():
            self._count(fact, -1)
            if node not in self.answers:
                self._spare.pop(node, None)
        self.facts.clear()

    # pins

    def is_pinned(self, node: Node) -> bool:
        """Whether a node is on the way to a pin."""
        return node in self._pinned

    def pin(self, node: Node) -> None:
        node = int(node)
        self._pins[node] = self._pins.get(node, 0) + 1
        while node >= ROOT:
            count = self._pinned.get(node, 0)
            self._pinned[node] = count + 1
            if count:  # so is all above: a run that moves on pins one node
                return
            self._spare.pop(node, None)
            node = self._nodes.parent(node)

    def unpin(self, node: Node) -> None:
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
            if node in self.facts or node in self.answers:
                self._spare[node] = None
            node = self._nodes.parent(node)
        self.make_room()

    # room

    def make_room(self, newest: Node | None = None) -> None:
        self.drop_spare()
        if self._nbytes > self._most and self._whole:  # all at once, so that this is not done for every row
            self.cool_all(newest)

    def drop_spare(self) -> None:
        """As much of what no run stands on as there is no room for."""
        most = self._most
        while self._nbytes > most and self._spare:
            node = next(iter(self._spare))
            if self._cool(node):
                self._spare.move_to_end(node)
            else:
                del self._spare[node]
                self._drop(node)

    def cool_all(self, newest: Node | None = None) -> None:
        """Makes all rows their heads but the newest, and those that a run asks for."""
        for node in self.facts:
            if node not in self._pins and node != newest:
                self._cool(node)

    def _keep(self, node: Node) -> None:
        """What was written here stays, whatever has to go for it."""
        spare = self._spare
        if self._nbytes > self.max_bytes - NODE_BYTES * self._nodes.loose:
            spare.pop(node, None)
            self.make_room(newest=node)
        if node in spare:
            spare.move_to_end(node)
        elif node not in self._pinned:
            spare[node] = None

    def _count(self, fact: Fact, change: int) -> None:
        scores = fact.scores
        if isinstance(scores, Scores):
            self._whole += change
            self._nbytes += change * (SCORES_BYTES + scores.logprobs.nbytes)
        else:
            self._nbytes += change * (SCORES_BYTES + scores.ids.nbytes + scores.logprobs.nbytes)

    def _cool(self, node: Node) -> bool:
        """Makes whole scores their head; False where there are none."""
        fact = self.facts.get(node)
        if fact is None or isinstance(fact.scores, Head):
            return False
        self._count(fact, -1)
        fact = self.facts[node] = Fact(fact.scores.head(), fact.run)
        self._count(fact, 1)
        self._cooled(node, fact)
        return True

    def _drop(self, node: Node) -> None:
        fact = self.facts.pop(node, None)
        if fact is not None:
            self._count(fact, -1)
        self._nbytes -= ANSWER_BYTES * len(self.answers.pop(node, ()))
