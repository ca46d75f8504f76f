"""Sources of options. Numbers are those of the statements in the reference's section 1.2 and 1.3."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.cache.kv.config import KVCacheConfig
from lmql_lite.errors import CacheError
from lmql_lite.store.disk import DiskTier

pytest.importorskip("yaml", reason="pyyaml is not installed: pip install 'lmql-lite[local]'")


def loaded(text: str = "", overrides: dict[str, object] | None = None, **environment: str) -> KVCacheConfig:
    path = Path("config.yaml")
    path.write_text(text)
    return KVCacheConfig.load(path, overrides, environment)


def names(config: KVCacheConfig) -> list[str]:
    tiers = config.open_tiers()
    try:
        return [tier.name for tier in tiers.tiers]
    finally:
        tiers.close()


@pytest.mark.parametrize(
    ("text", "tiers"),
    [
        ("", ["memory"]),
        ("local_device: cpu", ["memory"]),
        ("local_device: cuda:0", ["memory"]),
        ("local_device: file://cache/", ["disk"]),
        ("local_disk: file:///{here}/cache", ["memory", "disk"]),
        ("local_disk: cache\nlocal_cpu: false", ["disk"]),
        ("local_device: null\nremote_url: redis://localhost:1", ["redis"]),
        ("remote_url: redis://localhost:1", ["memory", "redis"]),
        ("local_disk: cache\nremote_url: valkey://localhost:1\nremote_serde: cachegen", None),
        ("local_disk: cache\nremote_url: valkey://localhost:1\nremote_serde: naive", ["memory", "disk", "redis"]),
    ],
)
def test_statements_31_and_33_tiers_by_configuration(text: str, tiers: list[str] | None, tmp_path: Path) -> None:
    if "remote" in text:
        pytest.importorskip("redis")
    text = text.replace("{here}", str(tmp_path).lstrip("/"))
    if tiers is None:
        with pytest.raises(ValueError, match="pages are stored losslessly"):
            loaded(text)
    else:
        assert names(loaded(text)) == tiers
        assert (tmp_path / "cache").exists() == ("disk" in tiers)


def test_statement_31_no_tier_at_all_raises() -> None:
    for text in ("local_cpu: false", "local_device: null", "local_device: ''"):
        with pytest.raises(ValueError, match="the cache has no tier"):
            loaded(text)
    with pytest.raises(ValueError, match="the cache has no tier"):
        KVCacheConfig(local_cpu=False).open_tiers()
    only_disk = loaded(LMCACHE_LOCAL_CPU="false", LMCACHE_LOCAL_DISK="cache")
    assert names(only_disk) == ["disk"] and not only_disk.notices


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "redis:/localhost:1",
        "redis://localhost",
        "redis://a:1,b:2",
        "http://a:1",
        "redis-sentinel://a:1",
        "lm://a:1",
        "redis://:1",
        "redis://a:b",
    ],
)
def test_statement_32_a_malformed_or_unsupported_url_raises(url: str) -> None:
    if url:
        with pytest.raises(ValueError, match="is not supported") as error:
            loaded(f"remote_url: {url!r}")
        assert url in str(error.value)
    else:
        assert loaded("remote_url: ''").remote_url is None
    for good in ("redis://a:1", "rediss://user:pw@a.b:6379/3", "valkey://127.0.0.1:9", "unix:///run/redis.sock"):
        assert loaded(f"remote_url: {good}").remote_url == good


def test_statement_33_a_serde_that_is_lossy_or_unknown_raises() -> None:
    for serde in ("cachegen", "fast", "kivi", "pickle"):
        with pytest.raises(ValueError, match=serde):
            loaded(f"remote_serde: {serde}")


def test_statement_35_a_disk_without_a_size_has_a_cap_and_other_policies_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    caps: list[int] = []
    monkeypatch.setattr(DiskTier, "__init__", lambda self, folder, most, *_, **__: caps.append(most))
    loaded("local_disk: cache").open_tiers()
    loaded("local_disk: cache\nmax_local_disk_size: 0.5").open_tiers()
    assert caps == [64 << 30, 1 << 29]
    for policy in ("FIFO", "LFU", "MRU"):
        with pytest.raises(ValueError, match="is not supported"):
            loaded(f"cache_policy: {policy}")
    assert loaded("cache_policy: lru").cache_policy == "lru"


def test_statement_36_defaults_and_both_vocabularies() -> None:
    config = KVCacheConfig.load(environment={})
    assert (config.chunk_size, config.local_cpu, config.max_local_cpu_size) == (256, True, 5.0)
    assert (config.local_disk, config.remote_url, config.save_decode_cache) == (None, None, False)
    old = loaded("chunk_size: 64\nlocal_device: cpu\npipelined_backend: true\nsave_decode_cache: true")
    assert (old.chunk_size, old.pipelined_backend, old.save_decode_cache) == (64, True, True)
    new = loaded("max_local_cpu_size: 2\nlocal_disk: file:///var/x\nmax_local_disk_size: 1.5\nsave_unfull_chunk: false")
    assert (new.max_local_cpu_size, new.local_disk, new.max_local_disk_size) == (2.0, "/var/x", 1.5)
    assert not new.save_unfull_chunk and not new.notices


def test_statement_36_keys_without_effect_and_unknown_keys_are_notices() -> None:
    config = loaded("enable_blending: true\nblend_min_tokens: 3\nchunk_sise: 3\nec_local_disk: x")
    assert config.chunk_size == 256 and len(config.notices) == 3
    assert "config.yaml: chunk_sise is unknown and ignored (did you mean chunk_size?)" in config.notices


@pytest.mark.parametrize("sources", list(itertools.product([False, True], repeat=4)))
def test_statement_37_default_file_environment_and_arguments_in_that_order(sources: tuple[bool, ...]) -> None:
    file, lmcache, ours, argument = sources
    environment = {"LMCACHE_CHUNK_SIZE": "2"} if lmcache else {}
    environment |= {"LMQL_CACHE_CHUNK_SIZE": "3"} if ours else {}
    config = loaded("chunk_size: 1" if file else "", {"chunk_size": 4} if argument else None, **environment)
    assert config.chunk_size == (4 if argument else 3 if ours else 2 if lmcache else 1 if file else 256)
    origin = "argument" if argument else "LMQL_CACHE_CHUNK_SIZE" if ours else "LMCACHE_CHUNK_SIZE" if lmcache else None
    assert config.origins.get("chunk_size") == (origin or ("config.yaml" if file else None))


def test_statement_37_the_environment_names_the_file_and_values_may_be_quoted() -> None:
    Path("a.yaml").write_text("chunk_size: 7")
    assert KVCacheConfig.load(environment={"LMCACHE_CONFIG_FILE": "a.yaml"}).chunk_size == 7
    config = KVCacheConfig.load(
        environment={
            "LMCACHE_CHUNK_SIZE": ' "64" ',
            "LMCACHE_LOCAL_CPU": "'True'",
            "LMCACHE_MAX_LOCAL_DISK_SIZE": " 0.25",
            "LMCACHE_LOCAL_DISK": "' file://x '",
            "LMCACHE_SOMETHING_OF_ANOTHER_VERSION": "1",
            "PATH": "/bin",
        }
    )
    assert (config.chunk_size, config.local_cpu, config.local_disk, config.max_local_disk_size) == (
        64,
        True,
        "x",
        0.25,
    )
    assert not config.notices


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CHUNK_SIZE", "many"),
        ("CHUNK_SIZE", "0"),
        ("LOCAL_CPU", "perhaps"),
        ("MAX_LOCAL_CPU_SIZE", "5GB"),
        ("REMOTE_URL", "nonsense"),
        ("CACHE_POLICY", "FIFO"),
        ("MAX_LOCAL_CPU_SIZE", "-1"),
    ],
)
def test_statement_37_a_wrong_value_in_the_environment_is_a_notice(name: str, value: str) -> None:
    for prefix in ("LMCACHE_", "LMQL_CACHE_"):
        config = loaded("chunk_size: 9", **{prefix + name: value})
        assert config.chunk_size == 9 and config.local_cpu and config.max_local_cpu_size == 5.0
        assert len(config.notices) == 1 and config.notices[0].startswith(f"{prefix}{name} is ignored: ")


@pytest.mark.parametrize(
    "text",
    [
        "chunk_size: many",
        "chunk_size: 2.5.1",
        "chunk_size: true",
        "local_cpu: 7",
        "- a\n- b",
        "a: [",
        "chunk_size: [1]",
        "max_local_cpu_size: -1",
        "chunk_size: -5",
        "!!python/object/apply:os.system ['true']",
    ],
)
def test_a_wrong_file_raises_a_sentence(text: str) -> None:
    with pytest.raises(CacheError) as error:
        loaded(text)
    assert error.value.hint


def test_a_missing_file_raises_a_sentence_that_names_it() -> None:
    with pytest.raises(CacheError, match=r"nowhere\.yaml is not a configuration file"):
        KVCacheConfig.load("nowhere.yaml", environment={})


def test_nothing_is_written_without_a_folder(tmp_path: Path) -> None:
    tiers = KVCacheConfig.load(environment={}).open_tiers()
    tiers.put("key", b"value")
    tiers.close()
    assert list(tmp_path.iterdir()) == []


def test_arguments_of_the_wrong_type_raise() -> None:
    wrong: list[dict[str, Any]] = [{"chunk_size": "x"}, {"local_cpu": "x"}, {"chunk_size": None}]
    for overrides in wrong:
        with pytest.raises(CacheError):
            KVCacheConfig.load(None, overrides, {})
