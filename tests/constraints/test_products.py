"""Counts that multiply are refused by name, before any search; those that do not still guide (S19)."""

from __future__ import annotations

import time

import pytest

import lmql_lite as lq

TOGETHER = [
    "len(WORDS(X)) >= 100 and len(X) > 500 and len(X) < 1500 and len(SENTENCES(X)) >= 3",
    "len(WORDS(X)) >= 100 and len(X) > 500 and len(X) < 1500 and len(SENTENCES(X)) >= 3 and len(WORDS(X)) <= 150",
    "60 <= len(WORDS(X)) <= 100 and len(X) < 700 and len(SENTENCES(X)) == 4",
    "len(WORDS(X)) >= 100 and len(X) < 1500 and len(SENTENCES(X)) >= 3",
    "len(WORDS(X)) >= 100 and len(X) > 500 and not len(SENTENCES(X)) < 3",
    "len(WORDS(X)) >= 100 and len(LINES(X)) >= 3 and 500 < len(X) < 1500",
    'len(WORDS(X)) >= 100 and X.count("e") >= 10 and 500 < len(X) < 1500 and STOPS_AT(X, "###")',
    'len(WORDS(X)) >= 100 and "foo" not in X and "bar" in X and 500 < len(X) < 1500 and len(SENTENCES(X)) >= 3',
    'X == "none" or (len(WORDS(X)) >= 100 and 500 < len(X) < 1500 and len(SENTENCES(X)) >= 3)',
]
"""Conditions whose counts multiply, which a search could not decide within minutes."""
WORDS = ("sea", "ship", "wind", "sail", "captain", "storm", "island", "gold", "tree", "bird", "moon", "fish")
REFUSED = [
    " and ".join(f'"{word}" in X' for word in WORDS) + " and len(X) < 400",
    "len(WORDS(X)) == 200 and len(SENTENCES(X)) == 40 and len(LINES(X)) == 30 and 500 < len(X) < 1500",
]


@pytest.mark.parametrize("where", TOGETHER)
def test_counts_that_multiply_guide_within_a_second(where: str, session: lq.Session) -> None:
    wanted = "Say: " + "One bar two three e e e e e e e e e e four five.\n" * 40
    began = time.process_time()
    value = lq.run_sync(f'"Say: [X]" where {where}', model=lq.ScriptedModel(wanted), session=session).variables["X"]
    assert value == "none" or len(value.split()) >= 60
    assert time.process_time() - began < 3, "the whole run, of hundreds of masks"


@pytest.mark.parametrize("where", REFUSED)
def test_counts_that_need_too_much_are_refused_by_name_within_a_second(where: str, session: lq.Session) -> None:
    began = time.process_time()
    with pytest.raises(lq.ConstraintError, match="these conditions together") as caught:
        lq.run_sync(f'"Say: [X]" where {where}', model=lq.ScriptedModel("Say: a b."), session=session)
    assert time.process_time() - began < 1.5
    message = str(caught.value).partition("\n")[0]
    assert "len(X)" in message and ('"fish" in X' in message or "len(LINES(X))" in message)
    assert caught.value.hint is not None and "leave one of them out" in caught.value.hint


@pytest.mark.parametrize(
    "where",
    [
        "len(WORDS(X)) >= 100 and len(X) > 500 and len(X) < 1500",
        "len(WORDS(X)) >= 100 and len(SENTENCES(X)) >= 3",
        "len(WORDS(X)) <= 100 and len(X) < 1500 and len(SENTENCES(X)) <= 3",
        "len(SENTENCES(X)) == 3 and 300 < len(X) < 400",
        "len(WORDS(X)) >= 20 and len(SENTENCES(X)) >= 2 and 100 < len(X) < 300",
        "len(WORDS(X)) == 50 and len(LINES(X)) == 5",
        'len(WORDS(X)) >= 50 and len(SENTENCES(X)) >= 3 and "foo" not in X and STOPS_AT(X, "###")',
    ],
)
def test_counts_that_do_not_multiply_still_guide(where: str, session: lq.Session) -> None:
    wanted = "Say: " + "One two three four five. " * 40
    value = lq.run_sync(f'"Say: [X]" where {where}', model=lq.ScriptedModel(wanted), session=session).variables["X"]
    assert value and ("WORDS(X)) >= 100" not in where or len(value.split()) >= 100)


def test_the_remedies_of_a_refused_product_work(session: lq.Session) -> None:
    clauses = ["len(WORDS(X)) >= 100", "500 < len(X) < 1500", "len(SENTENCES(X)) >= 3"]
    model = lq.ScriptedModel("Say: " + "One two three four five. " * 40)
    for left_out in range(3):
        where = " and ".join(clauses[:left_out] + clauses[left_out + 1 :])
        assert lq.run_sync(f'"Say: [X]" where {where}', model=model, session=session).variables["X"]
