"""Entries as bytes: one payload per value, its columns cut into planes of bytes.

Nothing executable is ever read (law 5): lengths, ranges and order are checked before an array is made, and whatever is
wrong is a `FrameError`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.frames import (
    BATCH,
    DIGEST_BYTES,
    MAX_NODES,
    MAX_NUMBER,
    MAX_ROW_ENTRIES,
    MAX_TEXT_BYTES,
    MODEL,
    Batch,
    Draws,
    Entry,
    Frame,
    FrameError,
    Heads,
    Model,
    Verdicts,
    check,
    check_columns,
)
from lmql_lite.cache.planes import bytes_of, column_of, pack, unpack, width_of


def encode(entry: Entry) -> Frame:
    """The frame of an entry. FrameError where its columns do not fit together or exceed the bounds above."""
    if isinstance(entry, Model):
        return Frame(MODEL, _word(entry.number, "model number"), 0, 0, _encode_model(entry))
    check(entry)
    _word(entry.model, "model number")
    return Frame(BATCH, entry.model, entry.first, len(entry.tokens), _encode_batch(entry))


def decode(frame: Frame) -> Entry:
    """The entry of a frame. FrameError, and nothing else, for whatever bytes."""
    if frame.payload is None:
        raise FrameError("the frame is damaged")
    if frame.kind == BATCH:
        return decode_batches([frame])[0]
    if frame.kind != MODEL:
        raise FrameError(f"frames of kind {frame.kind} are unknown")
    try:
        return _decode_model(frame, frame.payload)
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"the frame cannot be read: {error}") from None


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
    fingerprint, name = texts[:fingerprint_bytes].decode(), texts[fingerprint_bytes:].decode()
    return Model(_word(frame.model, "model number"), fingerprint, name, _word(size, "vocabulary size"))


def _word(number: int, what: str) -> int:
    if not 0 <= number < 2**31:
        raise FrameError(f"the {what} {number} is out of range")
    return number


# heads, their tokens, verdicts, draws, bytes of the packed planes, when it was written, whether it replaces; then one
# width in bytes per whole-number column
_HEAD = struct.Struct("<5IQB11s")
_COUNTED = (0, 0, 1, 1, 2, 3, 3, 4, 4, 4, 4, 1, 2, 3, 4)
"""Of each column how long it is: as there are nodes, heads, tokens in heads, verdicts, draws. Four are floats."""
_FLOATS = 11
_NOISE = (0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 0, 3, 3, 3, 3)
"""Of each column how many low bytes are noise: deflating the low bytes of tokens and scores costs time for nothing."""


class _Shape:
    """How payloads are laid out whose whole-number columns have these widths, with verdicts and draws or without."""

    def __init__(self, widths: bytes, verdicts: bool, draws: bool) -> None:
        self.widths = (*widths, 4, 4, 4 * verdicts, 4 * draws)
        low = [min(width, noise) for width, noise in zip(self.widths, _NOISE, strict=True)]
        self.hard = [(_COUNTED[column], column, size) for column, size in enumerate(low) if size]
        """Low bytes of a column, number by number: (what is counted, column, bytes)."""
        self.soft = [
            (_COUNTED[column], column, plane)
            for column, width in enumerate(self.widths)
            for plane in range(low[column], width)
        ]
        """Planes, which are packed: (what is counted, column, plane)."""
        self._soft = [sum(counted == of for counted, _, _ in self.soft) for of in range(5)]
        self._hard = [sum(size for counted, _, size in self.hard if counted == of) for of in range(5)]

    def sizes(self, n: int, h: int, f: int, v: int, d: int) -> tuple[int, int]:
        """Bytes of the part that is packed, when it is not, and of the rest."""
        soft, hard = self._soft, self._hard
        return (
            soft[0] * n + soft[1] * h + soft[2] * f + soft[3] * v + soft[4] * d,
            hard[0] * n + hard[1] * h + hard[2] * f + hard[3] * v + hard[4] * d + DIGEST_BYTES * (v + d),
        )


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
    floats = [
        np.ascontiguousarray(logprobs, np.float32).view(np.uint32)
        for logprobs in (heads.rest, heads.logprobs, verdicts.logprobs, draws.logprobs)
    ]
    shape = _Shape(bytes(map(width_of, integers)), len(verdicts.nodes) > 0, len(draws.nodes) > 0)
    columns = [bytes_of(column) for column in (*integers, *floats)]
    packed = pack(b"".join([columns[column][:, plane].tobytes() for _, column, plane in shape.soft]))
    hard = [columns[column][:, :size].tobytes() for _, column, size in shape.hard]
    hard += [np.ascontiguousarray(questions, np.uint8).tobytes() for questions in (verdicts.questions, draws.questions)]
    counts = (len(heads.nodes), len(heads.ids), len(verdicts.nodes), len(draws.nodes), len(packed))
    head = _HEAD.pack(*counts, batch.written, batch.replaces, bytes(shape.widths[:_FLOATS]))
    return b"".join((head, packed, *hard))


class _Payload(NamedTuple):
    """Of a batch, with its columns still in pieces of bytes. `counts` as in `check_columns`."""

    counts: tuple[int, int, int, int, int]
    shape: _Shape
    soft: bytes
    hard: bytes
    written: int
    replaces: bool


def decode_batches(frames: Sequence[Frame], vocabulary: int = 2**31) -> list[Batch]:
    """The batches of whole frames of one model, of which each begins where the one before ends. At least one.

    Thousands of small frames are read as if they were one. FrameError, and nothing else, for whatever bytes, and where
    a token is not below `vocabulary`.
    """
    shapes: dict[tuple[bytes, bool, bool], _Shape] = {}
    try:
        payloads = [_payload(frame.count, frame.payload or b"", shapes) for frame in frames]
    except (struct.error, zlib.error) as error:
        raise FrameError(f"the frame cannot be read: {error}") from None
    counts = np.array([payload.counts for payload in payloads], dtype=np.int64)
    whole = _columns(frames[0], payloads, counts)
    check_columns(whole, counts, vocabulary)
    return _split(whole, payloads) if len(payloads) > 1 else [whole]


def _payload(n: int, payload: bytes, shapes: dict[tuple[bytes, bool, bool], _Shape]) -> _Payload:
    h, f, v, d, packed_bytes, written, replaces, widths = _HEAD.unpack_from(payload)
    if n > MAX_NODES or h > MAX_NODES or v > MAX_NODES or d > MAX_NODES or f > MAX_ROW_ENTRIES:
        raise FrameError("the frame says that it holds more than a frame may hold")
    key = (widths, v > 0, d > 0)
    shape = shapes.get(key)
    if shape is None:
        if max(widths) > 8:
            raise FrameError("the widths of the columns are out of range")
        shape = shapes[key] = _Shape(*key)
    if replaces > 1 or written >= MAX_NUMBER:
        raise FrameError("the head of the frame is out of range")
    soft_bytes, hard_bytes = shape.sizes(n, h, f, v, d)
    end = _HEAD.size + packed_bytes
    if len(payload) != end + hard_bytes:
        raise FrameError("the frame has another length than it says")
    soft = unpack(payload[_HEAD.size : end], soft_bytes)
    if soft is None:
        raise FrameError("the packed part of the frame has another length than it says")
    return _Payload((n, h, f, v, d), shape, soft, payload[end:], written, replaces == 1)


Pieces = list[tuple[int, int, Callable[[bytes], None]]]
"""What is counted, bytes of each, and where they go."""


class _Bytes:
    """Of the columns of many payloads, piece by piece: their low bytes, and their planes."""

    def __init__(self, shapes: Iterable[_Shape]) -> None:
        widest = [max(widths) for widths in zip(*(shape.widths for shape in shapes), strict=True)]
        self.low: list[list[bytes]] = [[] for _ in widest]
        self.planes: list[list[list[bytes]]] = [
            [[] for _ in range(width - noise)] for width, noise in zip(widest, _NOISE, strict=True)
        ]
        self.questions: list[list[bytes]] = [[], []]
        self._places: dict[_Shape, tuple[Pieces, Pieces, Pieces]] = {}

    def add(self, payload: _Payload) -> None:
        places = self._places.get(payload.shape) or self._placed(payload.shape)
        counts = payload.counts
        for data, pieces in zip((payload.soft, payload.hard), places, strict=False):
            at = 0
            for counted, size, put in pieces:
                end = at + size * counts[counted]
                put(data[at:end])
                at = end
        for counted, size, put in places[2]:
            put(bytes(size * counts[counted]))
        if counts[3] or counts[4]:
            middle = at + DIGEST_BYTES * counts[3]
            self.questions[0].append(payload.hard[at:middle])
            self.questions[1].append(payload.hard[middle:])

    def _placed(self, shape: _Shape) -> tuple[Pieces, Pieces, Pieces]:
        """Where the pieces of payloads of this shape go; the third are zeros for what only others have."""
        soft = [
            (counted, 1, self.planes[column][plane - _NOISE[column]].append) for counted, column, plane in shape.soft
        ]
        hard = [(counted, size, self.low[column].append) for counted, column, size in shape.hard]
        blank: Pieces = []
        for column, width in enumerate(shape.widths):
            counted, noise = _COUNTED[column], _NOISE[column]
            if noise and not width:
                blank.append((counted, noise, self.low[column].append))
            blank += [(counted, 1, plane.append) for plane in self.planes[column][max(width - noise, 0) :]]
        self._places[shape] = soft, hard, blank
        return soft, hard, blank

    def column(self, column: int, length: int) -> NDArray[Any]:
        return column_of(b"".join(self.low[column]), _NOISE[column], self.planes[column], length)


def _columns(begin: Frame, payloads: Sequence[_Payload], counts: NDArray[np.int64]) -> Batch:
    """The columns of all payloads behind one another, not checked yet. Times and the like are not those of each."""
    bytes_of_all = _Bytes({payload.shape for payload in payloads})
    for payload in payloads:
        bytes_of_all.add(payload)
    totals = [int(total) for total in counts.sum(axis=0)]
    columns = [bytes_of_all.column(column, totals[counted]) for column, counted in enumerate(_COUNTED)]
    parents, tokens, head_nodes, sizes, ids, verdict_nodes, verdict_tokens, *of_draws = columns[:_FLOATS]
    draw_nodes, draw_tokens, indices, seeds = of_draws
    rest, logprobs, verdict_logprobs, draw_logprobs = (column.view(np.float32) for column in columns[_FLOATS:])
    verdict_questions, draw_questions = (
        np.frombuffer(b"".join(parts), np.uint8).reshape(-1, DIGEST_BYTES) for parts in bytes_of_all.questions
    )
    ends = begin.first + np.cumsum(counts[:, 0]) - 1

    def places(distances: NDArray[Any], of_each: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.repeat(ends, of_each) - _numbers(distances)

    return Batch(
        begin.model,
        begin.first,
        np.arange(begin.first, begin.first + totals[0]) - 1 - _numbers(parents),
        _tokens(tokens),
        Heads(places(head_nodes, counts[:, 1]), _numbers(sizes), rest, _tokens(ids), logprobs),
        Verdicts(places(verdict_nodes, counts[:, 3]), verdict_questions, _tokens(verdict_tokens, 1), verdict_logprobs),
        Draws(
            places(draw_nodes, counts[:, 4]),
            draw_questions,
            seeds.astype(np.uint64),
            _below(indices, 2**32).astype(np.uint32),
            _tokens(draw_tokens, 1),
            draw_logprobs,
        ),
        payloads[0].written,
        payloads[0].replaces,
    )


def _split(whole: Batch, payloads: Sequence[_Payload]) -> list[Batch]:
    """The batch of each payload; its columns look into those of the whole."""
    heads, verdicts, draws = whole.heads, whole.verdicts, whole.draws
    no_verdicts, no_draws = Verdicts(), Draws()
    batches: list[Batch] = []
    nodes = rows = entries = asked = drawn = slice(0, 0)
    for payload in payloads:
        n, h, f, v, d = payload.counts
        nodes, rows = slice(nodes.stop, nodes.stop + n), slice(rows.stop, rows.stop + h)
        entries = slice(entries.stop, entries.stop + f)
        own = Heads(heads.nodes[rows], heads.sizes[rows], heads.rest[rows], heads.ids[entries], heads.logprobs[entries])
        own_verdicts, own_draws = no_verdicts, no_draws
        if v:
            asked = slice(asked.stop, asked.stop + v)
            own_verdicts = Verdicts(
                verdicts.nodes[asked], verdicts.questions[asked], verdicts.tokens[asked], verdicts.logprobs[asked]
            )
        if d:
            drawn = slice(drawn.stop, drawn.stop + d)
            own_draws = Draws(
                draws.nodes[drawn],
                draws.questions[drawn],
                draws.seeds[drawn],
                draws.indices[drawn],
                draws.tokens[drawn],
                draws.logprobs[drawn],
            )
        first = whole.first + nodes.start
        parents, tokens = whole.parents[nodes], whole.tokens[nodes]
        batches.append(
            Batch(whole.model, first, parents, tokens, own, own_verdicts, own_draws, payload.written, payload.replaces)
        )
    return batches


def _numbers(column: NDArray[Any]) -> NDArray[np.int64]:
    return _below(column, MAX_NUMBER).astype(np.int64)


def _tokens(column: NDArray[Any], shift: int = 0) -> NDArray[np.int32]:
    return (_below(column, 2**31).astype(np.int64) - shift).astype(np.int32)


def _below(column: NDArray[Any], bound: int) -> NDArray[Any]:
    if column.size and int(column.max()) >= bound:
        raise FrameError("a column has a number that is out of range")
    return column
