"""Metrics on records."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.data.metrics import metric_named


def score(spec: str, answer: Any, target: Any, **record: Any) -> float:
    metric = metric_named(spec, lambda path: lambda record: asyncio.sleep(0))
    return asyncio.run(metric.score({"value": answer, "target": target, **record}))[0]


@pytest.mark.parametrize(
    ("spec", "answer", "target", "wanted"),
    [
        ("exact", " Rome ", "Rome", 1),
        ("exact", "rome", "Rome", 0),
        ("exact", 7, "7", 1),
        ("exact", "01", "1", 0),
        ("exact", True, 1, 0),
        ("contains", "It is Rome.", ["Oslo", "Rome"], 1),
        ("regex:^\\d+$", "42", None, 1),
        ("regex", "a42", "^\\d", 0),
        ("regex", True, "True", 1),  # as a table spells it
        ("regex", False, "FALSE", 1),
        ("regex", True, "False", 0),
        ("regex", 5.0, "5.00", 1),
        ("regex", "True", "true", 0),
        ("f1", "the cat sat", "a cat sat down", 0.8),
        ("choice", " (B).", "b", 1),
        ("json", '{"a": 1, "b": [2]}', {"b": [2.0], "a": 1}, 1),
        ("json", "[true]", [1], 0),
        ("json", "no json", {}, 0),
    ],
)
def test_a_metric_says_how_right_an_answer_is(spec: str, answer: Any, target: Any, wanted: float) -> None:
    assert score(spec, answer, target) == pytest.approx(wanted)


def test_likelihoods_are_compared_whole_per_character_and_per_byte() -> None:
    value = {"options": [" a", " ßßßß"], "logprobs": [-2.0, -4.2], "tokens": [[" a"], [" ßßßß"]]}
    assert score("acc", value, " a") == 1
    assert score("acc_norm", value, 1) == 1
    assert score("acc_bytes", value, 1) == 1
    assert score("acc", None, "b", variables={"P(X)": [["a", 0.2], ["b", 0.8]]}) == 1


def test_perplexity_is_of_the_units_of_one_text() -> None:
    value = {"options": ["two words"], "logprobs": [-6.0], "tokens": [["two", " wor", "ds"]]}
    assert score("perplexity", value, None) == 2.0
    assert score("word_perplexity", value, None) == 3.0
    assert score("byte_perplexity", value, None) == pytest.approx(6 / 9)


@pytest.mark.parametrize("returned", ["math.nan", "'good'", "None", "1 / 0"])
def test_a_function_that_gives_no_number_is_an_error_of_that_row(tmp_path: Path, returned: str) -> None:
    (tmp_path / "own.py").write_text(f"import math\ndef own(answer):\n    return {returned}\n")
    with pytest.raises((ValueError, ZeroDivisionError)):
        score(f"{tmp_path / 'own.py'}:own", "a", "b")


def test_a_function_of_python_and_a_name_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def length(answer, target, columns):\n    return len(answer) / columns['n']\n")
    assert score(f"{tmp_path / 'own.py'}:length", "abc", None, columns={"n": 2}) == 1.5
    with pytest.raises(lq.InputError, match="no function 'lenght'") as caught:
        metric_named(f"{tmp_path / 'own.py'}:lenght", lambda path: lambda record: asyncio.sleep(0))
    assert caught.value.hint == "did you mean length?"
    with pytest.raises(lq.InputError, match="no metric is called 'exatc'"):
        metric_named("exatc", lambda path: lambda record: asyncio.sleep(0))
    assert math.isfinite(score("exact", "", ""))
