"""Promises of lmms-eval's `ResponseCache.create` and `finalize`, and of its older JSONL cache, at our public door.

Different on purpose: answers are in `root/<hash of the model>/`, so two models never share a folder; the options are
`rank=` and no `dist_backend=`, since ranks meet through files; on a network folder the log stays where it is, and only
the index is in the local cache folder.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from tests.upstream.test_lmms_eval_response_cache import Model, request


@pytest.fixture(autouse=True)
def one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LMMS_CACHE_RUN_ID", "night")


def rank(root: str | Path, number: int = 0, size: int = 1) -> lq.ResponseCache:
    return lq.ResponseCache.create(root, model="m", model_args="a=1", rank=number, world_size=size)


def names(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix().partition("/")[2] for path in root.rglob("*") if path.is_file()}


def test_a_rank_writes_into_the_folder_of_its_run(tmp_path: Path) -> None:
    with rank(tmp_path) as cache:
        cache.execute(Model("a"), "generate_until", [request()])
    assert names(tmp_path) == {"runs/night/rank_0.db", "runs/night/rank_0.jsonl"}


@pytest.mark.parametrize("name", ["cache.db", "nested/cache.db"])
def test_a_root_that_is_named_like_the_database_is_its_folder(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    with rank(str(root)) as cache:
        cache.execute(Model("a"), "generate_until", [request()])
        assert cache.finalize() is not None
    assert not root.exists() and {path.name for path in root.parent.iterdir() if path.is_dir()} != {"cache.db"}
    silent = Model()
    for again in (lq.ResponseCache.open(root, model="m", model_args="a=1"), rank(root.parent)):
        with again:
            assert again.execute(silent, "generate_until", [request()]) == ["a"]


def test_a_folder_that_is_named_like_a_database_stays_a_root(tmp_path: Path) -> None:
    (tmp_path / "cache.db").mkdir()
    with rank(tmp_path / "cache.db") as cache:
        cache.execute(Model("a"), "generate_until", [request()])
    assert names(tmp_path / "cache.db") == {"runs/night/rank_0.db", "runs/night/rank_0.jsonl"}


@pytest.mark.parametrize("size", [1, 2])
def test_a_run_that_ends_well_is_merged_into_the_root(tmp_path: Path, size: int) -> None:
    ranks = [rank(tmp_path, number, size) for number in range(size)]
    for number, cache in enumerate(ranks):
        cache.execute(Model("a", "b"), "generate_until", [request(2 * number), request(2 * number + 1)])
    for cache in reversed(ranks):
        report = cache.finalize(success=True)
    assert report is not None and report.inserted == 2 * size
    assert names(tmp_path) == {"cache.db", "cache.jsonl", "runs/.lock"}


def test_a_run_that_fails_is_not_merged_and_loses_nothing(tmp_path: Path) -> None:
    cache = rank(tmp_path)
    cache.execute(Model("a"), "generate_until", [request()])
    assert cache.finalize(success=False) is None
    assert "cache.db" not in names(tmp_path)
    with rank(tmp_path) as cache:
        assert cache.execute(Model(), "generate_until", [request()]) == ["a"]


def test_answers_before_a_failure_of_the_model_are_in_the_run(tmp_path: Path) -> None:
    """The third of four documents fails; the second run asks about it and the fourth."""

    def failing(requests: list[lq.Request]) -> list[str]:
        if requests[0].doc_id == 2:
            raise RuntimeError("interrupted")
        return [f"answer {each.doc_id}" for each in requests]

    first = type("First", (), {"generate_until": lambda _, requests: failing(requests)})()
    requests = [request(number) for number in range(4)]
    cache = rank(tmp_path)
    with pytest.raises(RuntimeError, match="interrupted"):
        cache.execute(first, "generate_until", requests, batch_size=1)
    cache.finalize(success=False)
    model = Model("answer 2", "answer 3")
    with rank(tmp_path) as cache:
        assert cache.execute(model, "generate_until", requests) == [f"answer {number}" for number in range(4)]
    assert model.asked == [2, 3]


# -- the older cache of JSONL files


class Older(lq.JsonlCache):
    """A model of lmms-eval that uses the older cache; its tasks are the names in `task_dict`."""

    def __init__(self) -> None:
        self.model_version, self.task_dict = "org/name", {"mme": {}, "mmb": {}}
        self.asked: list[Any] = []

    def generate_until(self, requests: list[lq.Request]) -> list[Any]:
        self.load_cache()
        cached, pending = self.get_response_from_cache(requests)
        found = {each["index"]: each["response"] for each in cached}
        for each in pending:
            self.asked.append(each.doc_id)
            self.add_request_response_to_cache(each, f"new {each.doc_id}")
        new = iter(f"new {each.doc_id}" for each in pending)
        return [found[index] if index in found else next(new) for index in range(len(requests))]


def folder_of_lmms_eval(home: Path) -> Path:
    """The class, the last part of the model's name, and the SHA-256 of the tasks in their order."""
    return home / "eval_cache" / f"Older_name_{hashlib.sha256(b'mme|mmb').hexdigest()}"


def test_files_that_lmms_eval_wrote_are_found_and_their_empty_answers_are_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMMS_EVAL_HOME", str(tmp_path))
    monkeypatch.setenv("LMMS_EVAL_USE_CACHE", "True")
    folder_of_lmms_eval(tmp_path).mkdir(parents=True)
    records = [{"doc_id": 0, "response": "old 0"}, {"doc_id": 1, "response": ""}, {"doc_id": 2, "response": "old 2"}]
    path = folder_of_lmms_eval(tmp_path) / "mme_rank0_world_size1.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    for asked in ([1], []):
        model = Older()
        assert model.generate_until([request(number) for number in range(3)]) == ["old 0", "new 1", "old 2"]
        assert model.asked == asked


@pytest.mark.parametrize(
    ("name", "hint"),
    [("CachingLMM", "CachingModel"), ("CachingLM", "CachingModel"), ("CacheHook", "CachingModel"),
     ("Instance", "Request"), ("merge_responses", "responses.older"), ("KVCacheEngine", "lmql_lite.cache.kv.engine"),
     ("LMCacheEngine", "KVCacheEngine"), ("EncoderCache", "lmql_lite.cache.encoder"),
     ("SimpleLRUCache", "lmql_lite.cache.kv.block_reuse"), ("merge_dynamic_caches", "lmql_lite.cache.kv.block_reuse")],
)  # fmt: skip
def test_a_name_of_the_originals_has_a_hint(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; .*{hint}"):
        getattr(lq, name)
