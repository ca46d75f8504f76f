"""Reports of records: means, and what is counted."""

from __future__ import annotations

from typing import Any

import pytest

from lmql_lite.data.job import Scoring
from lmql_lite.data.report import report_of
from lmql_lite.data.run import Tally

FAILED = {"error": {"type": "ValueError", "message": "no", "hint": ""}}
NO_SCORE = {"error": "ValueError: the row has no target"}


def record(name: str, repeat: int = 0, answer: Any = "a", **fields: Any) -> dict[str, Any]:
    return {"id": name, "repeat": repeat, "line": 1, "value": answer, "columns": {}, **fields}


def report(records: list[dict[str, Any]], **scoring: Any) -> dict[str, Any]:
    tally = Tally(Scoring(**{"metrics": ("exact",), **scoring}))
    for each in records:
        tally.add(each)
    return report_of({"query": "q"}, tally, "finished")


def scored(*scores: float | dict[str, str] | None, **fields: Any) -> list[dict[str, Any]]:
    """A record of each score; None is a row that failed."""
    return [
        record(f"r{number}", **(FAILED if each is None else {"scores": {"exact": each}}), **fields)
        for number, each in enumerate(scores)
    ]


@pytest.mark.parametrize(
    ("scores", "mean", "failed"),
    [((1.0, 1.0, 0.0, 0.0), 0.5, 0), ((1.0, 1.0, None, None), 0.5, 2), ((1.0, 1.0, NO_SCORE, NO_SCORE), 0.5, 2)],
)
def test_a_row_that_failed_or_has_no_score_counts_as_wrong(scores: tuple[Any, ...], mean: float, failed: int) -> None:
    found = report(scored(*scores))
    (metric,) = found["metrics"]
    assert (metric["mean"], metric["n"], metric["failed"]) == (mean, len(scores), failed)
    assert found["attempts"] == found["ids"] == len(scores)


def test_errors_and_missing_scores_are_counted_by_their_kind_and_the_first_of_each_sentence_is_named() -> None:
    other = {"error": "ValueError: '(' is not a regular expression"}
    found = report(scored(1.0, None, NO_SCORE, NO_SCORE, other, None))
    assert found["errors"] == {"ValueError": 2} and found["metric_errors"] == {"exact": 3}
    assert found["metric_problems"] == {"exact": {NO_SCORE["error"]: "r2", other["error"]: "r4"}}


def test_a_run_without_rows_has_no_mean() -> None:
    assert report([])["metrics"] == [] and report([])["attempts"] == 0


def test_what_was_spent_is_added_up() -> None:
    rows = [record("a", usage={"requests": 2, "note": "x"}, cost=0.5), record("b", usage={"requests": 3}, cost=None)]
    found = report(rows, metrics=())
    assert found["usage"] == {"requests": 5} and found["cost"] == 0.5


def test_repeats_and_clusters_are_drawn_together() -> None:
    rows = [record(f"r{n % 10}", n // 10, scores={"exact": float(n % 2)}, columns={"g": n % 2}) for n in range(40)]
    alone, clustered = report(rows), report(rows, cluster="g")
    assert alone["metrics"][0]["groups"] == 10 and clustered["metrics"][0]["groups"] == 2
    assert alone["ids"] == 10 and alone["attempts"] == 40 and clustered["cluster"] == "g"


def labelled(*pairs: tuple[Any, Any], **columns: Any) -> list[dict[str, Any]]:
    """Records of targets and answers; None is a row that failed."""
    return [
        record(f"r{number}", answer=answer, target=target, columns=columns, **({} if answer is not None else FAILED))
        for number, (target, answer) in enumerate(pairs)
    ]


@pytest.mark.parametrize(
    ("pairs", "counts"),
    [
        ("aa ab bb bb", [[1, 1, 0, 0], [0, 2, 0, 0]]),
        ("aa a? bb b.", [[1, 0, 1, 0], [0, 1, 0, 1]]),  # another answer, and a row that failed
        ("aA a) bB bb", [[1, 0, 1, 0], [0, 2, 0, 0]]),  # without case, as `choice` compares
        ("aa bb", None),  # each target once
        ("aa aa", None),  # one target
        ("ax ax bx bx", None),  # no answer is a target
    ],
)
def test_answers_are_counted_by_target(pairs: str, counts: list[list[int]] | None) -> None:
    found = report(labelled(*((each[0], None if each[1] == "." else each[1]) for each in pairs.split())), metrics=())
    confusion = found["confusion"]
    assert (confusion and confusion["counts"]) == counts
    if confusion:
        assert (confusion["targets"], confusion["answers"]) == (["a", "b"], ["a", "b", "other", "error"])


def test_targets_that_are_indices_are_counted_as_their_choices_and_many_are_not_counted() -> None:
    choices = ["red", "blue"]
    found = report(labelled((0, "red"), (1, "red"), ("blue", "Blue."), (0, "red"), choices=choices), metrics=())
    assert found["confusion"]["targets"] == ["blue", "red"]
    assert found["confusion"]["counts"] == [[1, 1, 0, 0], [0, 2, 0, 0]]
    assert report(labelled(*((f"t{n % 13}", f"t{n % 13}") for n in range(52))), metrics=())["confusion"] is None
    assert report(labelled(*((["a", "b"][: n % 2 + 1], "a") for n in range(8))), metrics=())["confusion"] is None


def test_scores_of_each_value_of_a_column() -> None:
    rows = [
        record(f"r{n}", columns={"lang": ["en", "de"][n % 2], "n": n, "long": "x" * 50, "list": [1], "same": 1},
               **(FAILED if n == 7 else {"scores": {"exact": float(n < 4)}}))
        for n in range(8)
    ]  # fmt: skip
    en, de = {"value": "en", "n": 4, "means": {"exact": 0.5}}, {"value": "de", "n": 4, "means": {"exact": 0.5}}
    assert report(rows)["by_column"] == [{"column": "lang", "values": [de, en]}]
    many = [record(f"r{n}", columns={"c": n % 13}, scores={"exact": 1.0}) for n in range(52)]
    assert report(many)["by_column"] == []
