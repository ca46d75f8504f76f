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


UNSUPPORTED = ["localhost", "redis:/localhost:1", "redis://localhost", "redis://a:1,b:2", "http://a:1", "lm://a:1"]
UNSUPPORTED += ["redis-sentinel://a:1", "redis://:1", "redis://a:b"]


def loaded(text: str = "", overrides: dict[str, object] | None = None, **environment: str) -> KVCacheConfig:
    path = Path("config.yaml")
    path.write_text(text)
    return KVCacheConfig.load(path, overrides, environment)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["memory"]),
        ("local_device: cpu", ["memory"]),
        ("local_device: cuda:0", ["memory"]),
        ("local_device: file://cache/", ["disk"]),
        ("local_disk: file:///{here}/cache", ["memory", "disk"]),
        ("local_disk: cache\nlocal_cpu: false", ["disk"]),
        ("local_device: null\nremote_url: redis://localhost:1", ["redis"]),
        ("remote_url: redis://localhost:1", ["memory", "redis"]),
        ("local_disk: cache\nremote_url: valkey://localhost:1\nremote_serde: naive", ["memory", "disk", "redis"]),
    ],
)
def test_statements_31_and_33_tiers_by_configuration(text: str, expected: list[str], tmp_path: Path) -> None:
    if "remote" in text:
        pytest.importorskip("redis")
    tiers = loaded(text.replace("{here}", str(tmp_path).lstrip("/"))).open_tiers()
    assert [tier.name for tier in tiers.tiers] == expected
    tiers.put("key", b"value")
    tiers.close()
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml"} | ({"cache"} if "disk" in expected else set())


def test_statement_32_urls_that_are_taken() -> None:
    assert loaded("remote_url: ''").remote_url is None
    for good in ("redis://a:1", "rediss://user:pw@a.b:6379/3", "valkey://127.0.0.1:9", "unix:///run/redis.sock"):
        assert loaded(f"remote_url: {good}").remote_url == good


def test_statement_35_a_disk_without_a_size_has_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    caps: list[int] = []
    monkeypatch.setattr(DiskTier, "__init__", lambda self, folder, most, *_, **__: caps.append(most))
    loaded("local_disk: cache").open_tiers()
    loaded("local_disk: cache\nmax_local_disk_size: 0.5").open_tiers()
    assert caps == [64 << 30, 1 << 29]
    assert loaded("cache_policy: lru").cache_policy == "lru"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("local_cpu: false", "the cache has no tier"),
        ("local_device: null", "the cache has no tier"),
        ("local_device: ''", "the cache has no tier"),
        *((f"remote_url: {url}", f"{url}.* is not supported") for url in UNSUPPORTED),
        ("local_disk: cache\nremote_url: valkey://localhost:1\nremote_serde: cachegen", "pages are stored losslessly"),
        *((f"remote_serde: {serde}", serde) for serde in ("cachegen", "fast", "kivi", "pickle")),
        *((f"cache_policy: {policy}", "is not supported") for policy in ("FIFO", "LFU", "MRU")),
        *((f"chunk_size: {value}", "chunk_size") for value in ("many", "2.5.1", "true", "[1]", "-5")),
        ("local_cpu: 7", "local_cpu"),
        ("max_local_cpu_size: -1", "is negative"),
        ("- a\n- b", "config.yaml"),
        ("a: [", "config.yaml"),
        ("!!python/object/apply:os.system ['true']", "config.yaml"),
    ],
)
def test_statements_31_to_33_and_35_a_wrong_file_raises_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(CacheError, match=sentence) as error:
        loaded(text)
    assert isinstance(error.value, ValueError) and error.value.hint


def test_wrong_arguments_raise_a_sentence() -> None:
    wrong: list[dict[str, Any]] = [{"chunk_size": "x"}, {"local_cpu": "x"}, {"chunk_size": None}]
    for overrides in wrong:
        with pytest.raises(CacheError):
            KVCacheConfig.load(None, overrides, {})
    with pytest.raises(CacheError, match=r"nowhere\.yaml is not a configuration file"):
        KVCacheConfig.load("nowhere.yaml", environment={})
    with pytest.raises(ValueError, match="the cache has no tier"):
        KVCacheConfig(local_cpu=False).open_tiers()


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
    assert "config.yaml: chunk_sise has no effect here (did you mean chunk_size?)" in config.notices


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
    assert (config.chunk_size, config.local_cpu, config.local_disk) == (64, True, "x")
    assert config.max_local_disk_size == 0.25 and not config.notices


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
