"""What the names of a query mean, and what is said about clauses that speak of nothing."""

from __future__ import annotations

import pytest

from lmql_lite.errors import QueryError
from lmql_lite.lang.keywords import CONSTRAINTS
from lmql_lite.lang.query import parse
from lmql_lite.lang.scope import Scope, check
from lmql_lite.lang.source import Source


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


@pytest.mark.parametrize(
    ("code", "free"),
    [
        ("x = y", ["y"]),
        ("x = x", []),
        ("x += 1", []),
        ("print(later)\nlater = 1", []),
        ("import os.path, a as b\nos, b, a", ["a"]),
        ("from m import n as o\nn, o", ["n"]),
        ("def f(a, *b, c=d, **e): return a, b, c, e, g\nf", ["d", "g"]),
        ("def f(a: t) -> u: v = a\nv", ["t", "u", "v"]),
        ("g = 0\ndef f():\n    global g\n    g = 1\ng", []),
        ("def f():\n    x = 1\n    def h():\n        nonlocal x\n        x = y\n    return h", ["y"]),
        ("class A(B, metaclass=M):\n    c = 1\n    d = c\n    def m(self): return c", ["B", "M", "c"]),
        ("@deco\ndef f(): pass", ["deco"]),
        ("lambda a, b=c: a + b + d", ["c", "d"]),
        ("[a for a in b if c]\na", ["b", "c", "a"]),
        ("[b for a in as_ for b in a]", ["as_"]),
        ("{k: v for k, v in d}", ["d"]),
        ("[(y := a) for a in b]\ny", ["b"]),
        ("(y := 1)\ny", []),
        ("for a, (b, *c) in d: pass\na, b, c", ["d"]),
        ("async for a in b: c", ["b", "c"]),
        ("try: pass\nexcept E as e: e", ["E"]),
        ("with a as b, c as (d, e): b, d, e", ["a", "c"]),
        ("match a:\n    case [b, *c]: b, c\n    case {'k': d, **e}: d, e\n    case C(f=g) as h: g, h", ["a", "C"]),
        ("del a", []),
        ("a.b = c[d]", ["a", "c", "d"]),
        ("a: b = c", ["b", "c"]),
        ("x = f'{a!r}'", ["a"]),
        ("print(len, __name__, True)", []),
        ("context.prompt", []),
        ("await a(b)", ["a", "b"]),
        ("STOPS_AT", ["STOPS_AT"]),
    ],
)
def test_names_of_python(code, free):
    assert inputs(f'"[HOLE]"\n{code}\n') == free


@pytest.mark.parametrize(
    ("query", "free"),
    [
        ('"{a} [X] {X} {b!r:>9}"', ["a", "b"]),
        ("\"[X: Literal['a', b]] [Y: list[kind]] [Z: date]\"", ["b", "kind"]),
        ('"[@deco @other(a) X]"', ["deco", "other", "a"]),
        ('"[sample(temperature=t) X] [argmax Y]"', ["t"]),
        ('"[tool(X, a)] [f(1) Y]"', ["tool", "a", "f"]),
        ('"[X]" where X in options and check(X)', ["options", "check"]),
        ('"[X]" distribution X in options', ["options"]),
        ('argmax(n=k)\n    "[X]"\nfrom model\nwhere len(X) < limit', ["k", "model", "limit"]),
        ('if a:\n    "[X]"\nelif b:\n    "[Y]"\nwhile c: "[Z]"\nfor i in d: "{i}"', ["a", "b", "c", "d"]),
        ('for i in d:\n    if i: break\n    "[X]"\nelse: return e', ["d", "e"]),
        ('try:\n    "{a}[X]"\nexcept ValueError:\n    b', ["a", "b"]),
        ('import re\nlimit = 3\nargmax\n    "[X]"\nwhere len(X) < limit', []),
        ('b = a\n"{a}"\na', ["a"]),
        ('"{where}[X]" where where(X)', ["where"]),
        ('"[X]" where re.search("a", X) and regex.match("b", X)', ["regex"]),
        ('x = re.compile("a")\n"[X]" where words(X) and starts_with(X)', ["words", "starts_with"]),
        ('import re\n"[X]" where re.fullmatch("a", X)', []),
        ('"{re} [X]"\nre = 3', []),
    ],
)
def test_names_of_a_query(query, free):
    assert inputs(query) == free


def test_an_input_is_placed_at_its_first_use():
    (place,) = scope('x = 1\n"ü {place}"\nplace\n').inputs
    assert (place.span.line, place.span.column) == (2, 5)


def test_the_place_counts_from_the_first_line():
    (place,) = check(parse(Source("m.py", '"{place}"', first_line=9))).inputs
    assert str(place.span.line) == "9" and place.span.source == "place"


@pytest.mark.parametrize(
    "query",
    [
        '"[A]" where LIMIT > len(A)',
        'def STOP_AT(x, y): return True\n"[A]" where STOP_AT(A, "x")',
        'def stops_at(x, y): return True\n"[A]" where stops_at(A, "x")',
        '"[A]" where stops(A) and ends_with(A, "x") and date(A)',
        '"[A]"\n"[B]" where len(A) < len(B)',
        '"[A]"\n"[B]" where B in [A]\nwhere len(A) < 3',
        'if x:\n    "[A]"\nelse:\n    "[B]"\nwhere len(A) < 3 and STOPS_AT(B, "x")',
        '"a" "[A]" distribution A in ["x"]',
        '"x [A]"\n"[B]"\ndistribution A in ["x"]',
        '"[A]."\ndistribution A in ["a"]',
        '"[A][B]" distribution A in ["a"]',
        'def f():\n    "doc [X]"\n    "[[X]] {x}"\n    g("[X]")\n"[HOLE]"',
        "import lmql\n'[X]'",
        "import lmql.lib.chat as chat\n'[X]'",
        "from lmql import F, lib\n'[X]'",
        "import lmql_lite\n'[X]'",
    ],
)
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
