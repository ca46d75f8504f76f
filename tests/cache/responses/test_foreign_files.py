"""Files that are not the cache's own are never renamed, overwritten or appended to, at no door."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.cache.responses.logs import prune
from lmql_lite.cache.responses.older import CachingModel
from lmql_lite.errors import CacheError
from tests.cache.responses.models import Counting, generation, generations
from tests.cache.responses.test_response_cache import opened, pair


def text(path: Path) -> None:
    path.write_text("notes of mine\n")


def of_lmms_eval(path: Path) -> None:
    """Index as lmms-eval makes it, with five answers."""
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT)")
        database.execute("INSERT INTO meta VALUES ('model_fingerprint', 'm|'), ('schema_version', '1')")
        database.execute(
            "CREATE TABLE responses (cache_key TEXT PRIMARY KEY, request_type TEXT, task_name TEXT, doc_id INTEGER, "
            "idx INTEGER DEFAULT 0, gen_kwargs TEXT, response TEXT, created_at REAL)"
        )
        rows = [(f"{n:064x}", "generate_until", "mme", n, 0, "{}", f'"answer {n}"', 1.0) for n in range(5)]
        database.executemany("INSERT INTO responses VALUES (?,?,?,?,?,?,?,?)", rows)
    database.close()


def link(path: Path) -> None:
    text(target := path.with_name("target.txt"))
    path.symlink_to(target)


def folder(path: Path) -> None:
    path.mkdir()
    text(path / "inside.txt")


def log_of_lmms_eval(path: Path) -> None:
    record = {"cache_key": "0" * 64, "request_type": "generate_until", "task_name": "mme", "doc_id": 0, "idx": 0,
              "gen_kwargs": "{}", "response": '"theirs"', "created_at": 1.0, "deterministic": True}  # fmt: skip
    path.write_text(json.dumps(record) + "\n")


INDEXES = [text, of_lmms_eval, link, folder]
LOGS = [text, log_of_lmms_eval, of_lmms_eval, folder]


def tree(root: Path) -> dict[str, Any]:
    """Content and mode of all files of a folder, without those that the cache itself makes."""
    return {
        path.relative_to(root).as_posix(): (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in sorted(root.rglob("*"))
        if path.suffix not in ("-wal", "-shm")
    }


@pytest.mark.parametrize("make", INDEXES, ids=lambda make: make.__name__)
def test_a_file_of_another_program_at_the_place_of_the_index_stays_as_it_is(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "rank0.db")
    before = tree(tmp_path)
    for fingerprint in ("a", "b", "a"):
        with pytest.warns(RuntimeWarning, match=r"rank0\.db is not an index of a response cache") as caught:
            cache = pair(tmp_path, model_fingerprint=fingerprint)
        with cache:
            assert cache.execute(Counting(), "generate_until", generations(3))[2] == "answer to question 2"
        assert len(caught) == len(cache.notices) == 1
        after = tree(tmp_path)
        assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"rank0.jsonl"}
    model = Counting()
    with pytest.warns(RuntimeWarning), pair(tmp_path, model_fingerprint="b") as cache:
        cache.execute(model, "generate_until", generations(3))
    assert model.calls == 0  # the log has the answers


@pytest.mark.parametrize("make", LOGS, ids=lambda make: make.__name__)
def test_a_file_of_another_program_at_the_place_of_the_log_is_refused(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "rank0.jsonl")
    before = tree(tmp_path)
    for _ in range(2):
        with pytest.raises(CacheError, match=r"rank0\.jsonl is not a log of lmql_lite, and is left as it is"):
            pair(tmp_path)
        with pytest.raises(CacheError, match="is not a log"):
            CachingModel(Counting(), tmp_path / "rank0.db")
        with pytest.raises(CacheError, match="is not a log"):
            pair(tmp_path, policy=lq.CachePolicy(mode="ro"))
    assert tree(tmp_path) == before


def test_a_folder_of_lmms_eval_is_refused_without_touching_its_files(tmp_path: Path) -> None:
    theirs = tmp_path / "6868c90d0c3f6533"
    theirs.mkdir(mode=0o700)
    of_lmms_eval(theirs / "rank0.db")
    log_of_lmms_eval(theirs / "rank0.jsonl")
    before = tree(tmp_path)
    for _ in range(2):
        with pytest.raises(CacheError, match=r"rank0\.jsonl is not a log of lmql_lite"):
            opened(tmp_path)
    assert tree(tmp_path) == before


def test_a_root_of_lmms_eval_is_not_copied_into_a_run(tmp_path: Path) -> None:
    theirs = tmp_path / "6868c90d0c3f6533"
    theirs.mkdir(mode=0o700)
    of_lmms_eval(theirs / "cache.db")
    before = tree(tmp_path)
    with lq.ResponseCache.create(tmp_path, model="m") as cache:
        cache.execute(Counting(), "generate_until", generations(3))
        with pytest.warns(RuntimeWarning, match="cache.db is not an index of lmql_lite, so nothing was written"):
            assert cache.finalize() is None
    model = Counting()
    with opened(tmp_path) as cache:
        cache.execute(model, "generate_until", generations(3))
    assert model.calls == 0
    after = tree(tmp_path)
    assert {name: after[name] for name in before} == before


def test_an_empty_file_is_taken(tmp_path: Path) -> None:
    for name in ("rank0.db", "rank0.jsonl"):
        (tmp_path / name).touch()
    for expected in (3, 0):
        model = Counting()
        with pair(tmp_path) as cache:
            cache.execute(model, "generate_until", generations(3))
            assert cache.notices == []
        assert len(model.asked) == expected


def test_two_models_at_one_place_keep_both_their_answers(tmp_path: Path) -> None:
    for expected in (3, 0, 0):
        for name in ("a", "b", ""):
            model = Counting(lambda request, name=name: f"{name} {request.doc_id}")  # type: ignore[misc]
            with pair(tmp_path, model_fingerprint=name) as cache:
                answers = cache.execute(model, "generate_until", generations(3))
                assert answers == [f"{name} 0", f"{name} 1", f"{name} 2"] and cache.notices == []
            assert len(model.asked) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.db", "rank0.jsonl"]


def test_a_cache_opened_without_a_fingerprint_counts_the_answers_of_all_models_and_serves_none(tmp_path: Path) -> None:
    with pair(tmp_path, model_fingerprint="a") as cache:
        cache.execute(Counting(), "generate_until", generations(2))
    with pair(tmp_path) as cache:
        assert cache.get_stats()["total_cached_entries"] == 2
        assert cache.lookup(generation(0)) is None


def test_an_index_that_cannot_be_written_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair(tmp_path) as cache:
        cache.execute(Counting(), "generate_until", generations(3))
    real = sqlite3.connect

    def connect(path: Any, **options: Any) -> sqlite3.Connection:
        if str(path).startswith(str(tmp_path)):
            return real(f"{Path(path).as_uri()}?mode=ro&immutable=1", uri=True, **options)
        return real(path, **options)

    monkeypatch.setattr(sqlite3, "connect", connect)
    model = Counting()
    with pytest.warns(RuntimeWarning, match=r"rank0\.db cannot be used .*: the index is made anew"):
        cache = pair(tmp_path)
    with cache:
        cache.execute(model, "generate_until", generations(3))
    assert model.calls == 0


def test_merging_never_replaces_a_file_of_another_program(tmp_path: Path) -> None:
    with pair(tmp_path) as cache:
        cache.execute(Counting(), "generate_until", generations(3))
    for make in INDEXES:
        place = tmp_path / make.__name__
        place.mkdir()
        make(place / "merged.db")
        before = tree(place)
        with pytest.raises(CacheError, match=r"merged\.db is not an index of lmql_lite, so nothing was written"):
            lq.ResponseCache.merge_shards([tmp_path / "rank0.db"], place / "merged.db")
        assert tree(place) == before
    log_of_lmms_eval(tmp_path / "merged.jsonl")
    before_log = (tmp_path / "merged.jsonl").read_bytes()
    with pytest.raises(CacheError, match=r"merged\.jsonl is not a log"):
        lq.ResponseCache.merge_shards([tmp_path / "rank0.db"], tmp_path / "merged.db")
    assert (tmp_path / "merged.jsonl").read_bytes() == before_log


def test_pruning_never_changes_a_file_of_another_program(tmp_path: Path) -> None:
    with pair(tmp_path) as cache:
        cache.execute(Counting(), "generate_until", generations(30))
    for path in tmp_path.glob("rank0.db*"):
        path.unlink()
    of_lmms_eval(tmp_path / "rank0.db")
    (tmp_path / "theirs").mkdir()
    log_of_lmms_eval(log := tmp_path / "theirs" / "rank0.jsonl")
    before = (tmp_path / "rank0.db").read_bytes(), log.read_bytes()
    assert prune(tmp_path / "rank0.jsonl", lambda _: True, 5000) > 10
    with pytest.raises(CacheError, match="is not a log"):
        prune(log, lambda _: True, 1)
    assert ((tmp_path / "rank0.db").read_bytes(), log.read_bytes()) == before
