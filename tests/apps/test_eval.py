"""`lq eval` where more than its words is to be seen: odd data files, folders that are in use, full disks, seeds."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lmql_lite.apps.cli import lq as command
from lmql_lite.apps.eval_views import Progress
from lmql_lite.data.folder import RunFolder, attempts_in, identity_of
from lmql_lite.data.job import Scoring
from lmql_lite.data.run import Tally
from lmql_lite.models.demo import DemoModel
from tests.tables import cases

QUERY = 'with open("calls.txt", "a") as file:\n    file.write(".")\n"{word}"\nreturn "a"\n'
"""Writes down each run of a row, as a model that is paid for would."""


def lq(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["eval", *map(str, arguments)])


def data(count: int) -> None:
    Path("d.csv").write_text("id,word,target\n" + "".join(f"r{n},w{n},a\n" for n in range(count)))


@pytest.fixture(autouse=True)
def files() -> None:
    Path("q.lq").write_text(QUERY)
    data(4)


def calls() -> int:
    return Path("calls.txt").stat().st_size if Path("calls.txt").exists() else 0


def report(folder: str = "r") -> dict[str, Any]:
    return dict(json.loads((Path(folder) / "report.json").read_text()))


@cases("apps/eval", "a table of another country and a packed file have the same rows", globals())
def test_a_table_of_another_country_and_a_packed_file_have_the_same_rows(name: str, text: str) -> None:
    data = text.encode()
    Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert lq("q.lq", name, "-o", "r", "-m", "exact").exit_code == 0
    found = [(record["id"], record["columns"]["word"]) for record in attempts_in(Path("r"))]
    assert sorted(found) == [("a", "x, y"), ("b", "z")] and report()["metrics"][0]["mean"] == 1


CUT = gzip.compress(b'{"word": "x", "target": "a"}\n', mtime=0)[:-9]


@cases("apps/eval", "a file that cannot be read is refused and leaves no folder", globals())
def test_a_file_that_cannot_be_read_is_refused_and_leaves_no_folder(
    name: str, data: bytes | None, sentence: str
) -> None:
    Path("d.csv").unlink()
    if data is not None:
        Path(name).write_bytes(data)
    done = lq("q.lq", name, "-o", "r", "-m", "exact")
    assert done.exit_code == 2 and sentence in done.output and "bug" not in done.output
    assert calls() == 0 and not Path("r").exists()


@cases("apps/eval", "wrong options are refused in a sentence", globals())
def test_wrong_options_are_refused_in_a_sentence(arguments: list[str], sentence: str) -> None:
    done = lq("q.lq", "d.csv", "-o", "r", *arguments)
    assert done.exit_code == 2 and sentence in done.output


def test_two_runs_of_one_folder_at_once_say_who_holds_it() -> None:
    lq("q.lq", "d.csv", "-o", "r", "--limit", "2")
    held = RunFolder(Path("r"), identity_of(Path("r")), [])
    try:
        done = lq("q.lq", "d.csv", "-o", "r")
    finally:
        held.close("stopped")
    assert done.exit_code == 6 and "is being written by process" in done.output


def test_a_model_that_was_trained_anew_under_its_name_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    other = property(lambda self: "demo:other weights", lambda self, own: None)
    monkeypatch.setattr(DemoModel, "fingerprint", other, raising=False)
    done = lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    assert done.exit_code == 2 and "a run with another version of the model: fingerprint is 'demo:" in done.output
    assert lq("q.lq", "d.csv", "-o", "s", "-m", "exact").exit_code == 0


def test_a_full_disk_costs_no_answer_that_was_written_and_the_report_is_whole() -> None:
    data(60)
    done = subprocess.run(
        [sys.executable, "-m", "lmql_lite", "eval", "q.lq", "d.csv", "-o", "r", "-m", "exact"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384)),
        capture_output=True, text=True, timeout=120, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 6 and "rows.jsonl cannot be written (File too large)" in done.stderr, done.stderr
    assert "exact            1.0000" in done.stdout and "60 attempts of 60 rows" in done.stdout
    written = len(list(attempts_in(Path("r"))))
    assert 0 < written < 60 and calls() == 60
    assert lq("q.lq", "d.csv", "-o", "r", "-m", "exact").exit_code == 0
    assert report()["kept"] == written and calls() == 60 + 60 - written
    assert len(list(attempts_in(Path("r")))) == 60


def test_the_time_left_is_that_of_the_rows_so_far_in_minutes_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmql_lite.apps.eval_views.time.monotonic", lambda: now)
    now, tally = 100.0, Tally(Scoring(("exact",), None, 200))
    progress = Progress("demo")
    assert progress.text(80) == "waiting for demo · 0 s"
    progress.go_on(tally)
    for number in range(10):
        record = {"id": str(number), "repeat": 0, "scores": {"exact": float(number < 4)}, "cached": True}
        tally.add(record)
        progress.see(record)
    now = 105.0
    assert progress.text(80) == "10/200 rows · 0 errors · 1:35 left · exact 0.400 · 2.0/s · 10 from the cache"
    assert progress.text(45) == "10/200 rows · 0 errors · 1:35 left"
