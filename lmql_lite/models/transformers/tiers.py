"""Attention-KV engines of a model in this process, their tiers from an option or the environment."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from lmql_lite.cache.kv.config import KVCacheConfig, KVCacheMetadata
from lmql_lite.cache.kv.engine import KVCacheEngine
from lmql_lite.models.transformers.checkpoint import Checkpoint, free_bytes
from lmql_lite.models.transformers.exactness import kernel

_GIB = 1 << 30
_LIVE_SHARE, _LIVE_BYTES = 0.25, 4 << 30
"""Keys and values of live sequences take at most this share of free memory, and at most so many bytes."""


def kv_engine(
    checkpoint: Checkpoint, kv: str | KVCacheConfig | None, *, exact: bool
) -> tuple[KVCacheEngine | None, int]:
    """Engine on disk or on a server, None where neither is named; and the bytes for live sequences.

    `kv` is a folder, a `redis://` URL or a config; None is the config that LMCache's and our variables of the
    environment make. Live sequences are the tier in memory, so the engine has none: nothing is held twice. Raises
    CacheError for a config that cannot be used.
    """
    if isinstance(kv, KVCacheConfig):
        config = kv
    elif kv is None:
        config = KVCacheConfig.load()
    else:
        is_server = "://" in kv and not kv.startswith("file://")
        config = KVCacheConfig.load(overrides={"remote_url" if is_server else "local_disk": kv})
    is_stated = "max_local_cpu_size" in config.origins or isinstance(kv, KVCacheConfig)
    free = free_bytes(checkpoint.network.device) or _LIVE_BYTES
    most = int(config.max_local_cpu_size * _GIB) if is_stated else min(_LIVE_BYTES, int(_LIVE_SHARE * free))
    if config.local_disk is None and config.remote_url is None:
        return None, most
    metadata = _metadata(checkpoint.name, checkpoint.fingerprint, checkpoint.network, exact=exact)
    return KVCacheEngine(replace(config, local_cpu=False), metadata), most


def block_engine(name: str, fingerprint: str, network: Any, kv: KVCacheEngine | None) -> KVCacheEngine:
    """Engine for blocks of a model: in memory, and below it on the tiers of the model's own engine `kv`."""
    config = KVCacheConfig.load() if kv is None else replace(kv.config, local_cpu=True)
    return KVCacheEngine(config, _metadata(name, fingerprint, network, exact=False))


def _metadata(name: str, fingerprint: str, network: Any, *, exact: bool) -> KVCacheMetadata:
    # keys and values differ between releases and processors by noise, which exact scores must not have
    identity = f"{fingerprint} {kernel(network, exact=exact)}"
    return KVCacheMetadata(
        name.partition(":")[2] or name,
        dtype=str(network.dtype),
        fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
    )
