"""Record as columns: its nodes, their parents and their entries, with checks (D19).

`codec.py` encodes and decodes the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.framing import ADDRESS_BYTES, FrameError

MAX_NODES = 2**20
"""Maximum number of each of nodes, anchors, top-k entries, answers, questions and parents in one record."""
MAX_TOKENS = 2**24
"""Maximum number of tokens in all top-k entries of one record together."""
MAX_TIME = 2**40
QUESTION_BYTES = 16
AGE_SECONDS = 3600
"""Maximum time between the writing of the entries of one record, which all get the age of the oldest."""


@dataclass(frozen=True, slots=True)
class Model:
    """Model of the entries of a record; `vocabulary_size` is 0 if it is not known."""

    fingerprint: str
    name: str
    vocabulary_size: int


def _int64() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


def _int32() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


def _float32() -> NDArray[np.float32]:
    return np.zeros(0, np.float32)


def _questions() -> NDArray[np.uint8]:
    return np.zeros((0, QUESTION_BYTES), np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class TopKs:
    """The best tokens after t nodes (S1): row i has `sizes[i]` of the f tokens in `ids`, best first."""

    nodes: NDArray[np.int64] = field(default_factory=_int64)
    """Shape (t,)."""
    sizes: NDArray[np.int64] = field(default_factory=_int64)
    """Shape (t,), summing to f."""
    rest: NDArray[np.float32] = field(default_factory=_float32)
    """Shape (t,): the mass of all other tokens, at least 0."""
    ids: NDArray[np.int32] = field(default_factory=_int32)
    """Shape (f,)."""
    logprobs: NDArray[np.float32] = field(default_factory=_float32)
    """Shape (f,): natural logarithms, none below the next within a row."""


@dataclass(frozen=True, slots=True, eq=False)
class GreedyAnswers:
    """Answers to v questions that scores cannot decide (S1)."""

    nodes: NDArray[np.int64] = field(default_factory=_int64)
    questions: NDArray[np.uint8] = field(default_factory=_questions)
    """Shape (v, 16): digests."""
    tokens: NDArray[np.int32] = field(default_factory=_int32)
    """Shape (v,); -1: none."""
    logprobs: NDArray[np.float32] = field(default_factory=_float32)


@dataclass(frozen=True, slots=True, eq=False)
class SampledAnswers:
    """Tokens of d draws, by question, seed and index (S1)."""

    nodes: NDArray[np.int64] = field(default_factory=_int64)
    questions: NDArray[np.uint8] = field(default_factory=_questions)
    """Shape (d, 16): digests."""
    seeds: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    indices: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    tokens: NDArray[np.int32] = field(default_factory=_int32)
    """Shape (d,); -1: none."""
    logprobs: NDArray[np.float32] = field(default_factory=_float32)


Columns = TypeVar("Columns", TopKs, GreedyAnswers, SampledAnswers)


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Entries of all kinds. `nodes` are places in a record or nodes of a tree."""

    topks: TopKs = field(default_factory=TopKs)
    greedy: GreedyAnswers = field(default_factory=GreedyAnswers)
    sampled: SampledAnswers = field(default_factory=SampledAnswers)

    def __len__(self) -> int:
        return len(self.topks.nodes) + len(self.greedy.nodes) + len(self.sampled.nodes)

    @property
    def nodes(self) -> NDArray[np.int64]:
        """Shape (entries,): top-k entries first, then greedy answers, then sampled answers."""
        return np.concatenate([self.topks.nodes, self.greedy.nodes, self.sampled.nodes])

    def moved(self, to: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Entries:
        """The same entries at other nodes."""
        return Entries(
            replace(self.topks, nodes=to(self.topks.nodes)),
            replace(self.greedy, nodes=to(self.greedy.nodes)),
            replace(self.sampled, nodes=to(self.sampled.nodes)),
        )

    def pick(self, places: NDArray[np.intp]) -> Entries:
        """Some of the entries, by their places in `nodes`, in ascending order."""
        first = len(self.topks.nodes)
        second = first + len(self.greedy.nodes)
        begin, end = np.searchsorted(places, (first, second))
        return Entries(
            rows(self.topks, places[:begin]),
            picked(self.greedy, places[begin:end] - first),
            picked(self.sampled, places[end:] - second),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A forest of nodes of one model, and their entries. It names its model, and the records that it hangs on.

    Places count its a anchors first, which are nodes of other records, and then its own n nodes. The first entry that
    answers a question counts. But if a record `replaces`, it supersedes all earlier entries, scores and answers, at the
    nodes of its own entries.
    """

    model: Model
    parents: tuple[bytes, ...] = ()
    """Addresses of the records that this one hangs on."""
    anchor_records: NDArray[np.int64] = field(default_factory=_int64)
    """Shape (a,): 0 for the root of the model's tree, i for the record at `parents[i - 1]`."""
    anchor_nodes: NDArray[np.int64] = field(default_factory=_int64)
    """Shape (a,): index among that record's own nodes; 0 for the root."""
    above: NDArray[np.int64] = field(default_factory=_int64)
    """Shape (n,): the place of each node's parent, lower than its own."""
    tokens: NDArray[np.int32] = field(default_factory=_int32)
    """Shape (n,)."""
    entries: Entries = field(default_factory=Entries)
    written: int = 0
    """Time of writing by the writer's clock, in Unix seconds; 0 if it is not known."""
    replaces: bool = False


ANCHORS, NODES, TOPKS, TOPK_TOKENS, GREEDY, SAMPLED, QUESTIONS, PARENTS = range(8)
"""Columns of the array of counts of several records, shape (records, 8)."""


def check(record: Record) -> None:
    """Raises FrameError unless lengths agree and are bounded, places point backwards, and rows are best first."""
    topks, greedy, sampled = record.entries.topks, record.entries.greedy, record.entries.sampled
    _lengths(MAX_NODES, record.above, record.tokens)
    _lengths(MAX_NODES, record.anchor_records, record.anchor_nodes)
    _lengths(MAX_NODES, topks.nodes, topks.sizes, topks.rest)
    _lengths(MAX_TOKENS, topks.ids, topks.logprobs)
    _lengths(MAX_NODES, *(getattr(greedy, one.name) for one in fields(greedy)))
    _lengths(MAX_NODES, *(getattr(sampled, one.name) for one in fields(sampled)))
    if {greedy.questions.shape[1:], sampled.questions.shape[1:]} != {(QUESTION_BYTES,)}:
        raise FrameError(f"a question has {QUESTION_BYTES} bytes")
    if not 0 <= record.written < MAX_TIME:
        raise FrameError(f"the record's time of writing, {record.written}, is out of range")
    if any(len(address) != ADDRESS_BYTES for address in record.parents):
        raise FrameError(f"an address has {ADDRESS_BYTES} bytes")
    columns = (
        record.anchor_records,
        record.tokens,
        topks.nodes,
        topks.ids,
        greedy.nodes,
        sampled.nodes,
        (),
        record.parents,
    )
    check_columns(record, np.array([[len(column) for column in columns]]))


def check_columns(record: Record, counts: NDArray[np.int64]) -> None:
    """`check` for the columns of one record, or of several joined ones."""
    topks, greedy, sampled = record.entries.topks, record.entries.greedy, record.entries.sampled
    places, nodes_of, parents = counts[:, ANCHORS] + counts[:, NODES], counts[:, NODES], counts[:, PARENTS]
    ends = np.cumsum(places)
    begins = ends - places
    _require(record.anchor_nodes >= 0, "an anchor below 0")
    _within(record.anchor_records, np.zeros_like(parents), parents + 1, counts[:, ANCHORS], "an anchor out of range")
    own = np.arange(len(record.tokens)) + np.repeat(np.cumsum(counts[:, ANCHORS]), nodes_of)
    _require(record.above >= np.repeat(begins, nodes_of), "a node without a parent")
    _require(record.above < own, "a node whose parent comes later")
    for nodes, kind in ((topks.nodes, TOPKS), (greedy.nodes, GREEDY), (sampled.nodes, SAMPLED)):
        _within(nodes, begins, ends, counts[:, kind], "an entry at a missing node")
    _require(record.tokens >= 0, "a token below 0")  # marks of blocks are above the vocabulary
    bound = record.model.vocabulary_size or 2**31
    for tokens, least in ((topks.ids, 0), (greedy.tokens, -1), (sampled.tokens, -1)):
        if tokens.size and (tokens.min() < least or tokens.max() >= bound):
            raise FrameError("the record has a token out of range")
    # a row without tokens is useless, and would break the borders below
    _require(topks.sizes >= 1, "a top-k entry without tokens")
    borders = np.cumsum(topks.sizes)
    if not np.array_equal(np.append(0, borders)[np.cumsum(counts[:, TOPKS])], np.cumsum(counts[:, TOPK_TOKENS])):
        raise FrameError("the sizes of the top-k entries do not add up")
    _require(topks.rest >= 0, "a mass below 0")
    descends = topks.logprobs[1:] <= topks.logprobs[:-1]  # also false for NaN
    descends[borders[:-1] - 1] = True
    _require(descends, "a top-k entry that is not best first")
    for logprobs in (topks.logprobs, greedy.logprobs, sampled.logprobs):
        if logprobs.size:
            _require(~np.isnan(logprobs), "a score that is not a number")


def _within(
    column: NDArray[np.int64], least: NDArray[np.int64], end: NDArray[np.int64], many: NDArray[np.int64], problem: str
) -> None:
    """Raises FrameError unless each number is within the bounds of its record."""
    if column.size:
        _require((column >= np.repeat(least, many)) & (column < np.repeat(end, many)), problem)


def _lengths(most: int, *columns: NDArray[Any]) -> None:
    lengths = {len(column) for column in columns}
    if len(lengths) != 1 or max(lengths) > most:
        raise FrameError(f"columns of lengths {sorted(lengths)} do not match, or exceed {most}")


def _require(holds: NDArray[np.bool_], problem: str) -> None:
    if holds.size and not holds.all():
        raise FrameError(f"the record has {problem}")


def rows(topks: TopKs, places: NDArray[np.intp]) -> TopKs:
    """Some of the top-k entries."""
    sizes = topks.sizes[places]
    begins = (np.cumsum(topks.sizes) - topks.sizes)[places]
    flat = np.arange(int(sizes.sum())) + np.repeat(begins - (np.cumsum(sizes) - sizes), sizes)
    return TopKs(topks.nodes[places], sizes, topks.rest[places], topks.ids[flat], topks.logprobs[flat])


def picked(answers: Columns, places: NDArray[np.intp]) -> Columns:
    """Some of the answers."""
    return type(answers)(*(getattr(answers, column.name)[places] for column in fields(answers)))


def joined(parts: Sequence[Columns]) -> Columns:
    """The rows of all parts."""
    names = [column.name for column in fields(parts[0])]
    return type(parts[0])(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
