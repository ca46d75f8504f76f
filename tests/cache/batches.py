"""Records for the tests of the log, as tests write them down: with numbers for the nodes of a model. Light to import:
processes that are killed every second make them too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.codec import encode
from lmql_lite.cache.columns import Entries, GreedyAnswers, Model, Record, SampledAnswers, TopKs
from lmql_lite.cache.framing import address_of

MODEL = Model("fingerprint", "demo", 1536)


@dataclass(frozen=True, eq=False)
class Batch:
    """Nodes of a model, numbered from `first` (0 is the root), and entries at nodes by their numbers."""

    model: Model
    first: int
    parents: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    entries: Entries = field(default_factory=Entries)
    written: int = 0
    replaces: bool = False

    @property
    def stop(self) -> int:
        return self.first + len(self.tokens)


def recorded(batches: Iterable[Batch]) -> list[bytes]:
    """The payloads of batches, each of which hangs on those before it."""
    records: dict[str, list[tuple[int, int, bytes]]] = {}
    payloads = []
    for one in batches:
        known = records.setdefault(one.model.fingerprint, [])
        needed = np.unique(np.concatenate([one.parents, one.entries.nodes]))
        anchors = needed[needed < one.first]
        places = {int(number): place for place, number in enumerate(anchors)}
        places |= {number: len(anchors) + place for place, number in enumerate(range(one.first, one.stop))}
        parents: list[bytes] = []
        at: list[tuple[int, int]] = []
        for number in anchors.tolist():
            for first, stop, address in known:
                if first <= number < stop:
                    if address not in parents:
                        parents.append(address)
                    at.append((parents.index(address) + 1, number - first))
                    break
            else:
                assert number == 0
                at.append((0, 0))

        def moved(numbers: NDArray[np.int64], places: dict[int, int] = places) -> NDArray[np.int64]:
            return np.array([places[number] for number in numbers.tolist()], np.int64)

        columns = np.array(at, np.int64).reshape(-1, 2)
        above, entries = moved(one.parents), one.entries.moved(moved)
        tokens, written = one.tokens, one.written
        record = Record(
            one.model, tuple(parents), columns[:, 0], columns[:, 1], above, tokens, entries, written, one.replaces
        )
        payloads.append(encode(record))
        known.append((one.first, one.stop, address_of(payloads[-1])))
    return payloads


def same(left: Any, right: Any) -> bool:
    """Equality of records, arrays by dtype, shape and bits."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if is_dataclass(left):
        return all(same(getattr(left, one.name), getattr(right, one.name)) for one in fields(left))
    return bool(left == right)


def batch(
    rng: np.random.Generator, size: int, *, first: int = 1, model: Model = MODEL, vocabulary: int | None = None
) -> Batch:
    """A batch like those of a run: chains, a top-k entry after every node, some answers."""
    vocabulary = model.vocabulary_size if vocabulary is None else vocabulary
    own = np.arange(first, first + size)
    parents = np.where(rng.random(size) < 0.9, own - 1, (rng.random(size) * own).astype(np.int64))
    sizes = np.minimum(rng.geometric(1 / 7.8, size), 32).astype(np.int64)
    entries = int(sizes.sum())
    logprobs = -rng.exponential(3, entries)
    order = np.lexsort((-logprobs, np.repeat(np.arange(size), sizes)))
    ids = (vocabulary ** rng.random(entries)).astype(np.int32) - 1
    answers = size // 4
    return Batch(
        model,
        first,
        parents,
        rng.integers(0, vocabulary, size).astype(np.int32),
        Entries(
            TopKs(own, sizes, rng.random(size).astype(np.float32), ids, logprobs[order].astype(np.float32)),
            GreedyAnswers(
                rng.integers(0, first + size, answers),
                rng.integers(0, 256, (answers, 16)).astype(np.uint8),
                rng.integers(-1, vocabulary, answers).astype(np.int32),
                -rng.exponential(3, answers).astype(np.float32),
            ),
            SampledAnswers(
                rng.integers(0, first + size, answers),
                rng.integers(0, 256, (answers, 16)).astype(np.uint8),
                rng.integers(0, 2**64, answers, dtype=np.uint64),
                rng.integers(0, 2**32, answers).astype(np.uint32),
                rng.integers(-1, vocabulary, answers).astype(np.int32),
                -rng.exponential(3, answers).astype(np.float32),
            ),
        ),
        written=int(rng.integers(0, 2**40)),
        replaces=bool(rng.random() < 0.2),
    )
