"""Whole runs under patterns: whatever a model says, `where` is true of the value in Python."""

from __future__ import annotations

import pytest

import lmql_lite as lq
from tests.properties.plain_where import FUNCTIONS
from tests.tables import cases


@cases("program/pattern_runs", "the value meets its condition in python")
@pytest.mark.parametrize("following", ["", ".", "\\n- next"])
def test_the_value_meets_its_condition_in_python(condition: str, following: str, session: lq.Session) -> None:
    """Law 3, S18, S19: a model that says anything at all, the best and two random draws of it."""
    for decoder, seed in (("argmax", 1), ("sample", 2), ("sample", 3)):
        source = f'{decoder}(max_tokens=40)\n    import re\n    "So: [X: str]{following}"\nwhere\n    {condition}\n'
        result = lq.run_sync(source, model=lq.ScriptedModel("", certainty=0, seed=seed), session=session, seed=seed)
        assert eval(condition, {**FUNCTIONS, "X": result["X"]}), result["X"]
        assert result.prompt == f"So: {result['X']}{following}".replace("\\n", "\n")


def test_a_pattern_of_fixed_length_asks_for_nothing_after_its_end(session: lq.Session) -> None:
    model = lq.ScriptedModel("On 12/31 I left")
    result = lq.run_sync('"On [X] I left" where REGEX(X, r"[0-9]{2}/[0-9]{2}")', model=model, session=session)
    assert (result.prompt, result.endings["X"]) == ("On 12/31 I left", "forced")
    assert model.calls <= len("12/31"), "no question after the last digit"


@pytest.mark.parametrize("said", ["I have 12 apples", "I have 12\n", "I have 12"])
def test_a_number_ends_where_the_model_says_something_else(said: str, session: lq.Session) -> None:
    """S18: nothing is known of what follows, and the model does not say end-of-text."""
    result = lq.run_sync('"I have [X]" where INT(X)', model=lq.ScriptedModel(said), session=session)
    assert (result["X"], result.prompt) == (12, "I have 12")


def test_the_text_that_follows_ends_a_number(session: lq.Session) -> None:
    """S16."""
    result = lq.run_sync(
        '"I have [X] apples" where INT(X)', model=lq.ScriptedModel("I have 12 apples"), session=session
    )
    assert (result["X"], result.endings["X"]) == (12, "end-of-text")


@pytest.mark.parametrize(("number", "ending"), [("11", "stop"), ("119", "forced")])
def test_a_number_and_a_stop(session: lq.Session, number: str, ending: str) -> None:
    """No digit can follow 119, so the hole ends without a look at the stop (S15)."""
    source = '"I have [X]\\n" where 0 < int(X) < 120 and STOPS_BEFORE(X, "\\n")'
    result = lq.run_sync(source, model=lq.ScriptedModel(f"I have {number}\n"), session=session)
    assert (result["X"], result.endings["X"]) == (number, ending)


def test_a_contradiction_is_found_before_the_model_is_asked(session: lq.Session) -> None:
    """S22."""
    model = lq.ScriptedModel("")
    with pytest.raises(lq.ConstraintError, match="cannot hold together"):
        lq.run_sync('"[X]" where DATE(X) and int(X) > 3', model=model, session=session)
    with pytest.raises(lq.ConstraintError, match="cannot hold together"):
        lq.run_sync('"[X]" where DATE(X) and X.endswith("-02-30")', model=model, session=session)
    assert model.calls == 0


def test_an_earlier_hole_is_a_value(session: lq.Session) -> None:
    """S20."""
    source = '"[A]-[B]-[C]" where A in ["a", "b"] and B in ["a", "b"] and B != A and C in (A + B, {A: 1}.keys())[1]'
    result = lq.run_sync(source, model=lq.ScriptedModel("a-a-b"), session=session)
    assert (result["A"], result["B"], result["C"]) == ("a", "b", "a")


def test_a_search_that_is_anchored_ends_the_hole_where_it_ends(session: lq.Session) -> None:
    """S18."""
    source = '"I have [X]" where re.search("^[0-9]+$", X)'
    result = lq.run_sync(source, model=lq.ScriptedModel("I have 12 apples"), session=session)
    assert (result["X"], result.prompt) == ("12", "I have 12")
