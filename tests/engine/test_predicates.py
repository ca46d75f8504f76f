"""Conditions that only Python can judge: a rejected value is replaced by the next best, or by the next draw (S21)."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import numpy as np
import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from lmql_lite.models.base import ScoreRequest
from lmql_lite.models.scripted import WORDS

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


def test_draws_end_when_every_value_was_refused() -> None:
    model = lq.ScriptedModel("aaaa", certainty=0)
    source = 'sample(max_backtracks=1000)\n    "[X]"\nwhere X in ["a", "b", "c"] and str.upper(X) == "D"'
    with pytest.raises(lq.ConstraintError, match="the last of 3 values"):
        lq.run_sync(source, model=model, seed=1)


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
    with pytest.raises(lq.ConstraintError, match=r'`str.upper\(X\) == "Z"`: the last of 2 values') as caught:
        lq.run_sync('"[X]" where X in ["a", "b"] and str.upper(X) == "Z"', model=model, session=session)
    assert caught.value.span is not None and caught.value.span.source == 'str.upper(X) == "Z"'
    with pytest.raises(lq.ConstraintError, match="the last of 4 values"):
        lq.run_sync('"[X]" where len(X) == 3 and str.upper(X) == "Z"', model=model, session=session, max_backtracks=3)
    with pytest.raises(lq.ConstraintError, match="the only possible value was 'a'"):
        lq.run_sync('"[X]" where X == "a" and str.upper(X) == "Z"', model=model, session=session)


def test_an_exception_in_a_condition_is_the_users(session: lq.Session) -> None:
    with pytest.raises(ZeroDivisionError):
        lq.run_sync('"[X]" where X == "a" and 1 / (len(X) - 1) > 0', model=lq.ScriptedModel("a"), session=session)


def test_nothing_is_shown_that_may_still_be_rejected_S33(session: lq.Session) -> None:
    model = lq.ScriptedModel("pick 12", certainty=9, seed=3)
    query = lq.compile('"pick [X]" where X in ["12", "13", "14"] and str.upper(X) == "13"')

    async def shown() -> list[str]:
        stream = query.stream(model=model, session=session)
        return [event.text async for event in stream if isinstance(event, events.Text)]

    assert asyncio.run(shown()) == ["pick ", "13"]


# On the way ------------------------------------------------------------------------------------------------------

CLIMBS = """
asked = []
def climbs(text{}):
    asked.append(text)
    return all(a < b for a, b in zip(text, text[1:]))
"[X]" where REGEX(X, "[b-h]{{3}}") and climbs(X)
return asked
"""


def test_a_function_that_takes_final_is_asked_on_the_way_and_saves_hopeless_tokens() -> None:
    early, late = (
        lq.run_sync(
            CLIMBS.format(final),
            model=lq.ScriptedModel("", certainty=0, seed=5),
            session=lq.Session(),
            decoder="sample",
            seed=4,
        )
        for final in (", final", "")
    )
    # what is drawn does not change, only how much of what is rejected is drawn to its end
    assert early["X"] == late["X"] and list(early["X"]) == sorted(early["X"])
    assert {len(text) for text in late.value} == {3}
    assert {len(text) for text in early.value} == {1, 2, 3}
    assert (early.usage.completion_tokens or 0) < (late.usage.completion_tokens or 0)
    assert (early.usage.forward_passes or 0) < (late.usage.forward_passes or 0)


def test_argmax_leaves_a_hopeless_way_at_once() -> None:
    model = lq.ScriptedModel("", certainty=0, seed=9)
    early = lq.run_sync(CLIMBS.format(", *, final=True"), model=model, session=lq.Session())
    assert list(early["X"]) == sorted(early["X"])
    hopeless = [text for text in early.value if list(text) != sorted(set(text))]
    assert hopeless and all(list(text[:-1]) == sorted(set(text[:-1])) for text in hopeless)
    assert not any(longer != text and longer.startswith(text) for text in hopeless for longer in early.value)


def test_none_cannot_tell_yet_and_at_the_end_is_no_yes(session: lq.Session) -> None:
    model = lq.ScriptedModel("ab34", certainty=9)
    source = """
asked = []
def last_is_digit(text, final):
    asked.append((text, final))
    return text[-1].isdigit() if final or {} else None
"[X]" where len(X) == 4 and last_is_digit(X)
return asked
"""
    result = lq.run_sync(source.format("False"), model=model, session=session)
    assert result.value == [("a", False), ("ab", False), ("ab3", False), ("ab34", True)]
    with pytest.raises(lq.ConstraintError, match=r"`never\(X\)`: the last of 3 values"):
        source = 'def never(text, final):\n    return None\n"[X]" where len(X) == 2 and never(X)'
        lq.run_sync(source, model=model, session=session, max_backtracks=2)


def test_giving_up_on_the_way_is_a_backtrack_and_the_error_shows_the_text_so_far(session: lq.Session) -> None:
    model = lq.ScriptedModel("ab34", certainty=9)
    source = 'def short(text, final):\n    return len(text) < 3\n"[X]" where len(X) == 4 and short(X)'
    with pytest.raises(lq.ConstraintError, match=r"the last of 4 values was '...'\n"):
        lq.run_sync(source, model=model, session=session, max_backtracks=3)
    with pytest.raises(lq.ConstraintError, match=r"the only possible value was '...'\n"):
        lq.run_sync(source, model=model, session=session, max_backtracks=0)


def test_only_what_stands_for_certain_is_asked_about(session: lq.Session) -> None:
    source = """
asked = []
def log(text, final):
    asked.append(text)
    return True
"[X]" where STOPS_BEFORE(X, "xyz") and log(X)
return asked
"""
    assert lq.run_sync(source, model=lq.ScriptedModel("abxyxyz"), session=session).value == ["a", "ab", "abxy", "abxy"]
    assert lq.run_sync(source, model=lq.ScriptedModel("a😀xyz"), session=session).value == ["a", "a😀", "a😀"]


def test_a_condition_on_the_way_may_read_earlier_holes_and_await(session: lq.Session) -> None:
    source = """
async def differ(first, second, final=True):
    return all(a != b for a, b in zip(first, second))
"[A]-[B]-[C]" where len(A) == 3 and len(B) == 3 and len(C) == 2 and differ(A, B)
"""
    result = lq.run_sync(source, model=lq.ScriptedModel("abc-abc-de", certainty=9), session=session)
    assert result["A"] == "abc" and all(a != b for a, b in zip(result["A"], result["B"], strict=True))
    rejected = b"".join(token.data for token in result.tokens if token.fate == "rejected")
    assert rejected


def test_a_function_that_names_final_itself_is_left_alone(session: lq.Session) -> None:
    source = """
asked = []
def log(text, final):
    asked.append((text, final))
    return True
"[X]" where len(X) == 2 and {}
return asked
"""
    for call in ("log(X, final=7)", "log(X, 7)", "log(*(X, 7))", "log(X, **dict(final=7))", "(log or 0)(X, 7)"):
        result = lq.run_sync(source.format(call), model=lq.ScriptedModel("ab"), session=session)
        assert result.value == [("ab", 7)], call


def test_a_condition_over_holes_of_one_segment_is_judged_at_the_last_S20(session: lq.Session) -> None:
    model = lq.ScriptedModel("1+1=2;", certainty=12, words=(*WORDS, b"+1", b"=2"))
    source = '"[A]+[B]=[C];" where A in ["1", "2"] and B in ["1", "2"] and int(A) + int(B) == int(C) and len(C) == 1'
    result = lq.run_sync(source, model=model, session=session)
    assert result.prompt == "1+1=2;"


# Beside parts that guide -----------------------------------------------------------------------------------------


def is_even(text: str) -> bool:
    return text.isdigit() and int(text) % 2 == 0


def test_a_stop_in_a_disjunction_with_python_stops_S13(session: lq.Session) -> None:
    source = '"[X]" where (STOPS_AT(X, ";") and is_even(X[:-1])) or X == "none"'
    for says, value in (("34;5", "34;"), ("none", "none")):
        result = lq.run_sync(source, {"is_even": is_even}, model=lq.ScriptedModel(says), session=session)
        assert result["X"] == value
    source = source.replace("STOPS_AT", 'REGEX(X, "[0-9];") and STOPS_AT')
    refused = lq.run_sync(source, {"is_even": is_even}, model=lq.ScriptedModel("5;", certainty=9), session=session)
    assert refused["X"] == "none" or is_even(refused["X"].rstrip(";"))
    assert [token for token in refused.tokens if token.fate == "rejected"]


@pytest.mark.parametrize(
    ("where", "says", "value"),
    [
        ('REGEX(X, r"[a-c]+") and len(X) == 2 or len(X) == 3 and f(X)', "ab", "ab"),
        ('(REGEX(X, r"[a-c]{2}") or len(X) == 3 and f(X)) and len(X) < 4', "xyz", "xyz"),
        ("(f(X) and INT(X) or DATE(X)) and len(X) < 11", "2024-02-29", "2024-02-29"),
        ("(len(WORDS(X)) == 2 or f(X)) and len(X) == 5", "a bcd", "a bcd"),
        ('(f(X) or STARTS_WITH(X, ["q"])) and len(X) == 2', "qr", "qr"),
    ],
)
def test_each_part_of_a_mixed_condition_is_judged_as_it_reads(
    session: lq.Session, where: str, says: str, value: str
) -> None:
    source = f"""
asked = []
def f(text):
    asked.append(text)
    return text == "xyz"
"[X]." where {where}
return asked
"""
    result = lq.run_sync(source, model=lq.ScriptedModel(says), session=session)
    assert result["X"] == value
    # as in Python, what comes after a part that decides is not asked
    assert result.value in ([], [value])


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


@pytest.mark.parametrize(
    "where",
    ['not (REGEX(X, "a.*") or odd(X))', "not (odd(X) or len(WORDS(X)) != 1)", "not (INT(X) and X.isalpha() or odd(X))"],
)
def test_not_before_a_mix_of_python_and_words_of_where_was_refused(where: str) -> None:
    options = ["abc", "ab", "bcd", "bc", "1"]
    source = f'def odd(text):\n    return len(text) % 2 == 1\n"[X]" where {where} and X in {options}'
    assert lq.run_sync(source, model=lq.ScriptedModel("abc"), session=lq.Session())["X"] in ("ab", "bc")


def test_a_text_that_int_made_a_number_is_named_where_python_wants_a_text() -> None:
    with pytest.raises(
        lq.ConstraintError, match=r"reads \[X\], which is then the number \d+: 'int' object is not"
    ) as caught:
        lq.run_sync('"[X]" where INT(X) and len(set(X)) > 1', model=lq.ScriptedModel("12"))
    assert caught.value.hint == "write str(X) for its text"
    query = '"[X]" where INT(X) and len(set(str(X))) > 1'
    assert lq.run_sync(query, model=lq.ScriptedModel("12 and"))["X"] == 12
