"""Encoder cache. Numbers are those of the statements in the reference section 2.1; 2, 19, 20 are the connector's."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.cache.encoder import EncoderCache, EncoderEntry, mm_hash
from lmql_lite.cache.kv.config import KVCacheConfig, KVCacheMetadata
from lmql_lite.errors import CacheError

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'lmql-lite[local]'")
pytest.importorskip("yaml", reason="pyyaml is not installed: pip install 'lmql-lite[local]'")

SMALL = 4096 / 2**30
"""Four KiB, in GiB."""


@contextmanager
def opened(folder: Path | None = None, role: Any = "ec_both", dtype: Any = "bfloat16", **values: Any) -> Iterator[Any]:
    config = KVCacheConfig(local_disk=None if folder is None else str(folder), **values)
    cache = EncoderCache(config, "org/model", dtype, role)
    try:
        yield cache
    finally:
        cache.close()


def output(seed: int = 0, tokens: int = 6, size: int = 16) -> Any:
    return torch.randn((tokens, size), generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def config(text: str = "", **environment: str) -> KVCacheConfig:
    Path("lmcache.yaml").write_text(text)
    return KVCacheConfig.load("lmcache.yaml", None, environment, "ec")


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    paths = folder.glob("*.pt")
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


@pytest.mark.parametrize(
    ("role", "produces", "consumes"),
    [("ec_producer", True, False), ("ec_consumer", False, True), ("ec_both", True, True)],
)
def test_statements_1_and_9_roles(tmp_path: Path, role: str, produces: bool, consumes: bool) -> None:
    with opened(tmp_path) as cache:
        assert not cache.contains("a")
        cache.put("a", output())
    with opened(tmp_path, role) as cache:
        assert (cache.is_producer, cache.is_consumer) == (produces, consumes)
        assert cache.contains("a") and not cache.contains("b") and (cache.get("a") is not None) == consumes


@pytest.mark.parametrize("wrong", ["", "both", None])
def test_statement_1_another_role_raises(wrong: Any) -> None:
    with pytest.raises(ValueError, match="ec_role is"), opened(role=wrong):
        pass


def test_statement_3_a_consumer_writes_nothing_and_a_producer_reads_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "ec"
    with opened(folder, "ec_consumer") as consumer:
        assert not consumer.put("a", output()) and consumer.get("a") is None
        assert not folder.exists()
    with opened(folder, "ec_producer") as producer:
        assert producer.put("a", output()) and producer.get("a") is None and producer.contains("a")
    before = snapshot(folder)
    with opened(folder, "ec_consumer") as consumer:
        assert not consumer.put("b", output(1))
        assert torch.equal(consumer.get("a"), output())
        seen = consumer.encoded(["a", "c"], lambda places: [EncoderEntry({"": output(2)}) for _ in places])
        assert [torch.equal(one.tensors[""], output(seed)) for one, seed in zip(seen, (0, 2), strict=True)] == [
            True
        ] * 2
    assert snapshot(folder) == before
    (path,) = folder.glob("*.pt")
    path.write_bytes(path.read_bytes()[:-1])
    for role in ("ec_consumer", "ec_both"):
        with opened(folder, role) as cache:
            assert cache.get("a") is None and cache.report().notices
            assert path.exists() == (role == "ec_consumer"), "it leaves damaged files alone too"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (7, 32), (3, 2, 8)])
def test_statements_4_and_14_any_tensor_comes_back_from_disk_bit_for_bit(
    tmp_path: Path, dtype: Any, shape: tuple[int, ...]
) -> None:
    tensor = torch.randn(shape).to(dtype)
    with opened(tmp_path, dtype=dtype) as cache:
        assert cache.put("a", tensor)
    with opened(tmp_path, dtype=dtype) as cache:
        found = cache.get("a")
    assert found.dtype == dtype and found.shape == tensor.shape
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))
    for expected in (None, None):  # without a folder, nothing outlives the cache
        with opened(dtype=dtype) as cache:
            assert cache.get("a") is expected
            cache.put("a", tensor)


def test_statement_4_named_tensors_and_facts(tmp_path: Path) -> None:
    grid = torch.tensor([[1, 4, 6]])
    facts = {"tokens": 6, "text": "<image>"}
    with opened(tmp_path) as cache:
        cache.put("a", {"pooler": output(), "deepstack.0": output(1), "grid": grid}, facts)
        entry = cache.entry("a")
        assert entry.facts == facts and torch.equal(entry.tensors["grid"], grid)
        assert torch.equal(entry.tensors["deepstack.0"], output(1))
        with pytest.raises(CacheError, match="has 3 tensors"):
            cache.get("a")


def test_statements_5_and_7_the_key_has_the_dtype_of_the_output_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = int.from_bytes(hashlib.sha256(b"a").digest()[:8], "big")
    for dtype, name in (("bfloat16", "bfloat16"), (torch.float16, "half"), ("float32", "float")):
        with opened(dtype=dtype) as cache:
            assert cache.key("a") == f"org%2Fmodel@1@0@{digest:x}@{name}"
    with opened() as cache:  # short hashes of two items may be the same
        monkeypatch.setattr(cache, "key", lambda item_hash: "model@1@0@ff@bfloat16")
        cache.put("a", output())
        assert cache.get("b") is None and "entry of another item" in cache.report().notices[-1]


def test_statement_6_ranks_that_put_at_once_leave_one_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with opened(tmp_path) as cache, ThreadPoolExecutor(4) as ranks:
        assert all(ranks.map(lambda _: cache.put("a", output()), range(4)))
    assert len(list(tmp_path.glob("*.pt"))) == 1
    assert len([line for line in caplog.messages if line.startswith("EC put")]) == 1


def test_statement_8_what_is_returned_aliases_nothing() -> None:
    with opened() as cache:
        original = output()
        assert cache.put("a", original) is True
        original.zero_()
        cache.get("a").zero_()
        assert torch.equal(cache.get("a", "cpu"), output()) and cache.get("b") is None


def test_statement_10_kv_and_encoder_outputs_evict_nothing_of_each_other(tmp_path: Path) -> None:
    """Also in one folder, each with a cap of 4 KiB."""
    from lmql_lite.cache.kv.engine import KVCacheEngine
    from tests.cache.kv.engines import ids, kv

    kv_config = KVCacheConfig(
        local_disk=str(tmp_path), max_local_disk_size=SMALL, max_local_cpu_size=SMALL, chunk_size=4
    )
    engine = KVCacheEngine(kv_config, KVCacheMetadata("org/model", fingerprint="f"))
    with opened(tmp_path, max_local_disk_size=SMALL, max_local_cpu_size=SMALL) as cache:
        cache.put("first", output())
        for seed in range(12):
            engine.store(ids(4, seed), kv(4, seed))
        assert cache.contains("first") and any(tier.counts.evictions for tier in engine.tiers.tiers)
        kept = engine.tiers.tiers[1].sizes()
        for number in range(40):
            cache.put(f"item {number}", output(number))
        assert not cache.contains("first") and engine.tiers.tiers[1].sizes() == kept
        assert {key.count("@") for key in cache.tiers.tiers[1].sizes()} == {4}
    engine.close()


@pytest.mark.parametrize("sources", list(itertools.product([False, True], repeat=5)))
def test_statement_11_precedence(sources: tuple[bool, ...]) -> None:
    yaml, env, nested, flat, ec_env = sources
    text = "max_local_disk_size: 2\n" * yaml + "ec: {max_local_disk_size: 4}\n" * nested
    text += "ec_max_local_disk_size: 5\n" * flat
    environment = {"LMCACHE_MAX_LOCAL_DISK_SIZE": "3"} if env else {}
    environment |= {"LMCACHE_EC_MAX_LOCAL_DISK_SIZE": "6"} if ec_env else {}
    expected = next((size for size, given in ((6, ec_env), (5, flat), (4, nested), (3, env), (2, yaml)) if given), 0)
    assert config(text, **environment).max_local_disk_size == expected
    base = KVCacheConfig.load("lmcache.yaml", None, environment)
    assert base.max_local_disk_size == (3 if env else 2 if yaml else 0)


def test_statement_11_unknown_keys_are_dropped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    loaded = config("ec_max_disk: 3\nec: {colour: red}", LMCACHE_EC_SIZE="4", LMCACHE_EC_MAX_LOCAL_CPU_SIZE="much")
    assert len(loaded.notices) == 4
    EncoderCache(loaded, "m", "float32").close()
    assert sum("has no effect here" in line for line in caplog.messages) == 3
    with pytest.raises(CacheError, match="ec is 3"):
        config("ec: 3")


def test_statement_12_defaults_after_overrides(tmp_path: Path) -> None:
    loaded = config("local_cpu: false\nmax_local_cpu_size: 0\nec_local_disk: ec-folder")
    assert loaded.local_cpu and loaded.max_local_cpu_size == 1.0
    nothing = config("local_cpu: false")
    before = sorted(tmp_path.rglob("*"))
    cache = EncoderCache(nothing, "m", "float32")
    assert cache.put("a", torch.ones(2, 2)) and [tier.name for tier in cache.tiers.tiers] == ["memory"]
    cache.close()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("form", ["file://{}", "{}", "file://{}/"])
def test_statement_13_and_15_forms_of_the_folder_and_the_name_of_the_file(tmp_path: Path, form: str) -> None:
    loaded = config(f"local_disk: {form.format(tmp_path / 'ec')}")
    cache = EncoderCache(loaded, "qwen", torch.bfloat16)
    cache.put("a", output())
    cache.close()
    (path,) = (tmp_path / "ec").glob("*.pt")
    assert re.fullmatch(r"qwen@1@0@[0-9a-f]{1,16}@bfloat16\.pt", path.name)


def test_statements_15_and_16_warm_requests_leave_the_file_as_it_is_whatever_the_chunk_size(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put("a", output())
    before = snapshot(tmp_path)
    for size in (1, 256):
        with opened(tmp_path, chunk_size=size) as cache:
            assert torch.equal(cache.get("a"), output()) and cache.put("a", output(9))
    assert snapshot(tmp_path) == before


def test_statement_15_a_file_that_was_read_is_evicted_after_one_that_was_not(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        for name in ("a", "b"):
            cache.put(name, output())
    for path in tmp_path.glob("*.pt"):
        os.utime(path, (1e9, 1e9))
    room = 2.5 * path.stat().st_size / 2**30
    with opened(tmp_path, max_local_disk_size=room) as cache:
        assert cache.get("a") is not None
        cache.put("c", output())
    with opened(tmp_path) as cache:
        assert [cache.contains(name) for name in "abc"] == [True, False, True]


def test_statement_17_log_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with opened(tmp_path) as cache:
        for _ in range(3):
            cache.put("h1", output(tokens=6, size=16))
            cache.put("h2", output(tokens=2, size=16))
    puts = [line for line in caplog.messages if line.startswith("EC put")]
    assert puts == ["EC put: stored 192 bytes for mm_hash=h1", "EC put: stored 64 bytes for mm_hash=h2"]
    caplog.clear()
    with opened(tmp_path) as cache:
        assert cache.get("h1") is not None and cache.put("h1", output())
    assert not [line for line in caplog.messages if line.startswith("EC put")]
    with opened(max_local_cpu_size=64 / 2**30) as cache:
        assert cache.put("a", output()) is False, "no tier takes it"
    (line,) = [record for record in caplog.records if record.message.startswith("EC put")]
    assert line.levelno == logging.WARNING


def test_statement_18_hit_rate(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with opened() as cache:
        assert cache.get("a") is None
        cache.put("a", output())
        assert cache.get("a") is not None and cache.get("a") is not None
        assert str(cache.report()) == "MM cache hit rate: 66.7%"
    assert caplog.messages[-1] == "MM cache hit rate: 66.7%"


def test_of_a_batch_only_unseen_items_are_encoded_each_once() -> None:
    asked: list[list[int]] = []

    def encode(places: list[int]) -> list[EncoderEntry]:
        asked.append(places)
        return [EncoderEntry({"": output(place)}) for place in places]

    with opened() as cache:
        cache.encoded(["a"], encode)
        found = cache.encoded(["b", "a", "b", "c"], encode)
        assert asked == [[0], [0, 3]]
        assert [torch.equal(one.tensors[""], output(seed)) for one, seed in zip(found, (0, 0, 0, 3), strict=True)]
        cache.encoded(["c", "b"], encode)
        assert len(asked) == 2


def test_an_encoder_that_fails_leaves_nothing() -> None:
    with opened() as cache:
        with pytest.raises(ZeroDivisionError):
            cache.encoded(["a"], lambda places: [1 // 0 for _ in places])
        assert not cache.contains("a")


def test_threads_that_ask_for_the_same_item_encode_it_once() -> None:
    calls: list[int] = []
    begin = threading.Barrier(4)

    def encode(places: list[int]) -> list[EncoderEntry]:
        calls.append(1)
        return [EncoderEntry({"": output()}) for _ in places]

    def ask(_: int) -> None:
        begin.wait()
        cache.encoded(["a"], encode)

    with opened() as cache, ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(4)))
    assert calls == [1]


def test_every_part_of_an_item_changes_its_hash() -> None:
    first = {"item": "00", "modality": "video", "processor": "p", "weights": "w", "sampling": {"num_frames": 8}}
    others = [
        {**first, key: value}
        for key, value in {**dict.fromkeys(first, "x"), "sampling": {"num_frames": 9}, "modality": "image"}.items()
        if key != "sampling" or isinstance(value, dict)
    ]
    hashes = [mm_hash(**one) for one in (first, *others)]
    assert len(set(hashes)) == len(hashes) == 6 and all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes)


def test_the_page_in_the_documentation_runs(root: Path) -> None:
    text = (root / "docs" / "encoder-cache.md").read_text("utf-8")
    exec(compile(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], "encoder-cache.md", "exec"), {})
