"""Growth: a put into a full tier and the look-up of a prompt's beginning cost the same beside any number of entries.

Commands of the server and calls of the file system are counted, not seconds.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.cache.kv.layout import token_ids
from lmql_lite.cache.kv.pages import KVIndex, place_tags
from lmql_lite.store.disk import DiskTier
from lmql_lite.store.redis import RedisTier
from tests.store.redis_server import RedisServer

FEW, MANY = 100, 3_000
VALUE = bytes(100)


def call(calls: Counter[str], name: str, real: Callable[..., object], *given: Any, **named: Any) -> object:
    calls[name] += 1
    return real(*given, **named)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Calls of `os.scandir`, and entries that it and `os.stat` looked at."""
    calls = Counter[str]()
    with monkeypatch.context() as patch:
        for name in ("scandir", "stat"):
            patch.setattr(os, name, partial(call, calls, name, getattr(os, name)))
        yield calls


def filled(folder: Path, number: int) -> DiskTier:
    """A tier at its cap."""
    whole = DiskTier(folder, 2**30)
    for place in range(number):
        assert whole.put(f"{place:06}", VALUE)
    return DiskTier(folder, sum(whole.sizes().values()))


def test_a_put_into_a_full_folder_lists_it_once_for_a_tenth_of_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, puts = filled(tmp_path, 1_000), 200
    with counted(monkeypatch) as calls:
        for place in range(puts):
            assert tier.put(f"new {place}", VALUE)
    assert 1 <= calls["scandir"] <= 4
    assert len(tier.keys()) <= 1_000 and tier.contains([f"new {place}" for place in range(puts)]) == [True] * puts


def test_a_put_lists_nothing_while_there_is_room_in_turns_with_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for number in (FEW, 1_000):
        filled(tmp_path / str(number), number)
        tiers = [DiskTier(tmp_path / str(number), 2**30) for _ in range(2)]
        with counted(monkeypatch) as calls:
            for place in range(40):
                assert tiers[place % 2].put(f"new {place}", VALUE)
        counts.append(calls)
    assert counts[0] == counts[1] and not counts[0]["scandir"]


def test_the_look_up_of_a_beginning_lists_only_pages_at_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = token_ids(range(20))
    here = place_tags("parent", ids)[-1]
    counts = []
    for number in (FEW, 1_000):
        tier = DiskTier(tmp_path / str(number), 2**30)
        for place in range(number):
            tier.put(f"vllm@model@1@0@{place:08x}@half@after%{place:016x}.{place:08x}", VALUE)
        tier.put(f"vllm@model@1@0@hash@half@after%{here}", VALUE)
        with counted(monkeypatch) as calls:
            KVIndex(tier, lambda page, place: f"vllm@model@1@0@{page}@half@after%{place}").closest("parent", ids)
        counts.append(calls)
        assert tier.group(here) == [f"vllm@model@1@0@hash@half@after%{here}"]
    assert counts[0] == counts[1]


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """URL of a server, and a client of it."""
    redis = pytest.importorskip("redis", reason="needs redis: pip install 'lmql-lite[redis]'")
    with RedisServer(tmp_path) as server:
        client = redis.Redis.from_url(server.url)
        yield server.url, client
        client.close()


@pytest.mark.parametrize("room", [True, False], ids=["below the cap", "at the cap"])
def test_a_put_to_a_server_needs_the_same_commands_beside_any_number(redis_server: tuple[str, Any], room: bool) -> None:
    url, client = redis_server
    found = []
    for number in (FEW, MANY):
        tier = RedisTier(url, str(number), 2**30 if room else number * len(VALUE), timeout=10)
        for place in range(number):
            assert tier.put(f"{place:06}", VALUE)
        client.config_resetstat()
        for place in range(20):
            assert tier.put(f"new {place}", VALUE)
        calls = {name.removeprefix("cmdstat_"): each["calls"] for name, each in client.info("commandstats").items()}
        found.append({name: count for name, count in calls.items() if name not in ("info", "config|resetstat")})
        assert len(tier.sizes()) == (number + 20 if room else number)
        assert tier.counts.evictions == (0 if room else 20)
    assert found[0] == found[1] and not {"hgetall", "hvals", "keys", "scan"} & found[0].keys()


def test_the_sum_of_sizes_on_a_server_is_right_after_every_kind_of_change(redis_server: tuple[str, Any]) -> None:
    url, client = redis_server
    tier, sizes = RedisTier(url, "sum", 1_000, timeout=10), "lmql_lite:{sum}:sizes"

    def used() -> int:
        return int(client.hget(sizes, ":used"))

    for key, size in (("a", 300), ("b", 300), ("a", 500), ("c", 200), ("d", 400), ("e", 1_001), ("f", 1_000)):
        tier.put(key, bytes(size))
        assert used() == sum(tier.sizes().values()) <= 1_000
    tier.put("a", bytes(10))
    assert tier.delete("a") and not tier.delete("a")
    assert used() == sum(tier.sizes().values())
    tier.put("b", bytes(10))
    client.hdel(sizes, ":used")  # written by an earlier version, or lost
    tier.put("c", bytes(20))
    assert used() == sum(tier.sizes().values()) == 30
