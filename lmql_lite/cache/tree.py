"""The token tree as readers and writers see it (S35). Models write facts, decoders read them; neither does both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from lmql_lite.cache.head import Head
from lmql_lite.cache.scores import Scores

Node = int
"""A place in the tree: the path of tokens from the root. Never part of a key, a seed or a file. Who has one from
`extend`, `walk` or `say` keeps that very object while the node is to be there: see `Holds`."""


class Fact(NamedTuple):
    """Scores that a model gave, whole while hot and their head when cold, and the run that asked for them first.

    Runs count from 1; 0 stands for what was known before there was any, from a file.
    """

    scores: Scores | Head
    run: int


class Answer(NamedTuple):
    """A token that answers a question which heads do not decide: a verdict or a draw (S1).

    `logprob` is the raw natural log-probability that the model gave it; `run` as in `Fact`.
    """

    token: int
    logprob: float
    run: int


class TokenTree(Protocol):
    """What one model (one fingerprint) has said, by token path. Append-only to its users; safe for threads (S28).

    What nobody holds may be forgotten, nodes too; what is known is the truth. A question is a digest of 16 bytes.
    """

    @property
    def root(self) -> Node: ...

    def __len__(self) -> int:
        """How many nodes there are."""
        ...

    def logged(self, node: Node) -> list[tuple[int, Node]]:
        """Token and node of those children that stand in the log of this tree, in no particular order."""
        ...

    def extend(self, node: Node, token: int) -> Node:
        """The child of `node` by `token`; made where it is missing."""
        ...

    def lead(self, node: Node, tokens: Sequence[int]) -> Node:
        """`extend`, by one token after the other: where they lead to. Nodes on the way are in nobody's hands."""
        ...

    def walk(self, node: Node, tokens: Sequence[int]) -> tuple[Node, int]:
        """From `node` by `tokens` as far as nodes exist: the last one, and how many tokens lead there. Adds none."""
        ...

    def path(self, node: Node) -> tuple[int, ...]:
        """Token ids from the root to `node`."""
        ...

    def way_to(self, node: Node) -> list[Node]:
        """The nodes from below the root to `node`."""
        ...

    def path_hash(self, node: Node) -> int:
        """64 bits that depend on the token ids of the path alone, so that they are equal in every process (S3)."""
        ...

    def guess(self, node: Node, most: int, *, skip: bool) -> tuple[int, ...]:
        """At most `most` tokens that may come after `node`, since they did elsewhere after the same last tokens; with
        `skip` also where these differ a little. A guess is no fact: it says what is worth scoring."""
        ...

    def pin(self, node: Node) -> None:
        """A run stands here: facts of `node` and of all nodes above it stay (S9). Pins are counted."""
        ...

    def unpin(self, node: Node) -> None:
        """Takes one pin back. Raises ValueError where there is none."""
        ...

    def scores(self, node: Node) -> Fact | None:
        """The scores of what may follow `node`, or None where they are not known (any more)."""
        ...

    def add_scores(self, node: Node, scores: Scores | Head, run: int) -> Fact:
        """Adds a fact; what is known then is returned. The first one written stays, unless the new one tells more."""
        ...

    def say(self, node: Node, tokens: Sequence[int], facts: Sequence[Fact]) -> list[Node]:
        """`add_scores` of the first fact at `node`, `extend` by the first token, and so on. Gives the nodes that the
        tokens lead to; all of them stay as long as the caller keeps the last. That one is pinned for the caller, and
        nothing of what is said goes to make room for the rest of it."""
        ...

    def hear(self, node: Node, goes_on: float) -> tuple[Fact, list[int]] | None:
        """What `say` has said: the head at `node` and its best token, that of the head behind it, and so on, as long as
        the best token of the next has `goes_on` as its log-probability. None where no head is known: whole scores are
        none."""
        ...

    def forget_scores(self) -> None:
        """Drops all scores; nodes stay, and so do verdicts and draws."""
        ...

    def verdict(self, node: Node, question: bytes) -> Answer | None:
        """The answer to a question that scores cannot decide (S1)."""
        ...

    def add_verdict(self, node: Node, question: bytes, answer: Answer) -> Answer:
        """Adds a verdict. The first one written stays; it is returned."""
        ...

    def draw(self, node: Node, question: bytes, seed: int, index: int) -> Answer | None:
        """What was drawn for a question (its digest includes the sampling policy) under a seed (S1)."""
        ...

    def add_draw(self, node: Node, question: bytes, seed: int, index: int, answer: Answer) -> Answer:
        """Adds a draw. The first one written stays; it is returned."""
        ...
