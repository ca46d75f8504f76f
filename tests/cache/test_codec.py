"""Records as bytes: they come back as they were, take little room, and no bytes do any harm."""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.cache.codec import Parser, encode, join
from lmql_lite.cache.columns import Entries, Model, Record, TopKs
from lmql_lite.cache.framing import FrameError
from tests.cache.batches import MODEL, batch, same


def record(rng: np.random.Generator, size: int, *, vocabulary: int = 1536, anchors: int = 3) -> Record:
    """A record like those of a run, that hangs on the root and two others."""
    one = batch(rng, size, first=anchors, model=replace(MODEL, vocabulary_size=vocabulary))
    records, nodes = np.arange(anchors) % 3, np.arange(anchors) * 1000
    parents = (bytes(range(16)), bytes(16))
    return Record(one.model, parents, records, nodes, one.parents, one.tokens, one.entries, one.written, one.replaces)


def decode(payload: bytes) -> Record:
    return join([Parser().parse(payload)])[0]


VOCABULARIES = st.sampled_from([2, 300, 70_000, 2**31 - 1])


@given(st.integers(0, 2**32), st.integers(0, 90), VOCABULARIES)
@settings(deadline=None, derandomize=True)
def test_a_record_comes_back_bit_for_bit(seed: int, size: int, vocabulary: int) -> None:
    one = record(np.random.default_rng(seed), size, vocabulary=vocabulary)
    assert same(decode(encode(one)), one)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 40), min_size=1, max_size=8), VOCABULARIES)
@settings(deadline=None, derandomize=True)
def test_records_that_follow_one_another_are_read_as_one(seed: int, sizes: list[int], vocabulary: int) -> None:
    rng = np.random.default_rng(seed)
    model = replace(MODEL, vocabulary_size=2**31 - 1)
    alone = [
        replace(record(rng, size, vocabulary=int(rng.choice([2, 300, vocabulary]))), model=model) for size in sizes
    ]
    parser = Parser()
    together, counts = join([parser.parse(encode(one)) for one in alone])
    begin = 0
    expected = []
    for one in alone:
        expected.append(replace(one, above=one.above + begin, entries=one.entries.moved(lambda at, by=begin: at + by)))
        begin += len(one.anchor_records) + len(one.tokens)
    for name in ("anchor_records", "anchor_nodes", "above", "tokens"):
        assert same(getattr(together, name), np.concatenate([getattr(one, name) for one in expected]))
    for kind in ("topks", "greedy", "sampled"):
        parts = [getattr(one.entries, kind) for one in expected]
        for column in fields(parts[0]):
            whole = np.concatenate([getattr(part, column.name) for part in parts])
            assert same(getattr(getattr(together.entries, kind), column.name), whole)
    assert together.parents == tuple(address for one in alone for address in one.parents)
    assert counts[:, 1].tolist() == sizes


@given(st.text(max_size=40), st.text(max_size=40), st.integers(0, 2**31 - 1))
@settings(deadline=None, derandomize=True)
def test_a_model_comes_back(fingerprint: str, name: str, size: int) -> None:
    model = Model(fingerprint, name, size)
    assert decode(encode(Record(model))).model == model


@given(st.integers(0, 2**32), st.data())
@settings(deadline=None, derandomize=True, max_examples=300)
def test_whatever_bytes_are_a_record_or_a_FrameError(seed: int, data: st.DataObject) -> None:
    payload = bytearray(encode(record(np.random.default_rng(seed), 12)))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)) | st.just(len(payload)))
    with suppress(FrameError):
        decode(bytes(payload[:cut]))


@pytest.mark.parametrize("at", [41, 42, 43, 44], ids=["late", "later", "latest", "neither replaces nor not"])
def test_a_head_that_cannot_be_is_refused(at: int) -> None:
    """Bytes 36 to 43 are the time, 44 whether it replaces."""
    payload = bytearray(encode(Record(MODEL, written=2**40 - 1, replaces=True)))
    payload[at] = 2
    with pytest.raises(FrameError, match="out of range"):
        decode(bytes(payload))


def test_a_record_that_promises_much_makes_no_large_array() -> None:
    small = encode(Record(MODEL))
    huge = np.array([2**20, 2**20, 2**20, 2**24, 2**20, 0, 0, 0], "<u4").tobytes() + small[32:]
    with pytest.raises(FrameError, match="length does not match"):
        decode(huge)
    for place in range(8):
        counts = np.zeros(8, "<u4")
        counts[place] = 2**32 - 1
        with pytest.raises(FrameError, match="more than a record may hold"):
            decode(counts.tobytes() + small[32:])


def topks(nodes: list[int], sizes: list[int], rest: list[float], ids: list[int], logprobs: list[float]) -> Entries:
    return Entries(TopKs(*map(np.array, (nodes, sizes, rest, ids, logprobs))))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"above": np.array([0, 2])}, "parent comes later"),
        ({"above": np.array([-1, 0])}, "without a parent"),
        ({"above": np.array([0])}, "do not match"),
        ({"anchor_records": np.array([1])}, "an anchor out of range"),
        ({"anchor_nodes": np.array([-1])}, "an anchor below 0"),
        ({"parents": (b"short",)}, "an address has 16 bytes"),
        ({"tokens": np.array([0, -1], np.int32)}, "token below 0"),
        ({"model": Model("\ud800", "x", 5)}, "not text"),
        ({"model": Model("x", "x", -5)}, "out of range"),
        ({"written": -1}, "time of writing"),
        ({"written": 2**40}, "time of writing"),
        ({"entries": topks([3], [1], [0.0], [1], [0.0])}, "missing node"),
        ({"entries": topks([0], [2], [0.0], [1], [0.0])}, "add up"),
        ({"entries": topks([0], [2], [0.0], [1, 2], [-2.0, -1.0])}, "best first"),
        ({"entries": topks([0], [2], [0.0], [1, 2], [-2.0, np.nan])}, "best first"),
        ({"entries": topks([0], [1], [-0.5], [1], [-2.0])}, "mass below 0"),
    ],
)
def test_a_record_that_makes_no_sense_is_not_written(change: dict[str, Any], problem: str) -> None:
    anchor, above = np.array([0]), np.array([0, 1])
    one = Record(MODEL, (), anchor, anchor, above, np.array([5, 6], np.int32))
    assert same(decode(encode(one)), one)
    with pytest.raises(FrameError, match=problem):
        encode(replace(one, **change))


@pytest.mark.parametrize("vocabulary", [1536, 131_072])
def test_a_record_takes_less_than_half_of_pickled_tuples(vocabulary: int) -> None:
    one = record(np.random.default_rng(5), 2_000, vocabulary=vocabulary)
    one = replace(one, entries=Entries(one.entries.topks))
    best = one.entries.topks
    ends = np.cumsum(best.sizes)
    rows = [
        (parent, token, tuple(ids.tolist()), tuple(logprobs.tolist()))
        for parent, token, ids, logprobs in zip(
            one.above.tolist(),
            one.tokens.tolist(),
            np.split(best.ids, ends[:-1]),
            np.split(best.logprobs, ends[:-1]),
            strict=True,
        )
    ]
    assert 2 * len(encode(one)) < len(pickle.dumps(rows, 5))
