"""Paths with items of media: their tokens with each item unfolded to a span, and the keys and values of known prefixes.

Keys and values are those of the latest sequences in memory, and of prefixes on the tiers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.encoder import EncoderEntry
from lmql_lite.cache.kv.engine import KVCacheEngine
from lmql_lite.cache.kv.layout import KV, Unsupported, from_cache, to_cache
from lmql_lite.errors import ModelError
from lmql_lite.media import DIGEST_BYTES
from lmql_lite.models.live import SHARED, Lane, LiveSequences
from lmql_lite.models.media.encoding import ADVANCE, POSITIONS, TOKENS

_WORTHWHILE = 16
"""New tokens from which on a pass is worth looking on the tiers, and an entry there."""


@dataclass(frozen=True)
class Unfolded:
    """Tokens of a pass. `starts[i]` is the place of the path's token `i`, also for one that is inside an item: there
    it is the place of the item. `positions` are `[3, tokens]`, or `[1, tokens]`. `chain` identifies each token in keys
    of attention KV: a text's by its id, an item's by the digest and its place in the span."""

    tokens: NDArray[np.int64]
    items: tuple[tuple[int, EncoderEntry], ...]
    positions: NDArray[np.int64]
    starts: NDArray[np.int64]
    chain: tuple[int, ...]

    def rotated(self, band: int) -> Unfolded:
        """The same tokens, whose keys are those of a band of rotations: equal keys only within it."""
        if not band:
            return self
        return replace(self, chain=(*span_chain(f"{band} {self.chain[0]}", 1), *self.chain[1:]))

    def before(self, place: int) -> int:
        """Largest place up to `place` that is in no item: a prefix may end there."""
        return int(self.starts[self.starts <= place].max(initial=0))


def unfolded(ids: tuple[int, ...], mark: int, entries: Mapping[str, EncoderEntry], axes: int) -> Unfolded:
    """Tokens of a path; `entries` are those of its items by their digests. Raises ModelError for an entry without the
    positions that a model with three `axes` needs: its answer would be silently wrong."""
    tokens: list[int] = []
    chain: list[int] = []
    starts: list[int] = []
    items: list[tuple[int, EncoderEntry]] = []
    positions: list[NDArray[np.int64]] = []
    position = at = 0
    while at < len(ids):
        if ids[at] != mark:
            starts.append(len(tokens))
            tokens.append(ids[at])
            chain.append(ids[at])
            positions.append(np.full((axes, 1), position))
            position, at = position + 1, at + 1
            continue
        digest = bytes(ids[at + 1 : at + 1 + DIGEST_BYTES]).hex()
        entry = entries[digest]
        items.append((len(tokens), entry))
        starts += [len(tokens)] * (1 + DIGEST_BYTES)
        at += 1 + DIGEST_BYTES
        span = entry.tensors[TOKENS].tolist()
        if axes > 1 and POSITIONS not in entry.tensors:
            raise ModelError("the model needs positions for an item, and its entry has none", hint="clear its cache")
        relative = entry.tensors[POSITIONS].cpu().numpy() if axes > 1 else np.arange(len(span))[None]
        tokens += span
        chain += span_chain(digest, len(span))
        positions.append(relative + position)
        position += int(entry.facts[ADVANCE])
    starts.append(len(tokens))
    places = np.concatenate(positions, axis=1) if positions else np.zeros((axes, 0), np.int64)
    return Unfolded(np.array(tokens, np.int64), tuple(items), places, np.array(starts), tuple(chain))


def span_chain(digest: str, count: int) -> list[int]:
    """Number of each token of a span in a hash chain: 63 bits of its own of the whole digest, below 0 as no id is."""
    hashes = (hashlib.sha256(f"{digest} {place}".encode()).digest() for place in range(count))
    return [-1 - (int.from_bytes(one[:8]) >> 1) for one in hashes]


@dataclass(frozen=True)
class MediaPrefix:
    """Keys and values of the first `length` tokens of a path, and the tier that had them."""

    length: int = 0
    kv: KV = ()
    tier: str = "memory"

    def cache(self, device: Any) -> Any:
        """Cache of transformers with these keys and values."""
        return to_cache(tuple((keys[:, : self.length], values[:, : self.length]) for keys, values in self.kv), device)


class MediaKV:
    """Keys and values of one model, at most `most_bytes` of them in memory. Not for several threads."""

    def __init__(self, engine: KVCacheEngine | None, most_bytes: int) -> None:
        self.engine = engine
        self.live = LiveSequences[KV](most_bytes, _bytes_of)

    def longest(self, whole: Unfolded, limit: int, lane: Lane = SHARED) -> MediaPrefix:
        """Longest known prefix of a lane that ends in no item, and before the path's token `limit`."""
        most, found = int(whole.starts[limit]), MediaPrefix()
        live, shared = self.live.longest(whole.chain, most, lane)
        if live is not None and (length := whole.before(shared)):
            found = MediaPrefix(length, live.state)
        if self.engine is not None and lane.scope is None and len(whole.tokens) - found.length >= _WORTHWHILE:
            kv, count = self.engine.longest(whole.chain[:most])
            if (length := whole.before(count)) > found.length:
                tiers = self.engine.requests[-1].by_tier
                found = MediaPrefix(length, kv, max(tiers, key=lambda tier: tiers[tier]))
        return found

    def remember(self, whole: Unfolded, past: Any, known: int, lane: Lane = SHARED) -> None:
        """Keeps the keys and values of a pass, which began after `known` tokens. Nothing where they cannot be kept."""
        try:
            kv = from_cache(past, len(whole.tokens))
        except Unsupported:
            return
        self.live.put(whole.chain, kv, lane)
        self.live.evict()
        if self.live.size > self.live.max_size:  # the last one is too large as well
            self.live.all.clear()
        if self.engine is None or lane.scope is not None:
            return
        if len(whole.tokens) - known >= _WORTHWHILE:
            self.engine.store(whole.chain, kv, blocking=False)
        else:
            self.engine.save_decoded(whole.chain, lambda: kv)


def _bytes_of(sequences: Iterable[KV]) -> int:
    return sum(part.nbytes for kv in sequences for pair in kv for part in pair)
