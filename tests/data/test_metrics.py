"""Metrics on records. The table of answers and targets that look alike is `tests/apps/test_eval_scores.py`."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.data.metrics import Metric, answer_of, metric_named
from tests.tables import cases

NAN = math.nan


def metric(spec: str) -> Metric:
    return metric_named(spec, lambda path: lambda record: asyncio.sleep(0))


def score(spec: str, answer: Any, target: Any, **record: Any) -> float:
    return asyncio.run(metric(spec).score({"value": answer, "target": target, **record}))


@cases("data/metrics", "the answer is what the query returned or else its last hole", globals())
def test_the_answer_is_what_the_query_returned_or_else_its_last_hole(record: dict[str, Any], wanted: Any) -> None:
    assert answer_of(record) == wanted


@cases("data/metrics", "a metric says how right an answer is", globals())
def test_a_metric_says_how_right_an_answer_is(spec: str, answer: Any, target: Any, wanted: float) -> None:
    assert score(spec, answer, target) == pytest.approx(wanted)


@cases("data/metrics", "a number is an index into the choices", globals())
def test_a_number_is_an_index_into_the_choices(target: Any, choices: Any, answer: Any, wanted: float) -> None:
    assert score("choice", answer, target, columns={"choices": choices}) == wanted


LONG = {"options": [" a", " ßßßß"], "logprobs": [-2.0, -4.2], "tokens": [[" a"], [" ßßßß"]]}


@cases("data/metrics", "the likeliest option is compared with the target", globals())
def test_the_likeliest_option_is_compared_with_the_target(
    spec: str, record: dict[str, Any], target: Any, wanted: float
) -> None:
    assert score(spec, record.pop("value", None), target, **record) == wanted


@cases("data/metrics", "a record without a score says why", globals())
def test_a_record_without_a_score_says_why(spec: str, record: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        asyncio.run(metric(spec).score(record))


@pytest.mark.parametrize(("returned", "wanted"), [("True", 1), ("2", 2), ("0.25", 0.25), ("-1", -1)])
def test_a_function_returns_a_score(tmp_path: Path, returned: str, wanted: float) -> None:
    (tmp_path / "own.py").write_text(f"def own(answer):\n    return {returned}\n")
    assert score(f"{tmp_path / 'own.py'}:own", "a", "b") == wanted


@pytest.mark.parametrize(
    ("returned", "error", "sentence"),
    [
        ("math.nan", ValueError, "own returned nan, which is not a score"),
        ("-math.inf", ValueError, "own returned -inf, which is not a score"),
        ("'good'", ValueError, "own returned 'good', and a score is a number or a bool"),
        ("None", ValueError, "own returned None, and a score is a number or a bool"),
        ("1 / 0", ZeroDivisionError, "division by zero"),
    ],
)
def test_a_function_that_gives_no_number_is_an_error_of_that_row(
    tmp_path: Path, returned: str, error: type[Exception], sentence: str
) -> None:
    (tmp_path / "own.py").write_text(f"import math\ndef own(answer):\n    return {returned}\n")
    with pytest.raises(error, match=sentence):
        score(f"{tmp_path / 'own.py'}:own", "a", "b")


@pytest.mark.parametrize(
    ("signature", "body", "wanted"),
    [
        ("()", "5", 5),
        ("(answer)", "len(answer)", 3),
        ("(answer, target)", "answer + target == 'abcd'", 1),
        ("(answer, target, columns)", "len(answer) / columns['n']", 1.5),
        ("(answer, target=None, columns=None, more=7)", "more", 7),
    ],
)
def test_a_function_is_given_as_many_of_answer_target_and_columns_as_it_takes(
    tmp_path: Path, signature: str, body: str, wanted: float
) -> None:
    (tmp_path / "own.py").write_text(f"def own{signature}:\n    return {body}\n")
    assert score(f"{tmp_path / 'own.py'}:own", "abc", "d", columns={"n": 2}) == wanted


def test_a_coroutine_is_a_metric_too_and_its_file_imports_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "beside_a_metric.py").write_text("HALF = 0.5\n")
    (tmp_path / "own.py").write_text("from beside_a_metric import HALF\nasync def own(answer):\n    return HALF\n")
    assert score(f"{tmp_path / 'own.py'}:own", "a", "b") == 0.5


@cases("data/metrics", "a metric that is none is refused in a sentence")
def test_a_metric_that_is_none_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, sentence: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("def length(answer):\n    return len(answer)\n")
    Path("broken.py").write_text("1 / 0\n")
    with pytest.raises(lq.InputError, match=sentence) as caught:
        metric(spec)
    assert (caught.value.hint or "").startswith(hint)


def test_the_version_of_a_metric_changes_with_its_definition(tmp_path: Path) -> None:
    versions = {metric("regex:a").version, metric("regex:b").version, metric("exact").version}
    for text in ("def own():\n    return 1\n", "def own():\n    return 2\n"):
        (tmp_path / "own.py").write_text(text)
        versions.add(metric(f"{tmp_path / 'own.py'}:own").version)
    assert len(versions) == 5
