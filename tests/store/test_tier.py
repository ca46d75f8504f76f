"""Promises of every tier: the value or a miss, never other bytes; within the cap, least recently used out first."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from lmql_lite.store.disk import DiskTier
from lmql_lite.store.redis import RedisTier
from lmql_lite.store.tier import MAX_GROUP, MemoryTier, Store, envelope_size
from lmql_lite.store.tiered import Tiered
from tests.store.redis_server import RedisServer

Make = Callable[[int], Store]
NASTY = ["a/b", "a-b", "a\\b:c*?", "nul", "CON.x", ".hidden", "Zoë 🦊", "per%cent!21", "x" * 150, "a@b@1@0@" + "f" * 64]
ENTRY = 1000 + envelope_size("entry 00")
"""Bytes of an entry of this file on the tiers where an envelope counts."""


@pytest.fixture(params=["memory", "disk", "redis", "tiered", "tiered, write-behind"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """A new, empty tier with the given cap in bytes."""
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer(tmp_path)) if request.param == "redis" else None

        def made(most: int) -> Store:
            store: Store
            if request.param == "memory":
                store = MemoryTier(most)
            elif request.param == "disk":
                store = DiskTier(tmp_path / "entries", most)
            elif server is not None:
                store = RedisTier(server.url, "test", most, timeout=5.0)
            else:
                tiers = [MemoryTier(most), DiskTier(tmp_path / "entries", most)]
                store = Tiered(tiers, write_behind="behind" in request.param)
            stack.callback(store.close)
            return store

        yield made


def flushed(store: Store) -> Sequence[Store]:
    """The single tiers of a store, with all that was written behind."""
    if isinstance(store, Tiered):
        store.flush()
        return store.tiers
    return (store,)


def fill(store: Store, *numbers: int) -> None:
    for number in numbers:
        assert store.put(f"entry {number:02}", bytes(1000))
    flushed(store)


def entries(*numbers: int) -> set[str]:
    return {f"entry {number:02}" for number in numbers}


def read(store: Store, *keys: str) -> list[bytes | None]:
    return [None if value is None else bytes(value) for value in store.get(keys)]


def test_a_value_comes_back_and_everything_else_is_a_miss(make: Make) -> None:
    store = make(2**20)
    assert store.get([]) == [] and store.contains([]) == []
    assert store.put("b", bytes(range(256))) and store.put("a", memoryview(b"value")) and store.put("empty", b"")
    assert read(store, "a", "none", "b", "empty", "a") == [b"value", None, bytes(range(256)), b"", b"value"]
    assert store.contains(["none", "a", "b", "empty"]) == [False, True, True, True]
    flushed(store)
    assert [head and bytes(head) for head in store.head(["b", "a", "none"], 4)] == [bytes(range(4)), b"valu", None]
    assert set(store.sizes()) == set(store.keys()) == {"a", "b", "empty"}
    assert store.put("a", b"another") and read(store, "a") == [b"another"]
    flushed(store)
    value = store.get(["a"])[0]
    assert value is not None and memoryview(value).readonly, "a reader cannot change it"
    assert store.delete("a") and not store.delete("a")
    assert store.get(["a"]) == [None] and not store.contains(["a"])[0]
    assert store.counts.hits >= 5 and store.counts.misses >= 2
    assert not store.notices


def test_any_text_is_a_key(make: Make) -> None:
    store = make(2**20)
    for key in NASTY:
        assert store.put(key, key.encode())
    assert read(store, *NASTY) == [key.encode() for key in NASTY]
    flushed(store)
    assert set(store.keys()) == set(NASTY)


def test_check_20_ten_times_the_cap_stays_within_it_at_every_step_and_the_oldest_go_first(make: Make) -> None:
    cap = 4 * ENTRY + 500
    store = make(cap)
    for number in range(40):
        fill(store, number)
        if number >= 3:
            store.get(["entry 00"])  # in use: never the oldest
        assert all(sum(tier.sizes().values()) <= cap for tier in flushed(store))
    first, *below = flushed(store)
    assert set(first.keys()) == entries(0, 37, 38, 39)
    for tier in below:  # the disk does not hear of what memory answers
        assert set(tier.keys()) == entries(36, 37, 38, 39)


def test_of_keys_read_together_the_first_is_evicted_last(make: Make) -> None:
    store = make(3 * ENTRY + 500)
    fill(store, 0, 1, 2)
    for tier in flushed(store):
        tier.get(["entry 00", "entry 01", "entry 02"])
    fill(store, 3)
    assert set(store.keys()) == entries(0, 1, 3)
    for tier in flushed(store):
        tier.touch(["entry 01"])
    fill(store, 4)
    assert set(store.keys()) == entries(1, 3, 4)


def test_check_20_pinned_entries_survive_and_leave_no_room_only_where_they_fill_the_cap(make: Make) -> None:
    store = make(2 * ENTRY + 500)
    fill(store, 0)
    assert store.pin("entry 00", True) and not store.pin("none", True)
    fill(store, *range(1, 9))
    assert set(store.keys()) == entries(0, 8)
    assert store.get(["entry 00"]) != [None]  # reading does not end a pin
    assert store.pin("entry 08", True)
    refused = store.put("entry 09", bytes(1000))
    flushed(store)
    assert not refused or isinstance(store, Tiered)  # write-behind: accepted, and refused later
    assert set(store.keys()) == entries(0, 8)
    store.pin("entry 00", False)
    store.pin("entry 08", False)
    fill(store, 10)
    for tier in flushed(store):
        assert set(tier.keys()) in (entries(10, 0), entries(10, 8))


def test_check_20_an_entry_larger_than_the_cap_is_refused_with_a_notice(make: Make) -> None:
    store = make(1000)
    accepted = store.put("large", bytes(1001))
    for tier in flushed(store):
        assert "the cap is 1000 bytes" in tier.notices[0] and len(tier.notices) == 1
    assert not accepted or isinstance(store, Tiered)
    assert store.get(["large"]) == [None]


def test_a_group_has_its_own_entries_alone_and_at_most_so_many(make: Make) -> None:
    *_, tier = flushed(make(40_000))
    for place in range(3):
        for key in (f"a{place}@after%one", f"b{place}@after%two", f"c{place}"):
            tier.put(key, bytes(100))
    assert sorted(tier.group("one")) == ["a0@after%one", "a1@after%one", "a2@after%one"]
    assert tier.delete("a1@after%one")
    assert sorted(tier.group("one")) == ["a0@after%one", "a2@after%one"]
    assert tier.group("none") == [] and len(tier.keys()) == 8
    for place in range(MAX_GROUP + 20):
        tier.put(f"d{place:04}@after%many", b"x")
    assert len(tier.group("many")) == MAX_GROUP
    for place in range(450):
        tier.put(f"{place}", bytes(100))
    assert tier.group("one") == [] and tier.group("many") == []


def test_threads_that_write_read_and_delete_see_whole_values_only(make: Make) -> None:
    store = make(40_000)

    def work(seed: int) -> int:
        dice, wrong = random.Random(seed), 0
        for _ in range(60):
            number = dice.randrange(12)
            key, value = f"key {number}", bytes([number]) * (100 * number + 1)
            if dice.random() < 0.4:
                store.put(key, value)
            elif dice.random() < 0.1:
                store.delete(key)
            else:
                wrong += read(store, key) not in ([None], [value])
        return wrong

    with ThreadPoolExecutor(6) as threads:
        assert sum(threads.map(work, range(6))) == 0


def test_a_hit_below_moves_up() -> None:
    below = MemoryTier(2**20)
    below.put("a", b"1")
    below.put("b", b"2")
    store = Tiered([MemoryTier(2**20), below])
    for misses in (1, 1):
        assert store.read(["a", "b"]) == [(b"1", "memory"), (b"2", "memory")]
        assert below.counts.hits == 2 * misses
    store.prefetch(["c"])
    store.close()
    store.close()


def test_what_is_written_behind_is_there_after_close(tmp_path: Path) -> None:
    store = Tiered([MemoryTier(2**20), DiskTier(tmp_path, 2**20)], write_behind=True)
    keys = [f"key {number}" for number in range(50)]
    for key in keys:
        assert store.put(key, key.encode())
    store.close()
    assert read(DiskTier(tmp_path, 2**20), *keys) == [key.encode() for key in keys]


def test_an_entry_of_the_lowest_tier_alone_can_be_pinned(tmp_path: Path) -> None:
    below = DiskTier(tmp_path / "entries", 10**6)
    with ExitStack() as stack:
        store = Tiered([MemoryTier(10**6), below])
        stack.callback(store.close)
        assert below.put("entry 00", bytes(1000)) and store.pin("entry 00", True)
