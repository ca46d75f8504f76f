"""`@query`: names (S27), kinds of functions, signatures, types of what is returned, several results."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import lmql_lite as lq
from lmql_lite.errors import ConstraintError

SILENT = lq.ScriptedModel("")


@dataclass
class Joke:
    setup: str
    laughs: int = 0


class Trip(BaseModel):
    place: str
    days: int


@lq.query(model=SILENT)
def echo(first: Any, /, second: Any = 2, *rest: Any, third: Any = 3, **named: Any) -> Any:
    """lq
    return first, second, rest, third, named
    """


@lq.query(model=SILENT)
def greeting(name: str) -> str:
    """lq
    "Hello {name}"
    return "Hello " + name
    """


class Host:
    word = "Welcome"

    def __init__(self, name: str) -> None:
        self.name = name

    @lq.query(model=SILENT)
    def greet(self, guest: str = "you") -> Any:
        """lq
        return f"{self.name} greets {guest}"
        """

    @classmethod
    @lq.query(model=SILENT)
    def of_class(cls, guest: str) -> Any:
        """lq
        return f"{cls.word} {guest}"
        """

    @lq.query(model=SILENT)
    @classmethod
    def of_class_inside(cls, guest: str) -> Any:
        """lq
        return f"{cls.word} {guest}"
        """

    @staticmethod
    @lq.query(model=SILENT)
    def plain(guest: str) -> Any:
        """lq
        return guest
        """

    @lq.query(model=SILENT)
    @staticmethod
    def plain_inside(guest: str) -> Any:
        """lq
        return guest
        """


# Parameters ----------------------------------------------------------------------------------------------------------


def test_every_kind_of_parameter_is_an_input() -> None:
    assert echo(1) == (1, 2, (), 3, {})
    assert echo(1, 9, 8, 7, third=6, other=5) == (1, 9, (8, 7), 6, {"other": 5})


def test_keywords_that_are_no_parameters_are_options_unless_the_function_takes_any() -> None:
    assert greeting.run_sync("Ada", seed=7).seed == 7
    assert echo(1, seed=7) == (1, 2, (), 3, {"seed": 7})
    with pytest.raises(TypeError, match="no option called 'sead': did you mean seed"):
        greeting("Ada", sead=7)


def text_of(found: Any) -> str:
    return str(found.prompt if isinstance(found, lq.Result) else found)


def last_of(stream: Any) -> str:
    async def end() -> str:
        return [event async for event in stream][-1].result.prompt  # type: ignore[no-any-return]

    return asyncio.run(end())


DOORS: dict[str, Callable[[Any], str]] = {
    "call": lambda function: text_of(function()),
    "run_sync": lambda function: text_of(function.run_sync()),
    "run": lambda function: text_of(asyncio.run(function.run())),
    "stream": lambda function: last_of(function.stream()),
    "map": lambda function: text_of(function.map_sync([{}])[0]),
    "plan": lambda function: (function.plan(), text_of(function()))[1],
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["function", "method", "class method", "with_options", "async"])
def test_a_query_function_with_named_keeps_its_model_and_session_at_every_call(kind: str, door: str) -> None:
    text = "Say: the model of the decorator"
    model, session = lq.ScriptedModel(text), lq.Session()
    asking = lq.query(model=model, session=session)

    @asking
    def alone(**named: Any) -> Any:
        """lq
        "Say:[X]"
        """

    @asking
    async def later(**named: Any) -> Any:
        """lq
        "Say:[X]"
        """

    class Holder:
        @asking
        def method(self, **named: Any) -> Any:
            """lq
            "Say:[X]"
            """

        @asking
        @classmethod
        def of_class(cls, **named: Any) -> Any:
            """lq
            "Say:[X]"
            """

    functions: dict[str, Callable[[], Any]] = {
        "function": lambda: alone,
        "method": lambda: Holder().method,
        "class method": lambda: Holder.of_class,
        "with_options": lambda: alone.with_options(seed=7),
        "async": lambda: later,
    }
    calls = 0
    for number in range(3):
        function = functions[kind]()
        before = dict(function.options)
        if kind == "async" and door in ("call", "plan"):
            assert text_of(asyncio.run(function())) == text
        else:
            assert DOORS[door](function) == text
        assert function.options == before and before["model"] is model and before["session"] is session
        assert number == 0 or model.calls == calls  # the session's own tree answers
        calls = model.calls


def test_options_of_a_caller_are_not_changed_by_a_run() -> None:
    options: lq.Options = {"model": lq.ScriptedModel("Say: hi"), "session": lq.Session(), "seed": 3, "n": 1}
    before, query = dict(options), lq.compile('"Say:[X]"')
    for _ in range(2):
        assert last_of(query.stream(**options)) == "Say: hi"
        assert text_of(query.run_sync(**options)) == "Say: hi"
        query.plan(**options)
        assert options == before


def test_a_parameter_called_as_an_option_is_a_parameter() -> None:
    @lq.query(model=SILENT)
    def told(seed: int) -> Any:
        """lq
        return seed
        """

    assert told(seed=7) == 7 and told.run_sync(seed=7).seed != 7


@pytest.mark.parametrize(
    "call",
    [
        lambda: Host("Ada").greet("Bob") == "Ada greets Bob",
        lambda: Host("Ada").greet() == "Ada greets you",
        lambda: Host.greet(Host("Ada"), "Bob") == "Ada greets Bob",
        lambda: Host("Ada").greet.run_sync(guest="Bob").value == "Ada greets Bob",
        lambda: Host.of_class("Bob") == Host("").of_class("Bob") == "Welcome Bob",
        lambda: Host.of_class_inside("Bob") == Host("").of_class_inside("Bob") == "Welcome Bob",
        lambda: Host.of_class_inside.run_sync("Bob").value == "Welcome Bob",
        lambda: Host.plain("Bob") == Host("").plain("Bob") == "Bob",
        lambda: Host.plain_inside("Bob") == Host("").plain_inside.run_sync("Bob").value == "Bob",
    ],
    ids=["method", "default", "unbound", "run", "class", "class-inside", "class-run", "static", "static-inside"],
)
def test_methods_of_all_kinds(call: Callable[[], bool]) -> None:
    assert call()


def test_a_subclass_is_the_class_that_a_class_method_gets() -> None:
    class Guesthouse(Host):
        word = "Hi"

    assert Guesthouse.of_class_inside("Bob") == Guesthouse.of_class("Bob") == "Hi Bob"


# Names (S27) ---------------------------------------------------------------------------------------------------------

LATER = "before"


@lq.query(model=SILENT)
def reads_module() -> Any:
    """lq
    return LATER
    """


def test_a_name_of_the_module_is_read_when_the_query_is_called_S27(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "LATER", "after")
    assert reads_module() == "after"


def test_closures_are_live_where_python_makes_them_and_as_defined_where_only_the_docstring_reads_S27() -> None:
    seen, unseen = "old", "old"

    @lq.query(model=SILENT)
    def both() -> Any:
        """lq
        return seen, unseen
        """
        return seen

    seen = unseen = "new"
    assert both() == ("new", "old") and unseen == "new"


def test_a_local_query_calls_itself_and_a_helper_below_it_S27() -> None:
    @lq.query(model=SILENT)
    def total(n: int) -> int:
        """lq
        if n == 0:
            return 0
        return total(n - 1) + helper(n)
        """

    with pytest.raises(lq.InputError, match="the input 'helper' is missing"):
        total(0)

    def helper(n: int) -> int:
        return n

    assert total(3) == total(3) == 6

    def isolated() -> list[Any]:
        made = []
        for turn in range(3):  # noqa: B007 - the query reads it

            @lq.query(model=SILENT)
            def read() -> Any:
                """lq
                return turn, later()
                """

            made.append(read)

        def later() -> str:
            return "later"

        return made

    assert [each() for each in isolated()] == [(turn, "later") for turn in range(3)]


def test_a_method_of_a_local_class_sees_the_function_around_it_and_not_the_class_S27() -> None:
    colour = "red"  # noqa: F841  (only the query reads it)

    class Box:
        LATER = "of the class"

        @lq.query(model=SILENT)
        def look(self) -> Any:
            """lq
            return colour, LATER
            """

    assert Box().look() == ("red", "before")


def test_text_that_is_indented_less_than_its_function_keeps_its_escapes() -> None:
    @lq.query(model=SILENT)
    def lines() -> Any:
        """lq
return "a\nb"
"""  # fmt: skip

    assert lines() == "a\nb"


# Types of results ----------------------------------------------------------------------------------------------------


@lq.query(model=SILENT)
def typed_joke(value: Any) -> Joke:
    """lq
    return value
    """


@lq.query(model=SILENT)
def typed_number(value: Any) -> int:
    """lq
    if value is None:
        return
    "{value}"
    return value
    """


@lq.query(model=SILENT)
def typed_trips(value: Any) -> list[Trip]:
    """lq
    return value
    """


@lq.query(model=SILENT)
def typed_host(value: Any) -> Host | None:
    """lq
    return value
    """


def test_an_annotation_makes_the_value_what_it_says() -> None:
    assert typed_number("42") == 42
    assert typed_joke({"setup": "why", "laughs": "3"}) == Joke("why", 3)
    assert typed_joke(Joke("why")) == Joke("why")
    assert typed_trips([{"place": "Rome", "days": 3}]) == [Trip(place="Rome", days=3)]
    assert typed_number.run_sync("42").value == 42
    host = Host("Ada")
    assert typed_host(host) is host and typed_host(None) is None


def test_a_value_that_does_not_fit_is_an_error_at_its_return() -> None:
    with pytest.raises(ConstraintError, match=r"typed_number\(\) must return int, but returned 'x': input") as caught:
        typed_number("x")
    assert caught.value.span is not None and caught.value.span.source == "return value"
    with pytest.raises(ConstraintError, match=r"return Joke.* laughs: input should be a valid integer"):
        typed_joke({"setup": "why", "laughs": "many"})
    with pytest.raises(ConstraintError, match="Host"):
        typed_host("Ada")
    with pytest.raises(ConstraintError, match="int"):
        typed_number(None)


def test_a_type_may_stand_below_its_function_and_inside_another_one() -> None:
    @lq.query(model=SILENT)
    def early() -> Later:
        """lq
        return {"number": 1}
        """

    @dataclass
    class Local:
        number: int

    @lq.query(model=SILENT)
    def local() -> list[Local]:
        """lq
        return [{"number": 2}]
        """

    assert early() == Later(1) and local() == [Local(2)]


@dataclass
class Later:
    number: int


def test_a_type_that_only_the_checker_knows_is_refused_with_a_hint() -> None:
    @lq.query(model=SILENT)
    def lost() -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
        """lq
        return 1
        """

    with pytest.raises(lq.InputError, match=r"lost\(\) returns 'Nowhere', which cannot be read"):
        lost()


def test_without_a_return_the_annotation_says_nothing() -> None:
    @lq.query(model=SILENT)
    def shown() -> lq.Result:
        """lq
        "a"
        """

    assert shown().prompt == "a"


# Manners -------------------------------------------------------------------------------------------------------------


def test_a_query_function_looks_like_its_function() -> None:
    assert greeting.__name__ == "greeting" and greeting.__module__ == __name__
    assert repr(greeting) == "<query greeting(name: 'str') -> 'str'>"
    assert list(inspect.signature(Host.greet).parameters) == ["self", "guest"]
    assert list(inspect.signature(Host("Ada").greet).parameters) == ["guest"]
    assert list(inspect.signature(Host.of_class_inside).parameters) == ["guest"]


def test_it_is_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(greeting)) is greeting
    assert pickle.loads(pickle.dumps(Host.greet)) is Host.greet
    assert pickle.loads(pickle.dumps(Host("Ada").greet))("Bob") == "Ada greets Bob"


def test_what_is_no_function_is_refused_and_so_is_an_option_that_does_not_exist() -> None:
    with pytest.raises(TypeError, match="decorates a function"):
        lq.query("'a'")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="@query has no option called 'modle': did you mean model"):
        lq.query(modle="demo")  # type: ignore[call-overload]


def test_an_async_function_is_known_as_one_and_runs_many_at_once_in_one_loop() -> None:
    @lq.query(model=lq.ScriptedModel("Rome: a hat\n"))
    async def packing(place: str) -> str:
        """lq
        "{place}:[THING]" where STOPS_BEFORE(THING, "\n")
        return THING.strip()
        """

    async def many() -> list[str]:
        return await asyncio.gather(*(packing("Rome") for _ in range(5)))

    assert asyncio.run(many()) == ["a hat"] * 5
    if hasattr(inspect, "markcoroutinefunction"):
        assert inspect.iscoroutinefunction(packing)


# Several results -----------------------------------------------------------------------------------------------------

DICE = lq.ScriptedModel("", certainty=0)


@lq.query(model=DICE, decoder="sample", seed=3)
def thrown(sides: int) -> str:
    """lq
    "{sides}:[X]" where len(X) == 3
    return X
    """


def test_n_results_come_best_first_and_the_best_is_the_one_of_the_last_event() -> None:
    results = thrown.run_sync(6, n=4, session=lq.Session())
    assert len(results) == 4 and len({result.seed for result in results}) == 4
    assert [result.score for result in results] == sorted((result.score for result in results), reverse=True)
    assert thrown(6, n=4) == [result.value for result in results]
    assert lq.run_sync('sample(n=2, seed=1)\n    "[X]"\nwhere len(X) == 2', model=DICE)[0].prompt  # type: ignore[index]
    assert isinstance(thrown.run_sync(6, n=1), lq.Result)


def test_a_parameter_named_like_a_hole_is_its_first_value():
    @lq.query(model=lq.ScriptedModel("bc"))
    def f(X):
        """lq
        "{X}[X]" where len(X) < 2
        return X
        """

    assert f.run_sync("a").prompt == "ab"
    assert f("a") == "b"


def test_a_parameter_that_the_query_assigns_again_is_not_lost():
    @lq.query(model=lq.ScriptedModel("b"))
    def f(place):
        """lq
        place = place.upper()
        "{place}[X]" where len(X) < 2
        """

    assert f("a").prompt.startswith("A")


def test_a_parameter_called_context_is_refused():
    with pytest.raises(lq.QueryError, match="cannot have a parameter 'context'"):

        @lq.query
        def f(context):
            """lq
            "{context}[X]"
            """


def test_a_query_right_behind_its_quotes_was_refused_for_the_indent_of_its_other_lines() -> None:
    @lq.query(model=lq.ScriptedModel("Say: a, b"))
    def said(many: int) -> str:
        """if many:
            "Say:[X]"
        return X
        """
        raise NotImplementedError

    assert said(1) == " a, b"


def test_a_query_that_does_not_compile_shows_no_frame_of_the_compiler() -> None:
    for made in (lambda: lq.compile('"[X'), lambda: lq.query(broken)):
        with pytest.raises(lq.QueryError) as caught:
            made()
        assert len(caught.traceback) <= 4, caught.traceback


def broken() -> None:
    """lq
    "[X
    """


@pytest.mark.parametrize("line", ["print('done')", "yield 3", "seen = 3", "for _ in ():\n        pass"])
def test_code_after_the_docstring_was_ignored_in_silence(line: str, tmp_path: Path) -> None:
    query = f'@lq.query\ndef made():\n    """lq\n    "[X]"\n    """\n    {line}\n    return 3\n'
    module = tmp_path / "made.py"
    module.write_text(f"import lmql_lite as lq\n\n{query}", "utf-8")
    outside = f"first = 1\n{query.replace('lq.query', 'query')}"
    for run, place in ((lambda: runpy.run_path(str(module)), 8), (lambda: lq.compile(outside), 7)):
        with pytest.raises(lq.QueryError, match="the code after the docstring of made never runs") as caught:
            run()
        span = caught.value.span
        assert span and (span.line, span.column, span.source) == (place, 5, line)
        assert "into the docstring" in (caught.value.hint or "")


def test_a_lambda_has_no_docstring():
    with pytest.raises(lq.QueryError, match="<lambda> has no docstring with a query"):
        lq.query(lambda: None)


def test_an_option_of_lmql_that_is_not_here_says_what_stands_for_it() -> None:
    with pytest.raises(TypeError, match=r"is_async.*async def"):
        lq.query(is_async=True)  # type: ignore[call-overload]


def test_a_docstring_with_a_backslash_warns_once(tmp_path: Path) -> None:
    """Python warns of the escape when it compiles the file; reading the query does not warn again."""
    source = 'import lmql_lite as lq\n@lq.query\ndef q():\n    """lq\n    "[X]" where REGEX(X, r"\\d")\n    """\n'
    path = tmp_path / "module.py"
    path.write_text(source)
    with pytest.warns((DeprecationWarning, SyntaxWarning)) as caught:
        runpy.run_path(str(path))
    assert len(caught) == 1
