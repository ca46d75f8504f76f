"""Encoding of records as bytes: one payload per record, its columns divided into planes of bytes.

A plane has one byte of every number. Bytes of one meaning compress well together, a column of small numbers has few
planes, and the planes of several columns join into those of one long column. Low bytes that are noise are kept number
by number.

Nothing executable is ever read (law 5). Lengths, ranges and order are checked before an array is made, and every
violation is a `FrameError`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.columns import (
    ANCHORS,
    GREEDY,
    MAX_NODES,
    MAX_TIME,
    MAX_TOKENS,
    NODES,
    PARENTS,
    QUESTION_BYTES,
    QUESTIONS,
    SAMPLED,
    TOPK_TOKENS,
    TOPKS,
    Entries,
    GreedyAnswers,
    Model,
    Record,
    SampledAnswers,
    TopKs,
    check,
    check_columns,
)
from lmql_lite.cache.framing import ADDRESS_BYTES, FrameError

# counts, bytes of the packed planes, time of writing, `replaces`, size of the vocabulary, bytes of the fingerprint and
# of the name; then one width in bytes per whole-number column
_HEAD = struct.Struct("<9IQBIHH15s")
_COLUMNS = (
    (NODES, 0),  # distance to the parent's place, minus 1
    (NODES, 1),  # token
    (ANCHORS, 0),  # record
    (ANCHORS, 0),  # node of the record
    (TOPKS, 0),  # place, from the last one back
    (TOPKS, 0),  # size
    (TOPK_TOKENS, 1),  # token
    (GREEDY, 0),  # place, from the last one back
    (GREEDY, 0),  # question
    (GREEDY, 1),  # token + 1
    (SAMPLED, 0),  # place, from the last one back
    (SAMPLED, 0),  # question
    (SAMPLED, 1),  # token + 1
    (SAMPLED, 0),  # index
    (SAMPLED, 0),  # seed
    (TOPKS, 3),  # rest, float32 like the next ones
    (TOPK_TOKENS, 3),
    (GREEDY, 3),
    (SAMPLED, 3),
)
"""For each column the count that is its length, and the number of low bytes that are noise and do not compress."""
_FLOATS = 15


class _Shape:
    """Layout of payloads whose columns have these widths."""

    def __init__(self, widths: Sequence[int]) -> None:
        self.widths = widths
        self.hard: list[tuple[int, int, int]] = []
        """Low bytes of a column, number by number: (counted by, column, bytes)."""
        self.soft: list[tuple[int, int, int]] = []
        """Planes, which are packed: (counted by, column, plane)."""
        for column, (width, (counted, noise)) in enumerate(zip(widths, _COLUMNS, strict=True)):
            if low := min(width, noise):
                self.hard.append((counted, column, low))
            self.soft += [(counted, column, plane) for plane in range(low, width)]

    def sizes(self, counts: Sequence[int]) -> tuple[int, int]:
        """Bytes of the packed part, when it is unpacked, and of the rest."""
        rest = QUESTION_BYTES * counts[QUESTIONS] + ADDRESS_BYTES * counts[PARENTS]
        return (
            sum([counts[counted] for counted, _, _ in self.soft]),
            rest + sum([size * counts[counted] for counted, _, size in self.hard]),
        )


@lru_cache(256)  # thousands of small records have the same layout
def _shape(widths: bytes, has_greedy: bool, has_sampled: bool) -> _Shape:
    return _Shape((*widths, 4, 4, 4 * has_greedy, 4 * has_sampled))


def encode(record: Record) -> bytes:
    """The payload of a record. Raises FrameError if its columns do not fit together or exceed their bounds."""
    size, fingerprint, name = _of_model(record.model)
    check(record)
    topks, greedy, sampled = record.entries.topks, record.entries.greedy, record.entries.sampled
    anchors, nodes = len(record.anchor_records), len(record.tokens)
    last = anchors + nodes - 1
    questions, asked = _distinct(np.concatenate([greedy.questions, sampled.questions]))
    integers = [
        np.arange(anchors, anchors + nodes) - 1 - record.above,
        record.tokens,
        record.anchor_records,
        record.anchor_nodes,
        last - topks.nodes,
        topks.sizes,
        topks.ids,
        last - greedy.nodes,
        asked[: len(greedy.nodes)],
        greedy.tokens.astype(np.int64) + 1,
        last - sampled.nodes,
        asked[len(greedy.nodes) :],
        sampled.tokens.astype(np.int64) + 1,
        sampled.indices,
        sampled.seeds,
    ]
    floats = [
        np.ascontiguousarray(logprobs, np.float32).view(np.uint32)
        for logprobs in (topks.rest, topks.logprobs, greedy.logprobs, sampled.logprobs)
    ]
    counts = (
        anchors, nodes, len(topks.nodes), len(topks.ids), len(greedy.nodes), len(sampled.nodes), len(questions),
        len(record.parents),
    )  # fmt: skip
    widths = bytes(map(_width_of, integers))
    shape = _shape(widths, counts[GREEDY] > 0, counts[SAMPLED] > 0)
    columns = [_bytes_of(column) for column in (*integers, *floats)]
    packed = pack(b"".join([columns[column][:, plane].tobytes() for _, column, plane in shape.soft]))
    hard = [columns[column][:, :size].tobytes() for _, column, size in shape.hard]
    head = _HEAD.pack(*counts, len(packed), record.written, record.replaces, size, len(fingerprint), len(name), widths)
    return b"".join((head, fingerprint, name, packed, *hard, questions.tobytes(), *record.parents))


def _distinct(questions: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The distinct questions in the order of their first use, and the index of each question among them."""
    numbers: dict[bytes, int] = {}
    data = questions.tobytes()
    asked = [
        numbers.setdefault(data[at : at + QUESTION_BYTES], len(numbers)) for at in range(0, len(data), QUESTION_BYTES)
    ]
    distinct = np.frombuffer(b"".join(numbers), np.uint8).reshape(-1, QUESTION_BYTES)
    return distinct, np.array(asked, np.int64)


def _of_model(model: Model) -> tuple[int, bytes, bytes]:
    try:
        fingerprint, name = model.fingerprint.encode(), model.name.encode()
    except UnicodeEncodeError as error:
        raise FrameError(f"the name of the model is not text: {error}") from None
    if max(len(fingerprint), len(name)) >= 2**16:
        raise FrameError("the fingerprint or name of the model is too long")
    if not 0 <= model.vocabulary_size < 2**31:
        raise FrameError(f"the vocabulary size {model.vocabulary_size} is out of range")
    return model.vocabulary_size, fingerprint, name


class Payload(NamedTuple):
    """A parsed payload, with its columns still in pieces of bytes."""

    model: Model
    parents: tuple[bytes, ...]
    counts: tuple[int, ...]
    written: int
    replaces: bool
    shape: _Shape
    soft: bytes
    hard: bytes
    questions: bytes


class Parser:
    """Parser of payloads. It remembers models, which thousands of small records share."""

    def __init__(self) -> None:
        self._models: dict[tuple[int, int, bytes], Model] = {}

    def parse(self, payload: bytes) -> Payload:
        """The parsed payload. Raises FrameError, and nothing else, for any invalid bytes."""
        try:
            *counts, packed_bytes, written, replaces, size, fingerprint_bytes, name_bytes, widths = _HEAD.unpack_from(
                payload
            )
            if max(counts) > MAX_TOKENS or max(counts[:TOPK_TOKENS] + counts[GREEDY:]) > MAX_NODES:
                raise FrameError("the record claims to hold more than a record may hold")
            if max(widths) > 8 or replaces > 1 or written >= MAX_TIME:
                raise FrameError("the head of the record is out of range")
            shape = _shape(widths, counts[GREEDY] > 0, counts[SAMPLED] > 0)
            begin = _HEAD.size + fingerprint_bytes + name_bytes
            soft_bytes, hard_bytes = shape.sizes(counts)
            end = begin + packed_bytes
            if len(payload) != end + hard_bytes:
                raise FrameError("the record's length does not match its header")
            soft = unpack(payload[begin:end], soft_bytes)
            if soft is None:
                raise FrameError("the length of the record's packed part does not match its header")
            parents = len(payload) - ADDRESS_BYTES * counts[PARENTS]
            questions = parents - QUESTION_BYTES * counts[QUESTIONS]
            model_key = (size, fingerprint_bytes, payload[_HEAD.size : begin])
            model = self._models.get(model_key)
            if model is None:
                model = self._models[model_key] = _model(*model_key)
        except (struct.error, zlib.error, UnicodeDecodeError) as error:
            raise FrameError(f"the record cannot be read: {error}") from None
        addresses = tuple([payload[at : at + ADDRESS_BYTES] for at in range(parents, len(payload), ADDRESS_BYTES)])
        return Payload(
            model, addresses, tuple(counts), written, replaces == 1, shape, soft, payload[end:questions],
            payload[questions:parents],
        )  # fmt: skip


def _model(size: int, fingerprint_bytes: int, texts: bytes) -> Model:
    if size >= 2**31:
        raise FrameError("the vocabulary size is out of range")
    return Model(texts[:fingerprint_bytes].decode(), texts[fingerprint_bytes:].decode(), size)


def join(payloads: Sequence[Payload]) -> tuple[Record, NDArray[np.int64]]:
    """One or more records of one model as one record, and the counts of each. Columns are concatenated, and places are
    renumbered. The time of writing and `replaces` are those of the first record.

    Thousands of small records are read as fast as one large record. Raises FrameError if one of them is invalid.
    """
    pieces = _Pieces({payload.shape for payload in payloads})
    for payload in payloads:
        pieces.add(payload)
    counts = np.array([payload.counts for payload in payloads], dtype=np.int64)
    totals = [int(total) for total in counts.sum(axis=0)]
    columns = [pieces.column(column, totals[counted]) for column, (counted, _) in enumerate(_COLUMNS)]
    (
        above, tokens, records, nodes, topk_places, sizes, ids, greedy_places, greedy_questions, greedy_tokens,
        sampled_places, sampled_questions, sampled_tokens, indices, seeds,
    ) = columns[:_FLOATS]  # fmt: skip
    rest, logprobs, greedy_logprobs, sampled_logprobs = (column.view(np.float32) for column in columns[_FLOATS:])
    questions = np.frombuffer(b"".join([payload.questions for payload in payloads]), np.uint8)
    questions = questions.reshape(-1, QUESTION_BYTES)
    ends = np.cumsum(counts[:, ANCHORS] + counts[:, NODES])
    asked = np.cumsum(counts[:, QUESTIONS]) - counts[:, QUESTIONS]

    def places(distances: NDArray[Any], kind: int) -> NDArray[np.int64]:
        return np.repeat(ends, counts[:, kind]) - 1 - _numbers(distances)

    def question(column: NDArray[Any], kind: int) -> NDArray[np.uint8]:
        numbers = _numbers(column)
        if (numbers >= np.repeat(counts[:, QUESTIONS], counts[:, kind])).any():
            raise FrameError("the record has an answer to a missing question")
        return questions[numbers + np.repeat(asked, counts[:, kind])]

    own = np.arange(totals[NODES]) + np.repeat(np.cumsum(counts[:, ANCHORS]), counts[:, NODES])
    entries = Entries(
        TopKs(places(topk_places, TOPKS), _numbers(sizes), rest, _tokens(ids), logprobs),
        GreedyAnswers(
            places(greedy_places, GREEDY),
            question(greedy_questions, GREEDY),
            _tokens(greedy_tokens, 1),
            greedy_logprobs,
        )
        if totals[GREEDY]
        else GreedyAnswers(),
        SampledAnswers(
            places(sampled_places, SAMPLED),
            question(sampled_questions, SAMPLED),
            seeds.astype(np.uint64),
            _below(indices, 2**32).astype(np.uint32),
            _tokens(sampled_tokens, 1),
            sampled_logprobs,
        )
        if totals[SAMPLED]
        else SampledAnswers(),
    )
    first = payloads[0]
    whole = Record(
        first.model,
        tuple([address for payload in payloads for address in payload.parents]),
        _numbers(records),
        _numbers(nodes),
        own - 1 - _numbers(above),
        _tokens(tokens),
        entries,
        first.written,
        first.replaces,
    )
    check_columns(whole, counts)
    return whole, counts


Pieces = list[tuple[int, int, Callable[[bytes], None]]]
"""For each piece its count, the bytes per number, and the function that takes them."""


class _Pieces:
    """Low bytes and planes of the columns of many payloads, piece by piece."""

    def __init__(self, shapes: Iterable[_Shape]) -> None:
        self._widest = [max(widths) for widths in zip(*(shape.widths for shape in shapes), strict=True)]
        self._low: list[list[bytes]] = [[] for _ in _COLUMNS]
        self._planes: list[list[list[bytes]]] = [
            [[] for _ in range(width - noise)] for width, (_, noise) in zip(self._widest, _COLUMNS, strict=True)
        ]
        self._goals: dict[_Shape, tuple[Pieces, Pieces, Pieces]] = {}

    def add(self, payload: Payload) -> None:
        goals = self._goals.get(payload.shape) or self._goals_of(payload.shape)
        counts = payload.counts
        for data, pieces in zip((payload.soft, payload.hard), goals, strict=False):
            at = 0
            for counted, size, put in pieces:
                end = at + size * counts[counted]
                put(data[at:end])
                at = end
        for counted, size, put in goals[2]:
            put(bytes(size * counts[counted]))

    def _goals_of(self, shape: _Shape) -> tuple[Pieces, Pieces, Pieces]:
        """Targets of the low bytes and planes of payloads of this shape, and of zeros for planes that only others
        have."""
        soft: Pieces = [
            (counted, 1, self._planes[column][plane - _COLUMNS[column][1]].append)
            for counted, column, plane in shape.soft
        ]
        hard: Pieces = [(counted, size, self._low[column].append) for counted, column, size in shape.hard]
        blank: Pieces = []
        for column, (width, (counted, noise)) in enumerate(zip(shape.widths, _COLUMNS, strict=True)):
            if noise and not width:
                blank.append((counted, noise, self._low[column].append))
            blank += [(counted, 1, plane.append) for plane in self._planes[column][max(width - noise, 0) :]]
        self._goals[shape] = soft, hard, blank
        return soft, hard, blank

    def column(self, column: int, length: int) -> NDArray[Any]:
        return _column_of(b"".join(self._low[column]), _COLUMNS[column][1], self._planes[column], length)


def _numbers(column: NDArray[Any]) -> NDArray[np.int64]:
    return _below(column, 2**40).astype(np.int64)


def _tokens(column: NDArray[Any], shift: int = 0) -> NDArray[np.int32]:
    tokens: NDArray[np.int32] = _below(column, 2**31).astype(np.uint32, copy=False).view(np.int32)
    return tokens - np.int32(shift) if shift else tokens


def _below(column: NDArray[Any], bound: int) -> NDArray[Any]:
    if column.size and int(column.max()) >= bound:
        raise FrameError("a column has a number that is out of range")
    return column


# columns as bytes


_SMALL = 2**14
"""Bytes below which the fixed code of deflate is used; it reads small data twice as fast."""


def _width_of(column: NDArray[Any]) -> int:
    """Bytes needed by the largest number of a column of numbers from 0; 0 if all are 0."""
    return (int(column.max()).bit_length() + 7) // 8 if column.size else 0


def _bytes_of(column: NDArray[Any]) -> NDArray[np.uint8]:
    """Bytes of numbers from 0, lowest first, shape (numbers, 4 or 8)."""
    wide = np.ascontiguousarray(column, "<u4" if _width_of(column) <= 4 else "<u8")
    return wide.view(np.uint8).reshape(-1, wide.itemsize)


def _column_of(low: bytes, noise: int, planes: Sequence[Sequence[bytes]], length: int) -> NDArray[Any]:
    """A column of `length` numbers with `noise` low bytes in `low`; `planes[i]` are the parts of plane `noise + i`. Its
    dtype is uint32, or uint64 for more than four bytes."""
    size = 4 if noise + len(planes) <= 4 else 8
    if not length:
        return np.zeros(0, f"=u{size}")
    column = np.zeros((length, size), np.uint8)
    if low:
        column[:, :noise] = np.frombuffer(low, np.uint8).reshape(-1, noise)
    for place, parts in enumerate(planes, start=noise):
        column[:, place] = np.frombuffer(b"".join(parts), np.uint8)
    return column.view(f"<u{size}").reshape(-1).astype(f"=u{size}", copy=False)


def pack(plain: bytes) -> bytes:
    """The bytes deflated if that is shorter, else unchanged; the length distinguishes the two."""
    strategy = zlib.Z_FIXED if len(plain) < _SMALL else zlib.Z_DEFAULT_STRATEGY
    stream = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
    deflated = stream.compress(plain) + stream.flush()
    return deflated if len(deflated) < len(plain) else plain


def unpack(packed: bytes, size: int) -> bytes | None:
    """The `size` unpacked bytes; None if there are fewer or more. Never unpacks more than that.

    Raises zlib.error for bytes that are not a zlib stream.
    """
    if len(packed) == size:
        return packed
    stream = zlib.decompressobj()
    plain = stream.decompress(packed, size + 1)
    return plain if len(plain) == size and stream.eof and not stream.unused_data else None
