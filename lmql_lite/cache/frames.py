"""What is logged of a token tree: models, and batches of nodes and facts, as columns that are checked.

Their bytes are made and read in `payloads.py`; what frames them in a file stands in `framing.py` (D19).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmql_lite.errors import CacheError

MAX_NODES = 2**20
"""Nodes, heads, verdicts and draws of one batch, each."""
MAX_ROW_ENTRIES = 2**24
"""Tokens in all heads of one batch together."""
MAX_NUMBER = 2**40
"""No node of a file has a higher number; nor is it ever so late."""
MAX_TEXT_BYTES = 2**16
MAX_MODEL = 2**31 - 1
"""No model of a file has a higher number."""

MODEL, BATCH = 1, 2
DIGEST_BYTES = 16


class FrameError(CacheError):
    """The bytes or the columns of a frame are not what they should be."""


@dataclass(frozen=True, slots=True)
class Model:
    """Declares a model of the file. Batches name it by `number`; `vocabulary_size` is 0 where it is not known."""

    number: int
    fingerprint: str
    name: str
    vocabulary_size: int


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """The best tokens after h nodes (S1): row i has `sizes[i]` of the f tokens in `ids`, best first."""

    nodes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Shape (h,): numbers of nodes."""
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Shape (h,), summing to f."""
    rest: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """Shape (h,): the mass of all other tokens, at least 0."""
    ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Shape (f,)."""
    logprobs: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """Shape (f,): natural logarithms, none below the next within a row."""


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """Answers to v questions that scores cannot decide (S1)."""

    nodes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    questions: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, DIGEST_BYTES), np.uint8))
    """Shape (v, 16): digests."""
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Shape (v,); -1: none."""
    logprobs: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """What was drawn, d times, by question, seed and index (S1)."""

    nodes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    questions: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, DIGEST_BYTES), np.uint8))
    """Shape (d, 16): digests."""
    seeds: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    indices: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Shape (d,); -1: none."""
    logprobs: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Nodes of a model, numbered in file order from `first` (0 is the model's root), and facts there or before.

    The first fact that answers a question is the one that counts. But where a batch `replaces`, all that was said
    before it at the nodes of its facts counts no more, heads and answers alike.
    """

    model: int
    first: int
    parents: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Shape (n,): each below the node's own number."""
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Shape (n,)."""
    heads: Heads = field(default_factory=Heads)
    verdicts: Verdicts = field(default_factory=Verdicts)
    draws: Draws = field(default_factory=Draws)
    written: int = 0
    """When, by the writer's clock: unix seconds, 0 where it is not known."""
    replaces: bool = False

    @property
    def stop(self) -> int:
        """The number after the last node's: where the next batch of the model begins."""
        return self.first + len(self.tokens)


Entry = Model | Batch


@dataclass(frozen=True, slots=True)
class Frame:
    """An entry as bytes. The numbers stand outside the payload: they survive when it is damaged (`payload` is None)."""

    kind: int
    model: int
    first: int
    count: int
    payload: bytes | None


def check(batch: Batch) -> None:
    """FrameError unless lengths agree and are bounded, numbers point backwards, and rows are best first."""
    heads, verdicts, draws = batch.heads, batch.verdicts, batch.draws
    _lengths(MAX_NODES, batch.parents, batch.tokens)
    _lengths(MAX_NODES, heads.nodes, heads.sizes, heads.rest)
    _lengths(MAX_ROW_ENTRIES, heads.ids, heads.logprobs)
    _lengths(MAX_NODES, verdicts.nodes, verdicts.questions, verdicts.tokens, verdicts.logprobs)
    _lengths(MAX_NODES, draws.nodes, draws.questions, draws.seeds, draws.indices, draws.tokens, draws.logprobs)
    if {verdicts.questions.shape[1:], draws.questions.shape[1:]} != {(DIGEST_BYTES,)}:
        raise FrameError(f"a question has {DIGEST_BYTES} bytes")
    if not 0 <= batch.written < MAX_NUMBER:
        raise FrameError(f"a batch cannot have been written at {batch.written}")
    counts = np.array([[len(batch.tokens), len(heads.nodes), len(heads.ids), len(verdicts.nodes), len(draws.nodes)]])
    check_columns(batch, counts, 2**31)


def check_columns(batch: Batch, counts: NDArray[np.int64], vocabulary: int) -> None:
    """`check` of columns that are those of one frame, or of several behind one another; `counts`, shape (frames, 5),
    are nodes, heads, their tokens, verdicts and draws of each."""
    heads, verdicts, draws = batch.heads, batch.verdicts, batch.draws
    if not 1 <= batch.first <= batch.stop <= MAX_NUMBER:
        raise FrameError(f"a batch cannot begin with node {batch.first}")
    own = np.arange(batch.first, batch.stop)
    _require(batch.parents >= 0, "a parent below 0")
    _require(batch.parents < own, "a parent that comes after its child")
    stops = batch.first + np.cumsum(counts[:, 0])
    for nodes, of_each in ((heads.nodes, counts[:, 1]), (verdicts.nodes, counts[:, 3]), (draws.nodes, counts[:, 4])):
        if nodes.size and (nodes.min() < 0 or (nodes >= np.repeat(stops, of_each)).any()):
            raise FrameError("the batch has a fact at a node that is not there")
    for tokens, least in ((batch.tokens, 0), (heads.ids, 0), (verdicts.tokens, -1), (draws.tokens, -1)):
        if tokens.size and (tokens.min() < least or tokens.max() >= vocabulary):
            raise FrameError("the batch has a token that is none")
    # a head without entries would break the row borders below, and says nothing
    _require(heads.sizes >= 1, "a head without tokens")
    ends = np.cumsum(heads.sizes)
    if not np.array_equal(np.append(0, ends)[np.cumsum(counts[:, 1])], np.cumsum(counts[:, 2])):
        raise FrameError("the sizes of the heads do not add up")
    _require(heads.rest >= 0, "a mass below 0")
    descends = heads.logprobs[1:] <= heads.logprobs[:-1]  # false for what is no number, too
    descends[ends[:-1] - 1] = True
    _require(descends, "a head that is not best first")
    for logprobs in (heads.logprobs, verdicts.logprobs, draws.logprobs):
        if logprobs.size:
            _require(~np.isnan(logprobs), "a score that is no number")


def _lengths(most: int, *columns: NDArray[Any]) -> None:
    lengths = {len(column) for column in columns}
    if len(lengths) != 1 or max(lengths) > most:
        raise FrameError(f"columns of lengths {sorted(lengths)} do not go together, or exceed {most}")


def _require(holds: NDArray[np.bool_], problem: str) -> None:
    if not holds.all():
        raise FrameError(f"the batch has {problem}")
