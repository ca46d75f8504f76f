"""Reader of `.tokens` files of version 2, a log of records, so that they can be converted (`lq cache merge`)."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.tokens.draws import mix
from lmql_lite.cache.tokens.nodes import ROOT_TOKEN, Answer, ScoreEntry
from lmql_lite.cache.tokens.rows import (
    ModelName,
    TreeRow,
    packed_answer,
    packed_question,
    packed_scores,
    packed_tokens,
    unpacked_scores,
)
from lmql_lite.cache.tokens.scores import TopK

MARK = b"\x93tokens\2"
_FRAME = struct.Struct("<8sBI16sI")  # mark, kind, payload bytes, address, checksum
_HEAD = struct.Struct("<9IQBIHH15s")
"""Counts, bytes of the packed part, time of writing, `replaces`, size of the vocabulary, bytes of fingerprint and name,
widths of the columns of whole numbers."""
ANCHORS, NODES, TOPKS, TOKENS, GREEDY, SAMPLED, QUESTIONS, PARENTS = range(8)
_COLUMNS = (
    (NODES, 0), (NODES, 1), (ANCHORS, 0), (ANCHORS, 0), (TOPKS, 0), (TOPKS, 0), (TOKENS, 1), (GREEDY, 0), (GREEDY, 0),
    (GREEDY, 1), (SAMPLED, 0), (SAMPLED, 0), (SAMPLED, 1), (SAMPLED, 0), (SAMPLED, 0), (TOPKS, 3), (TOKENS, 3),
    (GREEDY, 3), (SAMPLED, 3),
)  # fmt: skip
"""For each column the count that is its length, and its number of low bytes that are not packed."""
_MAX = 2**24


@dataclass(slots=True)
class _Log:
    """Entries of one model while its records are read. Nodes are numbered; 0 is the root."""

    model: ModelName
    parents: list[int] = field(default_factory=lambda: [0])
    tokens: list[int] = field(default_factory=lambda: [ROOT_TOKEN])
    places: list[int] = field(default_factory=lambda: [0])
    children: dict[tuple[int, int], int] = field(default_factory=dict)
    records: dict[bytes, list[int]] = field(default_factory=lambda: {b"": [0]})
    """Own nodes of the records, by address."""
    entries: dict[int, dict[bytes, tuple[bytes, int]]] = field(default_factory=dict)
    """Node -> question -> value and time of writing."""

    def extended(self, parent: int, token: int) -> int:
        node = self.children.get((parent, token))
        if node is None:
            node = self.children[parent, token] = len(self.tokens)
            self.parents.append(parent)
            self.tokens.append(token)
            self.places.append(mix(self.places[parent], token))
        return node

    def rows(self) -> Iterator[tuple[ModelName, int, TreeRow]]:
        for node, found in self.entries.items():
            way, above = [], node
            while above and (above == node or above not in self.entries):
                way.append(self.tokens[above])
                above = self.parents[above]
            tokens = packed_tokens(way[::-1])
            for question, (value, written) in found.items():
                yield self.model, written, TreeRow(self.places[node], question, self.places[above], tokens, value)


def is_version_2(path: Path) -> bool:
    """True if a file has the mark of version 2 at its beginning."""
    with open(path, "rb") as file:
        return file.read(len(MARK)) == MARK


def read_version_2(path: Path) -> tuple[list[tuple[ModelName, int, TreeRow]], int, list[str]]:
    """The rows that the file would have, its bytes, and sentences about damage."""
    data, logs, damage = path.read_bytes(), dict[str, _Log](), list[str]()
    at = data.find(MARK)
    while 0 <= at <= len(data) - _FRAME.size:
        mark, _, size, address, checksum = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + size
        payload = data[at + _FRAME.size : end]
        if checksum == crc32(data[at : at + _FRAME.size - 4]) and hashlib.sha256(payload).digest()[:16] == address:
            try:
                _read(payload, address, logs)
            except (struct.error, zlib.error, ValueError, IndexError, KeyError) as error:
                damage.append(f"bytes {at:,} to {end:,}: {error}")
            at = data.find(MARK, end + len(mark))
        else:
            damage.append(f"bytes {at:,} and more: the checksum of a record is wrong")
            at = data.find(MARK, at + 1)
    return [row for log in logs.values() for row in log.rows()], len(data), damage


def _read(payload: bytes, address: bytes, logs: dict[str, _Log]) -> None:
    """Adds the nodes and entries of a record. Raises the errors that `read_version_2` catches."""
    *counts, packed, written, replaces, vocabulary, fingerprint, name, widths = _HEAD.unpack_from(payload)
    if max(counts) > _MAX or max(widths) > 8:
        raise ValueError("the head of a record is out of range")
    texts = payload[_HEAD.size : _HEAD.size + fingerprint + name]
    model = ModelName(texts[:fingerprint].decode(), texts[fingerprint:].decode(), vocabulary)
    log = logs.setdefault(model.fingerprint, _Log(model))
    begin = _HEAD.size + fingerprint + name
    columns, at = _columns(payload, begin, packed, counts, (*widths, 4, 4, 4, 4))
    (above, tokens, records, within, top_places, sizes, ids, greedy, greedy_asked, greedy_tokens, sampled,
     sampled_asked, sampled_tokens, indices, seeds) = (column.tolist() for column in columns[:15])  # fmt: skip
    rest, logprobs, greedy_scores, sampled_scores = (column.astype("<u4").view("<f4") for column in columns[15:])
    questions = [payload[at + 16 * each : at + 16 * each + 16] for each in range(counts[QUESTIONS])]
    at += 16 * counts[QUESTIONS]
    parents = [b"", *(payload[at + 16 * each : at + 16 * each + 16] for each in range(counts[PARENTS]))]
    nodes = [log.records[parents[record]][place] for record, place in zip(records, within, strict=True)]
    for distance, token in zip(above, tokens, strict=True):
        nodes.append(log.extended(nodes[len(nodes) - 1 - distance], token))
    log.records[address] = nodes[counts[ANCHORS] :]
    last = len(nodes) - 1
    found: list[tuple[int, bytes, bytes]] = []
    start = 0
    for number, (place, size) in enumerate(zip(top_places, sizes, strict=True)):
        scores = np.array(ids[start : start + size], np.int32), logprobs[start : start + size]
        value = packed_scores(ScoreEntry(TopK(*scores, float(rest[number]), vocabulary), 0))
        unpacked_scores(value, vocabulary)
        found.append((nodes[last - place], b"", value))
        start += size
    for place, asked, token, score in zip(greedy, greedy_asked, greedy_tokens, greedy_scores, strict=True):
        found.append((nodes[last - place], questions[asked], packed_answer(Answer(token - 1, float(score), 0))))
    for place, asked, token, index, seed, score in zip(
        sampled, sampled_asked, sampled_tokens, indices, seeds, sampled_scores, strict=True
    ):
        question = packed_question((questions[asked], seed, index))
        found.append((nodes[last - place], question, packed_answer(Answer(token - 1, float(score), 0))))
    if replaces:
        for node, *_ in found:
            log.entries.pop(node, None)
    for node, question, value in found:
        log.entries.setdefault(node, {}).setdefault(question, (value, written))


def _columns(
    payload: bytes, begin: int, packed: int, counts: Sequence[int], widths: Sequence[int]
) -> tuple[list[NDArray[np.uint64]], int]:
    """The columns of a payload, and the offset behind them."""
    size = sum(counts[counted] * max(width - low, 0) for (counted, low), width in zip(_COLUMNS, widths, strict=True))
    soft, at = payload[begin : begin + packed], begin + packed
    if packed != size:
        soft = zlib.decompressobj().decompress(soft, size + 1)
    if len(soft) != size:
        raise ValueError("the length of a record's packed part does not match its header")
    columns, start = [], 0
    for (counted, noise), width in zip(_COLUMNS, widths, strict=True):
        count, low = counts[counted], min(width, noise)
        table = np.zeros((count, 8), np.uint8)
        if low:
            table[:, :low] = np.frombuffer(payload, np.uint8, low * count, at).reshape(count, low)
            at += low * count
        for plane in range(low, width):
            table[:, plane] = np.frombuffer(soft, np.uint8, count, start)
            start += count
        columns.append(table.view("<u8").reshape(-1))
    return columns, at
