"""Shards joined into one, and caches of lmms-eval taken over: statements 35 to 37, A20, A21."""

from __future__ import annotations

import json
import resource
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.cache.responses.cache import ResponseCache
from lmql_lite.cache.responses.keys import fingerprint_model, model_hash, seed_content_hash, seed_key
from lmql_lite.cache.responses.logs import exported, summary
from lmql_lite.cache.responses.merge import MergeReport, take_over
from lmql_lite.errors import CacheError
from lmql_lite.store.log import line_of
from tests.cache.responses.models import GREEDY, Counting, generation, generations
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


@pytest.mark.parametrize(("on_conflict", "said"), [("first", "first"), ("newest", "second")])
def test_who_wins_a_conflict_can_be_said(tmp_path: Path, on_conflict: Any, said: str) -> None:
    shards = [shard(tmp_path, "b", 0, 2, "first"), shard(tmp_path, "a", 0, 2, "second")]
    assert ResponseCache.merge_shards(shards, tmp_path / "c.jsonl", on_conflict).conflicts == 2
    with pair(tmp_path, "c", model_fingerprint="m|") as cache:
        assert cache.execute(Counting(), "generate_until", generations(1)) == [f"{said} 0"]


def test_a_conflict_can_be_an_error(tmp_path: Path) -> None:
    shards = [shard(tmp_path, "a", 0, 2, "first"), shard(tmp_path, "b", 0, 2, "second")]
    with pytest.raises(CacheError, match="contradict each other in 2 answers"):
        ResponseCache.merge_shards(shards, tmp_path / "c.db", "error")
    assert not (tmp_path / "c.db").exists() and not (tmp_path / "c.jsonl").exists()


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


# -- caches of lmms-eval


def lmms_lines() -> list[str]:
    """A log as version 1 of lmms-eval writes it."""
    likelihood = seed_key("loglikelihood", "arc", 1, 2, {}, content_hash=seed_content_hash(("q", " a")))
    kept = [
        {"cache_key": seed_key("generate_until", "mme", 1, 0, GREEDY), "request_type": "generate_until",
         "task_name": "mme",
         "doc_id": 1, "idx": 0, "gen_kwargs": "{}", "response": '"imported"', "created_at": 1.5, "deterministic": True},
        {"cache_key": likelihood, "request_type": "loglikelihood", "task_name": "arc", "doc_id": 1, "idx": 2,
         "response": "[-1.5, true]"},
    ]  # fmt: skip
    refused = [kept[0] | {"response": '""', "cache_key": "0" * 64}, kept[0] | {"deterministic": False, "cache_key": ""},
               kept[0] | {"cache_key": "short"}, {"cache_key": "1" * 64}, 42]  # fmt: skip
    return [json.dumps(each) for each in [*kept, kept[0], *refused]]


def seed_requests() -> tuple[Any, Any]:
    import lmql_lite as lq

    likelihood = lq.Request("loglikelihood", ("q", " a"), 2, {"task": "arc", "doc_id": 1})
    return generation(1, prompt="whatever it was"), likelihood


@pytest.mark.parametrize(
    ("field", "value", "bad"),
    [
        ("created_at", float("nan"), 1),
        ("created_at", "5", 1),
        pytest.param("created_at", 10**400, 1, id="created_at of 400 digits"),
        ("idx", 2**64, 0),
        ("gen_kwargs", {"n": 1}, 0),
        ("task_name", ["a"], 0),
        pytest.param("request_type", "half \ud800", 0, id="request_type with half of a character"),
    ],
)
def test_a_field_of_another_kind_costs_at_most_its_own_line(tmp_path: Path, field: str, value: Any, bad: int) -> None:
    record = {"request_type": "generate_until", "task_name": "t", "doc_id": 1, "response": '"hi"', "created_at": 1.0}
    lines = [record | {"cache_key": "a" * 64, field: value}, record | {"cache_key": "b" * 64}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = take_over([tmp_path / "in.jsonl"], tmp_path / "cache", fingerprint_model("m"))
    assert (report.inserted, report.bad) == (2 - bad, bad)
    with ResponseCache.open(tmp_path / "cache", model="m", keys="seed") as cache:
        assert cache.get_stats()["total_cached_entries"] == 2 - bad
    assert summary(next(tmp_path.rglob("imported.jsonl"))).answers == 2 - bad


def test_a_log_of_lmms_eval_is_taken_over(tmp_path: Path) -> None:
    """Its keys are found under keys="seed", and only there; bad answers in it are not taken over (B1)."""
    (tmp_path / "rank0.jsonl").write_text("\n".join(lmms_lines()) + "\nno JSON\n")
    model = fingerprint_model("m")
    for expected in (2, 0):
        report = take_over([tmp_path / "rank0.jsonl"], tmp_path / "cache", model)
        assert (report.inserted, report.duplicates, report.bad) == (expected, 1 + 2 - expected, 6)
    first, second = seed_requests()
    with ResponseCache.open(tmp_path / "cache", model="m", keys="seed") as cache:
        model_ = Counting()
        assert cache.execute(model_, "generate_until", [first]) == ["imported"]
        assert cache.execute(model_, "loglikelihood", [second]) == [(-1.5, True)]
        assert model_.calls == 0
        cache.execute(Counting(lambda _: "own"), "generate_until", [generation(7)])
    with ResponseCache.open(tmp_path / "cache", model="m", keys="seed") as cache:
        assert cache.lookup(generation(7, prompt="another prompt")) is not None  # the seed's key has no prompt
    with ResponseCache.open(tmp_path / "cache", model="m") as cache:
        assert cache.lookup(first) is None and cache.lookup(second) is None


def test_exported_answers_are_taken_over_by_another_cache(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as cache:
        cache.execute(Counting(), "generate_until", [*generations(3), generation(5, {"temperature": 1})])
    log = next(tmp_path.rglob("*.jsonl"))
    (tmp_path / "out.jsonl").write_text("".join(json.dumps(each) + "\n" for each in exported(log)))
    assert take_over([tmp_path / "out.jsonl"], tmp_path / "b", "m|").inserted == 3
    with opened(tmp_path / "b") as cache:
        model = Counting()
        assert len(cache.execute(model, "generate_until", generations(3))) == 3 and model.calls == 0


def test_bad_sources_are_refused_in_a_sentence_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "new.jsonl").write_text('{"cache_key": "x", "schema": 2}\n')
    (tmp_path / "rank0.db").write_bytes(b"an index alone")
    folder = tmp_path / model_hash("m|")
    folder.mkdir()
    (folder / "rank0.jsonl").write_text("\n".join(lmms_lines()))
    for source, sentence in (
        ("no such", "has no log"),
        ("rank0.db", "has no log"),
        ("new.jsonl", "newer version"),
        (folder.name, "is an input"),
    ):
        with pytest.raises(CacheError, match=sentence):
            take_over([tmp_path / source], tmp_path, "m|")
    assert [path.name for path in folder.iterdir()] == ["rank0.jsonl"]
