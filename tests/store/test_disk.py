"""The disk tier when things go wrong: damage, crashes, other processes, folders that cannot be used."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lmql_lite.store.disk import DiskTier, file_name
from lmql_lite.store.files import lock_file
from lmql_lite.store.tier import envelope_size

ENTRY = bytes(range(256)) * 8
WRITER = """
import hashlib, random, sys
from pathlib import Path
from lmql_lite.store.disk import DiskTier
tier = DiskTier(Path(sys.argv[1]), int(sys.argv[2]))
numbers = random.Random(int(sys.argv[3]))
print("ready", flush=True)
while True:
    key = f"key {numbers.randrange(60)}"
    if numbers.random() < 0.6:
        value = hashlib.sha256(key.encode()).digest() * numbers.randrange(1, 400)
        tier.put(key, value)
    else:
        found = tier.get([key])[0]
        digest = hashlib.sha256(key.encode()).digest()
        if found is not None and bytes(found) != digest * (len(found) // 32):
            print("wrong", key, flush=True)
    if tier.notices:
        print(*tier.notices, flush=True)
"""


def entry_size(key: str) -> int:
    return envelope_size(key) + len(ENTRY)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:40],
        lambda data: b"",
        lambda data: data + b"!",
        lambda data: random.Random(1).randbytes(len(data)),
        lambda data: data[:-9] + bytes([data[-9] ^ 0x10]) + data[-8:],
    ],
    ids=["short", "very short", "empty", "long", "random", "flipped"],
)
def test_a_damaged_file_is_a_miss_once_noticed_and_set_aside(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    tier = DiskTier(tmp_path, 2**20)
    tier.put("key", ENTRY)
    path = tmp_path / "key.entry"
    path.write_bytes(damage(path.read_bytes()))
    assert tier.get(["key", "key"]) == [None, None]
    assert tier.counts.corrupt == 1 and len(tier.notices) == 1 and "is damaged" in tier.notices[0]
    assert not path.exists() and (tmp_path / "key.entry.damaged").exists()
    assert tier.contains(["key"]) == [False] and tier.keys() == []
    assert tier.put("key", ENTRY) and bytes(tier.get(["key"])[0] or b"") == ENTRY


def test_every_flipped_bit_of_a_file_is_a_miss_or_harmless(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 2**20)
    value = b"value of some bytes"
    tier.put("key", value)
    path = tmp_path / "key.entry"
    whole = path.read_bytes()
    for place in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        assert tier.get(["key"]) in ([None], [value])


def test_a_right_name_with_another_entry_inside_is_a_miss(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 2**20)
    tier.put("one", ENTRY)
    os.rename(tmp_path / "one.entry", tmp_path / "two.entry")
    assert tier.get(["two"]) == [None] and "it holds another key" in tier.notices[0]


def test_names_are_safe_on_windows_and_lead_back_to_their_keys(tmp_path: Path) -> None:
    keys = ["a/b", "a-b", 'x<>:"/\\|?*\x00\x1f', "com1.txt", "AUX", "..", "a.", "a ", "é", "!21", "%2f"]
    names = [file_name(key) + ".entry" for key in keys]
    assert len({name.lower() for name in names}) == len(keys)
    for name in names:
        assert not set(name) & set('<>:"/\\|?*') and name.isascii() and name.isprintable()
        assert name.split(".")[0].lower() not in ("con", "aux", "nul", "com1") and not name.startswith(".")
    tier = DiskTier(tmp_path, 2**20)
    assert all(tier.put(key, b"x") for key in keys)
    assert set(tier.keys()) == set(keys)
    assert not tier.put("k" * 300, b"x") and tier.notices


def test_a_restart_keeps_entries_and_account(tmp_path: Path) -> None:
    cap = 3 * entry_size("key 0") + 100
    for number in range(9):
        assert DiskTier(tmp_path, cap).put(f"key {number}", ENTRY)
        assert sum(path.stat().st_size for path in tmp_path.glob("*.entry")) <= cap
    assert set(DiskTier(tmp_path, cap).keys()) == {"key 6", "key 7", "key 8"}


def test_a_folder_is_counted_anew_after_a_crash(tmp_path: Path) -> None:
    whole = DiskTier(tmp_path, 2**20)
    for number in range(5):
        whole.put(f"key {number}", ENTRY)
    (tmp_path / ".lock").write_bytes(b"")
    (tmp_path / ".tmp-crash").write_bytes(b"x")
    tier = DiskTier(tmp_path, sum(whole.sizes().values()))
    assert tier.put("key 9", ENTRY)
    assert tier.counts.evictions == 1 and not (tmp_path / ".tmp-crash").exists()


def test_two_caches_in_one_folder_have_an_account_each(tmp_path: Path) -> None:
    tiers = [DiskTier(tmp_path, 9_000, ".entry", re.compile(letter + ".*")) for letter in "ab"]
    for number in range(20):
        for letter, tier in zip("ab", tiers, strict=True):
            assert tier.put(f"{letter}{number}", ENTRY)
            assert 0 < sum(tier.sizes().values()) <= 9_000


def test_damaged_files_count_and_go_first(tmp_path: Path) -> None:
    cap = 3 * entry_size("key 0") + 100
    tier = DiskTier(tmp_path, cap)
    for number in range(3):
        tier.put(f"key {number}", ENTRY)
    path = tmp_path / "key 2.entry".replace(" ", "!20")
    path.write_bytes(path.read_bytes()[:-1])
    tier.get(["key 2"])
    tier.put("key 3", ENTRY)
    assert set(tier.keys()) == {"key 0", "key 1", "key 3"} and not list(tmp_path.glob("*.damaged"))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_check_19_a_folder_that_may_not_be_written_is_read(tmp_path: Path) -> None:
    DiskTier(tmp_path, 2**20).put("key", ENTRY)
    tmp_path.chmod(0o555)
    try:
        tier = DiskTier(tmp_path, 2**20)
        assert not tier.put("other", ENTRY) and len(tier.notices) == 1
        assert bytes(tier.get(["key"])[0] or b"") == ENTRY
    finally:
        tmp_path.chmod(0o755)


def test_check_19_a_folder_that_cannot_be_made_is_a_tier_without_entries(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    tier = DiskTier(tmp_path / "file" / "cache", 2**20)
    assert not tier.put("key", ENTRY) and tier.get(["key"]) == [None] and not tier.contains(["key"])[0]
    assert not tier.pin("key", True) and not tier.delete("key") and tier.keys() == []
    assert "the folder cannot be created" in tier.notices[0]


def test_check_19_a_full_disk_costs_the_entry_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = DiskTier(tmp_path, 2**20)
    tier.put("old", ENTRY)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert not tier.put("new", ENTRY) and not tier.put("old", b"changed")
    assert tier.notices == [f"{tmp_path}: an entry cannot be written (No space left on device)"]
    assert bytes(tier.get(["old"])[0] or b"") == ENTRY and not list(tmp_path.glob(".tmp-*"))
    assert tier.put("new", ENTRY)


def test_a_folder_that_another_process_keeps_locked_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmql_lite.store.disk._LOCK_SECONDS", 0.0)
    tier = DiskTier(tmp_path, 2**20)
    tier.put("old", ENTRY)
    with lock_file(tmp_path / ".lock", 1.0) as held:
        assert held and not tier.put("new", ENTRY) and not tier.delete("old")
        assert bytes(tier.get(["old"])[0] or b"") == ENTRY
    assert tier.notices == [f"{tmp_path} is locked by another process: an entry was not kept"]
    assert tier.put("new", ENTRY)


def start(folder: Path, cap: int, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), str(cap), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_check_16_kill_during_stores_leaves_whole_entries_and_a_right_account(tmp_path: Path) -> None:
    cap = 200_000
    for round_ in range(6):
        with start(tmp_path, cap, round_) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
            time.sleep(0.05 + 0.03 * round_)
            writer.send_signal(signal.SIGKILL)
            assert writer.stdout.read() == ""
    tier = DiskTier(tmp_path, cap)
    keys = tier.keys()
    assert len(keys) > 5
    assert None not in tier.get(keys) and not tier.notices
    for number in range(30):
        assert tier.put(f"after {number}", bytes(20_000))
        assert sum(path.stat().st_size for path in tmp_path.glob("*.entry*")) <= cap
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_check_17_two_processes_on_one_folder_keep_the_cap_and_see_whole_entries(tmp_path: Path, seconds: int) -> None:
    cap, largest = 100_000, 400 * 32 + 64
    writers = [start(tmp_path, cap, seed) for seed in range(2)]
    try:
        assert all(writer.stdout is not None and writer.stdout.readline() == "ready\n" for writer in writers)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.1)
            held = 0
            for path in tmp_path.glob("*.entry*"):
                try:
                    held += path.stat().st_size
                except FileNotFoundError:
                    continue
            # seen one by one while both write: what was counted may be evicted for what is counted later
            assert held <= cap + 2 * largest
    finally:
        for writer in writers:
            writer.kill()
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.read() == ""
        writer.stdout.close()
        writer.wait(10)
    tier = DiskTier(tmp_path, cap)
    assert sum(tier.sizes().values()) <= cap and None not in tier.get(tier.keys()) and not tier.notices
