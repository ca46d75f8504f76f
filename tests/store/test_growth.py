"""Growth: a put into a full tier and the look-up of a prompt's beginning cost the same beside any number of entries.

Commands of the server and calls of the file system are counted, not seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lmql_lite.cache.kv.layout import token_ids
from lmql_lite.cache.kv.pages import KVIndex, place_tags
from lmql_lite.store.disk import DiskTier
from lmql_lite.store.redis import RedisTier
from lmql_lite.store.tier import MAX_GROUP, MemoryTier
from tests.store.redis_server import RedisServer

FEW, MANY = 100, 3_000
VALUE = bytes(100)


class Counted:
    """Calls of `os.scandir`, and entries that it and `os.stat` looked at."""

    def __init__(self) -> None:
        self.listings = 0
        self.stats = 0


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    found = Counted()
    scandir, stat = os.scandir, os.stat

    def listed(*arguments: object) -> object:
        found.listings += 1
        return scandir(*arguments)  # type: ignore[call-overload]

    def looked(*arguments: object, **named: object) -> object:
        found.stats += 1
        return stat(*arguments, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", listed)
        patch.setattr(os, "stat", looked)
        yield found


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
    assert 1 <= calls.listings <= 4
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
        counts.append((calls.listings, calls.stats))
    assert counts[0] == counts[1] and counts[0][0] == 0


def test_a_folder_is_counted_anew_after_a_crash(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    (tmp_path / ".lock").write_bytes(b"")
    (tmp_path / ".tmp-crash").write_bytes(b"x")
    tier = DiskTier(tmp_path, sum(DiskTier(tmp_path, 2**20).sizes().values()))
    assert tier.put("000009", VALUE)
    assert tier.counts.evictions == 1 and not (tmp_path / ".tmp-crash").exists()


def test_two_caches_in_one_folder_have_an_account_each(tmp_path: Path) -> None:
    tiers = [DiskTier(tmp_path, 2_000, ".entry", re.compile(letter + ".*")) for letter in "ab"]
    for place in range(100):
        for letter, tier in zip("ab", tiers, strict=True):
            assert tier.put(f"{letter}{place}", VALUE)
            assert 0 < sum(tier.sizes().values()) <= 2_000


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[tuple[str, Callable[[], dict[str, int]]]]:
    redis = pytest.importorskip("redis", reason="needs redis: pip install 'lmql-lite[redis]'")
    with RedisServer(tmp_path) as server:
        url = server.url
        client = redis.Redis.from_url(url)

        def since() -> dict[str, int]:
            found = client.info("commandstats")
            client.config_resetstat()
            return {name.removeprefix("cmdstat_"): each["calls"] for name, each in found.items()}

        yield url, since
        client.close()


@pytest.mark.parametrize("room", [True, False], ids=["below the cap", "at the cap"])
def test_a_put_to_a_server_needs_the_same_commands_beside_any_number(
    commands: tuple[str, Callable[[], dict[str, int]]], room: bool
) -> None:
    url, since = commands
    found = []
    for number in (FEW, MANY):
        cap = 2**30 if room else number * len(VALUE)
        tier = RedisTier(url, str(number), cap, timeout=10)
        for place in range(number):
            assert tier.put(f"{place:06}", VALUE)
        since()
        for place in range(20):
            assert tier.put(f"new {place}", VALUE)
        calls = since()
        found.append({name: count for name, count in calls.items() if name not in ("info", "config|resetstat")})
        assert len(tier.sizes()) == (number + 20 if room else number)
        assert tier.counts.evictions == (0 if room else 20)
    assert found[0] == found[1] and not {"hgetall", "hvals", "keys", "scan"} & found[0].keys()


def test_the_sum_of_sizes_on_a_server_is_right_after_every_kind_of_change(
    commands: tuple[str, Callable[[], dict[str, int]]],
) -> None:
    redis = pytest.importorskip("redis", reason="needs redis: pip install 'lmql-lite[redis]'")
    url, _ = commands
    tier, client = RedisTier(url, "sum", 1_000, timeout=10), redis.Redis.from_url(url)
    sizes = "lmql_lite:{sum}:sizes"

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
    client.close()


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
        counts.append((calls.listings, calls.stats))
        assert tier.group(here) == [f"vllm@model@1@0@hash@half@after%{here}"]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("kind", ["memory", "disk", "redis"])
def test_a_group_has_its_own_entries_alone_and_at_most_so_many(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "redis":
        url, _ = request.getfixturevalue("commands")
    makers: dict[str, Callable[[], MemoryTier | DiskTier | RedisTier]] = {
        "memory": lambda: MemoryTier(100_000),
        "disk": lambda: DiskTier(tmp_path, 100_000),
        "redis": lambda: RedisTier(url, "group", 100_000, timeout=10),
    }
    tier = makers[kind]()
    for place in range(3):
        tier.put(f"a{place}@after%one", VALUE)
        tier.put(f"b{place}@after%two", VALUE)
        tier.put(f"c{place}", VALUE)
    assert sorted(tier.group("one")) == ["a0@after%one", "a1@after%one", "a2@after%one"]
    assert tier.delete("a1@after%one")
    assert sorted(tier.group("one")) == ["a0@after%one", "a2@after%one"]
    assert tier.group("none") == [] and len(tier.keys()) == 8
    for place in range(MAX_GROUP + 20):
        tier.put(f"d{place:04}@after%many", b"x")
    assert len(tier.group("many")) == MAX_GROUP
    for place in range(1_200):
        tier.put(f"{place}", VALUE)
    assert tier.group("one") == [] and tier.group("many") == []
