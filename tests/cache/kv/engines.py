"""Engines, sequences and keys and values for tests. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.cache.kv.config import KVCacheConfig, KVCacheMetadata
from lmql_lite.cache.kv.engine import KVCacheEngine

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'lmql-lite[local]'")

LAYERS, HEADS, SIZE = 3, 2, 4
METADATA = KVCacheMetadata("org/model@1", fingerprint="0123456789abcdef" * 4)


def config(folder: Path | None = None, **values: Any) -> KVCacheConfig:
    return KVCacheConfig(local_disk=None if folder is None else str(folder), **values)


@contextmanager
def opened(folder: Path | None = None, metadata: KVCacheMetadata = METADATA, **values: Any) -> Iterator[KVCacheEngine]:
    engine = KVCacheEngine(config(folder, **values), metadata)
    try:
        yield engine
    finally:
        engine.close()


def ids(count: int, seed: int = 0) -> Any:
    return torch.randint(0, 50_000, (count,), generator=torch.Generator().manual_seed(seed))


def kv(count: int, seed: int = 0, fmt: str = "huggingface", dtype: Any = None) -> Any:
    """Keys and values of `count` tokens. Those of fewer tokens are a beginning of those of more."""
    numbers = torch.Generator().manual_seed(seed)
    whole = torch.randn((4096, LAYERS, 2, HEADS, SIZE), generator=numbers)[:count].to(dtype or torch.float32)
    order = (1, 2, 3, 0, 4) if fmt == "huggingface" else (1, 2, 0, 3, 4)
    return tuple((layer[0], layer[1]) for layer in whole.permute(order))


def same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) and a.dtype == b.dtype
        for pair, twin in zip(one, other, strict=True)
        for a, b in zip(pair, twin, strict=True)
    )


def cut(pairs: Any, begin: int, end: int, fmt: str = "huggingface") -> Any:
    axis = 1 if fmt == "huggingface" else 0
    return tuple((k.narrow(axis, begin, end - begin), v.narrow(axis, begin, end - begin)) for k, v in pairs)
