"""Bad input of `lq eval`: one sentence each, the rest of the run goes on, and no answer is lost."""

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
from lmql_lite.data.folder import attempts_in
from tests.tables import cases

COUNTED = "calls.txt"
QUERY = f'with open("{COUNTED}", "a") as file:\n    file.write(word + "\\n")\n"{{word}}"\nreturn "a"\n'
"""Writes down each run of a row, as a model that is paid for would."""


def lq(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(command, ["eval", *map(str, arguments)], input=stdin)


def data(text: str) -> None:
    Path("d.csv").write_text(text)


@pytest.fixture(autouse=True)
def files() -> None:
    Path("q.lq").write_text(QUERY)
    data("id,word,target\n" + "".join(f"r{n},w{n},a\n" for n in range(4)))


def calls() -> int:
    return len(Path(COUNTED).read_text().splitlines()) if Path(COUNTED).exists() else 0


def report(folder: str = "r") -> dict[str, Any]:
    return dict(json.loads((Path(folder) / "report.json").read_text()))


def test_surplus_and_missing_cells_fail_with_their_line_and_the_rest_goes_on() -> None:
    data("id,word,target\na,x,a,b\nb\nc,z,a\n")
    assert lq("q.lq", "d.csv", "-o", "r", "-m", "exact").exit_code == 0
    assert report()["errors"] == {"InputError": 2} and report()["metrics"][0]["mean"] == pytest.approx(1 / 3)
    messages = [record["error"]["message"] for record in attempts_in(Path("r")) if "error" in record]
    assert messages == ["line 2 has 4 cells, and the header has 3", "line 3 has 1 cells, and the header has 3"]


def test_a_field_of_a_megabyte_and_a_byte_order_mark_are_read() -> None:
    Path("q.lq").write_text('"{len(word)}"\nreturn "a" if len(word) == 2**20 else "b"\n')
    data(f"\ufeffid,word,target\na,{'x' * 2**20},a\n")
    assert lq("q.lq", "d.csv", "-o", "r", "-m", "exact").exit_code == 0
    assert report()["metrics"][0]["mean"] == 1


@cases("apps/eval_bad_input", "a table of another country and a packed file have the same rows", globals())
def test_a_table_of_another_country_and_a_packed_file_have_the_same_rows(name: str, text: str) -> None:
    data = text.encode()
    Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert lq("q.lq", name, "-o", "r", "-m", "exact").exit_code == 0
    found = [(record["id"], record["columns"]["word"]) for record in attempts_in(Path("r"))]
    assert sorted(found) == [("a", "x, y"), ("b", "z")] and report()["metrics"][0]["mean"] == 1


CUT = gzip.compress(b'{"word": "x", "target": "a"}\n', mtime=0)[:-9]


@cases("apps/eval_bad_input", "a file that cannot be read is refused and leaves no folder", globals())
def test_a_file_that_cannot_be_read_is_refused_and_leaves_no_folder(
    name: str, data: bytes | None, sentence: str
) -> None:
    Path("d.csv").unlink()
    if data is not None:
        Path(name).write_bytes(data)
    done = lq("q.lq", name, "-o", "r", "-m", "exact")
    assert done.exit_code == 2 and sentence in done.output and "bug" not in done.output
    assert calls() == 0 and not Path("r").exists()
    Path("e.csv").write_text("id,word,target\na,x,a\n")
    assert lq("q.lq", "e.csv", "-o", "r", "-m", "exact").exit_code == 0


def test_quotes_within_cells_are_read_as_before() -> None:
    data('id,word,target\na,5" disk,a\nb,"two\nlines",a\nc,"say ""hi""",a\nd,"ab"c,a\n')
    assert lq("q.lq", "d.csv", "-o", "r", "-m", "exact").exit_code == 0
    words = {record["id"]: record["columns"]["word"] for record in attempts_in(Path("r"))}
    assert words == {"a": '5" disk', "b": "two\nlines", "c": 'say "hi"', "d": "abc"}


def test_a_limit_above_the_rows_is_all_of_them() -> None:
    assert lq("q.lq", "d.csv", "-o", "r", "--limit", "99").exit_code == 0
    assert report()["attempts"] == 4


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        ("1 / 0", "own: no score for 4 rows, counted as 0: r0: ZeroDivisionError: division by zero"),
        ("float('nan')", "own returned nan, which is not a score"),
        ("'good'", "own returned 'good', and a score is a number or a bool"),
        ("None", "own returned None, and a score is a number or a bool"),
    ],
)
def test_a_metric_without_a_number_is_named_and_the_next_one_asks_no_model(returned: str, sentence: str) -> None:
    Path("own.py").write_text(f"def own(answer):\n    return {returned}\n")
    done = lq("q.lq", "d.csv", "-o", "r", "-j", "1", "-m", "own.py:own", "-m", "exact")
    assert done.exit_code == 0 and sentence in done.output and calls() == 4
    assert [each["mean"] for each in report()["metrics"]] == [0, 1]
    Path("own.py").write_text("def own(answer):\n    return answer == 'a'\n")
    lq("q.lq", "d.csv", "-o", "r", "-m", "own.py:own")
    assert calls() == 4 and report()["metrics"][0]["mean"] == 1


def test_a_metric_s_file_that_raises_is_named_before_anything_runs() -> None:
    Path("own.py").write_text("import nothing_of_this_name\n")
    done = lq("q.lq", "d.csv", "-o", "r", "-m", "own.py:own")
    assert done.exit_code == 2 and "own.py" in done.output and "nothing_of_this_name" in done.output and calls() == 0


def test_a_column_that_one_row_lacks_is_an_error_of_that_row() -> None:
    Path("d.jsonl").write_text('{"id": 1, "word": "x", "target": "a"}\n{"id": 2, "target": "a"}\n')
    assert lq("q.lq", "d.jsonl", "-o", "r", "-m", "exact").exit_code == 0
    assert report()["errors"] == {"InputError": 1} and report()["metrics"][0]["mean"] == 0.5


def test_runs_whose_targets_differ_are_compared_and_the_rows_are_named() -> None:
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    data("id,word,target\nr0,w0,b\nr1,w1,a\nr9,w9,a\n")
    lq("q.lq", "d.csv", "-o", "s", "-m", "exact")
    done = lq("compare", "r", "s")
    assert done.exit_code == 0 and "1 row with other targets: r0" in done.output
    assert "2 rows only in the first: r2, r3" in done.output and "1 row only in the second: r9" in done.output
    data("id,word,target\nother,w0,b\n")
    lq("q.lq", "d.csv", "-o", "t", "-m", "exact")
    done = lq("compare", "r", "t")
    assert done.exit_code == 2 and "have no row in common" in done.output


def test_fewer_than_two_ids_have_no_interval() -> None:
    done = lq("q.lq", "d.csv", "-o", "r", "-m", "exact", "--limit", "1")
    assert "(no interval: fewer than two ids)" in done.output and report()["metrics"][0]["low"] is None


def test_two_queries_from_stdin_are_two_runs() -> None:
    assert lq("-", "d.csv", "-o", "r", stdin=QUERY).exit_code == 0
    done = lq("-", "d.csv", "-o", "r", stdin=QUERY + "# changed\n")
    assert done.exit_code == 2 and "a run with another query" in done.output


def test_a_changed_helper_of_a_python_query_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *sys.path])
    text = (
        "import lmql_lite as lq\n\ndef said(word):\n    return word.upper()\n\n"
        '@lq.query\ndef shout(word: str) -> str:\n    """return said(word)"""\n'
    )
    Path("helped_query.py").write_text(text)
    assert lq("helped_query:shout", "d.csv", "-o", "r").exit_code == 0
    Path("helped_query.py").write_text(text.replace("upper", "lower"))
    done = lq("helped_query:shout", "d.csv", "-o", "r")
    assert done.exit_code == 2 and "a run with another query" in done.output
    done = lq("__main__:nothing", "d.csv", "-o", "r")
    assert done.exit_code == 2 and "cannot be imported" in done.output


def test_only_the_rows_that_failed_are_run_again() -> None:
    fails_once = 'if word == "w2" and not exists("w2"):\n    open("w2", "x").close()\n    1 / 0\nreturn "a"'
    Path("q.lq").write_text("from os.path import exists\n" + QUERY.replace('return "a"', fails_once))
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    assert report()["errors"] == {"ZeroDivisionError": 1} and calls() == 4
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    assert not report()["errors"] and report()["attempts"] == 4 and calls() == 5


def test_a_folder_of_a_run_that_was_killed_before_it_wrote_anything_is_used_again() -> None:
    Path("r").mkdir()
    Path("r/rows.jsonl").touch()
    Path("r/.tmp-1-abc").write_text("{")
    assert lq("q.lq", "d.csv", "-o", "r", "-m", "exact").exit_code == 0
    Path("s").mkdir()
    Path("s/notes.txt").write_text("mine")
    done = lq("q.lq", "d.csv", "-o", "s", "-m", "exact")
    assert done.exit_code == 2 and "has files and is not a data-set run" in done.output


def test_a_run_of_which_every_row_failed_is_no_success() -> None:
    Path("q.lq").write_text('"{word}"\nraise ValueError("no")\n')
    done = lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    assert done.exit_code == 8 and "every row failed" in done.output
    Path("q.lq").write_text('if word == "w1":\n    raise ValueError("no")\n"{word}"\nreturn "a"\n')
    assert lq("q.lq", "d.csv", "-o", "s", "-m", "exact").exit_code == 0


def test_a_row_without_a_score_is_one_of_the_wrong_ones() -> None:
    data("id,word,target\nr0,w0,a\nr1,w1,\nr2,w2,b\n")
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    assert [line.split()[0] for line in lq("show", "r", "--wrong").output.splitlines()] == ["r1", "r2"]


def test_a_full_disk_costs_no_answer_that_was_written_and_the_report_is_whole() -> None:
    data("id,word,target\n" + "".join(f"r{n},w{n},a\n" for n in range(60)))

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))

    done = subprocess.run(
        [sys.executable, "-m", "lmql_lite", "eval", "q.lq", "d.csv", "-o", "r", "-m", "exact"],
        capture_output=True, text=True, preexec_fn=small_files, timeout=120, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 6 and "rows.jsonl cannot be written (File too large)" in done.stderr, done.stderr
    assert "exact            1.0000" in done.stdout and "60 attempts of 60 rows" in done.stdout
    written = len(list(attempts_in(Path("r"))))
    assert 0 < written < 60 and calls() == 60
    assert lq("q.lq", "d.csv", "-o", "r", "-m", "exact").exit_code == 0
    assert report()["kept"] == written and calls() == 60 + 60 - written
    assert len(list(attempts_in(Path("r")))) == 60
