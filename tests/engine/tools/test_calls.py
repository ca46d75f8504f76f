"""Calls of tools: a model can write all that a function can take, and reads an error for anything else.

The same on a model in this process, whose calls are completed for it, and on a server, which writes all text itself.
"""

from __future__ import annotations

import enum
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
from tests.conftest import examples
from tests.servers.scored import ScriptedCompleter
from tests.tables import cases


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

ORDER = "order(order: Order) -> str"
WORDS = (b'")', b"})", b"]})", b"]})`", b"null)", b") #", b")`", b"`,", b'": {"', b"), ", b')"', b"` and")
"""Tokens that reach over the ends of arguments."""


def written(function: Callable[..., Any], model: Any, **options: Any) -> str:
    """The text of a hole with this tool."""
    options = {"session": lq.Session(), **options}
    return str(lq.run_sync('"Use:[argmax(tools=[tool]) X]"', {"tool": function}, model=model, **options)["X"])


@cases("engine/tools/calls", "what a function can take can be written", globals())
def test_what_a_function_can_take_can_be_written(function: Callable[..., Any], call: str, result: str) -> None:
    expected, session = f" `{call} # result: {result}`", lq.Session()
    for model in (
        lq.ScriptedModel(f"Use: `{call} and so on", words=WORDS),
        lq.ScriptedModel(f"Use: `{call}", words=()),
        ScriptedCompleter(f"Use: `{call} # result: 0`"),
    ):
        assert written(function, model, session=session).startswith(expected)


@cases("engine/tools/calls", "what a function cannot take is an error that names it", globals())
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


@settings(max_examples=examples(150), derandomize=True)
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


@cases("engine/tools/calls", "what cannot be a tool is refused with a sentence", globals())
def test_what_cannot_be_a_tool_is_refused_with_a_sentence(tool: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        written(tool, lq.ScriptedModel("Use: "))


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
