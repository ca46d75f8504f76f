"""Promises of every tier: the value or a miss, never other bytes; within the cap, least recently used out first."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from lmql_lite.store.disk import DiskTier
from lmql_lite.store.redis import RedisTier
from lmql_lite.store.tier import MemoryTier, Store, envelope_size
from lmql_lite.store.tiered import Tiered
from tests.store.redis_server import RedisServer

Make = Callable[[int], Store]
NASTY = [
    "a/b",
    "a-b",
    "a\\b:c*?",
    "nul",
    "CON.x",
    ".hidden",
    "Zoë 🦊",
    "per%cent!21",
    "x" * 150,
    "a@b@1@0@" + "f" * 64,
]


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


def flushed(store: Store) -> None:
    if isinstance(store, Tiered):
        store.flush()


def test_a_value_comes_back_and_everything_else_is_a_miss(make: Make) -> None:
    store = make(2**20)
    assert store.get([]) == [] and store.contains([]) == []
    assert store.put("b", bytes(range(256))) and store.put("a", memoryview(b"value")) and store.put("empty", b"")
    assert [None if value is None else bytes(value) for value in store.get(["a", "none", "b", "empty", "a"])] == [
        b"value",
        None,
        bytes(range(256)),
        b"",
        b"value",
    ]
    assert store.contains(["none", "a", "b", "empty"]) == [False, True, True, True]
    flushed(store)
    assert [None if head is None else bytes(head) for head in store.head(["b", "a", "none"], 4)] == [
        bytes(range(4)),
        b"valu",
        None,
    ]
    assert set(store.sizes()) == set(store.keys()) == {"a", "b", "empty"}
    assert store.put("a", b"another") and bytes(store.get(["a"])[0] or b"") == b"another"
    assert store.delete("a") and not store.delete("a")
    assert store.get(["a"]) == [None] and not store.contains(["a"])[0]
    assert store.counts.hits >= 5 and store.counts.misses >= 2 and 0 < store.counts.hit_rate < 1
    assert not store.notices


def test_any_text_is_a_key(make: Make) -> None:
    store = make(2**20)
    for number, key in enumerate(NASTY):
        assert store.put(key, b"%d" % number)
    assert [bytes(value or b"") for value in store.get(NASTY)] == [b"%d" % n for n in range(len(NASTY))]
    flushed(store)
    assert set(store.keys()) == set(NASTY)


def test_a_value_cannot_be_changed_by_a_reader(make: Make) -> None:
    store = make(2**20)
    store.put("key", b"value")
    flushed(store)
    value = store.get(["key"])[0]
    assert value is not None and memoryview(value).readonly


def test_check_20_ten_times_the_cap_stays_within_it_at_every_step_and_the_oldest_go_first(make: Make) -> None:
    cap = 4 * (1000 + envelope_size("entry 00")) + 500
    store = make(cap)
    for number in range(40):
        assert store.put(f"entry {number:02}", bytes(1000))
        if number >= 3:
            store.get(["entry 00"])  # in use: never the oldest
        flushed(store)
        tiers = store.tiers if isinstance(store, Tiered) else (store,)
        assert all(sum(tier.sizes().values()) <= cap for tier in tiers)
    expected = {"entry 00", "entry 37", "entry 38", "entry 39"}
    if isinstance(store, Tiered):  # the disk does not hear of what memory answers
        assert set(store.tiers[0].keys()) == expected
        assert set(store.tiers[1].keys()) == {"entry 36", "entry 37", "entry 38", "entry 39"}
    else:
        assert set(store.keys()) == expected


def test_of_keys_read_together_the_first_is_evicted_last(make: Make) -> None:
    cap = 3 * (1000 + envelope_size("entry 00")) + 500
    store = make(cap)
    for number in range(3):
        store.put(f"entry {number:02}", bytes(1000))
    flushed(store)
    for tier in store.tiers if isinstance(store, Tiered) else (store,):
        tier.get(["entry 00", "entry 01", "entry 02"])
    store.put("entry 03", bytes(1000))
    flushed(store)
    assert set(store.keys()) == {"entry 00", "entry 01", "entry 03"}
    for tier in store.tiers if isinstance(store, Tiered) else (store,):
        tier.touch(["entry 01"])
    store.put("entry 04", bytes(1000))
    flushed(store)
    assert set(store.keys()) == {"entry 01", "entry 03", "entry 04"}


def test_check_20_pinned_entries_survive_and_leave_no_room_only_where_they_fill_the_cap(make: Make) -> None:
    cap = 2 * (1000 + envelope_size("entry 00")) + 500
    store = make(cap)
    store.put("entry 00", bytes(1000))
    flushed(store)
    assert store.pin("entry 00", True) and not store.pin("none", True)
    for number in range(1, 9):
        assert store.put(f"entry {number:02}", bytes(1000))
    flushed(store)
    assert set(store.keys()) == {"entry 00", "entry 08"}
    assert store.get(["entry 00"]) != [None]  # reading does not end a pin
    assert store.pin("entry 08", True)
    refused = store.put("entry 09", bytes(1000))
    flushed(store)
    assert not refused or isinstance(store, Tiered)  # write-behind: accepted, and refused later
    assert set(store.keys()) == {"entry 00", "entry 08"}
    store.pin("entry 00", False)
    store.pin("entry 08", False)
    assert store.put("entry 10", bytes(1000))
    flushed(store)
    for tier in store.tiers if isinstance(store, Tiered) else (store,):
        assert set(tier.keys()) in ({"entry 10", "entry 00"}, {"entry 10", "entry 08"})


def test_check_20_an_entry_larger_than_the_cap_is_refused_with_a_notice(make: Make) -> None:
    store = make(1000)
    accepted = store.put("large", bytes(1001))
    flushed(store)
    assert not accepted or isinstance(store, Tiered)
    assert store.get(["large"]) == [None]
    tiers = store.tiers if isinstance(store, Tiered) else (store,)
    assert all("the cap is 1000 bytes" in tier.notices[0] and len(tier.notices) == 1 for tier in tiers)


def test_threads_that_write_read_and_delete_see_whole_values_only(make: Make) -> None:
    store = make(40_000)
    wrong: list[str] = []

    def work(seed: int) -> None:
        random_ = random.Random(seed)
        for _ in range(60):
            number = random_.randrange(12)
            key, value = f"key {number}", bytes([number]) * (100 * number + 1)
            if random_.random() < 0.4:
                store.put(key, value)
            elif random_.random() < 0.1:
                store.delete(key)
            else:
                found = store.get([key])[0]
                if found is not None and bytes(found) != value:
                    wrong.append(key)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert not wrong


def test_a_hit_below_moves_up_and_equal_questions_are_asked_below_once(tmp_path: Path) -> None:
    asked = []

    class Slow(MemoryTier):
        def get(self, keys):  # type: ignore[no-untyped-def]
            asked.append(tuple(keys))
            release.wait(10)
            return super().get(keys)

    release = threading.Event()
    below = Slow(2**20)
    below.put("a", b"1")
    below.put("b", b"2")
    store = Tiered([MemoryTier(2**20), below])
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(store.read, ["a", "b", "c"]) for _ in range(8)]
        threading.Timer(0.2, release.set).start()
        assert all(answer.result(10) == [(b"1", "memory"), (b"2", "memory"), None] for answer in answers)
    assert asked == [("a", "b", "c")]
    assert store.read(["a", "b"]) == [(b"1", "memory"), (b"2", "memory")] and len(asked) == 1
    store.prefetch(["c"])
    store.close()
    store.close()


def test_what_is_written_behind_is_there_after_close(tmp_path: Path) -> None:
    store = Tiered([MemoryTier(2**20), DiskTier(tmp_path, 2**20)], write_behind=True)
    for number in range(50):
        assert store.put(f"key {number}", b"%d" % number)
    store.close()
    again = DiskTier(tmp_path, 2**20)
    assert [bytes(value or b"") for value in again.get([f"key {n}" for n in range(50)])] == [
        b"%d" % n for n in range(50)
    ]


def test_one_namespace_never_evicts_another(tmp_path: Path) -> None:
    first, second = DiskTier(tmp_path / "kv", 5000), DiskTier(tmp_path / "encoder", 5000)
    assert second.put("key", b"value")
    for number in range(100):
        first.put(f"key {number}", bytes(1000))
    assert second.get(["key"]) != [None] and len(first.keys()) == 4
