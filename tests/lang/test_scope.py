"""What the names of a query mean, and what is said about clauses that speak of nothing."""

from __future__ import annotations

import pytest

from lmql_lite.errors import QueryError
from lmql_lite.lang.keywords import CONSTRAINTS
from lmql_lite.lang.query import parse
from lmql_lite.lang.scope import Scope, check
from lmql_lite.lang.source import Source
from tests.tables import cases


def scope(text: str) -> Scope:
    return check(parse(Source("q", text)))


def inputs(text: str) -> list[str]:
    return [each.name for each in scope(text).inputs]


def test_every_good_query_has_a_scope(good):
    try:
        scope(good.text)
    except QueryError as error:
        # Some of them speak of holes that are not there: they are about the form only.
        assert all("hole" in each.message or "distribution" in each.message for each in error.problems)


def test_holes_inputs_and_the_rest():
    found = scope(
        '"Things to pack for {place}:\\n-[THING]" where STOPS_AT(THING, "\\n")\n'
        "items = [THING.strip()]\n"
        "for i in range(n):\n"
        '    "-[THING][LAST]" where len(TOKENS(LAST)) < limit\n'
        "return items, place, context.prompt\n"
    )
    assert found.holes == ("THING", "LAST")
    assert [(each.name, each.span.line, each.span.column, each.span.source) for each in found.inputs] == [
        ("place", 1, 22, "place"),
        ("n", 3, 16, "n"),
        ("limit", 4, 48, "limit"),
    ]
    assert found.locals == {"items", "i"}
    assert found.builtins == {"range", "len"}
    assert found.constraints == {"STOPS_AT", "TOKENS"}


@cases("lang/scope", "names of python", globals())
def test_names_of_python(code, free):
    assert inputs(f'"[HOLE]"\n{code}\n') == free


@cases("lang/scope", "names of a query", globals())
def test_names_of_a_query(query, free):
    assert inputs(query) == free


def test_an_input_is_placed_at_its_first_use():
    (place,) = scope('x = 1\n"ü {place}"\nplace\n').inputs
    assert (place.span.line, place.span.column) == (2, 5)


def test_the_place_counts_from_the_first_line():
    (place,) = check(parse(Source("m.py", '"{place}"', first_line=9))).inputs
    assert str(place.span.line) == "9" and place.span.source == "place"


@cases("lang/scope", "nothing is said", globals())
def test_nothing_is_said(query):
    scope(query)


# Functions and the queries among them ----------------------------------------------------------------------------


def test_a_query_inside_a_query_asks_for_what_nobody_around_it_binds():
    text = '''
known = 1
@query
def inner(given, *rest):
    """lq
    "{given} {rest} {known} {wanted} [X]" where len(X) < limit
    own = 2
    "{own}"
    """
"{query} [HOLE]"
'''
    assert [(each.name, each.span.line, each.span.column) for each in scope(text).inputs] == [
        ("wanted", 6, 30),
        ("limit", 6, 58),
        ("query", 10, 3),
    ]


def test_a_word_of_the_language_is_one_where_it_is_called_and_a_name_elsewhere() -> None:
    source = '"[DATE] [X]" where REGEX(DATE, r"[0-9]{2}/[0-9]{2}") and DATE(X) and X != INT'
    found = scope(source)
    assert (found.holes, found.constraints) == (("DATE", "X"), {"REGEX", "DATE"})
    assert [free.name for free in found.inputs] == ["INT"]


def test_a_star_of_a_module_of_lmql_binds_its_names() -> None:
    found = scope('from lmql.lib.actions import *\n"{calc(1)} {fetch(2)}[X]"')
    assert [free.name for free in found.inputs] == ["fetch"]


def test_an_unknown_constraint_names_those_that_there_are() -> None:
    with pytest.raises(QueryError, match="no constraint is called 'QQ'") as caught:
        scope('"[A]" where QQ(A)')
    assert caught.value.hint == f"there are {', '.join(CONSTRAINTS)}"
