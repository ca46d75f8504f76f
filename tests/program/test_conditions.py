"""From the text of a `where` clause to terms: what is supported, and how everything else is refused."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Mapping

import pytest

import lmql_lite as lq
from lmql_lite.constraints import terms
from lmql_lite.constraints.simplify import satisfies
from lmql_lite.constraints.terms import (
    And,
    Constant,
    Length,
    Matches,
    Or,
    Stop,
    Term,
)
from lmql_lite.errors import ConstraintError, QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.program.symbols import PLAIN
from lmql_lite.program.where import Clause, Condition, conjuncts, mentioned, read
from tests.tables import cases

NOTHING: Mapping[str, object] = {}


def clause(text: str) -> nodes.Expression:
    return nodes.Expression(Span("test.lq", text, 0, len(text)), ast.parse(text, mode="eval"))


def term(text: str, values: Mapping[str, object] = NOTHING) -> Term:
    return condition(text).bind(lambda code: eval(code, {"re": re, **values}))


def condition(text: str) -> Condition:
    return read(Clause(clause(text)), "X", PLAIN)


@cases("program/conditions", "supported forms", vars(terms))
def test_supported_forms(text: str, expected: Term) -> None:
    assert term(text, {"n": 3}) == expected


@cases("program/conditions", "lengths are compared with any number", vars(terms))
def test_lengths_are_compared_with_any_number(comparison: str, value: object, expected: Term) -> None:
    assert term(f"len(X) {comparison} n", {"n": value}) == expected


@cases("program/conditions", "a value of a wrong type is named with its clause", vars(terms))
def test_a_value_of_a_wrong_type_is_named_with_its_clause(text: str, value: object) -> None:
    """Law 3: never passed over in silence."""
    both = f"len(X) < 90 and {text}"
    with pytest.raises(ConstraintError) as caught:
        term(both, {"v": value})
    assert caught.value.span is not None and caught.value.span.source == text
    blamed = value[1] if value in (["a", 5], ("a", 5), [5, "a"], [0.5, None]) else value
    assert repr(blamed)[:5] in str(caught.value) or isinstance(value, list | bytes)


@cases("program/conditions", "what no automaton follows is left to python")
def test_what_no_automaton_follows_is_left_to_python(text: str) -> None:
    found = condition(text)
    assert found.judgement is not None
    assert isinstance(found.term, Constant | Length | Matches | And)


@pytest.mark.parametrize("text", ["not STOPS_AT(X, 'a')", "not (len(X) < 3 and STOPS_BEFORE(X, 'a'))"])
def test_stops_under_not_are_refused(text: str) -> None:
    """S13."""
    with pytest.raises(QueryError, match="cannot be negated") as caught:
        condition(text)
    assert caught.value.span is not None and caught.value.span.source.startswith("STOPS_")
    assert caught.value.hint


@pytest.mark.parametrize("text", ["STOPS_AT(X)", "STOPS_AT('a', X)", "STOPS_AT(X, 'a', 'b')", "STOPS_AT(X, X)"])
def test_a_stop_takes_a_hole_and_a_text(text: str) -> None:
    with pytest.raises(QueryError, match="takes a hole and a text"):
        condition(text)


def test_the_stop_of_another_hole_is_no_part_of_a_condition() -> None:
    with pytest.raises(QueryError, match="guides the hole it is asked of") as caught:
        condition("len(X) < 3 or STOPS_AT(Y, 'a')")
    assert caught.value.span is not None and caught.value.span.source == "STOPS_AT(Y, 'a')"


def test_python_is_evaluated_from_left_to_right_as_far_as_needed() -> None:
    """What Python would not look at, because the part before decides, is not evaluated."""
    assert term("words and X in words[0]", {"words": []}) == Constant(False)
    assert term("not words or X in words[0]", {"words": []}) == Constant(True)
    with pytest.raises(IndexError):
        term("X in words[0] or not words", {"words": []})


def test_a_stop_in_a_disjunction_stays_whatever_is_true_beside_it() -> None:
    """S13: it guards its own conjunct."""
    assert term("n == 3 or STOPS_AT(X, 'a')", {"n": 3}) == Or((Constant(True), Stop(b"a", True)))


def test_conjuncts_have_their_own_places_also_after_wide_characters() -> None:
    text = "'é😀' in X and (len(X) < 5 and Y == 'b') and Z"
    assert [part.span.source for part in conjuncts(clause(text))] == ["'é😀' in X", "len(X) < 5", "Y == 'b'", "Z"]
    assert [sorted(mentioned(part, ("X", "Y"))) for part in conjuncts(clause(text))] == [["X"], ["X"], ["Y"], []]


def test_a_clause_that_is_one_condition_is_its_own_conjunct() -> None:
    whole = clause("'a' in X or 'b' in X")
    assert conjuncts(whole) == [whole]


def test_terms_carry_the_places_of_their_clauses() -> None:
    both = term("len(X) < 5 and 'a' in X")
    assert isinstance(both, And)
    assert [part.span.source for part in both.terms if part.span] == ["len(X) < 5", "'a' in X"]
    assert both.span is not None and both.span.source == "len(X) < 5 and 'a' in X"


@cases("program/conditions", "INT and FLOAT that certainly hold make a number", vars(terms))
def test_INT_and_FLOAT_that_certainly_hold_make_a_number(where: str, says: str, value: object) -> None:
    result = lq.run_sync(f'"[X]." where {where}\nreturn X', model=lq.ScriptedModel(says), session=lq.Session())
    assert (result.value, result["X"], result.prompt) == (value, value, says)
    assert type(result.value) is type(value)


LETTERS = "aAbBsS ,iıK\u212a"


@cases("program/conditions", "cases hold for the texts of which python says so")
def test_cases_hold_for_the_texts_of_which_python_says_so(text: str) -> None:
    """Letters that several letters become, such as ß for SS, are left out, and Python judges the opposite."""
    found = condition(text)
    dice = random.Random(len(text))
    values = ["", "yes", "YES", "ab c", "AB C", "ſs", *LETTERS]
    values += [first + second for first in LETTERS for second in LETTERS]
    values += ["".join(dice.choices(LETTERS, k=dice.randint(3, 5))) for _ in range(150)]
    for value in values:
        says = bool(eval(text, {"X": value}))
        assert satisfies(found.term, value.encode()) == says, value


@cases("program/conditions", "counts and cases guide the model")
def test_counts_and_cases_guide_the_model(clause: str) -> None:
    """The model would say something else, and is never asked twice for that."""
    model = lq.ScriptedModel("abcdefgh ijk")
    result = lq.run_sync(f'"[X]" where {clause}', {"k": 3} if " k " in clause else None, model=model)
    assert eval(clause, {"X": result["X"], "k": 3})
    assert not [token for token in result.tokens if token.fate == "rejected"]


@cases("program/conditions", "what does not guide is judged by python")
def test_what_does_not_guide_is_judged_by_python(clause: str) -> None:
    """Law 3: a value that meets the condition, or the error that names it."""
    model = lq.ScriptedModel("bc", certainty=3)
    given = {name: value for name, value in {"f": str.istitle, "k": 3}.items() if re.search(rf"\b{name}\b", clause)}
    query = lq.compile(f'"[X]" where {clause}')
    try:
        value = query.run_sync(given, model=model, max_backtracks=60, max_tokens=6)["X"]
    except lq.ConstraintError as error:
        assert "has no value that meets" in error.message and error.span is not None
        assert error.span.source in clause
    else:
        assert eval(clause, {"X": value, "k": 3, "f": str.istitle})
