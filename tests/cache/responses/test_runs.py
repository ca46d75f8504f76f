"""Runs of several ranks, from `create` to `finalize`: statement 38, findings B9 and B10."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.cache.responses import merge
from lmql_lite.cache.responses.cache import CachePolicy, ResponseCache
from lmql_lite.cache.responses.keys import fingerprint_model, model_hash
from lmql_lite.cache.responses.merge import MergeReport, run_id
from lmql_lite.errors import CacheError, InputError
from lmql_lite.store.log import line_of, read_lines
from tests.cache.responses.models import PATHS, Counting, generations

VARIABLES = ("LMMS_CACHE_RUN_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def created(root: Path, rank: int = 0, world_size: int = 1, **more: Any) -> ResponseCache:
    return ResponseCache.create(root, model="m", rank=rank, world_size=world_size, **more)


def folder(root: Path) -> Path:
    return root / model_hash(fingerprint_model("m"))


def keep(cache: ResponseCache, count: int, start: int = 0, says: str = "answer") -> Counting:
    model = Counting(lambda request: f"{says} {request.doc_id}")
    cache.execute(model, "generate_until", generations(count, start))
    return model


def merged_answers(root: Path) -> int:
    log = folder(root) / "cache.jsonl"
    return sum(line.record is not None and line.record["kind"] == "response" for line in read_lines(log))


def runs_left(root: Path) -> list[str]:
    """Runs that have not been merged."""
    return sorted(path.name for path in (folder(root) / "runs").iterdir() if path.is_dir())


def all_served(root: Path, count: int, says: str = "answer") -> None:
    """A new run asks the model for nothing."""
    model = Counting()
    with created(root) as cache:
        answers = cache.execute(model, "generate_until", generations(count))
    assert model.calls == 0 and answers == [f"{says} {number}" for number in range(count)]


# -- names


def test_the_run_is_named_by_the_first_variable_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statement 38."""
    assert run_id(1) != run_id(1) and len(run_id(1)) == 32
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.7")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert run_id(4) == run_id(4) == "10.0.0.7-29500-ws4" != run_id(8)
    assert len(run_id(1)) == 32
    for name in reversed(VARIABLES[:3]):
        monkeypatch.setenv(name, f"of {name}")
        assert run_id(1) == run_id(8) == f"of-{name}"
    monkeypatch.setenv("LMMS_CACHE_RUN_ID", "../../elsewhere")
    assert run_id(1) == "elsewhere"
    monkeypatch.setenv("LMMS_CACHE_RUN_ID", "..")
    assert run_id(1) == "run"


def test_a_run_from_its_creation_to_its_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statement 38: rank files in runs/<run_id>, then cache.db."""
    monkeypatch.setenv("LMMS_CACHE_RUN_ID", "night")
    run = folder(tmp_path) / "runs" / "night"
    ranks = [created(tmp_path, rank, 2) for rank in range(2)]
    for rank, cache in enumerate(ranks):
        keep(cache, 3, 3 * rank)
        assert (run / f"rank_{rank}.jsonl").is_file() and (run / f"rank_{rank}.db").is_file()
    assert keep(ranks[0], 6).calls == 0  # what the other rank got is a hit
    assert ranks[1].finalize() is None and not (folder(tmp_path) / "cache.db").exists()
    assert ranks[0].finalize() == ranks[0].finalize() == MergeReport(inserted=6), "the second call waits for nobody"
    assert not run.exists()
    assert (folder(tmp_path) / "cache.db").is_file() and merged_answers(tmp_path) == 6
    assert ranks[0].get_stats()["total_cached_entries"] == 6
    all_served(tmp_path, 6)
    with ResponseCache.open(tmp_path, model="m") as cache:
        assert keep(cache, 6).calls == 0


# -- runs that end otherwise


def test_a_run_without_success_is_served_and_merged_by_the_next_one(tmp_path: Path) -> None:
    """Statement 38 and finding B9."""
    cache = created(tmp_path)
    keep(cache, 3)
    assert cache.finalize(success=False) is None
    assert list(folder(tmp_path).glob("cache.*")) == []
    with created(tmp_path) as after:
        assert keep(after, 3).calls == 0
        keep(after, 1, 3)
        assert after.finalize() == MergeReport(inserted=1)
    assert merged_answers(tmp_path) == 4 and runs_left(tmp_path) == []
    all_served(tmp_path, 4)


def test_a_run_is_finalized_twice(tmp_path: Path) -> None:
    cache = created(tmp_path)
    keep(cache, 3)
    assert cache.finalize() == MergeReport(inserted=3)
    before = (folder(tmp_path) / "cache.jsonl").read_bytes()
    assert cache.finalize() == MergeReport(inserted=3)
    assert (folder(tmp_path) / "cache.jsonl").read_bytes() == before


def test_a_merged_run_goes_on_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that it adds are seen at once by a cache that had read the merged ones, and merged at its end."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with created(tmp_path) as cache:
        keep(cache, 3)
        cache.finalize()
    with ResponseCache.open(tmp_path, model="m") as reader, created(tmp_path) as again:
        assert keep(reader, 3).calls == 0
        assert keep(again, 5).calls == 1
        assert keep(reader, 5).calls == 0
        assert again.finalize() == MergeReport(inserted=2)
    assert merged_answers(tmp_path) == 5
    all_served(tmp_path, 5)


def test_what_a_refreshing_run_got_takes_the_place_of_merged_answers(tmp_path: Path) -> None:
    with created(tmp_path) as cache:
        keep(cache, 3, says="old")
        cache.finalize()
    with created(tmp_path, policy=CachePolicy(mode="refresh")) as cache:
        keep(cache, 3, says="new")
        assert cache.finalize() == MergeReport(duplicates=3)
    all_served(tmp_path, 3, "new")
    for index in tmp_path.rglob("*.db"):
        index.unlink()
    all_served(tmp_path, 3, "new")


def test_a_rank_that_does_not_end_is_named_and_the_others_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks say different sizes of their world, too: rank 0 waits for as many as it was told."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    first, second = created(tmp_path, 0, 3), created(tmp_path, 1, 2)
    keep(first, 2)
    keep(second, 2, 2)
    started = time.monotonic()
    with pytest.warns(RuntimeWarning, match="rank 1, 2 of 3 did not finish within 0.1 s"):
        assert first.finalize(wait=0.1) == MergeReport(inserted=2)
    assert 0.1 <= time.monotonic() - started < 20 and merged_answers(tmp_path) == 2
    all_served(tmp_path, 4)
    keep(second, 1, 4)
    second.finalize()
    with pytest.warns(RuntimeWarning, match="rank 2 of 3 did not finish"):
        assert first.finalize(wait=0.2) == MergeReport(inserted=3)
    assert runs_left(tmp_path) == []
    all_served(tmp_path, 5)


def test_a_failure_to_merge_is_raised_where_the_policy_says_so(tmp_path: Path) -> None:
    cache = created(tmp_path, 0, 2, policy=CachePolicy(on_error="raise"))
    with pytest.raises(CacheError, match="rank 1 of 2 did not finish"):
        cache.finalize(wait=0)


def test_a_rank_outside_the_world_and_a_cache_without_a_run_are_refused(tmp_path: Path) -> None:
    for rank, world in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(InputError, match="rank="):
            created(tmp_path, rank, world)
    with ResponseCache.open(tmp_path, model="m") as cache, pytest.raises(InputError, match="this cache has none"):
        cache.finalize()


def test_a_run_that_may_not_write_merges_nothing(tmp_path: Path) -> None:
    cache = created(tmp_path, policy=CachePolicy(mode="ro"))
    assert cache.finalize() is None and not list(tmp_path.rglob("*"))


def test_a_shard_of_a_newer_version_or_of_another_model_stops_only_its_own_run(tmp_path: Path) -> None:
    """Bad input: the run is not merged and says why; its other answers, and other runs, are."""
    runs = folder(tmp_path) / "runs"
    for name, record in (
        ("newer", {"kind": "response", "schema": 99, "model_hash": folder(tmp_path).name}),
        ("foreign", {"kind": "response", "schema": 1, "model_hash": "0" * 16}),
    ):
        (runs / name).mkdir(parents=True)
        (runs / name / "rank_0.jsonl").write_bytes(line_of(record))
    with pytest.warns(RuntimeWarning, match="newer version of lmql_lite; its answers are not used"):
        cache = created(tmp_path)
    keep(cache, 3)
    assert cache.finalize() == MergeReport(inserted=3)
    assert runs_left(tmp_path) == ["foreign", "newer"]
    (runs / "newer" / "rank_0.jsonl").rename(newer := tmp_path / "newer.jsonl")
    bad = created(tmp_path)
    keep(bad, 1, 7)
    own = next(log for log in runs.rglob("*.jsonl") if log.parent.name != "foreign")
    own.with_name("rank_1.jsonl").write_bytes(newer.read_bytes())
    before = (folder(tmp_path) / "cache.jsonl").read_bytes()
    with pytest.warns(RuntimeWarning, match="newer version"):
        assert bad.finalize() is None
    assert (folder(tmp_path) / "cache.jsonl").read_bytes() == before


# -- processes


def started(root: Path, rank: int, world: int, count: int, then: str = "cache.finalize()") -> subprocess.Popen[bytes]:
    """A rank of the run `job` in a process of its own, that keeps its part of `count` answers."""
    code = f"""
import os, pathlib, signal, sys, time
from lmql_lite.cache.responses import merge
from tests.cache.responses.models import Counting, generations
from tests.cache.responses.test_runs import created, keep
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
cache = created(pathlib.Path({str(root)!r}), {rank}, {world})
keep(cache, {count // world}, {rank * (count // world)})
print("kept", flush=True)
{then}
"""
    environment = os.environ | {"PYTHONPATH": PATHS, "LMMS_CACHE_RUN_ID": "job"}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)


Launch = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts ranks, and frees what is left of them."""
    with ExitStack() as processes:

        def launch(*arguments: Any) -> subprocess.Popen[bytes]:
            process = processes.enter_context(started(tmp_path, *arguments))
            processes.callback(process.kill)
            return process

        yield launch


def test_four_ranks_in_four_processes(tmp_path: Path, launch: Launch) -> None:
    """Statement 38."""
    processes = [launch(rank, 4, 80) for rank in range(4)]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    assert merged_answers(tmp_path) == 80
    assert runs_left(tmp_path) == []
    all_served(tmp_path, 80)


def test_a_killed_rank_is_named_and_loses_nothing(tmp_path: Path, launch: Launch) -> None:
    """Finding B9: what the rank had kept is merged with the rest."""
    killed = launch(1, 2, 40, "time.sleep(60)")
    assert killed.stdout is not None and killed.stdout.readline() == b"kept\n"
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert launch(0, 2, 40, "cache.finalize(wait=0.2); assert 'rank 1 of 2' in cache.notices[0]").wait(60) == 0
    assert merged_answers(tmp_path) == 40 and runs_left(tmp_path) == []
    all_served(tmp_path, 40)


@pytest.mark.parametrize("place", ["merge.RankOfRun._await_others", "merge.merge", "merge.rewrite", "merge.Index",
                                   "merge.remove_index", "pathlib.Path.rmdir"])  # fmt: skip
def test_a_kill_at_each_step_of_the_merge_is_made_good_by_the_next_one(
    tmp_path: Path, place: str, launch: Launch
) -> None:
    """Finding B10: neither a lock nor a mark of a dead process is in the way of the next run."""
    process = launch(0, 1, 10, f"{place} = die; cache.finalize()")
    assert process.wait(60) == -signal.SIGKILL
    all_served(tmp_path, 10)
    started = time.monotonic()
    with created(tmp_path) as cache:
        keep(cache, 1, 10)
        cache.finalize()
    assert time.monotonic() - started < 10 and merged_answers(tmp_path) == 11
    all_served(tmp_path, 11)


def in_threads(count: int, work: Callable[[int], object]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_several_runs_that_end_at_once_are_all_merged(tmp_path: Path) -> None:
    """Two rank 0: the merges take turns, also into a file that none of them found."""
    caches = [created(tmp_path) for _ in range(6)]
    for number, cache in enumerate(caches):
        keep(cache, 5, 5 * number)
    in_threads(6, lambda number: caches[number].finalize())
    assert merged_answers(tmp_path) == 30 and runs_left(tmp_path) == []
    all_served(tmp_path, 30)


def test_a_run_that_goes_on_is_not_merged_by_another_one(tmp_path: Path) -> None:
    going, ending = created(tmp_path), created(tmp_path)
    keep(going, 2)
    keep(ending, 2, 2)
    assert ending.finalize() == MergeReport(inserted=2)
    assert merged_answers(tmp_path) == 2
    keep(going, 2, 4)
    assert going.finalize() == MergeReport(inserted=4)


def test_a_merge_that_another_process_holds_up_is_left_to_it(tmp_path: Path, launch: Launch) -> None:
    """Finding B10: the lock is the system's, so that it ends with its process."""
    cache = created(tmp_path)
    keep(cache, 2)
    holder = launch(0, 1, 0, f"""
from lmql_lite.store.files import lock_file
cache.close()
with lock_file(pathlib.Path({str(folder(tmp_path) / "runs" / ".lock")!r}), 1):
    print("held", flush=True)
    time.sleep(60)
""")  # fmt: skip
    assert holder.stdout is not None and [holder.stdout.readline() for _ in range(2)] == [b"kept\n", b"held\n"]
    with pytest.warns(RuntimeWarning, match="another process has been merging for 0.1 s"):
        assert cache.finalize(wait=0.1) is None
    holder.kill()
    holder.wait()
    assert cache.finalize() == MergeReport(inserted=2)


def test_a_full_disk_leaves_the_run_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = created(tmp_path)
    keep(cache, 2)
    with monkeypatch.context() as patched:
        patched.setattr(merge, "rewrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.warns(RuntimeWarning, match="No space left"):
            assert cache.finalize() is None
    all_served(tmp_path, 2)
    assert cache.finalize() == MergeReport(inserted=2)
