"""`lq eval --workers`: the same answers, whatever became of a worker. Skipped where Ray is not installed."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lmql_lite.api import compile as compile_query
from lmql_lite.apps.cli import lq as command
from lmql_lite.data.folder import attempts_in
from lmql_lite.data.job import EvalJob
from lmql_lite.data.ray import TRIES, RayEngine, RayWorker, _Parts
from lmql_lite.engine.rows import DataRow

QUERY = """
sample
    import os
    from pathlib import Path
    if word in deadly.split() and not Path(folder, word).exists():
        Path(folder, word).touch()
        os.kill(os.getpid(), 9)
    if word == "w7":
        1 / 0
    "{word}[X]"
where
    X in [" a", " b", " c"]
"""
HAS_RAY = importlib.util.find_spec("ray") is not None


def run(folder: str, *arguments: str, deadly: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lmql_lite", "eval", "q.lq", "d.csv", "-o", folder, "-m", "exact",
         "--var", f"folder={Path.cwd()}", "--var", f"deadly={deadly}", *arguments],
        capture_output=True, text=True, timeout=300, env=os.environ,
    )  # fmt: skip


def ends(folder: str) -> dict[str, Any]:
    return {
        each["id"]: [each.get(name) for name in ("variables", "scores", "seed", "columns")]
        + [each.get("error", {}).get("message")]
        for each in attempts_in(Path(folder))
    }


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed")
def test_two_workers_answer_as_one_process_does_and_two_deaths_change_nothing() -> None:
    Path("q.lq").write_text(QUERY)
    Path("d.csv").write_text("id,word,target\n" + "".join(f"r{n},w{n},a\n" for n in range(40)))
    assert run("alone", deadly="none").returncode == 0
    done = run("two", "--workers", "2", deadly="none")
    assert done.returncode == 0, done.stderr
    assert ends("two") == ends("alone") and len(ends("two")) == 40
    done = run("killed", "--workers", "2", deadly="w3 w21")
    assert done.returncode == 0, done.stderr
    assert Path("w3").exists() and Path("w21").exists() and ends("killed") == ends("alone")
    assert len(list(attempts_in(Path("killed")))) == 40
    reports = [json.loads(Path(name, "report.json").read_text()) for name in ("alone", "two", "killed")]
    assert all(each["metrics"] == reports[0]["metrics"] and each["errors"] == reports[0]["errors"] for each in reports)


def test_rows_of_dead_workers_are_run_again_until_they_are_given_up() -> None:
    async def rows() -> AsyncGenerator[DataRow, None]:
        for number in range(3):
            yield DataRow(number, f"r{number}", 0, None)

    async def go() -> None:
        parts = _Parts(rows())
        first = await parts.take(2)
        assert list(first) == [("r0", 0), ("r1", 0)]
        assert parts.requeue(first) == []
        for turn in range(2, TRIES + 1):  # each comes alone from now on
            one, other = await parts.take(2), await parts.take(2)
            assert (list(one), list(other)) == ([("r0", 0)], [("r1", 0)])
            assert [row.id for row in parts.requeue(one)] == (["r0"] if turn == TRIES else [])
            if turn < TRIES:
                assert parts.requeue(other) == []
        assert list(await parts.take(5)) == [("r2", 0)] and not parts.are_left
        assert await parts.take(5) == {}

    asyncio.run(go())


def test_a_worker_keeps_the_answers_in_the_cache_of_the_command() -> None:
    Path("q.lq").write_text('"{word}[X]" where X in [" a", " b"]\n')
    identity = {"query": "", "model": "demo", "fingerprint": None, "data": "", "settings": {}}
    job = EvalJob(compile_query(Path("q.lq").read_text()), Path(), {}, identity, timeout=60)
    source = job.query.program.span.text
    worker = RayWorker(RayEngine(source, False, "demo", None, 1, 0, str(Path("kept.tokens").resolve()))._message(job))

    async def records() -> list[Any]:
        part = [{"number": 0, "id": "a", "repeat": 0, "line": 1, "values": {"word": "w"}, "problem": ""}]
        message = json.dumps({"rows": part, "at_once": 1}).encode()
        return [record async for answer in worker.rows(message) for record in json.loads(answer)]

    (record,) = asyncio.run(records())
    assert record["variables"]["X"] in (" a", " b") and Path("kept.tokens").exists()


def test_ray_without_the_extra_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("q.lq").write_text('"{word}"\nreturn word\n')
    Path("d.csv").write_text("id,word\na,b\n")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):  # put back afterwards
        monkeypatch.setenv(name, "")
    monkeypatch.setitem(sys.modules, "ray", None)
    done = CliRunner().invoke(command, ["eval", "q.lq", "d.csv", "-o", "r", "--workers", "1"])
    assert done.exit_code == 2 and "--workers needs Ray" in done.output and "lmql-lite[ray]" in done.output
