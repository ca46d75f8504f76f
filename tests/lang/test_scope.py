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


def said(text: str) -> list[str]:
    with pytest.raises(QueryError) as caught:
        scope(text)
    return [
        f"{each.span.line}:{each.span.column} {each.message}" + (f" | {each.hint}" if each.hint else "")
        for each in caught.value.problems
    ]


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
    ("query", "problems"),
    [
        ('"[JOKE]" where STOPS_AT(JOEK, "?")', ["1:25 no hole is called 'JOEK' | did you mean 'JOKE'?"]),
        ('"[JOKE]" where STOPS_AT(Joke, "?")', ["1:25 no hole is called 'Joke' | did you mean 'JOKE'?"]),
        ('"[JOKE]" where len(JOEK) < 3', ["1:20 no hole is called 'JOEK' | did you mean 'JOKE'?"]),
        ('"[joke]" where len(JOKE) < 3', ["1:20 no hole is called 'JOKE' | did you mean 'joke'?"]),
        ('"[A]" where STOPS_AT(QQ, "?")', ["1:22 no hole is called 'QQ' | the holes are A"]),
        ('x = "a"\n"[A]" where INT(x)', ["2:17 no hole is called 'x' | 'x' is a variable; the holes are A"]),
        (
            '"[A]" where STOPS_AT("?", A)',
            ["1:22 'STOPS_AT' begins with the name of a hole | put the hole's name first"],
        ),
        ('"[A]" where INT()', ["1:13 'INT' names no hole | write INT(HOLE, ...)"]),
        (
            '"[A]" where STOP_AT(A, "?")',
            ["1:13 no constraint is called 'STOP_AT'; did you mean 'STOPS_AT'?"],
        ),
        (
            '"[A]" where stops_at(A, "?")',
            [
                "1:13 no constraint is called 'stops_at'; did you mean 'STOPS_AT'?"
                " | the words of the language are written in capitals"
            ],
        ),
        ('"[A]" where QQ(A)', [f"1:13 no constraint is called 'QQ' | there are {', '.join(CONSTRAINTS)}"]),
        (
            '"[A]"\n"[B] [C]" where len(A) < 3',
            ["2:17 this 'where' uses no hole of its string | its holes are B, C"],
        ),
        (
            '"[A]"\n"b" where len(A) < 3',
            ["2:11 this 'where' has nothing to constrain: there is no hole in its string | write a hole: [NAME]"],
        ),
        ('"[A]"\nwhere x > 3', ["2:7 this 'where' uses no hole of the query | its hole is A"]),
        (
            '"{A}"\nwhere len(A) < 3',
            ["2:7 this 'where' has nothing to constrain: there is no hole in the query | write a hole: [NAME]"],
        ),
        ('"[ANSWER]" distribution ANSWR in ["a"]', ["1:25 no hole is called 'ANSWR' | did you mean 'ANSWER'?"]),
        (
            '"[A]"\n"[B]" distribution A in ["a"]',
            ["2:20 the string of this distribution has no hole 'A' | write [A] into it"],
        ),
        (
            "from m import *\n'[A]'",
            ["1:1 'import *' hides which names the query needs | import the names that are used"],
        ),
        (
            '"[A]" where STOPS_AT(B, "x")\n"[C]" where REGX(C, "a")\n"[D]" distribution E in [1]',
            [
                "1:22 no hole is called 'B' | the holes are A, C, D",
                "2:13 no constraint is called 'REGX'; did you mean 'REGEX'?",
                "3:20 no hole is called 'E' | the holes are A, C, D",
            ],
        ),
    ],
)
def test_what_is_said(query, problems):
    assert said(query) == problems


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
    ],
)
def test_nothing_is_said(query):
    scope(query)


# Functions and the queries among them ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ('def f():\n    x = 1\n    "say [X]"', ["3:5 nothing fills [X] inside a function"]),
        (
            'class A:\n    "doc [X]"\n    def m(self):\n        "doc"\n        if self: "[[[Y]"',
            ["5:18 nothing fills [Y]"],
        ),
        ('def f():\n    "doc [X]"\n    "[[X]] {x}"\n    g("[X]")', []),
    ],
    ids=["function", "method", "docstring and plain brackets"],
)
def test_a_prompt_inside_a_function_is_a_mistake(text, problems):
    text = f'{text}\n"[HOLE]"\n'
    found = said(text) if problems else []
    assert problems or scope(text)
    assert [line.split(" inside")[0] for line in found] == [line.split(" inside")[0] for line in problems]
    assert all("@query" in line for line in found)


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


@pytest.mark.parametrize(
    ("line", "sentence", "hint"),
    [
        ("import lmql.runtime.bopenai", "lmql.runtime.bopenai is not here", "inner parts"),
        ("from lmql.ops import LMQLOp", "lmql.ops is not here", "Python function of the hole"),
        ("from lmql.lib.chat import mesage", "lmql.lib.chat.mesage is not here", "did you mean message?"),
        ("from lmql.http import get", "lmql.http.get is not here", "there are fetch"),
        ("import lmql.lib.actons", "lmql.lib.actons is not here", "did you mean lmql.lib.actions?"),
        ("from lmql import *", r"'import \*' hides", "import the names"),
    ],
)
def test_an_import_of_what_lmql_had_and_is_not_here_says_what_to_write(line: str, sentence: str, hint: str) -> None:
    with pytest.raises(QueryError, match=sentence) as caught:
        scope(f'{line}\nargmax\n"[X]"')
    assert caught.value.hint is not None and hint in caught.value.hint


@pytest.mark.parametrize(
    "line", ["import lmql", "import lmql.lib.chat as chat", "from lmql import F, lib", "import lmql_lite"]
)
def test_modules_of_lmql_that_are_here_may_be_imported(line: str) -> None:
    scope(f'{line}\nargmax\n"[X]"')


def test_a_star_of_a_module_of_lmql_binds_its_names() -> None:
    found = scope('from lmql.lib.actions import *\n"{calc(1)} {fetch(2)}[X]"')
    assert [free.name for free in found.inputs] == ["fetch"]
