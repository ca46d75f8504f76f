"""Forms of masks, dtypes and devices that LMCache's later tests pass, in our words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")

from lmql_lite.cache.kv.block_reuse import merge_dynamic_caches  # noqa: E402
from lmql_lite.cache.kv.config import KVCacheConfig, KVCacheMetadata  # noqa: E402
from lmql_lite.cache.kv.engine import KVCacheEngine  # noqa: E402
from lmql_lite.cache.kv.pages import KVError, dtype_name  # noqa: E402

TOKENS = 24


@pytest.fixture
def engine() -> Any:
    config = KVCacheConfig.load(None, {"chunk_size": 8, "local_cpu": True, "max_local_cpu_size": 0.01})
    engine = KVCacheEngine(config, KVCacheMetadata("org/model", dtype="float32"))
    yield engine
    engine.close()


def kv() -> Any:
    return tuple((torch.rand(2, TOKENS, 4), torch.rand(2, TOKENS, 4)) for _ in range(2))


MASKS = {
    "bool": lambda: torch.arange(TOKENS) >= 8,
    "float": lambda: (torch.arange(TOKENS) >= 8).float(),
    "half": lambda: (torch.arange(TOKENS) >= 8).half(),
    "bfloat16": lambda: (torch.arange(TOKENS) >= 8).bfloat16(),
    "float8": lambda: (torch.arange(TOKENS) >= 8).to(torch.float8_e4m3fn),
    "with a gradient": lambda: (torch.arange(TOKENS) >= 8).float().requires_grad_(),
    "int": lambda: (torch.arange(TOKENS) >= 8).int(),
    "numpy float": lambda: (np.arange(TOKENS) >= 8).astype(float),
    "list of int": lambda: [int(place >= 8) for place in range(TOKENS)],
}


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_of_zeros_and_ones_is_a_mask(kind: str, engine: Any) -> None:
    stored = kv()
    engine.store(list(range(TOKENS)), stored)
    found, flags = engine.retrieve(list(range(TOKENS)), MASKS[kind]())
    assert flags.tolist() == (torch.arange(TOKENS) >= 8).tolist()
    assert all(torch.equal(one[0], other[0][:, 8:]) for one, other in zip(found, stored, strict=True))


@pytest.mark.parametrize("mask", [torch.full((TOKENS,), 0.5), torch.full((TOKENS,), float("nan")), [2] * TOKENS])
def test_a_mask_of_other_numbers_is_refused(mask: Any, engine: Any) -> None:
    with pytest.raises(KVError, match="is not a mask of 24 tokens"):
        engine.retrieve(list(range(TOKENS)), mask)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("fp8", "uint8"),
        ("fp8_e4m3", "float8_e4m3fn"),
        ("fp8_e4m3fn", "float8_e4m3fn"),
        ("fp8_e5m2", "float8_e5m2"),
        (torch.float8_e4m3fn, "float8_e4m3fn"),
        ("torch.bfloat16", "bfloat16"),
        ("half", "float16"),
    ],
)
def test_every_name_of_a_dtype_that_lmcache_writes_is_known(name: object, known: str) -> None:
    assert dtype_name(name) == known


@pytest.mark.parametrize("return_tuple", [True, False])
@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), "meta"])
def test_keys_and_values_are_returned_on_the_device_that_is_named(
    device: object, return_tuple: bool, engine: Any
) -> None:
    engine.store(list(range(TOKENS)), kv())
    found, flags = engine.retrieve(list(range(TOKENS)), return_tuple=return_tuple, device=device)
    tensors = [tensor for pair in found for tensor in pair] if return_tuple else [found]
    assert {str(tensor.device) for tensor in tensors} == {str(device)} and str(flags.device) == "cpu"


def test_caches_are_merged_from_any_iterable() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'lmql-lite[local]'")

    def caches() -> Any:
        for tokens in (4, 3, 2):
            cache = transformers.DynamicCache()
            cache.update(torch.ones(1, 2, tokens, 4), torch.ones(1, 2, tokens, 4), 0)
            yield cache

    for given in (list(caches()), tuple(caches()), caches(), iter(list(caches()))):
        assert merge_dynamic_caches(given).get_seq_length() == 9
    with pytest.raises(KVError, match="no cache to merge"):
        merge_dynamic_caches(iter(()))
