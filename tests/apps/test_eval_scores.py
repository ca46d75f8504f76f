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
    found = scores("d.jsonl", query, "acc")
    wrong = [(row, each["acc"]) for row, each in zip(OPTIONS, found, strict=True) if each["acc"] != cell(row[4])]
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
