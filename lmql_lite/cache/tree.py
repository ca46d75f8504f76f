"""The token tree as readers and writers see it (S35). Models write facts, decoders read them; neither does both."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from lmql_lite.cache.scores import Scores

Node = int
"""A place in the tree: the path of tokens from the root. Never part of a key, a seed or a file."""


class Fact(NamedTuple):
    """Something a model said, and the run that asked for it first."""

    scores: Scores
    run: int


class TokenTree(Protocol):
    """What one model (one fingerprint) has said, by token path. Append-only to its users; safe for threads (S28)."""

    @property
    def root(self) -> Node: ...

    def extend(self, node: Node, token: int) -> Node:
        """The child of `node` by `token`; made where it is missing."""
        ...

    def path(self, node: Node) -> tuple[int, ...]:
        """Token ids from the root to `node`."""
        ...

    def path_hash(self, node: Node) -> int:
        """64 bits that depend on the token ids of the path alone, so that they are equal in every process (S3)."""
        ...

    def scores(self, node: Node) -> Fact | None:
        """The scores of what may follow `node`, or None where they are not known (any more)."""
        ...

    def add_scores(self, node: Node, scores: Scores, run: int) -> Fact:
        """Adds a fact. The first one written stays; it is returned."""
        ...

    def forget_scores(self) -> None:
        """Drops every row of scores; nodes stay, and so do verdicts and draws."""
        ...

    def verdict(self, node: Node, question: bytes) -> bytes | None:
        """The answer to a question that scores cannot decide: its digest -> the token or text answered (S1)."""
        ...

    def add_verdict(self, node: Node, question: bytes, answer: bytes) -> bytes:
        """Adds a verdict. The first one written stays; it is returned."""
        ...

    def draw(self, node: Node, question: bytes, seed: int, index: int) -> bytes | None:
        """What was drawn for a question (its digest includes the sampling policy) under a seed (S1)."""
        ...

    def add_draw(self, node: Node, question: bytes, seed: int, index: int, answer: bytes) -> bytes:
        """Adds a draw. The first one written stays; it is returned."""
        ...
