"""Engine that keeps attention keys and values of known prefixes: store, retrieve, lookup (LMCache's interface).

A sequence is divided into chunks of 256 tokens. A chunk is stored on tiers as a page, under the hash of all tokens up
to its end. Every failure is a miss: the caller computes, and the answer is the same.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lmql_lite.cache.kv.config import KVCacheConfig, KVCacheMetadata
from lmql_lite.cache.kv.layout import (
    KV,
    TOKEN_AXIS,
    Mask,
    TokenIds,
    as_bits,
    joined_kv,
    kv_to_tensor,
    left_out,
    token_ids,
)
from lmql_lite.cache.kv.pages import (
    LMCACHE_DTYPES,
    KVError,
    KVIndex,
    KVPage,
    Tokens,
    chunk_tokens,
    decode_page,
    encode_page,
    page_key,
    place_tags,
    prefix_hashes,
    shared_tokens,
)
from lmql_lite.store.tier import Buffer, Notices, TierCounts
from lmql_lite.store.tiered import Tiered

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class KVReport:
    """Figures of an engine since it was opened: the number of tokens that were requested, the number found on each
    tier, and the counts of each tier."""

    asked: int
    by_tier: Mapping[str, int]
    tiers: dict[str, TierCounts]
    notices: tuple[str, ...]

    @property
    def found(self) -> int:
        """Number of tokens found on any tier."""
        return sum(self.by_tier.values())

    @property
    def hit_rate(self) -> float:
        """Share of requested tokens that were found; 0.0 if none were requested."""
        return self.found / self.asked if self.asked else 0.0


class KVCacheEngine:
    """Keys and values of prefixes, by their tokens. Threads may share an engine, and processes its tiers.

    `tokens` is a 1-D tensor, array or sequence of token ids. Keys and values are pairs of tensors per layer, without a
    batch dimension, in the metadata's layout and dtype. Returned tensors never alias stored ones.

        engine = KVCacheEngine(KVCacheConfig(local_disk="cache"), KVCacheMetadata("my/model", fingerprint=digest))
        engine.store(tokens, kv)
        kv, found = engine.retrieve(tokens + more)      # found: which tokens kv covers
        engine.close()
    """

    def __init__(self, config: KVCacheConfig, metadata: KVCacheMetadata) -> None:
        self.config, self.metadata = config, metadata
        self.tiers: Tiered = config.open_tiers()
        self._axis = TOKEN_AXIS[metadata.fmt]
        self._notices = Notices()
        self._lock = threading.Lock()
        self._asked, self._found = 0, Counter[str]()
        self._initial = hashlib.sha256(config.cache_salt.encode()).hexdigest() if config.cache_salt else ""
        self._index = KVIndex(self.tiers, self._key)
        if not metadata.fingerprint:
            self._notices.add(
                f"{metadata.model_name}: without a fingerprint, other weights of this name share its pages"
            )

    # -- LMCache's interface

    def store(
        self,
        tokens: TokenIds,
        kv_tensors_raw: KV,
        kv_tensors_mask: Mask | None = None,
        skip_existing: bool = True,
        blocking: bool = True,
    ) -> None:
        """Stores keys and values of a sequence, page by page.

        `kv_tensors_mask` marks the tokens that `kv_tensors_raw` covers: all, or all from a multiple of the chunk size
        on. `skip_existing` does not rewrite stored pages. Without `blocking`, a thread writes to tiers below memory;
        the tensors may be changed as soon as the call returns.

        Layers with different numbers of tokens were trimmed, and give a notice instead of being stored. Raises KVError
        for wrong shapes, dtypes and masks.
        """
        ids = token_ids(tokens)
        skipped = left_out(kv_tensors_mask, len(ids))
        size = self.config.chunk_size
        if skipped == len(ids):
            return
        if skipped % size:
            raise KVError(f"the mask begins at token {skipped}, which is not a multiple of the chunk size {size}")
        if skipped and not skip_existing:
            raise KVError("a mask needs skip_existing=True", hint="to rewrite pages, store the whole sequence")
        if not self._checked(kv_tensors_raw, len(ids) - skipped):
            return
        chunks = chunk_tokens(ids, size)
        if len(chunks[-1]) < size and not self.config.save_unfull_chunk:
            chunks.pop()
        parents, keys = self._chain(chunks)
        is_there = self.tiers.contains(keys) if skip_existing else [False] * len(keys)
        layers = None
        for number in reversed(range(skipped // size, len(chunks))):  # a prefix is evicted after the pages that need it
            if not is_there[number]:
                layers = layers or [(as_bits(key), as_bits(value)) for key, value in kv_tensors_raw]
                cut = slice(number * size - skipped, number * size - skipped + len(chunks[number]))
                place = (cut,) if self._axis == 0 else (slice(None), cut)
                arrays = [(key[place], value[place]) for key, value in layers]
                page = encode_page(chunks[number], parents[number], arrays, self.metadata.dtype)
                if self.tiers.put(keys[number], page, behind=None if blocking else True):
                    self._index.add(keys[number], chunks[number])
        self.tiers.touch(keys[: is_there.index(False)] if False in is_there else keys)

    def retrieve(
        self, tokens: TokenIds, mask: Mask | None = None, return_tuple: bool = True, device: torch.device | str = "cpu"
    ) -> tuple[KV | torch.Tensor | tuple[()], torch.Tensor]:
        """Keys and values of the longest known prefix, in whole pages, and a mask of the tokens that they cover.

        `mask` marks the wanted tokens: all, or all from some token on. `return_tuple=False` returns one tensor
        `[layers, 2, heads, tokens, head size]`, or with `vllm` `[layers, 2, tokens, heads, head size]`. For a miss the
        first part is `()`. Keys and values are on `device`, the mask on the CPU. Raises KVError for a mask of another
        form.
        """
        import torch

        ids = token_ids(tokens)
        skipped = left_out(mask, len(ids))
        first = skipped // self.config.chunk_size
        pages, _ = self._pages(ids, first)
        end = min(first * self.config.chunk_size + sum(len(page.tokens) for page in pages), len(ids))
        found = torch.zeros(len(ids), dtype=torch.bool)
        if end <= skipped:
            return (), found
        found[skipped:end] = True
        kv = self._joined(pages, skipped - first * self.config.chunk_size, end - first * self.config.chunk_size)
        kv = tuple((key.to(device), value.to(device)) for key, value in kv)
        return (kv if return_tuple else kv_to_tensor(kv)), found

    def lookup(self, tokens: TokenIds) -> int:
        """Number of tokens that `retrieve` would find, without moving any data."""
        chunks = chunk_tokens(token_ids(tokens), self.config.chunk_size)
        known = 0
        for chunk, is_there in zip(chunks, self.tiers.contains(self._chain(chunks)[1]), strict=True):
            if not is_there:
                break
            known += len(chunk)
        return known

    def close(self) -> None:
        """Writes what is queued and closes the tiers. A second call does nothing."""
        self.tiers.close()

    # -- beyond the seed

    def longest(self, tokens: TokenIds) -> tuple[KV, int]:
        """Keys and values of the longest known prefix, exact to the token, and its length.

        The last page may be that of another sequence, of which only the common beginning is used.
        """
        kv, by_tier = self.found(tokens)
        return kv, sum(by_tier.values())

    def found(self, tokens: TokenIds) -> tuple[KV, Mapping[str, int]]:
        """As `longest`, with the number of tokens that each tier had."""
        pages, by_tier = self._pages(token_ids(tokens), 0, partial=True)
        known = sum(by_tier.values())
        return (self._joined(pages, 0, known) if known else ()), by_tier

    def save_decoded(self, tokens: TokenIds, kv: Callable[[], KV], is_done: bool = False) -> bool:
        """Stores a sequence during generation, whenever a page is full, and at its end with `is_done`.

        Call it after each token; `kv` is called only when a page is stored. Does nothing unless the config has
        `save_decode_cache`. Returns True if it stored a page.
        """
        is_due = is_done or (len(tokens) and len(tokens) % self.config.chunk_size == 0)
        if not (self.config.save_decode_cache and is_due):
            return False
        self.store(tokens, kv(), blocking=False)
        return True

    def prefetch(self, tokens: TokenIds) -> None:
        """Starts to load the pages of a sequence into the first tier, and returns at once."""
        self.tiers.prefetch(self._known(tokens))

    def pin(self, tokens: TokenIds, pinned: bool = True) -> int:
        """Exempts the known pages of a sequence from eviction, or ends the exemption. Returns their number of
        tokens."""
        for key in self._known(tokens):
            self.tiers.pin(key, pinned)
        return self.lookup(tokens)

    def clear(self, tokens: TokenIds) -> int:
        """Removes the known pages of a sequence from all tiers. Returns their number."""
        return sum(self.tiers.delete(key) for key in self._known(tokens))

    def report(self) -> KVReport:
        """Figures since the engine was opened."""
        with self._lock:
            asked, by_tier = self._asked, dict(self._found)
        notices = [*self.config.notices, *self._notices]
        notices += [sentence for tier in self.tiers.tiers for sentence in tier.notices]
        return KVReport(asked, by_tier, {tier.name: tier.counts for tier in self.tiers.tiers}, tuple(notices))

    # -- pages

    def _chain(self, chunks: Sequence[Tokens]) -> tuple[list[str], list[str]]:
        """Hash of the page before each chunk, and the key of each chunk."""
        parents = [self._initial, *prefix_hashes(chunks, self._initial)]
        keys = [
            self._key(page_hash, place_tags(parent, chunk)[-1])
            for parent, page_hash, chunk in zip(parents, parents[1:], chunks, strict=False)
        ]
        return parents, keys

    def _key(self, page_hash: str, place: str) -> str:
        data = self.metadata
        tags = {"weights": data.fingerprint[:32]} if data.fingerprint else {}
        identity = (data.fmt, data.model_name, data.world_size, data.worker_id, page_hash, LMCACHE_DTYPES[data.dtype])
        return page_key(*identity, tags=tags | {"after": place})

    def _known(self, tokens: TokenIds) -> list[str]:
        """Keys of the pages that `retrieve` would find."""
        keys = self._chain(chunk_tokens(token_ids(tokens), self.config.chunk_size))[1]
        is_there = [*self.tiers.contains(keys), False]
        return keys[: is_there.index(False)]

    def _checked(self, kv: KV, tokens: int) -> bool:
        """True if keys and values can be stored. Raises KVError if they do not match the tokens at all."""
        layers = [tensor for pair in kv for tensor in pair]
        if not layers or any(len(pair) != 2 for pair in kv):
            raise KVError("keys and values must be a pair of tensors for each layer", hint="((k, v), (k, v), ...)")
        for tensor in layers:
            if tensor.ndim != 3:
                raise KVError(f"a tensor has {tensor.ndim} dimensions instead of 3", hint="leave out the batch")
            if str(tensor.dtype) != f"torch.{self.metadata.dtype}":
                raise KVError(f"a tensor has dtype {tensor.dtype}, but the metadata has {self.metadata.dtype}")
        counts = {tensor.shape[self._axis] for tensor in layers}
        if counts == {tokens}:
            return True
        if len(counts) > 1 and max(counts) <= tokens:
            self._notices.add(
                f"{self.metadata.model_name}: layers hold {sorted(counts)} of {tokens} tokens, and were not stored"
            )
            return False
        raise KVError(f"keys and values are those of {sorted(counts)} tokens, not of {tokens}")

    def _pages(self, ids: Tokens, first: int, partial: bool = False) -> tuple[list[KVPage], Counter[str]]:
        """Consecutive pages of a sequence from page `first` on, up to the first miss, and how many tokens each tier
        had."""
        chunks = chunk_tokens(ids, self.config.chunk_size)
        parents, keys = self._chain(chunks)
        pages: list[KVPage] = []
        by_tier = Counter[str]()
        for number, found in enumerate(self.tiers.read(keys[first:]), first):
            page = found and self._page(keys[number], found[0], parents[number], pages, chunks[number])
            tier, count = (found[1], len(chunks[number])) if found and page else ("", 0)
            if page is None and partial:
                page, tier, count = self._closest(parents[number], ids[number * self.config.chunk_size :], pages)
            if page:
                pages.append(page)
                by_tier[tier] += count
            if page is None or len(page.tokens) != len(chunks[number]) or count < len(page.tokens):
                break
        with self._lock:
            self._asked += sum(map(len, chunks[first:]))
            self._found += by_tier
        return pages, by_tier

    def _page(
        self, key: str, data: Buffer, parent: str, before: Sequence[KVPage], tokens: Tokens | None = None
    ) -> KVPage | None:
        """Page from its bytes; None and a notice if it does not match its tokens or the pages before it."""
        try:
            page = decode_page(data)
            shapes = [_shapes(one, self._axis) for one in (page, *before[:1])]
            fits = page.parent == parent and shapes[0] == shapes[-1] and _is_whole(page, self._axis)
            if not fits or (tokens is not None and not np.array_equal(page.tokens, tokens)):
                raise KVError("it does not match the pages before it")
        except KVError as error:
            self._notices.add(f"the page {key} was removed: {error.message}")
            self.tiers.delete(key)
            return None
        self._index.add(key, page.tokens)
        return page

    def _closest(self, parent: str, ids: Tokens, before: Sequence[KVPage]) -> tuple[KVPage | None, str, int]:
        """Page after `parent` that shares most tokens with `ids`, its tier, and the number of shared tokens."""
        for count, key in self._index.closest(parent, ids):
            (found,) = self.tiers.read([key])
            page = found and self._page(key, found[0], parent, before)
            if found and page and shared_tokens(page.tokens, ids) == count:
                return page, found[1], count
        return None, "", 0

    def _joined(self, pages: Sequence[KVPage], begin: int, end: int) -> KV:
        return joined_kv([page.layers for page in pages], self.metadata.dtype, self._axis, begin, end)


def _shapes(page: KVPage, axis: int) -> list[tuple[int, ...]]:
    """Shapes of a page's arrays and their item sizes, without the token axis."""
    arrays = [array for pair in page.layers for array in pair]
    return [(*array.shape[:axis], *array.shape[axis + 1 :], array.itemsize) for array in arrays]


def _is_whole(page: KVPage, axis: int) -> bool:
    return all(array.shape[axis] == len(page.tokens) for pair in page.layers for array in pair)
