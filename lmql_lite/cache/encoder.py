"""Encoder cache: outputs of vision and audio encoders, by a hash of the picture, video or clip.

The encoder does not run again for a known item. An entry holds named tensors, usually one of shape
`[num_tokens, hidden_dim]`, and facts such as grids, so that the prompt is built without decoding the item. The cache
does not depend on an encoder. It has its own tiers, so that encoder entries and attention KV do not evict each other.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args
from urllib.parse import quote

from lmql_lite.cache.kv.config import KVCacheConfig
from lmql_lite.cache.kv.layout import as_bits
from lmql_lite.cache.kv.pages import LMCACHE_DTYPES, KVError, dtype_name
from lmql_lite.cache.tensor_bytes import TensorBits, decode_tensors, encode_tensors
from lmql_lite.store.tier import Buffer, Notices, TierCounts
from lmql_lite.store.tiered import Tiered

if TYPE_CHECKING:
    import torch

EncoderRole: TypeAlias = Literal["ec_producer", "ec_consumer", "ec_both"]
"""`ec_producer` saves only, `ec_consumer` reads only."""

_LOG = logging.getLogger(__name__)
_KEY = re.compile("[^@]*(@[^@]*){4}")
_FORMAT = "lmql_lite encoder entry 1"
_REPORT_SECONDS = 10.0
"""Time between two log lines with the hit rate."""


@dataclass(frozen=True)
class EncoderEntry:
    """Output of an encoder for one item: tensors by name, and facts that JSON can hold."""

    tensors: Mapping[str, torch.Tensor]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EncoderReport:
    """Figures of an encoder cache since it was opened."""

    hits: int
    misses: int
    tiers: dict[str, TierCounts]
    notices: tuple[str, ...]

    @property
    def hit_rate(self) -> float:
        """Share of requested items that were found; 0.0 before the first request."""
        return self.hits / (self.hits + self.misses) if self.hits else 0.0

    def __str__(self) -> str:
        return f"MM cache hit rate: {100 * self.hit_rate:.1f}%"


def mm_hash(item: str, modality: str, processor: str, weights: str, sampling: Mapping[str, Any] | None = None) -> str:
    """Hash of an item for `EncoderCache`: 64 hexadecimal digits.

    `item` is the SHA-256 of the raw bytes, so that a known item is not decoded. `processor` and `weights` identify the
    configuration of the processor and the parameters of the encoder; `sampling` are options such as `num_frames`.
    """
    parts = [item, modality, processor, weights, sorted((sampling or {}).items())]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


class EncoderCache:
    """Outputs of the encoder of one model, by the hash of the item. Threads may share a cache, and processes its tiers.

    Each key contains `model_name` and `dtype`, which is the dtype of the encoder's output, not of attention KV. All
    ranks of a tensor-parallel deployment have the same entries, so keys name rank 0 of 1. Every failure is a miss.

        cache = EncoderCache(KVCacheConfig.load(layer="ec"), "my/model", "bfloat16")
        cache.put(key, embeddings)          # [num_tokens, hidden_dim]
        cache.get(key)                      # an equal tensor, or None
    """

    def __init__(self, config: KVCacheConfig, model_name: str, dtype: object, role: EncoderRole = "ec_both") -> None:
        if role not in get_args(EncoderRole):
            raise KVError(f"ec_role is {role!r}", hint=f"one of {', '.join(get_args(EncoderRole))}")
        self.config, self.model_name, self.dtype, self.role = config, model_name, dtype_name(dtype), role
        self.tiers: Tiered = config.open_tiers("ec", _KEY, reads_only=role == "ec_consumer")
        self._notices = Notices()
        self._lock, self._encoding = threading.Lock(), threading.Lock()
        self._hits, self._misses = 0, 0
        self._reported = time.monotonic()
        for sentence in config.notices:
            _LOG.warning("%s", sentence)

    @property
    def is_producer(self) -> bool:
        return self.role != "ec_consumer"

    @property
    def is_consumer(self) -> bool:
        return self.role != "ec_producer"

    def key(self, item_hash: str) -> str:
        """Key of an item: `model@1@0@hash@dtype`, as in LMCache. The hash is the first 8 bytes of the SHA-256 of
        `item_hash`. The entry holds the full `item_hash`, which is compared."""
        short = hashlib.sha256(item_hash.encode()).digest()[:8]
        return f"{quote(self.model_name, safe='')}@1@0@{int.from_bytes(short):x}@{LMCACHE_DTYPES[self.dtype]}"

    def contains(self, item_hash: str) -> bool:
        """True if `get` would find the item, in any role. Moves no data."""
        return self.tiers.contains([self.key(item_hash)])[0]

    def put(
        self,
        item_hash: str,
        tensors: torch.Tensor | Mapping[str, torch.Tensor],
        facts: Mapping[str, Any] | None = None,
    ) -> bool:
        """Stores the encoder's output, unless it is stored. Returns False if no tier takes it, and for a consumer.

        Raises KVError for a tensor whose dtype cannot be stored.
        """
        if not self.is_producer:
            return False
        named = dict(tensors) if isinstance(tensors, Mapping) else {"": tensors}
        with self._lock:
            key = self.key(item_hash)
            if self.tiers.contains([key])[0]:
                self.tiers.touch([key])
                return True
            bits = [TensorBits(name, str(one.dtype)[6:], as_bits(one)) for name, one in named.items()]
            metadata = {"format": _FORMAT, "mm_hash": item_hash, "facts": json.dumps(dict(facts or {}))}
            try:
                stored = self.tiers.put(key, encode_tensors(bits, metadata))
            except KeyError as error:
                raise KVError(f"an encoder output of dtype {error} cannot be stored") from error
            except MemoryError:
                stored = False
        size = sum(one.bits.nbytes for one in bits)
        if stored:
            _LOG.info("EC put: stored %d bytes for mm_hash=%s", size, item_hash)
        else:
            _LOG.warning("EC put: no tier takes %d bytes for mm_hash=%s", size, item_hash)
        return stored

    def entry(self, item_hash: str, device: torch.device | str = "cpu") -> EncoderEntry | None:
        """Entry of an item, on `device`, or None. Its tensors belong to the caller."""
        entry = self.load(item_hash, device)
        self.count(entry is not None)
        return entry

    def load(self, item_hash: str, device: torch.device | str = "cpu") -> EncoderEntry | None:
        """As `entry`, for an item whose request was counted before."""
        (found,) = self.tiers.get([self.key(item_hash)]) if self.is_consumer else [None]
        return None if found is None else self._decoded(item_hash, found, device)

    def count(self, is_hit: bool) -> None:
        """Counts the request of an item, and writes the hit rate to the log when it is due."""
        with self._lock:
            self._hits += is_hit
            self._misses += not is_hit
            is_due = time.monotonic() - self._reported > _REPORT_SECONDS
            self._reported = time.monotonic() if is_due else self._reported
        if is_due:
            _LOG.info("%s", self.report())

    def get(self, item_hash: str, device: torch.device | str = "cpu") -> torch.Tensor | None:
        """The only tensor of an item, on `device`, or None. It belongs to the caller.

        Raises KVError for an item with several tensors; `entry` returns them.
        """
        entry = self.entry(item_hash, device)
        if entry is not None and len(entry.tensors) != 1:
            raise KVError(f"mm_hash={item_hash} has {len(entry.tensors)} tensors", hint="use entry()")
        return None if entry is None else next(iter(entry.tensors.values()))

    def encoded(
        self,
        item_hashes: Sequence[str],
        encode: Callable[[list[int]], Sequence[EncoderEntry]],
        device: torch.device | str = "cpu",
    ) -> list[EncoderEntry]:
        """Entry of each item of a batch, in order. `encode` is called at most once, with the indices of the unknown
        items; of equal items it gets the first. Threads that ask for the same items encode them once."""
        found = {one: self.entry(one, device) for one in dict.fromkeys(item_hashes)}
        if None in found.values():
            with self._encoding:  # another thread may have encoded them meanwhile
                found = {one: entry or self.load(one, device) for one, entry in found.items()}
                unseen = [one for one, entry in found.items() if entry is None]
                made = encode([item_hashes.index(one) for one in unseen]) if unseen else ()
                for one, new in zip(unseen, made, strict=True):
                    self.put(one, new.tensors, new.facts)
                    found[one] = new
        return [entry for one in item_hashes if (entry := found[one])]

    def report(self) -> EncoderReport:
        """Figures since the cache was opened."""
        notices = [*self.config.notices, *self._notices]
        notices += [sentence for tier in self.tiers.tiers for sentence in tier.notices]
        tiers = {tier.name: tier.counts for tier in self.tiers.tiers}
        return EncoderReport(self._hits, self._misses, tiers, tuple(notices))

    def close(self) -> None:
        """Writes what is queued and closes the tiers. A second call does nothing."""
        if self._hits + self._misses:
            _LOG.info("%s", self.report())
        self.tiers.close()

    def _decoded(self, item_hash: str, data: Buffer, device: torch.device | str) -> EncoderEntry | None:
        """Entry from its bytes, copied; None and a notice if they belong to another item."""
        import torch

        try:
            tensors, metadata = decode_tensors(data)
            if (metadata.get("format"), metadata.get("mm_hash")) != (_FORMAT, item_hash):
                raise ValueError("it is the entry of another item")
            facts = json.loads(metadata["facts"])
        except (KeyError, TypeError, ValueError) as error:
            self._notices.add(f"{self.key(item_hash)} is not an entry of mm_hash={item_hash}: {error}")
            return None
        copies = {}
        for one in tensors:
            copy = torch.empty(one.bits.shape, dtype=getattr(torch, one.dtype))
            as_bits(copy)[...] = one.bits
            copies[one.name] = copy.to(device)
        return EncoderEntry(copies, facts)
