"""The response cache: what an answer costs to keep and to find, beside SQLite alone and one sync per answer.

    python benchmarks/responses.py [--rows 100000]

CPU seconds are those of the process; wall seconds also have the disk. The first table makes every sync 4 ms long, as a
disk with a queue of its own would, so that its figures depend on the machine as little as may be. The rows of all
others are the same, under the same SHA-256 keys, in batches of 256.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmql_lite.cache.responses.record_log import RecordLog, opening
from lmql_lite.cache.responses.request import Request
from lmql_lite.cache.responses.request_key import KeyMaker
from lmql_lite.cache.responses.response_batch import Asked, RecordMaker
from lmql_lite.cache.responses.response_cache import ResponseCache
from lmql_lite.cache.responses.response_store import ResponseStore, StoreFiles, Write
from lmql_lite.cache.responses.value_codec import encoded

SYNC = 0.004
BATCH = 256
OPTIONS = {"temperature": 0.0, "until": ["\n"], "max_new_tokens": 64}


@dataclass
class Cost:
    """Seconds of one measurement."""

    cpu: float = 0.0
    wall: float = 0.0


@contextmanager
def measured() -> Iterator[Cost]:
    gc.collect()
    cost = Cost()
    cpu, wall = time.process_time(), time.perf_counter()
    yield cost
    cost.cpu, cost.wall = time.process_time() - cpu, time.perf_counter() - wall


class Echo:
    """A model that costs nothing."""

    def __init__(self) -> None:
        self.calls = 0

    def generate_until(self, requests: list[Request]) -> list[str]:
        self.calls += len(requests)
        return [f"the answer to question {request.doc_id}" for request in requests]


class Slow:
    """A model behind a network that answers at once."""

    async def generate_until(self, requests: list[Request]) -> list[str]:
        await asyncio.sleep(0)
        return [f"the answer to question {request.doc_id}" for request in requests]


def request(number: int) -> Request:
    prompt = f"Question {number}: which of these is a fish, the whale or the herring? Answer in one word.\n"
    return Request("generate_until", (prompt, OPTIONS), metadata={"task": "sea", "doc_id": number})


missed = 0


def line(name: str, figures: str, ratio: float, at_least: float) -> None:
    global missed
    is_met = ratio >= at_least
    missed += not is_met
    print(f"{name:<34} {figures:<58} {ratio:7.2f}x >= {at_least:g}x {'' if is_met else 'MISSED'}")


@contextmanager
def slow_sync() -> Iterator[None]:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        time.sleep(SYNC)
        real(descriptor)

    os.fsync = fsync
    try:
        yield
    finally:
        os.fsync = real


def one_sync_each(folder: Path, lines: list[bytes]) -> Cost:
    """The log as it was before: each answer is written and synced alone."""
    with open(folder / "alone.jsonl", "ab", buffering=0) as file, measured() as cost:
        for each in lines:
            file.write(each)
            os.fsync(file.fileno())
    return cost


def in_flight(folder: Path, requests: list[Request], width: int) -> Cost:
    async def run() -> Cost:
        with ResponseCache.open(folder, model=f"model{width}") as cache:
            waiting = iter(requests)

            async def worker() -> None:
                for each in waiting:
                    await cache.aexecute(Slow(), "generate_until", [each])

            with measured() as cost:
                await asyncio.gather(*(worker() for _ in range(width)))
            assert cache.get_stats()["total_cached_entries"] == len(requests)
        return cost

    return asyncio.run(run())


def sqlite_rows(path: Path, rows: list[tuple[Any, ...]]) -> Cost:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute(
            "CREATE TABLE responses (cache_key TEXT PRIMARY KEY, request_type TEXT, task_name TEXT, doc_id TEXT, "
            "idx INTEGER, gen_kwargs TEXT, response TEXT, created_at REAL)"
        )
        database.execute("CREATE INDEX by_document ON responses (task_name, doc_id)")
        with measured() as cost:
            for start in range(0, len(rows), BATCH):
                with database:
                    database.executemany("INSERT INTO responses VALUES (?,?,?,?,?,?,?,?)", rows[start : start + BATCH])
    return cost


def sqlite_reads(path: Path, keys: list[str]) -> Cost:
    with closing(sqlite3.connect(path)) as database, measured() as cost:
        for key in keys:
            assert database.execute("SELECT response FROM responses WHERE cache_key = ?", (key,)).fetchone()
    return cost


class Tables:
    """Measurements that take turns: of each the cheapest round counts, since others use the machine as well."""

    def __init__(self, count: int) -> None:
        self.requests = [request(number) for number in range(count)]
        self.best: dict[str, Cost] = {}
        self._keys = KeyMaker("m|", None, "full", 0.0)
        self._records = RecordMaker(self._keys, "0" * 16)
        self.rows = [row[:8] for _, row in map(self.make, self.requests) if row is not None]

    def make(self, each: Request) -> Write:
        """Line and row of an answer, all that is computed of it included."""
        asked = Asked(0, each, self._keys.key("generate_until", each))
        text = encoded(f"the answer to question {each.doc_id}")
        return self._records.write("generate_until", asked, text, "", time.time())

    def note(self, name: str, cost: Cost) -> None:
        known = self.best.setdefault(name, cost)
        known.cpu, known.wall = min(known.cpu, cost.cpu), min(known.wall, cost.wall)

    def round(self, folder: Path) -> None:
        log = RecordLog(folder / "only.jsonl", opening("m|", "0" * 16))
        with measured() as cost:
            for start in range(0, len(self.requests), BATCH):
                log.append([self.make(each)[0] for each in self.requests[start : start + BATCH]])
        log.close()
        self.note("log", cost)
        self.note("executemany", sqlite_rows(folder / "bare.db", self.rows))
        place = StoreFiles(folder / "store" / "a.jsonl", None, "m|", "0" * 16, None, True, None)
        store = ResponseStore(place, print)
        with measured() as cost:
            for start in range(0, len(self.requests), BATCH):
                writes = [self.make(each) for each in self.requests[start : start + BATCH]]
                store.commit(writes, in_place=True)
            store.count()
        store.close()
        self.note("stores", cost)
        with ResponseCache.open(folder, model="m") as cache, measured() as cost:
            cache.execute(Echo(), "generate_until", self.requests)
            cache.get_stats()
        self.note("execute", cost)
        self.note("select", sqlite_reads(folder / "bare.db", [row[0] for row in self.rows]))
        for _ in range(5):
            with measured() as cost:
                cache = ResponseCache.open(folder, model="m")
            self.note("reopen", cost)
            cache.close()
        with ResponseCache.open(folder, model="m") as cache:
            model = Echo()
            with measured() as cost:
                cache.execute(model, "generate_until", self.requests)
            assert model.calls == 0
            self.note("hits", cost)
            with measured() as cost:
                for each in self.requests:
                    assert cache.lookup(each) is not None
            self.note("lookups", cost)

    def show(self) -> None:
        count, best = len(self.requests), self.best

        def speeds(name: str) -> str:
            return f"{count / best[name].cpu:9,.0f}/s CPU, {count / best[name].wall:9,.0f}/s wall"

        line("  log alone, keys and lines made", speeds("log"), count / best["log"].cpu / 1e5, 1)
        print(f"{'  executemany':<34} {speeds('executemany')}")
        line("  stores: key, log, sync, index", speeds("stores"), best["executemany"].cpu / best["stores"].cpu, 0.6)
        for name, what in (("stores", "    the same, wall"), ("execute", "  first execute: lookups, then stores")):
            part = "wall" if name == "stores" else "cpu"
            ratio = getattr(best["executemany"], part) / getattr(best[name], part)
            print(f"{what:<34} {speeds(name):<58} {ratio:7.2f}x")
        print(f"{'  SELECT per key':<34} {speeds('select')}")
        line("  hits through execute", speeds("hits"), best["select"].cpu / best["hits"].cpu, 0.7)
        line("  hits one by one", speeds("lookups"), best["select"].cpu / best["lookups"].cpu, 0.4)
        opened = best["reopen"]
        figures = f"{opened.cpu * 1000:5.1f} ms CPU, {opened.wall * 1000:5.1f} ms wall"
        line("  reopening", figures, 0.02 / max(opened.cpu, opened.wall), 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    few = [request(number) for number in range(2000)]
    print(f"answers in flight, every sync made {SYNC * 1000:g} ms long")
    with tempfile.TemporaryDirectory() as name, slow_sync():
        for width, at_least in ((1, 0.95), (8, 5), (64, 30)):
            some = few if width > 1 else few[:200]
            rounds = []
            for number in range(3 * given.rounds):
                folder = Path(name) / f"{width}-{number}"
                folder.mkdir()
                alone = one_sync_each(folder, [b"x" * 400 + b"\n"] * 100).wall / 100
                cost = in_flight(folder, some, width)
                rounds.append((alone * len(some) / cost.wall, cost))
            ratio, cost = max(rounds, key=lambda each: each[0])
            figures = f"{len(some) / cost.wall:9,.0f}/s wall, {cost.cpu / len(some) * 1e6:5.0f} us CPU an answer"
            line(f"  {width} in flight", figures, ratio, at_least)
    print(f"{given.rows:,} answers, batches of {BATCH}")
    tables = Tables(given.rows)
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory() as name:
            tables.round(Path(name))
    tables.show()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
