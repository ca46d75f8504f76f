"""`lq responses`: what logs hold, what is damaged, what is dropped, merged and exported."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from tests.apps.conftest import Shell

GREEDY = {"temperature": 0}


class Model:
    def generate_until(self, requests: list[lq.Request]) -> list[str]:
        return [f"answer {request.doc_id}" for request in requests]


def fill(folder: Path, count: int = 3, start: int = 0, rank: int = 0, model: str = "m") -> Path:
    requests = [lq.Request("generate_until", (f"q {n}", GREEDY), metadata={"task": "ab"[n % 2], "doc_id": n})
                for n in range(start, start + count)]  # fmt: skip
    sampled = lq.Request("generate_until", ("q", {"temperature": 1}))
    with lq.ResponseCache.open(folder, model=model, rank=rank) as cache:
        cache.execute(Model(), "generate_until", [*requests, sampled])
    return next(iter(sorted(folder.rglob(f"rank{rank}.jsonl"))))


@pytest.fixture
def run(shell: Shell) -> Callable[..., tuple[int, str, str]]:
    """`lq responses` with arguments: its exit code, stdout and stderr."""
    return lambda *arguments: astuple(shell("responses", *map(str, arguments)))


def test_stats(tmp_path: Path, run: Any) -> None:
    fill(tmp_path, 3)
    fill(tmp_path, 2, 10, rank=1)
    _, out, _ = run("stats", tmp_path, "--json")
    found = json.loads(out)
    assert (found["answers"], found["sampled"], found["damaged"], found["tasks"]) == (5, 2, 0, {"a": 3, "b": 2})
    code, out, _ = run("stats", tmp_path)
    assert code == 0 and out.count("answers of m|\n") == 2 and "a: 3 answers" in out
    assert found["logs"][0]["answers"] == 3


def test_the_answers_of_a_merged_run_are_counted_once(tmp_path: Path, run: Any) -> None:
    """Statement 38: the answers of a run move when it is merged."""
    for start in (0, 10):
        cache = lq.ResponseCache.create(tmp_path, model="m")
        requests = [lq.Request("generate_until", ("q", GREEDY), metadata={"doc_id": start + n}) for n in range(2)]
        cache.execute(Model(), "generate_until", requests)
        cache.finalize(success=start == 0)
    assert json.loads(run("stats", tmp_path, "--json")[1])["answers"] == 4
    assert len(json.loads(run("stats", tmp_path, "--json")[1])["logs"]) == 2
    time.sleep(0.01)  # records of this moment are not old yet
    assert json.loads(run("prune", tmp_path, "--older-than", 0, "--json")[1])["dropped"] == 4


def test_verify_tells_damage_by_its_exit_code(tmp_path: Path, run: Any) -> None:
    log = fill(tmp_path, 20)
    code, out, _ = run("verify", tmp_path)
    assert code == 0 and "sound, 20 answers" in out
    data = bytearray(log.read_bytes())
    data[500] ^= 1
    log.write_bytes(data)
    code, out, _ = run("verify", log)
    assert code == 6 and "1 damaged lines" in out
    assert run("prune", tmp_path)[1].startswith(f"{tmp_path}: 1 record dropped")
    assert run("verify", tmp_path)[0] == 0


def test_prune_drops_what_is_old_or_large(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = fill(tmp_path, 30)
    size = log.stat().st_size
    assert run("prune", tmp_path, "--max-bytes", size // 2)[0] == 0
    assert size // 3 < log.stat().st_size <= size // 2
    with lq.ResponseCache.open(tmp_path, model="m") as cache:
        assert 10 <= cache.get_stats()["total_cached_entries"] < 20
        code, _, err = run("prune", tmp_path)
        assert code == 6 and "in use by another process" in err
    later = time.time() + 40 * 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    run("prune", tmp_path, "--older-than", 30)
    assert json.loads(run("stats", tmp_path, "--json")[1])["answers"] == 0


def test_merge(tmp_path: Path, run: Any) -> None:
    one, two = fill(tmp_path / "a", 3), fill(tmp_path / "b", 3, 2)
    code, out, _ = run("merge", one, two, "-o", tmp_path / "c.db")
    assert code == 0 and "5 inserted, 1 duplicates, 0 conflicts" in out
    assert json.loads(run("merge", one, "-o", tmp_path / "c.db", "--json")[1])["inserted"] == 0
    assert run("merge", one, "-o", one)[0] == 6
