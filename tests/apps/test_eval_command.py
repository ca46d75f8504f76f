"""`lq eval` as a user meets it: runs that go on by themselves, scores, comparisons, and what goes wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lmql_lite.apps.cli import lq as command
from lmql_lite.data.folder import RunFolder, attempts_in, identity_of
from lmql_lite.models.demo import DemoModel
from tests.tables import cases

QUERY = 'if word == "boom":\n    raise ValueError("no")\n"{word}[X]" where X in [" a", " b"]\nreturn X.strip()\n'
"""Its answers are the demo model's, whatever they are: the tests compare runs."""


def lq(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["eval", *map(str, arguments)])


@pytest.fixture(autouse=True)
def files() -> None:
    Path("q.lq").write_text(QUERY)
    data([(f"r{n}", f"w{n}", "a") for n in range(12)])


def data(rows: list[tuple[str, str, str]]) -> None:
    Path("d.csv").write_text("id,word,target\n" + "".join(f"{','.join(row)}\n" for row in rows))


def answers(folder: str) -> dict[str, Any]:
    return {record["id"]: record.get("value") for record in attempts_in(Path(folder))}


def report(folder: str) -> dict[str, Any]:
    return dict(json.loads((Path(folder) / "report.json").read_text()))


def test_the_same_command_continues_and_a_limit_is_no_part_of_the_run() -> None:
    assert lq("q.lq", "d.csv", "-o", "r", "-m", "exact", "--limit", "5").exit_code == 0
    assert report("r")["attempts"] == 5
    done = lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    assert done.exit_code == 0 and "finished before 5, new 7" in done.output
    assert report("r")["attempts"] == 12 and len(list(attempts_in(Path("r")))) == 12
    size = (Path("r") / "rows.jsonl").stat().st_size
    assert lq("q.lq", "d.csv", "-o", "r", "-m", "exact").exit_code == 0
    assert report("r")["kept"] == 12 and (Path("r") / "rows.jsonl").stat().st_size == size


def test_only_new_and_changed_rows_are_run() -> None:
    lq("q.lq", "d.csv", "-o", "r")
    before = answers("r")
    data([("new", "x", "a"), ("r0", "changed", "a"), *[(f"r{n}", f"w{n}", "b") for n in range(11, 0, -1)]])
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    assert report("r")["kept"] == 11
    assert {name: value for name, value in answers("r").items() if name not in ("new", "r0")} == {
        name: value for name, value in before.items() if name != "r0"
    }


def test_a_row_that_fails_counts_as_wrong_and_is_run_again() -> None:
    data([("a", "boom", "a"), ("b", "w", "a"), ("c", "v", "a")])
    with Path("d.csv").open("a") as file:
        file.write("d,too,many,cells\n")
    done = lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    assert done.exit_code == 0 and "2 errors, counted as wrong" in done.output
    assert report("r")["errors"] == {"InputError": 1, "ValueError": 1} and report("r")["metrics"][0]["n"] == 4
    shown = lq("show", "r", "--errors")
    assert "line 5 has 4 cells, and the header has 3" in shown.output
    Path("q.lq").write_text(QUERY)
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact", "--errors", "skip")
    assert report("r")["kept"] == 2 and report("r")["metrics"][0]["n"] == 2


def test_scores_are_made_again_from_the_records_when_metrics_change() -> None:
    Path("own.py").write_text("def own(answer, target):\n    return 1 / (answer != 'nothing')\n")
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    passes = report("r")["usage"]["forward_passes"]
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact", "-m", "own.py:own", "--format", "json")
    found = report("r")
    assert [each["name"] for each in found["metrics"]] == ["exact", "own"] and found["metrics"][1]["mean"] == 1
    assert found["kept"] == 12 and found["usage"]["forward_passes"] == passes


def test_repeats_are_kept_apart_and_passes_counted() -> None:
    Path("q.lq").write_text('sample\n    "{word}[X]"\nwhere X in [" a", " b", " c"]\nreturn X.strip()\n'.replace(
        '\nreturn X.strip()', ''))  # fmt: skip
    lq("q.lq", "d.csv", "-o", "r", "-m", "contains", "-m", "pass@2", "--repeat", "4")
    assert report("r")["attempts"] == 48 and report("r")["ids"] == 12
    records = list(attempts_in(Path("r")))
    assert len({record["seed"] for record in records}) == 48
    assert report("r")["metrics"][1]["name"] == "pass@2"
    assert lq("q.lq", "d.csv", "-o", "s", "-m", "exact", "-m", "pass@5", "--repeat", "4").exit_code == 2


def test_runs_are_compared_row_by_row_and_gates_have_exit_codes() -> None:
    lq("q.lq", "d.csv", "-o", "one", "-m", "exact")
    Path("q.lq").write_text('"{word}"\nreturn "a" if word != "w3" else "b"\n')
    data([(f"r{n}", f"w{n}", "a") for n in range(11)])
    assert lq("q.lq", "d.csv", "-o", "two", "-m", "exact", "--min", "exact>=0.95").exit_code == 4
    assert "only in the first: r11" in lq("compare", "one", "two").output
    found = json.loads(lq("compare", "two", "one", "--format", "json").output)
    (metric,) = found["metrics"]
    assert metric["n"] == 11 and metric["first"] == pytest.approx(10 / 11) and found["only_second"] == ["r11"]
    assert sorted(metric["changed"]) == sorted(
        name for name, value in answers("one").items() if (value == "a") == (name == "r3") and name != "r11"
    )
    assert lq("compare", "two", "one", "--no-worse", "-0.999").exit_code == (
        4 if metric["delta"]["mean"] < 0.999 else 0
    )


def test_a_folder_of_another_query_says_what_differs() -> None:
    lq("q.lq", "d.csv", "-o", "r")
    Path("q.lq").write_text(QUERY + "# changed\n")
    done = lq("q.lq", "d.csv", "-o", "r")
    assert done.exit_code == 2 and "a run with another query" in done.output
    assert lq("q.lq", "d.csv", "-o", "r", "--fresh").exit_code == 0


def test_two_runs_of_one_folder_at_once_say_who_holds_it() -> None:
    lq("q.lq", "d.csv", "-o", "r", "--limit", "2")
    held = RunFolder(Path("r"), identity_of(Path("r")), [])
    try:
        done = lq("q.lq", "d.csv", "-o", "r")
    finally:
        held.close("stopped")
    assert done.exit_code == 6 and "is being written by process" in done.output


@cases("apps/eval_command", "wrong options are refused in a sentence", globals())
def test_wrong_options_are_refused_in_a_sentence(arguments: list[str], sentence: str) -> None:
    done = lq("q.lq", "d.csv", "-o", "r", *arguments)
    assert done.exit_code == 2 and sentence in done.output


def test_rows_are_chosen_and_exported() -> None:
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    lq("q.lq", "d.csv", "-o", "some", "--filter", "id=r3", "--filter", "id=r1", "--filter", "target=a")
    assert sorted(answers("some")) == ["r1", "r3"]
    assert lq("q.lq", "d.csv", "-o", "s", "--sample", "3", "--filter", "target=a").exit_code == 0
    assert len(answers("s")) == 3
    assert lq("export", "r", "-o", "r.csv").exit_code == 0 and len(Path("r.csv").read_text().splitlines()) == 13
    page = Path(lq("show", "r", "--html").output.strip()).read_text()
    assert "<details>" in page and "<lq-view" in page


def test_runs_of_parts_are_merged() -> None:
    for part, limit in (("one", ":6"), ("two", "6:")):
        lq("q.lq", "d.csv", "-o", part, "--limit", limit)
    assert lq("merge", "one", "two", "-o", "all").exit_code == 0
    lq("q.lq", "d.csv", "-o", "all", "-m", "exact")
    assert report("all")["kept"] == 12


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_and_ends_as_one_that_was_not() -> None:
    data([(f"r{n}", f"w{n}", "a") for n in range(60)])
    arguments = [sys.executable, "-m", "lmql_lite", "eval", "q.lq", "d.csv", "-m", "exact", "-j", "4", "-q"]
    log = Path("r") / "rows.jsonl"
    for least in (3, 20):
        running = subprocess.Popen([*arguments, "-o", "r"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while running.poll() is None and time.monotonic() < until:
            if log.exists() and len(log.read_bytes().splitlines()) > least:
                break
            time.sleep(0.002)
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert subprocess.run([*arguments, "-o", "r"], capture_output=True, timeout=120).returncode == 0
    assert lq("q.lq", "d.csv", "-m", "exact", "-o", "whole").exit_code == 0
    assert answers("r") == answers("whole")
    assert report("r")["metrics"] == report("whole")["metrics"]
    assert len(list(attempts_in(Path("r")))) == 60


def test_a_changed_target_is_scored_again_and_asks_no_model() -> None:
    Path("q.lq").write_text('"{word}"\nreturn "a"\n')
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    assert report("r")["metrics"][0]["mean"] == 1
    data([(f"r{n}", f"w{n}", "a" if n < 9 else "b") for n in range(12)])
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    assert report("r")["kept"] == 12 and report("r")["metrics"][0]["mean"] == 9 / 12
    assert {record["target"] for record in attempts_in(Path("r"))} == {"a", "b"}


def test_a_model_that_was_trained_anew_under_its_name_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    other = property(lambda self: "demo:other weights", lambda self, own: None)
    monkeypatch.setattr(DemoModel, "fingerprint", other, raising=False)
    done = lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    assert done.exit_code == 2 and "a run with another version of the model: fingerprint is 'demo:" in done.output
    assert lq("q.lq", "d.csv", "-o", "s", "-m", "exact").exit_code == 0
    assert lq("merge", "r", "s", "-o", "both").exit_code == 2


def test_what_changes_no_answer_is_no_part_of_a_run() -> None:
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    for more in (["-j", "2"], ["--cache", "x.tokens"], ["--cache-mode", "refresh"], ["--prices", "1,2"],
                 ["--max-requests", "99"], ["--cluster", "word"], ["--errors", "skip"]):  # fmt: skip
        assert lq("q.lq", "d.csv", "-o", "r", "-m", "exact", *more).exit_code == 0, more
        assert report("r")["kept"] == 12
    for more in (["--seed", "1"], ["--max-tokens", "9"], ["--var", "unread=x"]):
        done = lq("q.lq", "d.csv", "-o", "r", "-m", "exact", *more)
        assert done.exit_code == 2, more
