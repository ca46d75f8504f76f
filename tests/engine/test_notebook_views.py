"""Views of lists of results, in a notebook and at a prompt of Python."""

from __future__ import annotations

import lmql_lite as lq
from lmql_lite.engine.result import ROWS

MODEL = lq.ScriptedModel("Say 1: <b>")


def test_a_plan_is_one_line() -> None:
    plan = lq.compile('"Say 1:[X]" where len(X) < 5\n"[Y]"').plan(model=MODEL)
    assert repr(plan) == "Plan('scripted', argmax, holes=[X, Y])"


def test_results_of_rows_are_a_list_and_a_table() -> None:
    query = lq.compile('"Say {n}:[X]" where len(X) < 5\nreturn 7 / n')
    found = query.map_sync([{"n": 1}, {"n": 0}], model=MODEL, on_error="keep")
    assert isinstance(found, list) and [type(each).__name__ for each in found] == ["Result", "ZeroDivisionError"]
    html = found._repr_html_()  # type: ignore[attr-defined]
    assert html.count("<tr>") == 3 and "&lt;b" in html and "7.0" in html and "ZeroDivisionError" in html
    assert "value" in html and "<b" not in html and "<td>1</td><td>ZeroDivisionError(" in html
    assert "<td>0</td><td>&#x27; &lt;b" in html and "Result(" not in html


def test_a_long_list_is_cut() -> None:
    found = lq.compile('"{n}"').map_sync([{"n": n} for n in range(ROWS + 3)], model=MODEL)
    html = found._repr_html_()  # type: ignore[attr-defined]
    assert html.count("<tr>") == ROWS + 1 and "and 3 more" in html and len(found) == ROWS + 3
