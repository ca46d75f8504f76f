"""Batches for the tests of the log. Light to import: processes that are killed every second make them too."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from lmql_lite.cache.frames import Batch, Draws, Heads, Verdicts


def same(left: Any, right: Any) -> bool:
    """Equality of entries, arrays by dtype, shape and bits."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if is_dataclass(left):
        return all(same(getattr(left, one.name), getattr(right, one.name)) for one in fields(left))
    return bool(left == right)


def batch(rng: np.random.Generator, size: int, *, first: int = 1, model: int = 1, vocabulary: int = 1536) -> Batch:
    """A batch like those of a run: chains, a head after every node, some verdicts and draws."""
    own = np.arange(first, first + size)
    parents = np.where(rng.random(size) < 0.9, own - 1, (rng.random(size) * own).astype(np.int64))
    sizes = np.minimum(rng.geometric(1 / 7.8, size), 32).astype(np.int64)
    entries = int(sizes.sum())
    logprobs = -rng.exponential(3, entries)
    order = np.lexsort((-logprobs, np.repeat(np.arange(size), sizes)))
    ids = (vocabulary ** rng.random(entries)).astype(np.int32) - 1
    facts = size // 4
    return Batch(
        model,
        first,
        parents,
        rng.integers(0, vocabulary, size).astype(np.int32),
        Heads(own, sizes, rng.random(size).astype(np.float32), ids, logprobs[order].astype(np.float32)),
        Verdicts(
            rng.integers(0, first + size, facts),
            rng.integers(0, 256, (facts, 16)).astype(np.uint8),
            rng.integers(-1, vocabulary, facts).astype(np.int32),
            -rng.exponential(3, facts).astype(np.float32),
        ),
        Draws(
            rng.integers(0, first + size, facts),
            rng.integers(0, 256, (facts, 16)).astype(np.uint8),
            rng.integers(0, 2**64, facts, dtype=np.uint64),
            rng.integers(0, 2**32, facts).astype(np.uint32),
            rng.integers(-1, vocabulary, facts).astype(np.int32),
            -rng.exponential(3, facts).astype(np.float32),
        ),
        written=int(rng.integers(0, 2**40)),
        replaces=bool(rng.random() < 0.2),
    )
