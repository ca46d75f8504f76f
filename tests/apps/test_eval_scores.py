"""Scores of `lq eval`, row by row: a table of answers, targets, metrics and scores, read from the exported table."""

from __future__ import annotations

import csv
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lmql_lite.apps.cli import lq as command
from lmql_lite.data.folder import attempts_in

NO_SCORE: float | None = None

TEXTS: list[tuple[Any, Any, str, float | None]] = [
    # answer, target, metrics, score: the answer is a value of the query, the target a value of a .jsonl file
    # signs
    ("-1", "1", "exact choice f1 contains", 0),
    ("1", "-1", "exact choice f1 contains", 0),
    ("+", "-", "exact choice f1", 0),
    ("-A", "A", "exact choice f1", 0),
    ("O-", "O+", "exact choice f1", 0),
    ("O-", "O", "exact choice f1", 0),
    ("\u22125", "-5", "exact choice f1 contains regex", 1),
    ("-5", "\u22125", "exact choice f1 contains regex", 1),
    ("\u22125", "5", "exact choice f1 contains", 0),
    ("1914\u20131918", "1914-1918", "exact choice f1", 1),
    ("well\u2011known", "well-known", "exact choice f1 contains", 1),
    ("<", ">", "exact choice f1", 0),
    ("!", "?", "exact choice f1", 0),
    # symbols
    ("C", "C++", "exact choice f1 contains", 0),
    ("C++", "C", "exact choice f1", 0),
    ("C#", "C", "exact choice f1", 0),
    ("F#", "F", "exact choice f1", 0),
    (".NET", "NET", "exact choice f1", 0),
    ("A*", "A", "exact choice f1", 0),
    ("$5", "5", "exact choice f1", 0),
    ("50%", "50", "exact choice f1", 0),
    (".5", "5", "exact choice f1 contains", 0),
    ("3.14", "314", "exact choice f1", 0),
    ("1/2", "12", "exact choice f1", 0),
    ("5!", "5", "exact choice f1", 0),
    ("[0, 1)", "(0, 1]", "exact choice", 0),
    ("x\u00b2", "x2", "exact choice f1", 0),
    ("\u00bd", "1/2", "exact choice f1", 0),
    ("\U0001f44d", "\U0001f44e", "exact choice f1", 0),
    # what surrounds an answer
    ("(A)", "A", "choice f1", 1),
    ("A.", "A", "choice f1", 1),
    ('"A"', "A", "choice f1", 1),
    ("\u201cA\u201d", "A", "choice f1", 1),
    ("**A**", "A", "choice f1", 1),
    ('**"(A)."**', "A", "choice f1", 1),
    ("(C++).", "c++", "choice f1", 1),
    ("A)", "a", "choice f1", 1),
    ("_A_", "A", "choice f1", 1),
    ("__init__", "init", "choice f1", 0),
    ("2*3*4", "234", "choice f1", 0),
    (":)", ":(", "exact choice f1", 0),
    ("x'", "x", "exact choice f1", 0),
    ("**the cat** sat", "'the cat' sat", "f1", 1),
    ('"(the cat.)" sat', "the cat sat", "f1", 1),
    ("(**Paris, France**)", "Paris France", "f1", 1),
    ("James' house", "James house", "f1", 1),
    ("- A", "A", "choice f1", 1),
    ("\uff08\uff21\uff09", "A", "choice f1", 1),
    (" a\n", "A", "choice f1", 1),
    ("(A)", "A", "exact", 0),
    ("rome", "Rome", "exact contains", 0),
    ("5.", "5", "choice f1 contains", 1),
    ("1,000", "1000", "choice f1", 1),
    ("1,000", "1000", "exact", 0),
    ("0.50", "0.5", "exact", 0),
    ("N/A", "NA", "f1", 1),
    ("N/A", "NA", "exact choice", 0),
    # blanks
    ("", "A", "exact choice f1 contains json", 0),
    ("  ", "A", "exact choice f1 contains", 0),
    ("", "", "exact choice f1 json", 1),
    ("x", "", "exact choice f1 json", 0),
    ("x", "", "contains regex", NO_SCORE),
    ("x", "  ", "contains regex", NO_SCORE),
    ("x", ["", "  "], "contains regex", NO_SCORE),
    ("x", [], "contains regex f1 choice", NO_SCORE),
    ("x", ["", "x"], "contains regex exact", 1),
    (".", "", "exact choice f1", 0),
    ("...", ".", "exact choice f1", 0),
    ("A", "the", "exact choice f1", 0),
    ("a", "", "exact choice f1", 0),
    ("vitamin A", "vitamin", "exact choice", 0),
    ("vitamin A", "vitamin", "f1", 2 / 3),
    # what cannot be seen
    ("caf\u00e9", "cafe\u0301", "exact choice f1 contains regex json", 1),
    ("cafe", "caf\u00e9", "exact choice f1 contains", 0),
    ("\u200bRome\ufeff", "Rome", "exact choice f1 contains", 1),
    ("\u200f5\u200e", "5", "exact choice f1", 1),
    ("\u00a0Rome\u00a0", "Rome", "exact choice f1", 1),
    ("\u2764\ufe0f", "\u2764", "exact choice f1", 1),
    ("a\r\nb", "a\nb", "exact choice f1", 1),
    # words
    ("the cat sat", "a cat sat down", "f1", 0.8),
    ("\u6771\u4eac\u3067\u3059", "\u6771\u4eac", "f1", 2 / 3),
    ("\u6771\u4eac\u3002", "\u6771\u4eac", "f1 choice", 1),
    ("U.S.", "US", "f1", 1),
    ("don\u2019t", "don't", "choice f1", 1),
    ("It is 15.", "5", "contains", 0),
    ("It is -5.", "5", "contains", 0),
    ("It is 5.", 5, "contains", 1),
    ("It is 5.2", 5, "contains", 0),
    ("from 3-5 o'clock", "5", "contains", 1),
    ("It is True.", True, "contains", 1),
    # bools, numbers and None
    (True, True, "exact choice f1 json contains", 1),
    (True, "TRUE", "exact choice f1 json contains", 1),
    ("True", True, "exact choice f1 json contains", 1),
    (True, 1, "exact choice json", 0),
    (1, True, "exact choice json", 0),
    (True, False, "exact choice f1 json", 0),
    (True, "1", "exact choice json", 0),
    (True, "yes", "exact choice f1 json", 0),
    (7, "7", "exact choice f1 json contains", 1),
    (7, 7.0, "exact choice f1 json contains", 1),
    ("7.0", 7, "exact choice f1 json", 1),
    ("+7", 7, "exact choice f1", 1),
    ("\u22127", -7, "exact choice f1", 1),
    (-7, 7, "exact choice f1 contains json", 0),
    (15, 5, "exact choice contains json", 0),
    (1000, "1,000", "exact choice f1", 1),
    (0.1, "0.10", "exact choice f1 json", 1),
    (9007199254740993, 9007199254740992, "exact choice f1 json", 0),
    (9007199254740993, "9007199254740993", "exact choice f1 json", 1),
    ("01", "1", "exact choice f1", 0),
    (None, None, "exact choice f1 json contains", 1),
    ("None", None, "exact choice f1 json contains", NO_SCORE),
    (None, "null", "exact choice f1 json", 1),
    (None, "l", "exact choice f1 json contains", 0),
    # JSON
    ('{"a": 1, "b": [2]}', {"b": [2.0], "a": 1}, "json exact", 1),
    ({"a": True}, {"a": 1}, "json exact", 0),
    ({"n": 9007199254740993}, '{"n": 9007199254740993}', "json exact", 1),
    ("Rome", "Rome", "json", 1),
    ("NaN", "Infinity", "json", 0),
    (["x"], ["x"], "json exact", 1),
    # several accepted answers, patterns
    ("Rome", ["Oslo", "Rome"], "exact choice f1 contains regex", 1),
    ("Bern", ["Oslo", "Rome"], "exact choice f1 contains regex", 0),
    ("x", "(", "regex", NO_SCORE),
    ("a42", "^\\d", "regex", 0),
    ("42", ["^a", "^\\d"], "regex", 1),
    ("42", 42, "regex", 1),
]  # fmt: skip


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


CELLS: list[tuple[str, str, str, float | None]] = [
    # answer as JSON, cell of a .csv file, metrics, score
    ('"anything at all"', "", "exact contains regex f1 choice json", NO_SCORE),
    ('"anything at all"', "  ", "exact contains regex f1 choice json", NO_SCORE),
    ('""', "", "exact f1", NO_SCORE),
    ("null", "", "exact json", NO_SCORE),
    ("true", "True", "exact json choice f1", 1),
    ("true", "TRUE", "exact json choice f1", 1),
    ("false", "False", "exact json choice f1", 1),
    ("false", "false", "exact json choice f1", 1),
    ("true", "False", "exact json choice f1", 0),
    ("true", "1", "exact json choice", 0),
    ("1", "True", "exact json choice", 0),
    ("null", "None", "exact choice f1", 1),
    ("5", "5.0", "exact json choice f1", 1),
    ("5", "\u22125", "exact json choice f1", 0),
    ("-5", "\u22125", "exact choice f1", 1),
    ("1000", "1,000", "exact choice f1", 1),
    ("[1, 2]", "[1,2]", "exact json", 1),
    ('"-1"', "1", "exact choice f1", 0),
    ('"C"', "C++", "exact choice f1", 0),
]


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
OPTIONS: list[tuple[list[Any], int, Any, str, float]] = [
    # options, the best of them, target, metrics, score
    (NUMBERS, 2, 2, "acc", 1),
    (["2", "3", "4", "5"], 1, 1, "acc", 1),
    (["1", "2", "0", "5"], 1, 1, "acc", 1),
    (["2", "3", "1", "0"], 1, 1, "acc", 1),
    (["1", "2", "0", "5"], 1, 2, "acc", 0),
    (["2", "3", "1", "0"], 1, 3, "acc", 0),
    (["1", "2", "0", "5"], 1, 1.0, "acc", 1),
    (["1", "2", "0", "5"], 1, "2", "acc", 1),
    (["1", "2", "0", "5"], 1, "1", "acc", 0),
    ([" 1", " 2", " 0", " 5"], 0, "1", "acc", 1),
    ([" A", " B"], 1, "B", "acc", 1),
    ([" A", " B"], 1, "1", "acc", 1),
    ([" A", " B"], 0, "1", "acc", 0),
    ([" no", " yes"], 1, True, "acc", 0),
    (["False", "True"], 1, True, "acc", 1),
    (["-1", "1"], 0, "1", "acc", 0),
    (["-1", "1"], 0, "\u22121", "acc", 1),
    (["C", "C++"], 0, "C++", "acc", 0),
    (["caf\u00e9", "tea"], 0, "cafe\u0301", "acc", 1),
    (["a", "b", "a"], 0, 2, "acc", 1),
    (["a", "b", "c"], 1, [0, 1], "acc", 1),
    (["a", "b", "c"], 1, ["a", "b"], "acc", 1),
    (["a", "b", "c"], 1, ["a", 2], "acc", 0),
    ([10, 20, 30], 1, 20, "acc", 1),
    (["10", "20", "30"], 1, 7, "acc", 0),
    (["a", "b"], 1, -1, "acc", 0),
]


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


def test_every_sentence_about_a_missing_score_is_shown_with_its_row() -> None:
    Path("d.csv").write_text("id,ans,target\na,x,\nb,x,(\nc,x,x\nd,x,\n")
    Path("q.lq").write_text('"x"\nreturn ans\n')
    shown = lq_eval("q.lq", "d.csv", "-o", "r", "-m", "regex", "-j", "1").output
    assert "regex: no score for 3 rows, counted as 0: a: ValueError: the row has no target" in shown
    assert "b: ValueError: '(' is not a regular expression" in shown
