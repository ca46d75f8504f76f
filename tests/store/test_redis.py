"""The Redis tier when the server is absent, hangs, comes back, forgets or holds something else."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.errors import CacheError
from lmql_lite.store.redis import RedisTier
from tests.store.redis_server import BreakerClock, RedisServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as running:
        yield running


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    """Somebody else on the server."""
    with pytest.importorskip("redis").Redis.from_url(server.url) as other:
        yield other


def test_an_absent_server_is_asked_ever_less_often_and_serves_when_it_is_back(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = BreakerClock(monkeypatch)
    tier = RedisTier(server.url, "test", 2**20)
    assert tier.put("key", b"value")
    server.stop()
    pauses = []
    for _ in range(10):
        assert tier.get(["key"]) == [None] and tier.contains(["key"]) == [False] and not tier.put("key", b"value")
        before, errors = clock.now, tier.counts.errors
        while tier.counts.errors == errors:
            clock.now += 0.5
            tier.get(["key"])
        pauses.append(clock.now - before)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    assert len(tier.notices) == 1 and "does not answer" in tier.notices[0]
    server.start()
    clock.now += 30.0
    assert tier.put("key", b"again") and tier.get(["key"]) == [b"again"]
    server.stop()
    assert tier.get(["key"]) == [None]
    clock.now += 0.5  # the pauses begin anew
    server.start()
    assert tier.put("key", b"third")
    with warnings.catch_warnings(record=True) as caught:  # a tier that is dropped closes its sockets
        warnings.simplefilter("always")
        del tier
        gc.collect()
    assert [str(each.message) for each in caught] == []


def test_no_server_at_all_is_a_miss(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    tier = RedisTier("redis://127.0.0.1:1", "test", 2**20)
    assert tier.get(["key"]) == [None] and tier.head(["key"], 4) == [None] and not tier.put("key", b"value")
    assert tier.sizes() == {} and not tier.pin("key", True) and not tier.delete("key")
    tier.touch(["key"])
    tier.close()
    assert tier.counts.errors >= 1


@pytest.mark.parametrize("url", ["http://host", "redis//host", "host:6379", "redis://host:port", ""])
def test_a_bad_url_is_an_error_that_names_it(url: str) -> None:
    pytest.importorskip("redis")
    with pytest.raises(CacheError, match="is not a URL of a Redis server") as error:
        RedisTier(url, "test", 2**20)
    assert error.value.hint == "such as redis://localhost:6379"


def test_damaged_and_foreign_entries_are_misses_and_removed(server: RedisServer, client: Any) -> None:
    tier = RedisTier(server.url, "test", 2**20, timeout=5.0)
    tier.put("key", b"value of an entry")
    whole = client.get("lmql_lite:{test}:entry:key")
    for damaged in (b"x", b"{}", whole[:-1] + b"\0"):
        tier.put("key", b"value of an entry")
        client.set("lmql_lite:{test}:entry:key", damaged)
        assert tier.get(["key"]) == [None] and not client.exists("lmql_lite:{test}:entry:key")
    assert tier.counts.corrupt == 3 and tier.keys() == []


def test_a_key_of_another_type_is_a_miss_and_no_outage(server: RedisServer, client: Any) -> None:
    tier = RedisTier(server.url, "test", 2**20, timeout=5.0)
    client.set("lmql_lite:{test}:order", "somebody else's")
    assert not tier.put("key", b"value") and "refuses a command" in tier.notices[0]
    client.flushall()
    assert tier.put("key", b"value") and tier.get(["key"]) == [b"value"]


def test_a_server_that_forgets_is_an_empty_tier(server: RedisServer, client: Any) -> None:
    tier = RedisTier(server.url, "test", 5000, timeout=5.0)
    for number in range(4):
        tier.put(f"key {number}", bytes(1000))
    client.delete("lmql_lite:{test}:entry:key 0")  # as `allkeys-lru` does
    assert tier.get(["key 0", "key 1"]) == [None, bytes(1000)]
    for number in range(10):
        assert tier.put(f"later {number}", bytes(1000))
    assert len(client.keys("lmql_lite:{test}:entry:*")) <= 5
    client.flushall()
    assert tier.get(["key 1"]) == [None] and tier.put("key", b"value")


def test_two_clients_share_entries_and_cap_and_namespaces_do_not(server: RedisServer) -> None:
    one, two = (RedisTier(server.url, "shared", 5500, timeout=5.0) for _ in range(2))
    other = RedisTier(server.url, "other", 5500, timeout=5.0)
    other.put("key 0", b"other")
    for number in range(20):
        assert (one, two)[number % 2].put(f"key {number}", bytes(1000))
        assert sum(one.sizes().values()) <= 5500
    assert set(one.keys()) == set(two.keys()) == {f"key {n}" for n in range(15, 20)}
    assert other.get(["key 0"]) == [b"other"]


def test_a_large_value_is_sent_in_pieces_also_to_valkey(server: RedisServer) -> None:
    value = bytes(range(256)) * 20_000
    tier = RedisTier(server.url.replace("redis", "valkey"), "test", 2**24, timeout=5.0)
    assert tier.put("key", memoryview(value)) and tier.get(["key"]) == [value]
    assert tier.head(["key"], 300) == [value[:300]]
