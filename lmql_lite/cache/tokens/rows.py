"""Rows of a token tree outside memory: one row for one entry, found by the hash of its path.

A row has the way to its place from the nearest place above with a row, so that the path can be compared (law 5) and
shown. A row of a server's text is at the beginning of a token, and has the whole token (S11).
"""

from __future__ import annotations

import functools
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np

from lmql_lite.cache.tokens.draws import mix
from lmql_lite.cache.tokens.nodes import SCORES, Answer, Entry, Question, ScoreEntry
from lmql_lite.cache.tokens.outcomes import Outcomes
from lmql_lite.cache.tokens.scores import TopK
from lmql_lite.errors import CacheError

MAX_PIECE = 64
"""Maximum number of bytes in one entry: a longer token of a server has several. Bounds the look back (S11)."""
END = 256
"""Token of end-of-text in a server's text, whose other tokens are bytes."""
TURNS = {"system": 257, "user": 258, "assistant": 259}
"""Tokens of the beginning of a turn of a chat: turns are part of the path."""
MEDIA = {"image": 260, "video": 261, "audio": 262}
"""Tokens of the beginning of an item; the bytes of its digest follow, counted from `DIGEST`."""
DIGEST = 263
VOCABULARY = 1 << 28
"""Upper bound of the numbers in an entry of a server's text: bytes, marks, pieces of tokens, ids of tokens."""
INSIDE = 1.0
"""Mark in place of a log-probability: this entry continues the server's token of the one before it."""
_HEAD = struct.Struct("<fH")
_ANSWER = struct.Struct("<if")
_PLACE = struct.Struct("<QQQ")
_IDS, _FLOATS = np.dtype("<i4"), np.dtype("<f4")
_REGION = 0xFFFF << 48
"""Bits of a place that most tokens leave as they are."""
_NEW_REGION = 15
"""Bits of a place that are 0 where a region begins: one in 16."""


def place_below(place: int, token: int) -> int:
    """Hash of a path from that of the path without its last token; 0 is the root. Equal in every process.

    The upper bits change once in 16 tokens, so that the rows of one run are near each other in an index: a write
    changes a few of its pages, not one for each row.
    """
    below = mix(place, token)
    return place & _REGION | below & ~_REGION if below & _NEW_REGION else below


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model of a file: its fingerprint, its name for people, and its number of tokens (0: not known)."""

    fingerprint: str
    name: str
    vocabulary_size: int

    @property
    def checksum(self) -> int:
        """Beginning of the checksums of its rows."""
        return _checksum(self.fingerprint, self.vocabulary_size)


@functools.lru_cache(64)
def _checksum(fingerprint: str, vocabulary_size: int) -> int:
    return crc32(f"{fingerprint}|{vocabulary_size}".encode("utf-8", "surrogatepass"))


class TreeRow(NamedTuple):
    """One entry. `place` and `parent` are hashes of paths, `tokens` lead from one to the other. `question` is empty for
    scores. `vocabulary` is the number of tokens of its model, 0 where it is not known."""

    place: int
    question: bytes
    parent: int
    tokens: bytes
    value: bytes
    vocabulary: int = 0

    def checksum(self, model: int) -> int:
        """Checksum of everything that an answer depends on. `model` is that of the model."""
        head = _PLACE.pack(self.place, self.parent, len(self.question) << 32 | len(self.tokens))
        return crc32(b"".join((head, self.question, self.tokens, self.value)), model)


class RowError(ValueError):
    """The bytes of a row are not those of an entry."""


def signed(place: int) -> int:
    """A hash of 64 bits as the integer that SQLite stores."""
    return place - (1 << 64) if place >> 63 else place


def unsigned(number: int) -> int:
    return number & (1 << 64) - 1


def packed_tokens(tokens: Sequence[int]) -> bytes:
    """Tokens in the fewest bytes each that hold the largest: 1, 2 or 4."""
    most = max(tokens, default=0)
    size, kind = (1, "B") if most < 1 << 8 else (2, "H") if most < 1 << 16 else (4, "i")
    return struct.pack(f"<B{len(tokens)}{kind}", size, *tokens)


_KINDS = {1: "B", 2: "H", 4: "i"}


def unpacked_tokens(data: bytes) -> tuple[int, ...]:
    """The tokens of `packed_tokens`. Raises RowError."""
    size = data[0] if data else 0
    if size not in _KINDS or (len(data) - 1) % size:
        raise RowError("the path of an entry is not a list of tokens")
    return struct.unpack_from(f"<{(len(data) - 1) // size}{_KINDS[size]}", data, 1)


def packed_scores(entry: ScoreEntry) -> bytes:
    """Value of a row of scores."""
    top = entry.top_k()
    ids, logprobs = top.ids.astype(_IDS, copy=False), top.logprobs.astype(_FLOATS, copy=False)
    return _HEAD.pack(top.rest, top.ids.size) + ids.tobytes() + logprobs.tobytes() + _packed_onward(entry.onward)


def unpacked_scores(value: bytes, vocabulary_size: int) -> ScoreEntry:
    """The entry, of run 0. Raises RowError."""
    if len(value) < _HEAD.size:
        raise RowError("scores are cut short")
    rest, size = _HEAD.unpack_from(value)
    end = _HEAD.size + 8 * size
    if not size or len(value) < end:
        raise RowError("scores are cut short")
    ids = np.frombuffer(value, "<i4", size, _HEAD.size)
    logprobs = np.frombuffer(value, "<f4", size, _HEAD.size + 4 * size)
    tokens = ids.tolist()
    if min(tokens) < 0 or (vocabulary_size and max(tokens) >= vocabulary_size):
        raise RowError("scores have a token that the model does not have")
    top = TopK(ids.astype(np.int32, copy=False), logprobs.astype(np.float32, copy=False), rest, vocabulary_size)
    return ScoreEntry(top, 0, _unpacked_onward(value[end:]))


def packed_answer(answer: Answer) -> bytes:
    """Value of a row of an answer. Outcomes follow a byte 0."""
    head = _ANSWER.pack(answer.token, answer.logprob)
    if answer.outcomes is not None:
        ids, logprobs, weights = answer.outcomes.ids, answer.outcomes.logprobs, answer.outcomes.weights
        columns = (ids.astype("<i4"), logprobs.astype("<f4"), weights.astype("<f4"))
        return head + b"\0" + b"".join(column.tobytes() for column in columns)
    return head + _packed_onward(answer.onward)


def unpacked_answer(value: bytes) -> Answer:
    """The answer, of run 0. Raises RowError."""
    if len(value) < _ANSWER.size:
        raise RowError("an answer is cut short")
    token, logprob = _ANSWER.unpack_from(value)
    onward = value[_ANSWER.size :]
    if onward.startswith(b"\0"):
        return Answer(token, logprob, 0, outcomes=_unpacked_outcomes(onward[1:]))
    return Answer(token, logprob, 0, _unpacked_onward(onward))


def _packed_onward(onward: bytes) -> bytes:
    return packed_tokens(onward) if onward else b""


def _unpacked_onward(data: bytes) -> bytes:
    try:
        return bytes([*unpacked_tokens(data)]) if data else b""
    except ValueError:
        raise RowError("the end of a token is not bytes") from None


def _unpacked_outcomes(data: bytes) -> Outcomes:
    size, rest = divmod(len(data), 12)
    if rest:
        raise RowError("the outcomes of an answer are cut short")
    ids = np.frombuffer(data, "<i4", size).astype(np.int32, copy=False)
    logprobs, weights = np.frombuffer(data, "<f4", 2 * size, 4 * size).astype(np.float32, copy=False).reshape(2, size)
    return Outcomes(ids, logprobs, weights)


def packed_entry(entry: Entry) -> bytes:
    """Value of the row of an entry."""
    return packed_scores(entry) if isinstance(entry, ScoreEntry) else packed_answer(entry)


def unpacked_row(row: TreeRow) -> tuple[Question, Entry]:
    """The question and the entry of a row. Raises RowError."""
    if not row.question:
        return SCORES, unpacked_scores(row.value, row.vocabulary)
    return unpacked_question(row.question), unpacked_answer(row.value)


def kind_of(row: TreeRow) -> str:
    """Kind of an entry: `top-k` for scores, `greedy` or `sampled` for an answer. Raises RowError."""
    if not row.question:
        return "top-k"
    return "greedy" if isinstance(unpacked_question(row.question), bytes) else "sampled"


def row_length(row: TreeRow) -> int:
    """Number of tokens in a sound row: one, and those of a server's token after it, which have a byte each."""
    end = _ANSWER.size if row.question else _HEAD.size + 8 * _HEAD.unpack_from(row.value)[1]
    onward = len(row.value) - end
    return onward if onward and row.value[end] else 1


def packed_question(question: Question) -> bytes:
    """Question of a row: none of scores, 16 bytes of a greedy answer, 28 of a sampled one."""
    if isinstance(question, bytes):
        return question
    digest, seed, index = question
    return digest + seed.to_bytes(8, "little") + index.to_bytes(4, "little")


def unpacked_question(data: bytes) -> Question:
    """The question of an answer. Raises RowError."""
    if len(data) == 16:
        return data
    if len(data) != 28:
        raise RowError("the question of an answer has a wrong length")
    return data[:16], int.from_bytes(data[16:24], "little"), int.from_bytes(data[24:], "little")


class RowBatch(NamedTuple):
    """Rows to write. Those at the `replaced` places supersede all others there. `longest`: the largest number of tokens
    in a row."""

    rows: list[TreeRow]
    replaced: list[int]
    longest: int


Stored = tuple[ModelName, int, TreeRow]
"""A row with its model and its time of writing in Unix seconds, 0 if not known."""


class Rows(ABC):
    """Rows of entries outside memory, of a file, a recording or a server, as one process sees them.

    `epoch` grows when others wrote rows, and `void` is the epoch in which rows were last removed.
    """

    def __init__(self) -> None:
        self.epoch = self.void = 0

    def begin(self, *, is_void: bool) -> None:
        """Begins an epoch."""
        self.epoch += 1
        if is_void:
            self.void = self.epoch

    @abstractmethod
    def longest(self, fingerprint: str) -> int:
        """The largest number of tokens in a row of a model; 1 if it has none."""

    @abstractmethod
    def rows(self, fingerprint: str, places: Sequence[int]) -> list[TreeRow]:
        """The rows at places. Damaged ones are left out."""

    @abstractmethod
    def stored(self) -> Iterator[Stored]:
        """All rows, oldest first. Damaged ones are left out. Raises CacheError if they cannot be read."""

    def onward(self, fingerprint: str, places: Set[int]) -> list[tuple[int, bytes]]:
        """The place and the tokens from there to the next row, for the rows below places. Reads all rows."""
        with suppress(CacheError):
            rows = (row for model, _, row in self.stored() if model.fingerprint == fingerprint)
            return [(row.parent, row.tokens) for row in rows if row.parent in places]
        return []
