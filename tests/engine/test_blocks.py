"""Compound statements around holes: what a query may catch, what runs in any case, and what text stays (S23, S33).

That they do what they do in Python is the property of tests/properties/test_blocks.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import textwrap
import traceback
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine import events


def run(source: str, says: str = "", inputs: dict[str, Any] | None = None, **options: Any) -> lq.Result:
    return lq.run_sync(source, inputs, model=lq.ScriptedModel(says), session=lq.Session(), **options)


class Silent(lq.ScriptedModel):
    """Fails when it has said so many tokens."""

    def __init__(self, says: str, after: int) -> None:
        super().__init__(says)
        self.left = after

    async def score(self, requests: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the disk is on fire")
        return await super().score(requests)


# What may be caught ----------------------------------------------------------------------------------------------

REJECTED = """
"a "
try:
    "b[X]" where X in ["yes", "no"] and impossible(X)
    "never"
except lq.ConstraintError as error:
    "failed: {error.hint[:8]}"
" c[Y]" where len(Y) == 1
"""


def test_a_hole_that_gets_no_value_leaves_no_text() -> None:
    result = run(REJECTED, "a bno", {"lq": lq, "impossible": lambda value: False})
    assert result.prompt.startswith("a bfailed: raise ma ca") and set(result.variables) == {"Y"}
    assert [token.fate for token in result.tokens if token.hole == "X"].count("kept") == 0
    result.check_ledger()


def test_what_is_said_in_a_try_is_told_when_it_is_known_to_stay() -> None:
    async def told() -> tuple[str, str]:
        query = lq.compile('try:\n    "b[X]" where len(X) == 9\nexcept Exception:\n    "!"\n"c[Y]" where len(Y) == 1')
        text = ""
        async for event in query.stream(model=Silent("bhello world", after=4), session=lq.Session(), speculate=False):
            if isinstance(event, events.Text):
                text += event.text
            if isinstance(event, events.Finished):
                return text, event.result.prompt
        raise AssertionError

    with pytest.raises(lq.ModelError):  # of the second hole: the first one's was caught
        asyncio.run(told())
    result = run('try:\n    "b[X]" where len(X) == 5\nexcept Exception:\n    "!"', "bhello")
    assert result.prompt == "bhello"


def test_a_model_that_fails_can_be_caught() -> None:
    source = 'try:\n    "b[X]" where len(X) == 9\nexcept lq.ModelError as error:\n    return type(error).__name__'
    model = Silent("bhello world", after=4)
    result = lq.run_sync(source, {"lq": lq}, model=model, session=lq.Session(), speculate=False)
    assert (result.value, result.prompt) == ("ModelError", "b")
    result.check_ledger()


def test_a_budget_cannot_be_caught_and_what_runs_in_any_case_runs() -> None:
    log: list[str] = []
    source = """
while True:
    try:
        "."
    except BaseException:
        log.append("caught")
    finally:
        log.append("finally")
"""
    with pytest.raises(lq.BudgetError, match="100 steps"):
        run(source, inputs={"log": log}, step_budget=100)
    assert set(log) == {"finally"}


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 0\nwhile True:\n    x += 1", 2),
        ("for x in range(3):\n    y = x\n    while y >= 0:\n        y += 1", 1),
        ('"a"\nif True:\n    "b"\n    while True:\n        pass', 4),
        ('while True:\n    pass\nargmax\n    "a"', 1),
        ('import itertools\nfor x in itertools.count():\n    if x < 0:\n        "a"', 2),
    ],
    ids=["alone", "in a loop", "beside a prompt", "before the header", "around a prompt that never comes"],
)
def test_a_loop_without_end_that_says_nothing_meets_its_budget_at_its_line(source: str, line: int) -> None:
    with pytest.raises(lq.BudgetError, match="did not finish") as caught:
        run(source, step_budget=1000)
    assert caught.value.span is not None and caught.value.span.line == line


def test_loops_of_plain_python_count_as_steps_and_those_of_functions_do_not() -> None:
    assert run("x = 0\nwhile x < 90:\n    x += 1\nelse:\n    x = -x\n'{x}'", step_budget=100).prompt == "-90"
    source = "def count(n):\n    while n:\n        n -= 1\n    return n\n'{count(1000)}'"
    assert run(source, step_budget=100).prompt == "0"


def test_a_reader_that_leaves_is_not_held_by_an_endless_finally() -> None:
    async def some() -> None:
        source = 'try:\n    "[X]" where len(X) == 1\n    "[Y]"\nfinally:\n    while True:\n        "a"'
        stream = lq.compile(source).stream(model=lq.ScriptedModel("xyz"), session=lq.Session())
        async for event in stream:
            if isinstance(event, events.HoleClosed):
                break
        await stream.aclose()

    asyncio.run(some())


def test_an_endless_loop_inside_a_finally_ends_too() -> None:
    with pytest.raises(lq.BudgetError):
        run('try:\n    "a"\n    return 1\nfinally:\n    while True:\n        "b"', step_budget=100)


WAITING = {
    "an exit swallows what ends a return": (
        'with suppress(KeyError):\n    try:\n        "a"\n        return 1\n    finally:\n        raise KeyError\n"b"'
    ),
    "an exit in a loop swallows what ends a return": (
        "for n in (1, 2):\n    with suppress(KeyError):\n        try:\n            return n\n        finally:\n"
        '            raise KeyError\n    "a"\nreturn "end"'
    ),
    "a loop in a finally is broken off": (
        'try:\n    "a"\n    return 1\nfinally:\n    for n in (1, 2):\n        "b"\n        break\n    "c"'
    ),
    "a loop in a finally goes on": (
        'try:\n    return 1\nfinally:\n    for n in (1, 2):\n        "b"\n        if n == 1: continue\n        "c"'
    ),
    "a loop in a finally could return": (
        'try:\n    return 1\nfinally:\n    for n in (1, 2):\n        "b"\n        if n > 5: return 2\n    "c"'
    ),
    "a try in a finally could return": (
        "try:\n    return 1\nfinally:\n    try:\n        if not suppress: return 2\n        1 / 0\n"
        '    except ZeroDivisionError:\n        "b"\n    "c"'
    ),
    "a finally in a finally": (
        'try:\n    try:\n        return 1\n    finally:\n        try:\n            "a"\n            return 2\n'
        '        finally:\n            "b"\nfinally:\n    "c"'
    ),
    "a finally leaves a loop": (
        'for n in (1, 2):\n    try:\n        "a"\n        return n\n    finally:\n        if n == 2: break\n'
        '        continue\n"b"'
    ),
    "a handler takes what a finally raises": (
        'try:\n    try:\n        return 1\n    finally:\n        raise KeyError\nexcept KeyError:\n    "a"'
    ),
}


@pytest.mark.parametrize("source", WAITING.values(), ids=WAITING)
def test_a_return_that_waits_for_a_finally_returns_as_in_python(source: str) -> None:
    body = re.sub(r'^( *)("\w")$', r"\1said.append(\2)", source, flags=re.MULTILINE)
    names: dict[str, Any] = {"said": []}
    exec(f"from contextlib import suppress\ndef function():\n{textwrap.indent(body, '    ')}", names)
    expected = names["function"]()
    result = run(f"from contextlib import suppress\n{source}")
    assert (result.value, result.prompt) == (expected, "".join(names["said"]))


def test_a_with_may_swallow_what_a_hole_raises() -> None:
    source = 'with suppress(ValueError):\n    "[X]" where len(X) == 1\n    raise ValueError(X)\n"after {X}"'
    assert run(source, "ab", {"suppress": contextlib.suppress}).prompt == "aafter a"


def test_the_exception_at_hand_is_pythons_own() -> None:
    source = """
try:
    {}["key"]
except KeyError as error:
    "{sys.exc_info()[1] is error} {traceback.format_exc().splitlines()[-1]} "
    try:
        raise ValueError("v") from None
    except ValueError as other:
        "{other.__context__ is error} {other.__suppress_context__} "
    "{sys.exc_info()[1] is error}"
"{sys.exc_info()[1]}"
return "error" in globals()
"""
    result = run(source, inputs={"sys": sys, "traceback": traceback})
    assert result.prompt == "True KeyError: 'key' True True TrueNone"
    assert result.value is False


def test_a_stop_iteration_of_the_query_is_its_own() -> None:
    assert run('try:\n    next(iter([]))\n    "a"\nexcept StopIteration:\n    "caught"').prompt == "caught"


def test_a_generator_is_closed_when_its_loop_is_left() -> None:
    log: list[str] = []

    def lines() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    source = 'for n in lines():\n    "{n}"\n    break\n"{len(log)}"'
    assert run(source, inputs={"lines": lines, "log": log}).prompt == "11"


def test_an_async_loop_and_an_async_with_wait() -> None:
    @contextlib.asynccontextmanager
    async def door(name: str) -> AsyncIterator[str]:
        await asyncio.sleep(0)
        yield name.upper()

    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(0)
            yield number

    source = 'async with door("a") as name, door("b"):\n    async for n in numbers():\n        "{name}{n}"\n    else:\n'
    source += '        "."'
    assert run(source, inputs={"door": door, "numbers": numbers}).prompt == "A0A1A2."


def test_a_with_awaits_what_gives_its_manager() -> None:
    async def door(name: str) -> contextlib.AbstractContextManager[str]:
        await asyncio.sleep(0)
        return contextlib.nullcontext(name)

    assert run('with door("a") as name:\n    "{name}"', inputs={"door": door}).prompt == "a"


def test_items_that_could_be_awaited_are_items() -> None:
    async def answer(number: int) -> int:
        return number

    source = 'for work in [answer(1), answer(2)]:\n    "{await work}"\n'
    assert run(source, inputs={"answer": answer}).prompt == "12"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ('with 5:\n    "a"', "'int' object does not support the context manager protocol"),
        ('async with 5:\n    "a"', "'int' object does not support the asynchronous context manager protocol"),
        ('try:\n    raise OSError\nexcept 5:\n    "a"', "catching classes that do not inherit from BaseException"),
        ('for x in 5:\n    "a"', "'int' object is not iterable"),
        ('async for x in [1]:\n    "a"', "requires an object with __aiter__ method, got list"),
    ],
    ids=["with", "async with", "except", "for", "async for"],
)
def test_what_python_refuses_is_refused_at_its_line(source: str, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence) as caught:
        run(source)
    ours = [frame for frame in traceback.extract_tb(caught.value.__traceback__) if frame.filename == "<query>"]
    assert ours and ours[0].lineno == (3 if "except" in source else 1)


# Who reads no further --------------------------------------------------------------------------------------------


def test_a_run_that_nobody_reads_on_runs_what_runs_in_any_case_and_asks_no_model() -> None:
    log: list[str] = []

    class Door:
        def __enter__(self) -> None:
            log.append("in")

        def __exit__(self, kind: Any, *rest: Any) -> None:
            log.append(f"out {kind.__name__}")

    source = """
try:
    with Door():
        "a[X]" where len(X) == 3
        "b[Y]"
except BaseException:
    log.append("caught")
finally:
    log.append("finally")
    "c[Z]"
    log.append("never")
"""

    async def some() -> None:
        model = lq.ScriptedModel("axyzb and so on")
        stream = lq.compile(source).stream({"log": log, "Door": Door}, model=model, session=lq.Session())
        async for event in stream:
            if isinstance(event, events.HoleClosed):
                break
        await stream.aclose()

    asyncio.run(some())
    assert log == ["in", "out GivenUp", "finally"]


def test_a_run_that_is_cancelled_runs_what_runs_in_any_case() -> None:
    log: list[str] = []

    async def wait() -> None:
        log.append("waits")
        await asyncio.sleep(30)

    source = """
try:
    "a"
    await wait()
except BaseException:
    log.append("caught")
finally:
    await sleep(0)
    "b"
    log.append("finally")
"""

    async def cancelled() -> None:
        given = {"log": log, "wait": wait, "sleep": asyncio.sleep}
        run = asyncio.ensure_future(lq.run(source, given, model=lq.ScriptedModel(""), session=lq.Session()))
        while not log:
            await asyncio.sleep(0)
        run.cancel()
        await run

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert log == ["waits", "finally"]


# Queries that call each other ------------------------------------------------------------------------------------


def test_what_a_nested_query_raises_is_caught_by_who_calls_and_its_text_is_gone() -> None:
    log: list[str] = []
    source = '''
@query
def inner(n):
    """lq
    "<inner [A]>" where len(A) == 1
    try:
        raise KeyError(n)
    finally:
        log.append("left")
    """
"one "
try:
    "two [X: inner(3)] three"
except KeyError as error:
    "caught {error}"
'''
    result = run(source, "one two <inner x>", {"log": log})
    assert (result.prompt, log) == ("one two caught 3", ["left"])
    assert "X" not in result.variables
    result.check_ledger()


# Hypotheses that part ways ---------------------------------------------------------------------------------------


class Door:
    """A context manager that is left once."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def test_hypotheses_cannot_part_ways_in_a_with_that_is_left_once() -> None:
    source = 'with door():\n    "Say [X]" where len(X) == 3\n    y = [X]'
    with pytest.raises(lq.QueryError, match="inside a `with`, which can be left only once") as caught:
        lq.run_sync(source, {"door": Door}, decoder="beam", n=3, model="demo", session=lq.Session())
    assert caught.value.span is not None and caught.value.span.line == 1
    assert "argmax or sample" in (caught.value.hint or "")


def test_hypotheses_part_ways_in_a_with_that_may_be_entered_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab")
    source = """
with open(path) as file, contextlib.suppress(ValueError):
    "{file.read(1)}[X]" where len(X) == 2
    "{file.read(1)}"
    raise ValueError
return file.closed
"""
    inputs = {"path": str(tmp_path / "a.txt"), "contextlib": contextlib}
    results = lq.run_sync(source, inputs, decoder="beam", n=3, model="demo", session=lq.Session())
    assert len({result["X"] for result in results}) == 3
    assert all(result.value and result.prompt == f"a{result['X']}b" for result in results)


def test_hypotheses_part_ways_in_a_try_and_in_its_handler() -> None:
    source = """
seen = []
try:
    "Say [X]" where len(X) == 2
    seen.append(X)
    raise ValueError(X)
except ValueError as error:
    "{error.args[0] == X} [Y]" where len(Y) == 1
finally:
    seen.append("end")
return seen
"""
    results = lq.run_sync(source, decoder="beam", n=3, model="demo", session=lq.Session())
    assert len({(result["X"], result["Y"]) for result in results}) == 3
    for result in results:
        assert result.value == [result["X"], "end"] and "True" in result.prompt


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ('"[sample(temperature=t) X]"', lq.InputError),
        ("raise lq.InputError('mine')\n    \"a\"", None),
        ('"[X]"\n    "{later}"', lq.BudgetError),
        ('lq.compile("[")\n    "a"', None),
    ],
    ids=["option", "its own", "budget", "compile"],
)
def test_what_is_wrong_with_the_run_itself_cannot_be_caught(body: str, kind: type[Exception] | None) -> None:
    source = f"try:\n    {body}\nexcept Exception as error:\n    return type(error).__name__"
    query = lq.compile(source)
    given = {name: {"lq": lq, "t": "hot", "later": 1}[name] for name in query.inputs}
    options = {
        "model": lq.ScriptedModel("abc"),
        "session": lq.Session(),
        "step_budget": 5 if kind is lq.BudgetError else 100,
    }
    if kind is None:
        assert query.run_sync(given, **options).value in ("InputError", "QueryError")
    else:
        with pytest.raises(kind):
            query.run_sync(given, **options)
