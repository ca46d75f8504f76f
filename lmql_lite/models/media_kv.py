"""Keys and values of prompts with items: the latest sequences are in memory, prefixes are on the tiers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmql_lite.cache.kv.kv_engine import KVCacheEngine
from lmql_lite.cache.kv.kv_index import shared_tokens
from lmql_lite.cache.kv.kv_layout import KV, Unsupported, from_cache, to_cache
from lmql_lite.cache.kv.kv_page import Tokens
from lmql_lite.models.media_path import Unfolded

_SEQUENCES = 4
"""Maximum number of sequences in memory."""
_WORTHWHILE = 16
"""New tokens from which on a pass is worth looking on the tiers, and an entry there."""


@dataclass(frozen=True)
class MediaPrefix:
    """Keys and values of the first `length` tokens of a path, and the tier that had them. `cross` has those of a clip
    that the decoder attends to."""

    length: int = 0
    kv: KV = ()
    cross: KV = ()
    tier: str = "memory"

    def cache(self, device: Any, *, crosses: bool) -> Any:
        """Cache of transformers with these keys and values."""
        kept = to_cache(tuple((keys[:, : self.length], values[:, : self.length]) for keys, values in self.kv), device)
        if not crosses:
            return kept
        import transformers

        library: Any = transformers
        return library.EncoderDecoderCache(kept, to_cache(self.cross, device))


@dataclass(frozen=True)
class _Sequence:
    chain: Tokens
    kv: KV
    cross: KV

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for pair in (*self.kv, *self.cross) for tensor in pair)


class MediaKV:
    """Keys and values of one model. `most_bytes` bounds those in memory; None means no bound. Not thread-safe."""

    def __init__(self, engine: KVCacheEngine | None, most_bytes: int | None) -> None:
        self.engine, self._most_bytes = engine, most_bytes
        self._live: list[_Sequence] = []

    def clear(self) -> None:
        """Forgets what is in memory."""
        self._live.clear()

    def longest(self, whole: Unfolded, limit: int) -> MediaPrefix:
        """Longest known prefix that ends in no item, and before the path's token `limit`."""
        most, found = int(whole.starts[limit]), MediaPrefix()
        for live in self._live:
            length = whole.before(min(shared_tokens(live.chain, whole.chain), most))
            if length > found.length:
                found = MediaPrefix(length, live.kv, live.cross)
        if self.engine is not None and len(whole.tokens) - found.length >= _WORTHWHILE:
            kv, count = self.engine.longest(whole.chain[:most])
            if (length := whole.before(count)) > found.length:
                tiers = self.engine.requests[-1].by_tier
                found = MediaPrefix(length, kv, found.cross, max(tiers, key=lambda tier: tiers[tier]))
        return found

    def remember(self, whole: Unfolded, past: Any, known: int) -> None:
        """Keeps the keys and values of a pass, which began after `known` tokens. Nothing where they cannot be kept."""
        cross: KV = ()
        try:
            if hasattr(past, "cross_attention_cache"):
                crossed, past = past.cross_attention_cache, past.self_attention_cache
                cross = from_cache(crossed, crossed.get_seq_length())
            kv = from_cache(past, len(whole.tokens))
        except Unsupported:
            return
        self._live = [live for live in self._live if shared_tokens(live.chain, whole.chain) < len(live.chain)]
        self._live = [*self._live, _Sequence(whole.chain, kv, cross)][-_SEQUENCES:]
        while self._most_bytes is not None and sum(live.nbytes for live in self._live) > self._most_bytes:
            del self._live[0]
        if self.engine is None:
            return
        if len(whole.tokens) - known >= _WORTHWHILE:
            self.engine.store(whole.chain, kv, blocking=False)
        else:
            self.engine.save_decoded(whole.chain, lambda: kv)
