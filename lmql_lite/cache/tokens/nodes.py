"""Nodes of a token tree, and their entries."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple
from weakref import ReferenceType

from lmql_lite.cache.tokens.outcomes import Outcomes
from lmql_lite.cache.tokens.scores import Scores, TopK

ROOT_TOKEN = -1


class Node:
    """A place in a token tree: the path of tokens from the root. While it lives, there is no other node for its path.

    A node keeps the nodes above it, and no node below it: Python frees the nodes that nobody holds. `number` is
    different for each node of a tree, for events; it is no part of a key, a seed or a file.
    """

    __slots__ = (
        "__weakref__", "below", "entered", "entries", "freed", "hash", "looked", "number", "parent", "pinned", "place",
        "token",
    )  # fmt: skip

    def __init__(self, parent: Node | None, token: int, number: int, freed: deque[Freed]) -> None:
        self.parent = parent
        self.token = token
        self.number = number
        self.freed = freed
        """Queue of freed nodes. A node may be freed on any thread at any moment, so adding to it takes no lock."""
        self.below: dict[int, ReferenceType[Node]] | None = None
        self.hash = 0
        """Hash of the path; 0 until it is asked for."""
        self.place = 0
        """Hash of the path by which its rows are found; 0 until it is asked for."""
        self.entries: dict[Question, Entry] | None = None
        self.pinned = 0
        """Pins of this node, and children on the path to a pin."""
        self.looked = -1
        """Epoch of the file in which the rows of this node were last read; -1 if they were not."""
        self.entered = False
        """True if drafts may continue as this node does."""

    def __del__(self) -> None:
        if self.parent is not None and self.parent.below is not None:
            self.freed.append(Freed(self.parent.below, self.token))

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, _: object) -> Node:
        return self

    def __repr__(self) -> str:
        return f"<Node {self.number}>"


class Freed(NamedTuple):
    """Children among which a freed node was, and its token."""

    siblings: dict[int, ReferenceType[Node]]
    token: int


Question = bytes | tuple[bytes, int, int]
"""Key of an entry: `SCORES`; for a greedy answer a digest of 16 bytes, for a sampled one (digest, seed, index)."""
SCORES: Question = b""
SCORES_BYTES, ANSWER_BYTES = 900, 650
"""Memory of Python's objects: of scores without their numbers, and of an answer."""


class ScoreEntry(NamedTuple):
    """Scores of a model, whole or their top k, and the run that asked for them first.

    Runs count from 1; 0 stands for an entry from a file. `onward` are the further bytes of a server's token, whose
    first one is the best token here (S11).
    """

    scores: Scores | TopK
    run: int
    onward: bytes = b""

    def top_k(self) -> TopK:
        return self.scores if isinstance(self.scores, TopK) else self.scores.top_k()

    @property
    def logprob(self) -> float:
        """Log-probability of the best token."""
        return float(self.top_k().logprobs.item(0))

    @property
    def tokens(self) -> tuple[int, ...]:
        """The best token and those after it."""
        return (self.top_k().ids.item(0), *self.onward)

    @property
    def is_whole(self) -> bool:
        """True for a whole row, which can be reduced to its top k."""
        return isinstance(self.scores, Scores)

    @property
    def nbytes(self) -> int:
        """Memory of the entry."""
        scores = self.scores
        return SCORES_BYTES + scores.logprobs.nbytes + (0 if isinstance(scores, Scores) else scores.ids.nbytes)


class Answer(NamedTuple):
    """Token that answers a question which a top-k entry does not decide, greedy or sampled (S1).

    `logprob` is the model's raw natural log-probability of the token; `run` and `onward` are those of `ScoreEntry`. If
    the question was for several outcomes (S36), the answer has all of them, and `token` is the first.
    """

    token: int
    logprob: float
    run: int
    onward: bytes = b""
    outcomes: Outcomes | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token and those after it."""
        return (self.token, *self.onward)

    @property
    def is_whole(self) -> bool:
        return False

    @property
    def nbytes(self) -> int:
        return ANSWER_BYTES + (0 if self.outcomes is None else SCORES_BYTES + self.outcomes.nbytes)


Entry = ScoreEntry | Answer
