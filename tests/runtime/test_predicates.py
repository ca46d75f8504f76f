"""Conditions that only Python can judge: a rejected value is replaced by the next best, or by the next draw (S21)."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import numpy as np
import pytest

import lmql_lite as lq
from lmql_lite.models.base import ScoreRequest
from lmql_lite.runtime import events

PRIME = """
def is_prime(number):
    return number > 1 and all(number % other for other in range(2, number))

"""


def test_argmax_goes_on_until_python_accepts(session: lq.Session) -> None:
    model = lq.ScriptedModel("pick 12", certainty=9, seed=3)
    source = PRIME + '"pick [X]" where X in [str(n) for n in range(10, 20)] and is_prime(int(X))\nreturn int(X)'
    result = lq.run_sync(source, model=model, session=session)
    assert result.value in (11, 13, 17, 19)
    rejected = [token for token in result.tokens if token.fate == "rejected"]
    assert rejected and result.usage.wasted_tokens == len(rejected)
    assert result.prompt == f"pick {result.value}"


def test_the_ways_not_gone_are_taken_best_first(session: lq.Session) -> None:
    model = lq.ScriptedModel("", certainty=0, seed=5)
    options = [a + b for a in "abc" for b in "xyz"]
    source = f"""
seen = []
def refuse(text):
    seen.append(text)
    return len(seen) == 9
"[X]" where X in {options} and refuse(X)
return seen
"""
    seen = lq.run_sync(source, model=model, session=session).value
    assert sorted(seen) == options

    async def scores() -> dict[str, float]:
        found = {}
        for option in options:
            ids = model.tokenizer.encode(option.encode())
            if len(ids) == 2:
                request = ScoreRequest(model.tokenizer.bos, ids[:1], (0, 1))
                first, second = (await model.score([request]))[0]
                found[option] = float(first[ids[0]] + second[ids[1]])
        return found

    likely = asyncio.run(scores())
    # within one first letter the order is exactly that of the scores
    for letter in "abc":
        tried = [option for option in seen if option[0] == letter and option in likely]
        assert tried == sorted(tried, key=lambda option: -likely[option])


def test_a_draw_that_is_rejected_is_drawn_again_and_the_distribution_stays_right() -> None:
    model = lq.ScriptedModel("", certainty=0, seed=8)
    source = 'sample\n    "go [X]"\nwhere X in ["a", "b", "c", "d"] and X.upper() in "BD"'
    query, session = lq.compile(source), lq.Session()
    runs = 600
    seen = Counter(query.run_sync(model=model, session=session, seed=seed)["X"] for seed in range(runs))
    ids = (*model.tokenizer.bos, *model.tokenizer.encode(b"go "))
    row = asyncio.run(model.score([ScoreRequest(ids)]))[0][0]
    b, d = (math.exp(float(row[model.tokenizer.encode(letter)[0]])) for letter in (b"b", b"d"))
    expected = b / (b + d)
    assert set(seen) == {"b", "d"}
    assert abs(seen["b"] / runs - expected) < 4 * math.sqrt(expected * (1 - expected) / runs) + 0.02
    assert np.isfinite(expected)


def test_a_condition_over_several_holes_is_judged_at_the_last_one_S20(session: lq.Session) -> None:
    model = lq.ScriptedModel("1+1=2", certainty=12)
    source = '"[A]+[B]" where A in ["1", "2"] and B in ["1", "2"] and int(A) + int(B) == 3'
    result = lq.run_sync(source, model=model, session=session)
    assert int(result["A"]) + int(result["B"]) == 3


@pytest.mark.parametrize("decoder", ["argmax", "sample"])
def test_cache_on_off_and_warm_reject_alike(decoder: str, session: lq.Session) -> None:
    model = lq.ScriptedModel("", certainty=0, seed=11)
    source = """
def total(text):
    return sum(text.encode())
"go[X]" where len(X) == 3 and total(X) % 5 == 0
"-[Y]" where len(Y) == 2
"""
    query = lq.compile(source)
    runs = [
        query.run_sync(model=model, session=session, decoder=decoder, seed=2, cache=cache)
        for cache in (False, True, True, False)
    ]
    assert len({run.prompt for run in runs}) == 1
    assert len({tuple((token.id, token.fate) for token in run.tokens) for run in runs}) == 1
    assert runs[2].usage.forward_passes == 0


def test_when_no_value_is_left_or_the_limit_is_reached_the_clause_is_named(session: lq.Session) -> None:
    model = lq.ScriptedModel("abc")
    with pytest.raises(lq.ConstraintError, match=r'`X.upper\(\) == "Z"`: the last of 2 values') as caught:
        lq.run_sync('"[X]" where X in ["a", "b"] and X.upper() == "Z"', model=model, session=session)
    assert caught.value.span is not None and caught.value.span.source == 'X.upper() == "Z"'
    with pytest.raises(lq.ConstraintError, match="the last of 4 values"):
        lq.run_sync('"[X]" where len(X) == 3 and X.upper() == "Z"', model=model, session=session, max_backtracks=3)
    with pytest.raises(lq.ConstraintError, match="the only value that was left was 'a'"):
        lq.run_sync('"[X]" where X == "a" and X.upper() == "Z"', model=model, session=session)


def test_an_exception_in_a_condition_is_the_users(session: lq.Session) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        lq.run_sync('"[X]" where X == "a" and int(X) + 1 > 0', model=lq.ScriptedModel("a"), session=session)


def test_nothing_is_shown_that_may_still_be_rejected_S33(session: lq.Session) -> None:
    model = lq.ScriptedModel("pick 12", certainty=9, seed=3)
    query = lq.compile('"pick [X]" where X in ["12", "13", "14"] and X.upper() == "13"')

    async def shown() -> list[str]:
        stream = query.stream(model=model, session=session)
        return [event.text async for event in stream if isinstance(event, events.Text)]

    assert asyncio.run(shown()) == ["pick ", "13"]
