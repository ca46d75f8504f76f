"""The log of JSON lines, and its groups: few syncs for many callers, and the error of a write for each of them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lmql_lite.errors import CacheError
from lmql_lite.store.log import (
    SCHEMA,
    ForeignFile,
    GroupCommit,
    LogWriter,
    line_of,
    opening,
    read_lines,
    rewrite,
)


def attempt(number: int) -> bytes:
    return line_of({"kind": "attempt", "schema": SCHEMA, "number": number, "text": "日本 \u2028 \ud800"})


def numbers(path: Path) -> list[int]:
    return [line.record["number"] for line in read_lines(path) if line.record and line.record["kind"] == "attempt"]


def test_lines_are_json_that_anyone_can_read(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "x.jsonl", opening("m|", "0" * 16))
    log.append([attempt(1), attempt(2)])
    log.close()
    first, *others = map(json.loads, (tmp_path / "x.jsonl").read_text("utf-8").split("\n")[:-1])
    assert (first["kind"], first["model_fingerprint"]) == ("cache", "m|")
    assert [(each["number"], each["text"]) for each in others] == [(1, "日本 \u2028 \ud800"), (2, "日本 \u2028 \ud800")]


def test_a_line_after_a_torn_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(attempt(1) + attempt(2).replace(b"\n", b"\r\n") + attempt(3)[:-5])
    log = LogWriter(path, opening("m|", ""))
    log.append([attempt(4)])
    log.close()
    assert numbers(path) == [1, 2, 4]
    rewrite(path, (line.data + b"\n" for line in read_lines(path) if line.record))
    assert numbers(path) == [1, 2, 4] and len(path.read_bytes().splitlines()) == 3


def test_a_foreign_file_a_later_version_and_a_second_writer_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("my notes\n")
    with pytest.raises(ForeignFile, match="is not a log"):
        LogWriter(tmp_path / "notes.txt", b"")
    (tmp_path / "later.jsonl").write_bytes(line_of({"kind": "attempt", "schema": SCHEMA + 1}))
    with pytest.raises(CacheError, match="newer version"):
        LogWriter(tmp_path / "later.jsonl", b"")
    log = LogWriter(tmp_path / "x.jsonl", b"")
    with pytest.raises(BlockingIOError):
        LogWriter(tmp_path / "x.jsonl", b"")
    log.close()
    assert (tmp_path / "notes.txt").read_text() == "my notes\n"


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_64_callers_at_once_need_few_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Counted, not timed: at most one sync for 20 lines."""
    syncs, real = [0], os.fsync

    def slow(descriptor: int) -> None:
        syncs[0] += 1
        time.sleep(0.02)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    log = LogWriter(tmp_path / "x.jsonl", b"")
    group = GroupCommit[bytes](log.append)

    async def tasks() -> None:
        async def add(number: int) -> None:
            for place in range(10):
                await (future := group.add([attempt(number * 10 + place)])).ended()
                future.result()

        await asyncio.gather(*map(add, range(64)))

    if kind == "tasks":
        asyncio.run(tasks())
    else:

        def work(number: int) -> None:
            for place in range(10):
                group.add([attempt(number * 10 + place)]).result()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    group.close()
    log.close()
    assert sorted(numbers(tmp_path / "x.jsonl")) == list(range(640)) and syncs[0] <= 640 / 20


def test_each_caller_of_a_group_gets_its_error_and_the_next_group_is_written() -> None:
    written: list[int] = []

    def write(items: list[int]) -> None:
        time.sleep(0.01)
        if 3 in items:
            raise OSError(28, "No space left on device")
        written.extend(items)

    group = GroupCommit[int](write)
    first = group.add([1])
    futures = [group.add([number]) for number in (2, 3)]
    assert first.exception() in (None, futures[0].exception()) and isinstance(futures[1].exception(), OSError)
    group.add([4])
    group.close()
    assert written[-1] == 4


def test_items_that_are_added_while_the_interpreter_ends_are_written(tmp_path: Path) -> None:
    code = f"""
import atexit
from pathlib import Path
from lmql_lite.store.log import GroupCommit, LogWriter, line_of
log = LogWriter(Path({str(tmp_path / "x.jsonl")!r}), b"")
group = GroupCommit(log.append)
add = lambda number: group.add([line_of({{"kind": "attempt", "schema": 1, "number": number}})])
add(1)
atexit.register(add, 2)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert numbers(tmp_path / "x.jsonl") == [1, 2]
