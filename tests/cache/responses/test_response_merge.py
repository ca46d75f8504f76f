"""Shards joined into one: statements 35 to 37, A20, A21."""

from __future__ import annotations

import resource
import sqlite3
import time
from pathlib import Path

import pytest

import lmql_lite as lq
from lmql_lite.cache.responses.cache import ResponseCache
from lmql_lite.cache.responses.merge import MergeReport
from lmql_lite.errors import CacheError
from lmql_lite.store.log import line_of
from tests.cache.responses.models import Counting, generations
from tests.cache.responses.test_response_cache import opened, pair


def shard(folder: Path, name: str, start: int, count: int, says: str = "answer", model: str = "m|") -> Path:
    with pair(folder, name, model_fingerprint=model) as cache:
        answer = Counting(lambda request: f"{says} {request.doc_id}")
        cache.execute(answer, "generate_until", generations(count, start))
    return folder / f"{name}.db"


def rows(index: Path) -> int:
    with sqlite3.connect(index) as database:
        count = database.execute("SELECT count(*) FROM responses").fetchone()[0]
    database.close()
    return int(count)


def test_shards_are_joined_and_the_first_one_wins(tmp_path: Path) -> None:
    """Statement 35 and upstream tests 28 and 29."""
    shards = [shard(tmp_path, "rank0", 0, 3, "first"), shard(tmp_path, "rank1", 2, 3, "second")]
    report = ResponseCache.merge_shards([*shards, tmp_path / "missing.db"], tmp_path / "merged.db")
    assert report == MergeReport(inserted=5, duplicates=1, conflicts=1, bad=0, missing=1)
    assert rows(tmp_path / "merged.db") == 5
    with pair(tmp_path, "merged", model_fingerprint="m|") as cache:
        said = cache.execute(Counting(), "generate_until", generations(5))
    assert said == ["first 0", "first 1", "first 2", "second 3", "second 4"]


def test_of_answers_that_were_asked_for_again_the_newest_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, names = time.time(), ("rank0", "rank1")
    for days, name in enumerate(names, start=8):
        for when, answer in ((began, "old"), (began + days * 86_400, f"new of {name}")):
            monkeypatch.setattr(time, "time", lambda when=when: when)
            with pair(tmp_path, name, policy=lq.CachePolicy(expiry="7D"), model_fingerprint="m|") as cache:
                cache.execute(Counting(lambda _, answer=answer: answer), "generate_until", generations(1))
    for output, order in (("up", names), ("down", names[::-1])):
        ResponseCache.merge_shards([tmp_path / f"{name}.db" for name in order], tmp_path / f"{output}.db")
        with pair(tmp_path, output, model_fingerprint="m|") as cache:
            assert cache.execute(Counting(), "generate_until", generations(1)) == ["new of rank1"]


def test_an_output_that_is_there_comes_first_and_is_kept(tmp_path: Path) -> None:
    """Statement 36, finding B25."""
    one, two = shard(tmp_path, "a", 0, 2, "first"), shard(tmp_path, "b", 0, 4, "second")
    assert ResponseCache.merge_shards([one], tmp_path / "c.db").inserted == 2
    assert ResponseCache.merge_shards([two], tmp_path / "c.db") == MergeReport(inserted=2, duplicates=2, conflicts=2)
    before = (tmp_path / "c.jsonl").read_bytes()
    assert ResponseCache.merge_shards([one, two], tmp_path / "c.db").inserted == 0
    assert (tmp_path / "c.jsonl").read_bytes() == before  # the same again changes nothing
    with pair(tmp_path, "c", model_fingerprint="m|") as cache:
        said = cache.execute(Counting(), "generate_until", generations(4))
    assert said == ["first 0", "first 1", "second 2", "second 3"]


def test_bad_shards_are_refused_in_a_sentence_and_nothing_is_written(tmp_path: Path) -> None:
    """The bad input of the issue."""
    one, other = shard(tmp_path, "a", 0, 2), shard(tmp_path, "b", 0, 2, model="n|")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "new.jsonl").write_bytes(line_of({"kind": "response", "schema": 2}))
    for shards, output, sentence in (
        ([one, other], "c.db", "another model"),
        ([one, other], "a.db", "an input and the output"),
        ([tmp_path / "a.jsonl"], "a.db", "an input and the output"),
        ([tmp_path / "x.db"], "c.db", "none of the shards exists"),
        ([one, tmp_path / "new.jsonl"], "c.db", "newer version"),
    ):
        with pytest.raises(CacheError, match=sentence):
            ResponseCache.merge_shards(shards, tmp_path / output)
    (tmp_path / "new.jsonl").unlink()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_eight_shards_with_conflicts_damage_and_answers_only_in_the_log(tmp_path: Path) -> None:
    """A20: exact counts, inputs unchanged, little memory."""
    shards = [shard(tmp_path, f"rank{rank}", 8 * 100 * rank, 1000, f"rank {rank}") for rank in range(8)]
    shards[3].unlink()  # only its log is left
    shards[4].write_bytes(b"no index")
    log = tmp_path / "rank5.jsonl"
    log.write_bytes(log.read_bytes()[:-3])
    log.write_bytes(log.read_bytes() + b"\nno record\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = ResponseCache.merge_shards(shards, tmp_path / "out" / "merged.db")
    assert report.inserted == 6600 and report.duplicates == 7 * 200 - 1 and report.conflicts == report.duplicates
    assert report.bad == 2
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert rows(tmp_path / "out" / "merged.db") == 6600
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 1_000_000


def test_another_number_of_ranks_asks_nothing_again(tmp_path: Path) -> None:
    """A21, finding B29: written by 8 ranks, read by 1, 3 and 16."""
    for rank in range(8):
        with opened(tmp_path, rank) as cache:
            cache.execute(Counting(), "generate_until", generations(10, 10 * rank))
    for world in (1, 3, 16):
        for rank in range(world):
            model = Counting()
            with opened(tmp_path, rank) as cache:
                cache.execute(model, "generate_until", generations(80)[rank::world])
            assert model.calls == 0
