"""Engines on shared tiers while processes are killed and servers hang: right keys and values, or a miss."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cache.kv.engines import ids, kv, opened, same, torch
from tests.store.redis_server import RedisServer

ROOT = Path(__file__).parents[3]
WORKER = """
import random, sys
from pathlib import Path
from tests.cache.kv.engines import ids, kv, opened, same
folder, seed, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
numbers = random.Random(seed)
with opened(folder, chunk_size=64, local_cpu=False, max_local_disk_size=600_000 / 2**30) as engine:
    print("ready", flush=True)
    for _ in range(rounds):
        which, count = numbers.randrange(6), numbers.randrange(1, 600)
        engine.store(ids(600, which)[:count], kv(count, which))
        asked = ids(600, numbers.randrange(6))
        which = next(n for n in range(6) if ids(600, n).equal(asked))
        found, known = engine.longest(asked)
        assert not known or same(found, kv(known, which)), "wrong keys or values"
        assert engine.report().notices == (), engine.report().notices
print("done", flush=True)
"""


def worker(folder: Path, seed: int, rounds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, str(folder), str(seed), str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.parametrize("rounds", [40, pytest.param(600, marks=pytest.mark.slow)])
def test_check_17_two_processes_on_one_folder_never_see_wrong_keys_and_values(tmp_path: Path, rounds: int) -> None:
    for process in [worker(tmp_path, seed, rounds) for seed in range(2)]:
        output, errors = process.communicate(timeout=600)
        assert (process.returncode, output, errors) == (0, "ready\ndone\n", "")
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.pt")) <= 600_000


def test_check_18_a_redis_server_that_comes_goes_and_hangs_changes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("lmql_lite.store.redis.time.monotonic", lambda: now)
    with RedisServer(tmp_path) as server:

        def check(expected: int) -> None:
            """A new engine, as in another process: it finds what Redis has, and keeps working without."""
            with opened(remote_url=server.url, remote_timeout=0.2) as engine:
                found, known = engine.longest(ids(600))
                assert known == expected and (not known or same(found, kv(known)))
                engine.store(ids(600), kv(600))
                assert engine.lookup(ids(600)) == 600 and same(engine.retrieve(ids(600))[0], kv(600))
                asked = torch.cat([ids(600)[:550], ids(100, seed=3)])
                found, known = engine.longest(asked)
                assert known == 550 and same(found, kv(550))
                counts = engine.report().tiers["redis"]
                assert counts.errors == (0 if expected or not was_down else 1)  # one time-out, then the breaker
                assert bool(engine.report().notices) == bool(counts.errors)

        was_down = False
        check(0)
        check(600)
        was_down = True
        server.stop()
        check(0)
        server.start()
        was_down = False
        check(0)  # it has forgotten, and learns again
        check(600)
        server.hang()
        was_down = True
        check(0)
        server.stop()
        server.start()
        was_down = False
        check(0)
        check(600)


def test_two_machines_share_pages_over_redis_to_the_token(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        with opened(remote_url=server.url, remote_timeout=5.0) as engine:
            engine.store(ids(700), kv(700))
        with opened(remote_url=server.url, remote_timeout=5.0) as engine:
            asked = torch.cat([ids(700)[:620], ids(100, seed=3)])
            found, by_tier = engine.found(asked)
            assert same(found, kv(620)) and by_tier == {"redis": 620}
            engine.retrieve(ids(700)[:512])
            assert engine.report().by_tier == {"redis": 620, "memory": 512}
