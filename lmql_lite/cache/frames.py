"""What is logged of a token tree, and its bytes: one frame per value, its columns cut into planes of bytes.

Nothing executable is ever read (law 5): lengths, ranges and order are checked before an array is made, and whatever is
wrong is a `FrameError`. What frames a value in a file or on a stream stands in `framing.py` (D19).
"""

from __future__ import annotations

import struct
import zlib
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
"""No node of a file has a higher number."""
MAX_TEXT_BYTES = 2**16

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
    """Nodes of a model, numbered in file order from `first` (0 is the model's root), and facts there or before."""

    model: int
    first: int
    parents: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Shape (n,): each below the node's own number."""
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Shape (n,)."""
    heads: Heads = field(default_factory=Heads)
    verdicts: Verdicts = field(default_factory=Verdicts)
    draws: Draws = field(default_factory=Draws)

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


def encode(entry: Entry) -> Frame:
    """The frame of an entry. FrameError where its columns do not fit together or exceed the bounds above."""
    if isinstance(entry, Model):
        return Frame(MODEL, _word(entry.number, "model number"), 0, 0, _encode_model(entry))
    check(entry)
    _word(entry.model, "model number")
    return Frame(BATCH, entry.model, entry.first, len(entry.tokens), _encode_batch(entry))


def decode(frame: Frame) -> Entry:
    """The entry of a frame; its arrays are its own. FrameError, and nothing else, for whatever bytes."""
    if frame.payload is None:
        raise FrameError("the frame is damaged")
    try:
        if frame.kind == MODEL:
            return _decode_model(frame, frame.payload)
        if frame.kind == BATCH:
            return _decode_batch(frame, frame.payload)
    except (struct.error, zlib.error, UnicodeDecodeError) as error:
        raise FrameError(f"the frame cannot be read: {error}") from None
    raise FrameError(f"frames of kind {frame.kind} are unknown")


_MODEL = struct.Struct("<IHI")


def _encode_model(model: Model) -> bytes:
    try:
        fingerprint, name = model.fingerprint.encode(), model.name.encode()
    except UnicodeEncodeError as error:
        raise FrameError(f"the name of the model is not text: {error}") from None
    if max(len(fingerprint), len(name)) >= MAX_TEXT_BYTES:
        raise FrameError("the fingerprint or name of the model is too long")
    size = _word(model.vocabulary_size, "vocabulary size")
    return _MODEL.pack(size, len(fingerprint), len(name)) + fingerprint + name


def _decode_model(frame: Frame, payload: bytes) -> Model:
    size, fingerprint_bytes, name_bytes = _MODEL.unpack_from(payload)
    texts = payload[_MODEL.size :]
    if len(texts) != fingerprint_bytes + name_bytes:
        raise FrameError("the frame of a model has another length than it says")
    return Model(frame.model, texts[:fingerprint_bytes].decode(), texts[fingerprint_bytes:].decode(), size)


def _word(number: int, what: str) -> int:
    if not 0 <= number < 2**31:
        raise FrameError(f"the {what} {number} is out of range")
    return number


def check(batch: Batch) -> None:
    """FrameError unless lengths agree and are bounded, numbers point backwards, and rows are best first."""
    heads, verdicts, draws = batch.heads, batch.verdicts, batch.draws
    if not 1 <= batch.first <= MAX_NUMBER - MAX_NODES:
        raise FrameError(f"a batch cannot begin with node {batch.first}")
    _lengths(MAX_NODES, batch.parents, batch.tokens)
    _lengths(MAX_NODES, heads.nodes, heads.sizes, heads.rest)
    _lengths(MAX_ROW_ENTRIES, heads.ids, heads.logprobs)
    _lengths(MAX_NODES, verdicts.nodes, verdicts.questions, verdicts.tokens, verdicts.logprobs)
    _lengths(MAX_NODES, draws.nodes, draws.questions, draws.seeds, draws.indices, draws.tokens, draws.logprobs)
    if {verdicts.questions.shape[1:], draws.questions.shape[1:]} != {(DIGEST_BYTES,)}:
        raise FrameError(f"a question has {DIGEST_BYTES} bytes")
    own = np.arange(batch.first, batch.stop)
    _require(batch.parents >= 0, "a parent below 0")
    _require(batch.parents < own, "a parent that comes after its child")
    for nodes in (heads.nodes, verdicts.nodes, draws.nodes):
        if nodes.size and (nodes.min() < 0 or nodes.max() >= batch.stop):
            raise FrameError("the batch has a fact at a node that is not there")
    for tokens, least in ((batch.tokens, 0), (heads.ids, 0), (verdicts.tokens, -1), (draws.tokens, -1)):
        if tokens.size and tokens.min() < least:
            raise FrameError("the batch has a token below 0")
    # a head without entries would break the row borders below, and says nothing
    _require(heads.sizes >= 1, "a head without tokens")
    if int(heads.sizes.sum()) != len(heads.ids):
        raise FrameError("the sizes of the heads do not add up")
    _require(heads.rest >= 0, "a mass below 0")
    descends = heads.logprobs[1:] <= heads.logprobs[:-1]  # false for what is no number, too
    descends[np.cumsum(heads.sizes)[:-1] - 1] = True
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


# heads, their tokens, verdicts, draws, bytes of the packed planes; then one width in bytes per whole-number column
_COUNTS = struct.Struct("<5I")
_WIDTHS = 11


def _encode_batch(batch: Batch) -> bytes:
    heads, verdicts, draws, stop = batch.heads, batch.verdicts, batch.draws, batch.stop
    # a node is written as its distance from the end of the batch, a parent as that from its child: small numbers
    integers = [
        np.arange(batch.first, stop) - 1 - batch.parents,
        batch.tokens,
        stop - 1 - heads.nodes,
        heads.sizes,
        heads.ids,
        stop - 1 - verdicts.nodes,
        verdicts.tokens.astype(np.int64) + 1,
        stop - 1 - draws.nodes,
        draws.tokens.astype(np.int64) + 1,
        draws.indices,
        draws.seeds,
    ]
    widths, soft, hard = bytearray(), [], []
    for column in integers:
        width = _width(column)
        widths.append(width)
        soft += _planes(column, width)
    for floats in (heads.rest, heads.logprobs, verdicts.logprobs, draws.logprobs):
        planes = _planes(np.ascontiguousarray(floats, np.float32).view(np.uint32), 4)
        hard += planes[:2]  # the low bits of a score are noise: deflating them costs time and gains nothing
        soft += planes[2:]
    hard += [np.ascontiguousarray(questions, np.uint8).tobytes() for questions in (verdicts.questions, draws.questions)]
    packed = b"".join(soft)
    deflated = zlib.compress(packed, 1)
    if len(deflated) < len(packed):  # else as it is: the length tells
        packed = deflated
    counts = _COUNTS.pack(len(heads.nodes), len(heads.ids), len(verdicts.nodes), len(draws.nodes), len(packed))
    return b"".join((counts, widths, packed, *hard))


def _decode_batch(frame: Frame, payload: bytes) -> Batch:
    n = frame.count
    h, f, v, d, packed_bytes = _COUNTS.unpack_from(payload)
    if max(n, h, v, d) > MAX_NODES or f > MAX_ROW_ENTRIES:
        raise FrameError("the frame says that it holds more than a frame may hold")
    begin = _COUNTS.size + _WIDTHS
    widths = payload[_COUNTS.size : begin]
    lengths = (n, n, h, h, f, v, v, d, d, d, d)
    if len(widths) != _WIDTHS or max(widths) > 8:
        raise FrameError("the widths of the columns are out of range")
    soft_bytes = sum(map(int.__mul__, lengths, widths)) + 2 * (h + f + v + d)
    hard_bytes = 2 * (h + f + v + d) + DIGEST_BYTES * (v + d)
    if len(payload) != begin + packed_bytes + hard_bytes:
        raise FrameError("the frame has another length than it says")
    soft = _Cursor(_inflate(payload[begin : begin + packed_bytes], soft_bytes))
    hard = _Cursor(payload[begin + packed_bytes :])
    wide = [soft.integers(length, width) for length, width in zip(lengths, widths, strict=True)]
    rest, logprobs, verdict_logprobs, draw_logprobs = (_floats(length, soft, hard) for length in (h, f, v, d))
    verdict_questions, draw_questions = (
        hard.take(DIGEST_BYTES * length).reshape(-1, DIGEST_BYTES) for length in (v, d)
    )
    parents, tokens, head_nodes, sizes, ids, verdict_nodes, verdict_tokens, draw_nodes, draw_tokens, indices, seeds = (
        wide
    )
    stop = frame.first + n
    batch = Batch(
        frame.model,
        frame.first,
        np.arange(frame.first, stop) - 1 - _numbers(parents),
        _tokens(tokens),
        Heads(stop - 1 - _numbers(head_nodes), _numbers(sizes), rest, _tokens(ids), logprobs),
        Verdicts(stop - 1 - _numbers(verdict_nodes), verdict_questions, _tokens(verdict_tokens, 1), verdict_logprobs),
        Draws(
            stop - 1 - _numbers(draw_nodes),
            draw_questions,
            seeds.astype(np.uint64),
            _below(indices, 2**32).astype(np.uint32),
            _tokens(draw_tokens, 1),
            draw_logprobs,
        ),
    )
    check(batch)
    return batch


def _width(column: NDArray[Any]) -> int:
    """Bytes that the largest number of a column of numbers from 0 needs; 0 where all are 0."""
    return (int(column.max()).bit_length() + 7) // 8 if column.size else 0


def _planes(column: NDArray[Any], width: int) -> list[bytes]:
    """The column's lowest bytes, then the next ones, ...: bytes of one meaning stand together, and deflate well."""
    if not (width and column.size):
        return []
    wide = np.ascontiguousarray(column, "<u4" if width <= 4 else "<u8")
    each = wide.view(np.uint8).reshape(-1, wide.itemsize)
    return [each[:, plane].tobytes() for plane in range(width)]


def _inflate(packed: bytes, size: int) -> bytes:
    """Never makes more than `size` bytes, whatever the stream says."""
    if len(packed) == size:
        return packed
    stream = zlib.decompressobj()
    plain = stream.decompress(packed, size + 1)
    if len(plain) != size or not stream.eof or stream.unused_data:
        raise FrameError("the packed part of the frame has another length than it says")
    return plain


class _Cursor:
    """Takes columns off bytes whose length is already known to suffice."""

    def __init__(self, data: bytes) -> None:
        self._bytes = np.frombuffer(data, np.uint8)
        self._at = 0

    def take(self, size: int) -> NDArray[np.uint8]:
        self._at += size
        return self._bytes[self._at - size : self._at]

    def integers(self, length: int, width: int) -> NDArray[Any]:
        dtype: type[np.unsignedinteger[Any]] = np.uint32 if width <= 4 else np.uint64
        if not (width and length):
            return np.zeros(length, dtype)
        column = self.take(length).astype(dtype)
        for plane in range(1, width):
            column |= self.take(length).astype(dtype) << dtype(8 * plane)
        return column


def _floats(length: int, soft: _Cursor, hard: _Cursor) -> NDArray[np.float32]:
    if not length:
        return np.zeros(0, np.float32)
    bits: NDArray[np.uint32] = hard.integers(length, 2) | soft.integers(length, 2) << np.uint32(16)
    return bits.view(np.float32)


def _numbers(column: NDArray[Any]) -> NDArray[np.int64]:
    return _below(column, MAX_NUMBER).astype(np.int64)


def _tokens(column: NDArray[Any], shift: int = 0) -> NDArray[np.int32]:
    return (_below(column, 2**31).astype(np.int64) - shift).astype(np.int32)


def _below(column: NDArray[Any], bound: int) -> NDArray[Any]:
    if column.size and int(column.max()) >= bound:
        raise FrameError("a column has a number that is out of range")
    return column
