"""Options of `lq eval` beyond a plain run: time limits, retries, dry runs, events, JUnit, tries, caches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from lmql_lite.apps.cli import lq as command
from lmql_lite.data.folder import attempts_in, identity_of

COUNTED = """
from pathlib import Path
number = 1 + (len(Path(word).read_text()) if Path(word).exists() else 0)
Path(word).write_text("x" * number)
"""
"""Counts the runs of a row in `number`."""
QUERY = '"{word}[X]" where X in [" a", " b"]\nreturn X.strip()\n'


def lq(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["eval", *map(str, arguments)])


def query(text: str) -> None:
    Path("q.lq").write_text(text)


@pytest.fixture(autouse=True)
def files() -> None:
    query(QUERY)
    Path("d.csv").write_text("id,word,target\n" + "".join(f"r{n},w{n},a\n" for n in range(6)))


def records(folder: str = "r") -> dict[str, dict[str, Any]]:
    return {record["id"]: record for record in attempts_in(Path(folder))}


def report(folder: str = "r") -> dict[str, Any]:
    return dict(json.loads((Path(folder) / "report.json").read_text()))


def test_a_row_that_takes_longer_than_its_time_fails_and_the_others_end() -> None:
    query('import asyncio\nif word == "w2":\n    await asyncio.sleep(60)\n"{word}"\nreturn "a"\n')
    done = lq("q.lq", "d.csv", "-o", "r", "-m", "exact", "--timeout", "0.5")
    assert done.exit_code == 0 and report()["errors"] == {"ModelError": 1} and report()["metrics"][0]["mean"] == 5 / 6
    assert records()["r2"]["error"]["message"] == "the row did not end within 0.5 s"
    query('raise TimeoutError("of the query itself")\n"{word}"\n')
    lq("q.lq", "d.csv", "-o", "own", "--timeout", "60")
    assert report("own")["errors"] == {"TimeoutError": 6}


def test_a_row_that_failed_is_tried_again_at_once_as_often_as_asked_for() -> None:
    query(COUNTED + 'if number < 3:\n    1 / 0\n"{word}"\nreturn "a"\n')
    assert lq("q.lq", "d.csv", "-o", "r", "--limit", "1", "--retries", "1").exit_code == 8
    assert records()["r0"]["error"]["type"] == "ZeroDivisionError" and records()["r0"]["tries"] == 2
    lq("q.lq", "d.csv", "-o", "r", "--limit", "2", "--retries", "2")
    assert "tries" not in records()["r0"] and records()["r1"]["tries"] == 3 and not report()["errors"]


def test_what_would_end_the_same_way_is_not_tried_again() -> None:
    query(COUNTED + 'options = []\n"{word}[X]" where X in options\n')
    lq("q.lq", "d.csv", "-o", "r", "--limit", "1", "--retries", "5")
    assert records()["r0"]["error"]["type"] == "ConstraintError" and Path("w0").read_text() == "x"


def test_a_dry_run_counts_rows_and_writes_nothing() -> None:
    lq("q.lq", "d.csv", "-o", "r", "--limit", "2")
    before = sorted(path.name for path in Path().rglob("*"))
    done = lq("q.lq", "d.csv", "-o", "r", "--dry-run")
    assert done.exit_code == 0 and "r: 6 attempts asked for, 2 known, 4 to run" in done.output
    four = json.loads(lq("q.lq", "d.csv", "-o", "r", "--dry-run", "--format", "json").output)
    one = json.loads(lq("q.lq", "d.csv", "-o", "new", "--limit", "1", "--dry-run", "--format", "json").output)
    assert (four["asked"], four["to_run"], one["to_run"]) == (6, 4, 1)
    assert [hole["way"] for hole in four["plan"]["holes"]] == [hole["way"] for hole in one["plan"]["holes"]]
    again = json.loads(lq("q.lq", "d.csv", "-o", "r", "--dry-run", "--fresh", "--format", "json").output)
    assert again["to_run"] == 6
    assert sorted(path.name for path in Path().rglob("*")) == before


def test_a_dry_run_names_rows_that_would_fail_and_folders_of_another_run() -> None:
    with Path("d.csv").open("a") as file:
        file.write("bad,too,many,cells\n")
    done = lq("q.lq", "d.csv", "-o", "r", "--dry-run")
    assert "1 attempt would fail at once: bad: line 8 has 4 cells, and the header has 3" in done.output
    lq("q.lq", "d.csv", "-o", "r")
    query(QUERY + "# changed\n")
    assert lq("q.lq", "d.csv", "-o", "r", "--dry-run").exit_code == 2
    assert lq("q.lq", "d.csv", "-o", "r", "--dry-run", "--format", "events").exit_code == 2


def test_events_are_a_line_for_each_row_and_one_for_the_end() -> None:
    query('print("noise")\n' + QUERY)
    done = lq("q.lq", "d.csv", "-o", "r", "-m", "exact", "--format", "events")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["type"] for line in lines] == ["started", *["row"] * 6, "done"]
    assert all(line["schema"] == 1 for line in lines) and lines[0]["attempts"] == 6
    assert {line["id"]: line["scores"] for line in lines[1:-1]} == {
        name: record["scores"] for name, record in records().items()
    }
    assert lines[-1]["metrics"] == report()["metrics"]
    again = [
        json.loads(line)["type"] for line in lq("q.lq", "d.csv", "-o", "r", "--format", "events").stdout.splitlines()
    ]
    assert again[0] == "started" and again[-1] == "done"


def test_an_error_that_ends_the_run_is_the_last_event() -> None:
    done = lq("q.lq", "d.csv", "-o", "r", "--filter", "wrod=1", "--format", "events")
    last = json.loads(done.stdout.splitlines()[-1])
    assert done.exit_code == 2 and last["type"] == "error" and last["kind"] == "InputError"
    assert last["hint"] == "did you mean word?"


def test_rows_are_test_cases_of_a_junit_report() -> None:
    query('if word == "w1":\n    1 / 0\n"{word}"\nreturn "b" if word == "w2" else "a"\n')
    assert lq("q.lq", "d.csv", "-o", "r", "-m", "exact", "--limit", "4").exit_code == 0
    assert lq("export", "r", "--as", "junit", "-o", "r.xml").exit_code == 0
    (suite,) = ElementTree.parse("r.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "1", "1")
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    assert cases == {"r0": [], "r1": ["error"], "r2": ["failure"], "r3": []}
    failure = next(case[0] for case in suite if case.get("name") == "r2")
    assert failure.get("message") == 'answer "b", target "a"' and failure.text is not None and "exact 0" in failure.text
    assert [case.get("line") for case in suite if case.get("name") == "r3"] == ["5"]
    done = lq("export", "r", "--as", "junit", "-o", "no/folder.xml")
    assert done.exit_code == 2 and "no/folder.xml cannot be written" in done.output


def test_a_random_seed_is_written_down_and_kept_by_the_folder() -> None:
    query('sample\n    "{word}[X]"\nwhere\n    X in [" a", " b"]\n')
    assert lq("q.lq", "d.csv", "-o", "r", "--seed", "random", "--limit", "3").exit_code == 0
    seed = identity_of(Path("r"))["settings"]["seed"]
    assert seed > 0 and lq("q.lq", "d.csv", "-o", "r", "--seed", "random").exit_code == 0
    assert report()["kept"] == 3 and identity_of(Path("r"))["settings"]["seed"] == seed
    lq("q.lq", "d.csv", "-o", "s", "--seed", seed)
    assert {name: each["variables"] for name, each in records("s").items()} == {
        name: each["variables"] for name, each in records().items()
    }
    lq("q.lq", "d.csv", "-o", "t", "--seed", "random")
    assert identity_of(Path("t"))["settings"]["seed"] != seed
    done = lq("q.lq", "d.csv", "-o", "t", "--seed", "-1")
    assert done.exit_code == 2 and "--seed is a whole number or random; this is '-1'" in done.output


def test_a_folder_of_caches_has_a_file_of_this_machine_that_another_run_reads() -> None:
    lq("q.lq", "d.csv", "-o", "r", "--cache", "kept/")
    (file,) = Path("kept").glob("*.tokens")
    assert report()["usage"]["forward_passes"] > 0
    lq("q.lq", "d.csv", "-o", "s", "--cache", "kept")
    assert not report("s")["usage"].get("forward_passes")
    lq("q.lq", "d.csv", "-o", "t", "--cache", "kept", "--cache-mode", "refresh")
    assert report("t")["usage"]["forward_passes"] > 0
    lq("q.lq", "d.csv", "-o", "u", "--cache", file)
    assert not report("u")["usage"].get("forward_passes")


def test_the_majority_of_tries_is_scored_and_equal_answers_are_said() -> None:
    query(COUNTED + '"{word}"\nreturn "b" if number == 1 or word == "w0" else "a"\n')
    done = lq("q.lq", "d.csv", "-o", "r", "-m", "exact", "-m", "majority", "--repeat", "3", "-j", "1")
    found = {each["name"]: each["mean"] for each in report()["metrics"]}
    assert found == {"exact": 10 / 18, "majority": 5 / 6}  # two of three tries are right, of r0 none
    assert report()["tries"] == {"rows": 6, "differ": 5, "variances": [pytest.approx(5 / 18)]}
    assert "variance within a row: exact 0.2778" in done.output
    query(QUERY)
    done = lq("q.lq", "d.csv", "-o", "s", "-m", "exact", "--repeat", "2")
    assert "all tries of each row have the same answer" in done.output
    done = lq("q.lq", "d.csv", "-o", "s", "-m", "majority", "--repeat", "2")
    assert done.exit_code == 2 and "majority needs another metric and as many tries" in done.output


def test_long_prompts_are_shortened_in_the_middle() -> None:
    query('"{word * 500}"\nreturn "a"\n')
    lq("q.lq", "d.csv", "-o", "r", "--limit", "1")
    assert " ... " in records()["r0"]["tokens"][0][0]


def test_a_variable_for_workers_that_is_not_there_is_named() -> None:
    done = lq("q.lq", "d.csv", "-o", "r", "--workers", "2", "--ray-env", "NO_SUCH_KEY")
    assert done.exit_code == 2 and "--ray-env NO_SUCH_KEY: this environment has no such variable" in done.output
