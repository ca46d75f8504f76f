"""Reports of records: means, tries, and what is counted."""

from __future__ import annotations

from typing import Any

import pytest

from lmql_lite.data.job import Scoring
from lmql_lite.data.report import report_of
from lmql_lite.data.run import Tally
from tests.tables import cases

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
        record(f"r{number}", **(FAILED if each is None else {"scores": {"exact": each if isinstance(each, dict) else
               [each, 1.0]}}), **fields)
        for number, each in enumerate(scores)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "skip_errors", "mean", "n", "failed"),
    [
        ((1, 1, 0, 0), False, 0.5, 4, 0),
        ((1, 1, None, None), False, 0.5, 4, 2),
        ((1, 1, None, None), True, 1.0, 2, 0),
        ((1, 1, NO_SCORE, NO_SCORE), False, 0.5, 4, 2),
        ((1, 1, NO_SCORE, None), True, 2 / 3, 3, 1),
    ],
)
def test_a_row_that_failed_counts_as_wrong_or_is_left_out(
    scores: tuple[Any, ...], skip_errors: bool, mean: float, n: int, failed: int
) -> None:
    found = report(scored(*scores), skip_errors=skip_errors)
    (metric,) = found["metrics"]
    assert (metric["mean"], metric["n"], metric["failed"]) == (pytest.approx(mean), n, failed)
    assert found["attempts"] == found["ids"] == len(scores)
    assert found["errors_count_as"] == ("left out" if skip_errors else "wrong")


def test_errors_and_missing_scores_are_counted_by_their_kind_and_the_first_of_each_sentence_is_named() -> None:
    other = {"error": "ValueError: '(' is not a regular expression"}
    found = report(scored(1, None, NO_SCORE, NO_SCORE, other, None))
    assert found["errors"] == {"ValueError": 2} and found["metric_errors"] == {"exact": 3}
    assert found["metric_problems"] == {"exact": {NO_SCORE["error"]: "r2", other["error"]: "r4"}}


def test_a_run_of_which_nothing_counts_has_no_mean() -> None:
    assert report(scored(None, None), skip_errors=True)["metrics"] == [] and report([])["attempts"] == 0


def test_a_perplexity_is_the_exponential_of_a_weighted_mean_and_leaves_out_what_failed() -> None:
    rows = [
        record("a", scores={"p": [2.0, 3.0]}),
        record("b", scores={"p": [1.0, 1.0]}),
        record("c", scores={"p": NO_SCORE}),
    ]
    (metric,) = report(rows, metrics=("p",), logs=("p",))["metrics"]
    assert metric["mean"] == pytest.approx(2.718281828 ** (7 / 4)) and (metric["n"], metric["failed"]) == (2, 1)
    (huge,) = report([record("a", scores={"p": [1e6, 1.0]})], metrics=("p",), logs=("p",))["metrics"]
    assert huge["mean"] < float("inf")


def test_what_was_spent_is_added_up() -> None:
    rows = [record("a", usage={"requests": 2, "note": "x"}, cost=0.5), record("b", usage={"requests": 3}, cost=None)]
    found = report(rows, metrics=())
    assert found["usage"] == {"requests": 5} and found["cost"] == 0.5


def tries(*rows: str) -> list[dict[str, Any]]:
    """Records of tries: a letter is an answer, of which A is right; `.` is one that failed."""
    return [
        record(f"r{number}", repeat, answer, **(FAILED if answer == "." else
               {"scores": {"exact": [float(answer == "A"), 1.0]}}))
        for number, row in enumerate(rows) for repeat, answer in enumerate(row)
    ]  # fmt: skip


@cases("data/report", "a metric over tries is a mean over rows", globals())
def test_a_metric_over_tries_is_a_mean_over_rows(
    rows: list[str], metric: str, mean: float, n: int, failed: int
) -> None:
    found = report(tries(*rows), repeat=4, of_tries=(metric,))["metrics"][1]
    assert (found["name"], found["mean"], found["n"], found["failed"]) == (metric, pytest.approx(mean), n, failed)


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (["AB", "AA"], {"rows": 2, "differ": 1, "variances": [0.25]}),
        (["AAAA"], {"rows": 1, "differ": 0, "variances": [0.0]}),
        (["BC"], {"rows": 1, "differ": 1, "variances": [0.0]}),
        (["ABB", "B"], {"rows": 1, "differ": 1, "variances": [1 / 3]}),
        (["A", "B"], {"rows": 0, "differ": 0, "variances": [0.0]}),
    ],
)
def test_the_variance_within_a_row_is_a_mean_over_rows_with_several_tries(
    rows: list[str], wanted: dict[str, Any]
) -> None:
    found = report(tries(*rows), repeat=4)["tries"]
    assert found == wanted | {"variances": [pytest.approx(each) for each in wanted["variances"]]}


def test_repeats_and_clusters_are_drawn_together() -> None:
    rows = [
        record(f"r{n % 10}", n // 10, scores={"exact": [float(n % 2), 1.0]}, columns={"g": n % 2}) for n in range(40)
    ]
    alone, clustered = report(rows, repeat=4), report(rows, repeat=4, cluster="g")
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
               **(FAILED if n == 7 else {"scores": {"exact": [float(n < 4), 1.0]}}))
        for n in range(8)
    ]  # fmt: skip
    en, de = {"value": "en", "n": 4, "means": {"exact": 0.5}}, {"value": "de", "n": 4, "means": {"exact": 0.5}}
    assert report(rows)["by_column"] == [{"column": "lang", "values": [de, en]}]
    de |= {"n": 3, "means": {"exact": pytest.approx(2 / 3)}}
    assert report(rows, skip_errors=True)["by_column"] == [{"column": "lang", "values": [de, en]}]
    many = [record(f"r{n}", columns={"c": n % 13}, scores={"exact": [1.0, 1.0]}) for n in range(52)]
    assert report(many)["by_column"] == []


def test_a_column_of_a_perplexity_has_the_exponential_of_its_mean_and_none_without_scores() -> None:
    rows = [
        record(f"{value}{n}", columns={"c": value}, scores={"p": score})
        for value, score in (("a", [0.0, 3.0]), ("b", NO_SCORE)) for n in range(2)
    ]  # fmt: skip
    (found,) = report(rows, metrics=("p",), logs=("p",))["by_column"]
    assert [each["means"] for each in found["values"]] == [{"p": 1.0}, {}]
