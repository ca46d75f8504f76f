"""Entries as bytes: they come back as they were, take little room, and no bytes do any harm."""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.cache import frames
from lmql_lite.cache.frames import Batch, Draws, Frame, FrameError, Heads, Model, Verdicts
from lmql_lite.cache.payloads import decode, decode_batches, encode
from tests.cache.batches import batch, same


@given(st.integers(0, 2**32), st.integers(0, 90), st.integers(1, 2**30), st.sampled_from([2, 300, 70_000, 2**31 - 1]))
@settings(deadline=None, derandomize=True)
def test_a_batch_comes_back_bit_for_bit(seed: int, size: int, first: int, vocabulary: int) -> None:
    entry = batch(np.random.default_rng(seed), size, first=first, model=seed % 2**31, vocabulary=vocabulary)
    frame = encode(entry)
    assert same(decode(frame), entry)
    assert (frame.model, frame.first, frame.count) == (entry.model, first, size)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 2**30))
@settings(deadline=None, derandomize=True)
def test_batches_that_follow_one_another_are_read_as_one_and_come_back_each(
    seed: int, sizes: list[int], first: int
) -> None:
    rng, entries = np.random.default_rng(seed), list[Batch]()
    for size in sizes:
        vocabulary = int(rng.choice([2, 300, 70_000, 2**31 - 1]))  # columns of several widths
        entries.append(batch(rng, size, first=first, model=7, vocabulary=vocabulary))
        first += size
    frames_of = [encode(entry) for entry in entries]
    assert all(map(same, decode_batches(frames_of), entries))
    bound = max((int(ids.max()) for entry in entries for ids in (entry.tokens, entry.heads.ids) if len(ids)), default=0)
    with suppress(FrameError):  # answers may say more
        assert all(map(same, decode_batches(frames_of, bound + 1), entries))
    if bound:
        with pytest.raises(FrameError, match="token that is none"):
            decode_batches(frames_of, bound)


@given(st.integers(0, 2**31 - 1), st.text(max_size=40), st.text(max_size=40), st.integers(0, 2**31 - 1))
@settings(deadline=None, derandomize=True)
def test_a_model_comes_back(number: int, fingerprint: str, name: str, size: int) -> None:
    entry = Model(number, fingerprint, name, size)
    assert decode(encode(entry)) == entry


@given(st.integers(0, 2**32), st.data())
@settings(deadline=None, derandomize=True, max_examples=300)
def test_whatever_bytes_are_an_entry_or_a_FrameError(seed: int, data: st.DataObject) -> None:
    frame = encode(batch(np.random.default_rng(seed), 12, first=40))
    payload = bytearray(frame.payload or b"")
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)) | st.just(len(payload)))
    count = data.draw(st.just(frame.count) | st.integers(0, 2**32 - 1))
    kind = data.draw(st.sampled_from([frames.BATCH, frames.BATCH, frames.MODEL, 77]))
    with suppress(FrameError):
        decode(Frame(kind, 1, frame.first, count, bytes(payload[:cut])))


@pytest.mark.parametrize("at", [25, 26, 27, 28], ids=["late", "later", "latest", "neither replaces nor not"])
def test_a_head_that_cannot_be_is_refused(at: int) -> None:
    """Bytes 20 to 27 are the time, 28 whether it replaces."""
    payload = bytearray(encode(Batch(1, 1, written=2**40 - 1, replaces=True)).payload or b"")
    payload[at] = 2
    with pytest.raises(FrameError, match="out of range"):
        decode(Frame(frames.BATCH, 1, 1, 0, bytes(payload)))


def test_a_frame_that_promises_much_makes_no_large_array() -> None:
    small = encode(Batch(1, 1)).payload
    assert small is not None
    huge = np.array([2**20, 2**24, 2**20, 2**20, 0], "<u4").tobytes() + small[20:]
    with pytest.raises(FrameError, match="another length"):
        decode(Frame(frames.BATCH, 1, 1, 2**20, huge))
    with pytest.raises(FrameError, match="more than a frame may hold"):
        decode(Frame(frames.BATCH, 1, 1, 2**32 - 1, small))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"parents": np.array([0, 2])}, "after its child"),
        ({"parents": np.array([-1, 0])}, "below 0"),
        ({"parents": np.array([0])}, "do not go together"),
        ({"tokens": np.array([0, -1], np.int32)}, "token that is none"),
        ({"first": 0}, "cannot begin"),
        ({"first": 2**50}, "cannot begin"),
        ({"model": -1}, "out of range"),
        ({"written": -1}, "cannot have been written"),
        ({"written": 2**40}, "cannot have been written"),
        ({"heads": Heads(*map(np.array, ([3], [1], [0.0], [1], [0.0])))}, "not there"),
        ({"heads": Heads(*map(np.array, ([0], [2], [0.0], [1], [0.0])))}, "add up"),
        ({"heads": Heads(*map(np.array, ([0], [2], [0.0], [1, 2], [-2.0, -1.0])))}, "best first"),
        ({"heads": Heads(*map(np.array, ([0], [2], [0.0], [1, 2], [-2.0, np.nan])))}, "best first"),
        ({"heads": Heads(*map(np.array, ([0], [1], [-0.5], [1], [-2.0])))}, "mass below 0"),
    ],
)
def test_a_batch_that_makes_no_sense_is_not_written(change: dict[str, Any], problem: str) -> None:
    entry = Batch(1, 1, np.array([0, 1]), np.array([5, 6], np.int32))
    assert same(decode(encode(entry)), entry)
    with pytest.raises(FrameError, match=problem):
        encode(replace(entry, **change))


@pytest.mark.parametrize("vocabulary", [1536, 131_072])
def test_a_batch_takes_less_than_half_of_pickled_tuples(vocabulary: int) -> None:
    entry = replace(batch(np.random.default_rng(5), 2_000, vocabulary=vocabulary), verdicts=Verdicts(), draws=Draws())
    ends = np.cumsum(entry.heads.sizes)
    rows = [
        (parent, token, tuple(ids.tolist()), tuple(logprobs.tolist()))
        for parent, token, ids, logprobs in zip(
            entry.parents.tolist(),
            entry.tokens.tolist(),
            np.split(entry.heads.ids, ends[:-1]),
            np.split(entry.heads.logprobs, ends[:-1]),
            strict=True,
        )
    ]
    assert 2 * len(encode(entry).payload or b"") < len(pickle.dumps(rows, 5))
