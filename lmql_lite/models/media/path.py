"""Paths with items of media: their tokens with each item unfolded to a span."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.encoder import EncoderEntry
from lmql_lite.errors import ModelError
from lmql_lite.media import DIGEST_BYTES
from lmql_lite.models.media.encoding import ADVANCE, POSITIONS, TOKENS
from lmql_lite.models.transformers.rows import hashed


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
    return [hashed(f"{digest} {place}") for place in range(count)]
