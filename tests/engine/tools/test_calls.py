"""Calls of tools: a model can write all that a function can take, and reads an error for anything else.

The same on a model in this process, whose calls are completed for it, and on a server, which writes all text itself.
"""

from __future__ import annotations

import datetime
import enum
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import lmql_lite as lq
from lmql_lite.engine.tools.toolbox import literals
from lmql_lite.errors import ConstraintError, InputError
from tests.servers.scored import ScriptedCompleter


class Colour(enum.Enum):
    RED = "red"


class Size(TypedDict):
    height: int


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Line:
    item: str
    price: float | None = None


@dataclass
class Order:
    lines: list[Line]
    first: Line


@dataclass
class Sealed:
    word: str

    def __post_init__(self) -> None:
        raise KeyError(self.word)


class Person(BaseModel):
    name: str
    lines: list[Line] = []


def finish(**named: Any) -> dict[str, Any]:
    return named


def grade(**named: int) -> dict[str, int]:
    return named


def echo(value):  # type: ignore[no-untyped-def]
    return value


def every(*values: Any) -> list[Any]:
    return list(values)


def number(x: int | None = None) -> int | None:
    return x


def numbers(x: list[int]) -> list[int]:
    return x


def real(x: float) -> float:
    return x


def text(x: str) -> str:
    return x


def order(order: Order) -> str:
    return f"{type(order.first).__name__} {order.first.item} {[line.price for line in order.lines]}"


def orders(orders: dict[str, list[Order]]) -> list[str]:
    return [each.first.item for each in orders["all"]]


def person(person: Person) -> str:
    return f"{person.name} {person.lines}"


def size(size: Size, sizes: list[Size]) -> int:
    return size["height"] + len(sizes)


def paint(colour: Colour, kind: Literal["oil", 3] = "oil") -> str:
    return f"{colour} {kind}"


def point(point: Point) -> int:
    return point.x - point.y


def sealed(word: Sealed) -> None: ...


def search(query: str, /, *, limit: int = 3) -> list[str]:
    return [query] * limit


async def wait(seconds: float) -> float:
    return seconds


def later(seconds: float) -> Any:
    return wait(seconds)


class Shop:
    def __init__(self, prices: dict[str, int]) -> None:
        self.prices = prices

    def price(self, item: str) -> int:
        return self.prices[item]

    async def buy(self, item: str, count: int = 1) -> int:
        return count * self.prices[item]

    @classmethod
    def name(cls, place: str) -> str:
        return f"{cls.__name__} {place}"

    @staticmethod
    def tax(cents: int) -> int:
        return cents // 5

    async def __call__(self, item: str) -> int:
        return self.prices[item]


def returned(value: Any) -> Callable[..., Any]:
    def returned() -> Any:
        return value

    return returned


def over() -> None:
    raise StopIteration("no more\nat all")


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
shop = Shop({"pear": 3})
counter: Any = Shop({"pear": 4})
counter.__name__ = "counter"

TAKEN: list[tuple[Callable[..., Any], str, str]] = [
    (finish, 'finish(answer="x", n=1)', '{"answer": "x", "n": 1}'),
    (finish, "finish()", "{}"),
    (finish, "finish(a={'b': [None]}, c=-1)", '{"a": {"b": [null]}, "c": -1}'),
    (grade, "grade(ada=1, alan='2')", '{"ada": 1, "alan": 2}'),
    (echo, 'echo({"a": {"b": [1]}})', '{"a": {"b": [1]}}'),
    (echo, 'echo([{"a": []}, [[{}]], {"b": {"c": {"d": null}}}])', '[{"a": []}, [[{}]], {"b": {"c": {"d": null}}}]'),
    (echo, "echo(" + "[" * 40 + "]" * 40 + ")", "[" * 40 + "]" * 40),
    (echo, "echo(true)", "true"),
    (echo, "echo(value=[true, false, null, True, False, None])", "[true, false, null, true, false, null]"),
    (echo, 'echo({"a":1,"b":null})', '{"a": 1, "b": null}'),
    (echo, "echo([1, 2,],)", "[1, 2]"),
    (echo, "echo( value = 1 )", "1"),
    (echo, "echo(-1.5E+3)", "-1500.0"),
    (echo, "echo(.5)", "0.5"),
    (echo, "echo(-Infinity)", "-Infinity"),
    (echo, "echo((1, (2,), ()))", "[1, [2], []]"),
    (echo, r"""echo("it's \"so\"")""", r'''"it's \"so\""'''),
    (echo, r"""echo('it\'s "so"')""", r'''"it's \"so\""'''),
    (echo, r'echo("caf\u00e9 \ud83d\ude00 \/ \\ \t\n")', r'"café 😀 / \\ \t\n"'),
    (echo, r"""echo({'\ud83d\ude00': "\d+\."})""", r'{"😀": "\\d+\\."}'),
    (echo, 'echo("a) # b, (c` [d")', '"a) # b, (c` [d"'),
    (echo, "echo('')", '""'),
    (every, "every(1, [2], {}, null)", "[1, [2], {}, null]"),
    (every, "every()", "[]"),
    (number, "number(null)", "null"),
    (number, "number(x=None)", "null"),
    (numbers, "numbers([])", "[]"),
    (real, "real(1)", "1.0"),
    (order, 'order({"first": {"item": "a"}, "lines": [{"item": "b", "price": 1}]})', '"Line a [1.0]"'),
    (orders, 'orders({"all": [{"first": {"item": "a", "price": null}, "lines": []}]})', '["a"]'),
    (person, 'person({"name": "Ann", "lines": [{"item": "b"}]})', "\"Ann [Line(item='b', price=None)]\""),
    (size, 'size({"height": 2}, [{"height": 3}])', "3"),
    (paint, 'paint("red", kind=3)', '"Colour.RED 3"'),
    (point, "point([3, 1])", "2"),
    (search, 'search("a", limit=2)', '["a", "a"]'),
    (wait, "wait(1.5)", "1.5"),
    (later, "later(1.5)", "1.5"),
    (shop.price, 'price("pear")', "3"),
    (shop.buy, 'buy("pear", count=2)', "6"),
    (Shop.name, "name('Rome')", '"Shop Rome"'),
    (Shop.tax, "tax(10)", "2"),
    (counter, 'counter("pear")', "4"),
    (functools.partial(search, limit=1), "search('a')", '["a"]'),
    (returned("é`"), "returned()", '"é`"'),
    (returned("\ud800"), "returned()", '"?"'),
    (returned(Line("a", 3.5)), "returned()", '{"item": "a", "price": 3.5}'),
    (returned([Person(name="Ann")]), "returned()", '[{"name": "Ann", "lines": []}]'),
    (returned(datetime.date(2024, 2, 29)), "returned()", '"2024-02-29"'),
    (returned(1j), "returned()", '"1j"'),
    (functools.partial(shop.buy, "pear"), "buy(count=2)", "6"),
]
ORDER = "order(order: Order) -> str"
REFUSED: list[tuple[Callable[..., Any], str, str]] = [
    (text, 'text("a", foo=1)', "got an unexpected keyword argument 'foo'; it is text(x: str) -> str"),
    (text, 'text("a", "b")', "too many positional arguments; it is text(x: str) -> str"),
    (text, 'text("a", x="b")', "multiple values for argument 'x'; it is text(x: str) -> str"),
    (text, "text()", "missing a required argument: 'x'; it is text(x: str) -> str"),
    (text, "text(x='a', x='b')", "the argument 'x' is given twice"),
    (text, "text(5)", "x: input should be a valid string, not 5"),
    (text, "text(null)", "x: input should be a valid string, not None"),
    (text, "text(Rome)", "Rome is not a literal: write the value itself"),
    (text, "text(what's new)", "(what's new) are not arguments of Python"),
    (text, "text('a' + 'b')", "'a' + 'b' is not a literal: write the value itself"),
    (text, "text(text('a'))", "text('a') is not a literal: write the value itself"),
    (text, "text('a'; 'b')", "('a'; 'b') are not arguments of Python"),
    (text, "text([1, 2)", "([1, 2) are not arguments of Python"),
    (text, "text([1}, 2])", "([1}, 2]) are not arguments of Python"),
    (number, 'number("abc")', "x: input should be a valid integer, unable to parse string as an integer, not 'abc'"),
    (number, "number(true)", "x: input should be a valid integer, not True"),
    (number, "number(1.5)", "x: input should be a valid integer, got a number with a fractional part, not 1.5"),
    (numbers, "numbers([1, false])", "x.1: input should be a valid integer, not [1, False]"),
    (real, "real(True)", "x: input should be a valid number, not True"),
    (echo, 'echo({"a": 1, "a": 2})', 'the key \'a\' occurs twice in {"a": 1, "a": 2}'),
    (echo, 'echo([{"b": {"a": 1, "a": 1}}])', 'the key \'a\' occurs twice in {"a": 1, "a": 1}'),
    (finish, 'finish("x", n=1)', "too many positional arguments; it is finish(**named: Any) -> dict[str, Any]"),
    (grade, "grade(ada='x')", "named.ada: input should be a valid integer, unable to parse string as an integer"),
    (order, 'order({"first": {}, "lines": []})', "order.first.item: field required"),
    (order, 'order({"first": {"item": "a"}, "lines": [], "more": 1})', "order.more: unexpected keyword argument"),
    (
        orders,
        'orders({"all": [{"first": {"item": "a", "price": 1, "colour": 2}, "lines": []}]})',
        "orders.all.0.first.colour",
    ),
    (orders, 'orders({"all": [1]})', "orders.all.0: input should be a dictionary or an instance of Order"),
    (paint, 'paint("blue")', "colour: input should be 'red', not 'blue'"),
    (paint, 'paint("red", "chalk")', "kind: input should be 'oil' or 3, not 'chalk'"),
    (search, 'search(query="a")', ""),  # in other words in each version of Python
    (sealed, 'sealed({"word": "x"})', "KeyError: 'x'"),
    (shop.price, 'price("plum")', "KeyError: 'plum'"),
    (text, "text(__import__('os').getpid())", "__import__('os').getpid() is not a literal: write the value itself"),
    (text, "text(*['a'])", "*['a'] is not a literal: write the value itself"),
    (text, "text(**{'x': 'a'})", "** is not allowed here"),
    (text, "text(x='a', 'b')", "(x='a', 'b') are not arguments of Python"),
    (over, "over()", "StopIteration: no more at all"),
    (returned(CIRCLE), "returned()", "the result cannot be written: Circular reference"),
]
WORDS = (b'")', b"})", b"]})", b"]})`", b"null)", b") #", b")`", b"`,", b'": {"', b"), ", b')"', b"` and")
"""Tokens that reach over the ends of arguments."""


def written(function: Callable[..., Any], model: Any, **options: Any) -> str:
    """The text of a hole with this tool."""
    options = {"session": lq.Session(), **options}
    return str(lq.run_sync('"Use:[argmax(tools=[tool]) X]"', {"tool": function}, model=model, **options)["X"])


@pytest.mark.parametrize(("function", "call", "result"), TAKEN, ids=[call for _, call, _ in TAKEN])
def test_what_a_function_can_take_can_be_written(function: Callable[..., Any], call: str, result: str) -> None:
    expected, session = f" `{call} # result: {result}`", lq.Session()
    for model in (
        lq.ScriptedModel(f"Use: `{call} and so on", words=WORDS),
        lq.ScriptedModel(f"Use: `{call}", words=()),
        ScriptedCompleter(f"Use: `{call} # result: 0`"),
    ):
        assert written(function, model, session=session).startswith(expected)


@pytest.mark.parametrize(("function", "call", "error"), REFUSED, ids=[call for _, call, _ in REFUSED])
def test_what_a_function_cannot_take_is_an_error_that_names_it(
    function: Callable[..., Any], call: str, error: str
) -> None:
    expected, session = f" `{call} # result: error: {error}", lq.Session()
    said = f"Use: `{call} # result: 0`"
    for model in (lq.ScriptedModel(said, words=WORDS), ScriptedCompleter(said)):
        assert written(function, model, session=session).startswith(expected)


def test_calls_are_written_alike_with_the_cache_on_off_and_warm() -> None:
    model, session = lq.ScriptedModel('Use: `echo([1, {"a": 2}]) and so on', words=WORDS), lq.Session()
    cold, warm = written(echo, model, session=session), written(echo, model, session=session)
    assert cold == warm == written(echo, model, cache=False)
    assert cold.startswith(' `echo([1, {"a": 2}]) # result: [1, {"a": 2}]`')


@settings(max_examples=60, derandomize=True)
@given(st.text(st.sampled_from("[]{}()\"'\\`,: a1=\n"), max_size=14))
def test_no_call_is_changed_into_another_one(arguments: str) -> None:
    """The model writes what it wants to, whatever that is; the mark and the result are the only text of others."""
    said = f"Use: `echo({arguments})"
    for words in ((), WORDS):
        found = f"Use:{written(echo, lq.ScriptedModel(said, words=words), max_tokens=60)}"
        own, mark, result = found.partition(") # result: ")
        assert said.startswith(own + ")") if mark else said == found
        if mark and not result.startswith("error"):
            assert literals(own.partition("`echo(")[2])


@pytest.mark.parametrize(
    "arguments", ["1, 2", '"a', "[1, (2)", "'it's'", '{"a": "b\\"}'], ids=["open", "quote", "list", "quotes", "escape"]
)
def test_a_call_that_a_line_break_breaks_off_is_text_and_stops_are_found_after_it(arguments: str) -> None:
    source = '"Use:[argmax(tools=[echo]) X]\\nThen[Y]" where STOPS_BEFORE(X, "\\n") and len(Y) < 5'
    said = f"Use: `echo({arguments}\nThen so"
    for model in (lq.ScriptedModel(said), lq.ScriptedModel(said, words=(b"\nTh",)), ScriptedCompleter(said)):
        result = lq.run_sync(source, {"echo": echo}, model=model, session=lq.Session())
        assert (result["X"], result["Y"]) == (f" `echo({arguments}", " so") and result.endings["X"] == "stop"


def test_a_backtick_outside_quotes_breaks_a_call_off_and_may_begin_another_one() -> None:
    said = "Use: `echo(1` or `echo(2"
    for words in ((), (b"` or `",), (b"1` or `echo(",)):
        text = written(echo, lq.ScriptedModel(said + ") so", words=words), max_tokens=64)
        assert text.startswith(" `echo(1` or `echo(2) # result: 2`")
    text = written(echo, ScriptedCompleter(said + ") # result: 0"), max_tokens=64)
    assert text.startswith(" `echo(1` or `echo(2) # result: 2`")


def test_a_model_may_end_a_text_within_a_call() -> None:
    for model in (lq.ScriptedModel('Use: `echo("a'), ScriptedCompleter('Use: `echo("a')):
        result = lq.run_sync('"Use:[argmax(tools=[echo]) X]"', {"echo": echo}, model=model, session=lq.Session())
        assert result["X"] == ' `echo("a' and result.endings["X"] == "end-of-text"


def test_no_call_is_made_of_arguments_that_a_limit_cuts_off() -> None:
    long = '"' + "word " * 60 + '"'
    model = lq.ScriptedModel(f"Use: `echo({long}) so", words=())
    result = lq.run_sync('"Use:[argmax(tools=[echo]) X]"', {"echo": echo}, model=model, max_tokens=100)
    assert "# result" not in result["X"] and result.endings["X"] == "bound"
    for most in range(29, 60):
        source = f'"Use:[argmax(tools=[echo]) X]" where len(X) < {most}'
        said = ' `echo("word word word word") so'
        shorter = lq.ScriptedModel(f"Use:{said}", words=())
        try:
            value = lq.run_sync(source, {"echo": echo}, model=shorter, session=lq.Session())["X"]
        except ConstraintError as error:
            assert 'does not allow the result of echo: \'"word word word word") # result: ' in str(error)
        else:
            assert len(value) < most
            assert said.startswith(value) or value == said.replace(" so", ' # result: "word word word word"`')


def test_a_tool_whose_objects_belong_to_the_querys_thread_says_how_to_stay_in_it() -> None:
    source = """
import sqlite3
shop = sqlite3.connect(":memory:")
shop.execute("create table fruit(name)")
def count() -> int:
    return shop.execute("select count(*) from fruit").fetchone()[0]
async def number() -> int:
    return count()
"Use:[argmax(tools=[count, number]) X]"
"""
    threaded = lq.run_sync(source, model=lq.ScriptedModel("Use: `count()"), session=lq.Session())["X"]
    assert "# result: error: ProgrammingError: SQLite objects created in a thread can only be used in" in threaded
    assert "(count runs in a thread of its own; write async def to run it in that of the query)`" in threaded
    own = lq.run_sync(source, model=lq.ScriptedModel("Use: `number()"), session=lq.Session())["X"]
    assert own.startswith(" `number() # result: 0`")


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [
        (max, "the signature of the tool max cannot be read: no signature found for builtin"),
        (shop, "a tool must be a function with a name; this is <"),
        (functools.partial(shop), "a tool must be a function with a name"),
        (functools.partial(lambda x: x), "a tool must be a function with a name"),
        (functools.partial(Shop, {}), "a tool must be a function with a name"),
    ],
    ids=["builtin", "instance", "partial of instance", "partial of lambda", "partial of class"],
)
def test_what_cannot_be_a_tool_is_refused_with_a_sentence(tool: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        written(tool, lq.ScriptedModel("Use: "))
