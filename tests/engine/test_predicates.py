"""Conditions that only Python can judge: a rejected value is replaced by the next best, or by the next draw (S21)."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import numpy as np
import pytest

import lmql_lite as lq
from lmql_lite.models.base import ScoreRequest
from tests.engine.watched import shown


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
    source = 'sample\n    "go [X]"\nwhere X in ["a", "b", "c", "d"] and str.upper(X) in "BD"'
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


@pytest.mark.parametrize("options", ["temperature=0.3", "temperature=0.3, max_backtracks=1"])
def test_a_draw_that_was_refused_is_not_drawn_again_while_another_is_left(options: str) -> None:
    """The model is all but certain of the refused one: to draw it again and again would never give the other."""
    model = lq.ScriptedModel("aaaa", certainty=30)
    source = f'sample({options})\n    "[X]"\nwhere X in ["a", "b"] and str.upper(X) == "B"'
    query = lq.compile(source)
    session = lq.Session()
    runs = [query.run_sync(model=model, session=session, seed=3, cache=cache) for cache in (False, True, True, False)]
    assert all(result["X"] == "b" for result in runs)
    assert len({tuple((token.id, token.source == "forced", token.fate) for token in each.tokens) for each in runs}) == 1


@pytest.mark.parametrize(
    ("prompt", "options", "wanted"),
    [("Pick [X]", ["a", "b"], "b"), ("[X]", ["a", "ab"], "ab"), ("[X]", ["aza", "azc", "azb"], "azb")],
)
def test_a_choice_behind_a_shared_token_was_drawn_again_until_the_limit(
    prompt: str, options: list[str], wanted: str
) -> None:
    """The blank before the hole is generated again, and what ends a choice gives the same value whatever it is."""
    model = lq.ScriptedModel("Pick aaaa\nPick aaaa", certainty=12)
    query, session = lq.compile(f'sample\n    "{prompt}"\nwhere X in {options} and ok(X)'), lq.Session()
    runs = [
        query.run_sync({"ok": lambda text: text == wanted}, model=model, session=session, seed=1, cache=cache)
        for cache in (False, True, True)
    ]
    assert [result["X"] for result in runs] == [wanted] * 3


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["", "(top_k=3)"])
def test_what_is_left_out_of_further_draws_leaves_the_others_as_likely_as_they_were(policy: str) -> None:
    """ "ba" is refused, and "b" is not left out for it: "bb" keeps its own share of what is left."""
    model = lq.ScriptedModel("", certainty=0, seed=5)
    kept = ["a", "bb", "c"] if not policy else ["a", "bb", "c", "d"]
    where = f"X in {[*kept, 'ba', 'e']} and str.upper(X) not in ['BA', 'E']"
    query, session, runs = lq.compile(f'sample{policy}\n    "go [X]"\nwhere {where}'), lq.Session(), 500
    plain = lq.compile(f'sample{policy}\n    "go [X]"\nwhere X in {[*kept, "ba", "e"]}')
    seen = Counter(query.run_sync(model=model, session=session, seed=seed)["X"] for seed in range(runs))
    drawn = Counter(plain.run_sync(model=model, session=session, seed=seed)["X"] for seed in range(runs, 4 * runs))
    total = sum(drawn[value] for value in kept)
    for value in kept:
        share = drawn[value] / total
        assert abs(seen[value] / runs - share) < 4 * math.sqrt(max(share * (1 - share), 0.01) / runs) + 0.02


def test_nothing_is_shown_that_may_still_be_rejected_S33() -> None:
    source = '"pick [X]" where X in ["12", "13", "14"] and str.upper(X) == "13"'
    assert shown(source, model=lq.ScriptedModel("pick 12", certainty=9, seed=3)) == ["pick ", "13"]


# Beside parts that guide -----------------------------------------------------------------------------------------


def test_what_guides_in_a_mixed_condition_keeps_the_model_from_what_no_part_allows(session: lq.Session) -> None:
    source = """
def f(text):
    return True
"[X]" where (REGEX(X, r"[a-c]{2}") and f(X)) or X in ["yes", "no"]
"""
    for seed in range(20):
        result = lq.run_sync(source, model=lq.ScriptedModel("", certainty=0, seed=seed), session=session)
        assert set(result["X"]) <= set("abc") or result["X"] in ("yes", "no")
        assert result.usage.wasted_tokens == 0


def test_a_function_of_where_inside_python_is_refused_with_its_place() -> None:
    for clause in ('f(REGEX(X, "a"))', 'not (STOPS_AT(X, "a") or f(X))', "f(X) if INT(X) else True"):
        with pytest.raises(lq.QueryError) as caught:
            lq.compile(f'def f(text):\n    return True\n"[X]" where {clause} or len(X) == 2')
        assert caught.value.span is not None and caught.value.span.line == 3
    with pytest.raises(lq.QueryError, match="a bound on the tokens"):
        lq.compile('def f(text):\n    return True\n"[X]" where len(TOKENS(X)) == 2 or f(X)')
