"""Scores of `lq eval`, row by row: a table of answers, targets, metrics and scores, read from the exported table."""

from __future__ import annotations

import csv
import json
from itertools import groupby
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lmql_lite.apps.cli import lq as command
from lmql_lite.data.folder import attempts_in
from tests.tables import rows

TEXTS = rows("apps/eval_scores", "answers that look alike", {"NO_SCORE": None})


def lq_eval(*arguments: object) -> Result:
    done = CliRunner().invoke(command, ["eval", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done


def scores(data: str, query: str, *metrics: str) -> list[dict[str, str]]:
    """Rows of the exported table, in the order of the data."""
    Path("q.lq").write_text(query, "utf-8")
    run = f"run-of-{'-'.join(metrics)}"
    lq_eval("q.lq", data, "-o", run, *(each for metric in metrics for each in ("-m", metric)))
    lq_eval("export", run, "-o", f"{run}.csv")
    with Path(f"{run}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def cell(score: float | None) -> str:
    return "" if score is None else str(float(score))


ROWS = sorted(((metric, *row[:2], row[3]) for row in TEXTS for metric in row[2].split()), key=lambda each: each[0])
BY_METRIC = {metric: list(rows) for metric, rows in groupby(ROWS, key=lambda each: each[0])}


@pytest.mark.parametrize("metric", BY_METRIC)
def test_an_answer_that_looks_alike_is_right_and_one_that_means_something_else_is_wrong(metric: str) -> None:
    rows = BY_METRIC[metric]
    with Path("d.jsonl").open("w", encoding="utf-8") as file:
        for number, (_, answer, target, _) in enumerate(rows):
            file.write(json.dumps({"id": number, "ans": answer, "target": target}) + "\n")
    found = scores("d.jsonl", '"x"\nreturn ans\n', metric)
    wrong = [
        (row[1:], each[metric])
        for row, each in zip(rows, found, strict=True)
        if each[metric] != cell(row[3]) and not (row[3] and float(each[metric] or 0) == pytest.approx(row[3]))
    ]
    assert not wrong


CELLS = rows("apps/eval_scores", "cells of a CSV file", {"NO_SCORE": None})


def test_a_cell_of_a_csv_file_is_compared_with_a_typed_answer_and_a_blank_one_is_no_target() -> None:
    with Path("d.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "ans", "target"])
        table.writerows((number, answer, target) for number, (answer, target, _, _) in enumerate(CELLS))
    every = ("exact", "contains", "regex", "f1", "choice", "json")
    found = scores("d.csv", '"x"\nimport json\nreturn json.loads(ans)\n', *every)
    wrong = [
        (row, metric, each[metric])
        for row, each in zip(CELLS, found, strict=True)
        for metric in row[2].split()
        if each[metric] != cell(row[3])
    ]
    assert not wrong


NUMBERS = ["0", "1", "2", "3"]
OPTIONS = rows("apps/eval_scores", "options", {"NUMBERS": NUMBERS})


def test_a_number_as_target_is_an_index_and_a_text_is_an_option() -> None:
    with Path("d.jsonl").open("w", encoding="utf-8") as file:
        for number, (options, best, target, _, _) in enumerate(OPTIONS):
            row = {"id": number, "choices": options, "best": best, "target": target}
            file.write(json.dumps(row) + "\n")
    query = """
"{best}"
logprobs = [-9.0] * len(choices)
logprobs[best] = -1.0
return {"options": choices, "logprobs": logprobs}
"""
    found = scores("d.jsonl", query, "acc", "acc_norm", "acc_bytes")
    wrong = [
        (row, metric, each[metric])
        for row, each in zip(OPTIONS, found, strict=True)
        for metric in ("acc", "acc_norm", "acc_bytes")
        if each[metric] != cell(row[4])
    ]
    assert not wrong
    chosen = scores("d.jsonl", '"x"\nreturn choices[best]\n', "choice")
    for row, one, other in zip(OPTIONS, chosen, found, strict=True):
        if row[2] != "1" or "1" in row[0]:  # else a text that is spelled like an index
            assert one["choice"] == other["acc"], row


def test_acc_of_scored_options_that_are_numbers_agrees_with_their_log_likelihoods() -> None:
    rows = [(["0", "1", "2", "3"], 2), (["2", "3", "4", "5"], 1), (["1", "2", "0", "5"], 1), (["2", "3", "1", "0"], 1)]
    with Path("d.jsonl").open("w", encoding="utf-8") as file:
        for options, target in rows:
            file.write(json.dumps({"question": f"{target} of", "choices": options, "target": target}) + "\n")
    found = scores("d.jsonl", '"{question}"\nreturn await context.score([" " + each for each in choices])\n', "acc")
    records = sorted(attempts_in(Path("run-of-acc")), key=lambda each: each["line"])
    logprobs = [record["value"]["logprobs"] for record in records]
    best = [each.index(max(each)) for each in logprobs]
    assert [each["acc"] for each in found] == [
        str(float(place == target)) for place, (_, target) in zip(best, rows, strict=True)
    ]


def test_two_metrics_of_one_name_keep_their_own_scores() -> None:
    Path("d.csv").write_text("id,ans,target\n1,abc,abc\n2,xyz,xyz\n")
    (first, second) = scores("d.csv", '"x"\nreturn ans\n', "regex:a", "regex:z", "exact")
    assert [first["regex:a"], first["regex:z"], second["regex:a"], second["regex:z"]] == ["1.0", "0.0", "0.0", "1.0"]


def test_an_answer_of_none_is_none_and_not_the_last_hole() -> None:
    Path("d.jsonl").write_text('{"n": 1, "target": null}\n{"n": 2, "target": " a"}\n')
    found = scores("d.jsonl", '"{n}[X]" where X in [" a"]\nreturn None if n == 1 else X\n', "exact")
    assert [(each["answer"], each["exact"]) for each in found] == [("", "1.0"), (" a", "1.0")]


def test_tries_whose_answers_look_alike_are_one_vote() -> None:
    Path("d.csv").write_text("id,word,target\n1,x,A\n")
    Path("turns.txt").write_text("")
    query = """
from pathlib import Path
turns = Path("turns.txt")
turns.write_text(turns.read_text() + ".")
"{word}"
return ["B", "A", " A", "B", "A ", "caf\u00e9"][len(turns.read_text()) - 1]
"""
    Path("q.lq").write_text(query, "utf-8")
    lq_eval("q.lq", "d.csv", "-o", "r", "-m", "exact", "-m", "majority", "--repeat", "6", "-j", "1")
    report = json.loads(Path("r/report.json").read_text())
    assert {each["name"]: each["mean"] for each in report["metrics"]} == {"exact": 0.5, "majority": 1.0}


GROUPS = "".join(f"{number},x,{number % 5},x\n" for number in range(20))


@pytest.mark.parametrize(
    ("more", "low"),
    [
        ([], 0.8389),
        (["--repeat", "2"], 0.8389),
        (["--cluster", "g"], 0.5655),
        (["--repeat", "2", "--cluster", "g"], 0.5655),
    ],
)
def test_twenty_of_twenty_are_as_certain_as_their_rows_or_clusters(more: list[str], low: float) -> None:
    Path("d.csv").write_text(f"id,ans,g,target\n{GROUPS}")
    Path("q.lq").write_text('"x"\nreturn ans\n')
    done = lq_eval("q.lq", "d.csv", "-o", "r", "-m", "exact", *more)
    assert f"exact            1.0000  [{low:.4f}, 1.0000]" in done.output
    assert ("5 clusters of g: too few for a reliable interval" in done.output) == ("--cluster" in more)


@pytest.mark.parametrize(
    ("own", "interval"),
    [
        ("0", "0.0000  [0.0000, 0.1611]"),
        ("1", "1.0000  [0.8389, 1.0000]"),
        ("0.8", "0.8000  [0.6711, 0.8322]"),
        ("3", "3.0000  (no interval: all rows are equal)"),
    ],
)
def test_equal_scores_have_an_interval_that_is_no_point(own: str, interval: str) -> None:
    Path("own.py").write_text(f"def own(answer):\n    return {own}\n")
    Path("d.csv").write_text(f"id,ans,g,target\n{GROUPS}")
    Path("q.lq").write_text('"x"\nreturn ans\n')
    done = lq_eval("q.lq", "d.csv", "-o", "r", "-m", "own.py:own")
    assert f"own              {interval}" in done.output


def test_two_runs_with_equal_scores_differ_by_an_interval_that_is_no_point_and_few_clusters_are_named() -> None:
    Path("d.csv").write_text(f"id,ans,g,target\n{GROUPS}")
    Path("q.lq").write_text('"x"\nreturn ans\n')
    lq_eval("q.lq", "d.csv", "-o", "one", "-m", "exact")
    lq_eval("q.lq", "d.csv", "-o", "two", "-m", "exact", "--repeat", "3")
    assert "+0.0000 [-0.1611, 0.1611]" in lq_eval("compare", "one", "two").output
    by = lq_eval("compare", "one", "two", "--cluster", "g").output
    assert "+0.0000 [-0.4345, 0.4345]" in by and "5 clusters of g: too few for a reliable interval" in by
    lq_eval("q.lq", "d.csv", "-o", "three", "-m", "exact", "--limit", "1")
    assert "(no interval: fewer than two ids)" in lq_eval("compare", "one", "three").output
