"""Tools: functions that a model calls while it fills a hole. Calls are checked, and never evaluated."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import lmql_lite as lq
from lmql_lite.engine import events
from lmql_lite.engine.tools.toolbox import Tool, Toolbox, literals
from lmql_lite.errors import InputError
from tests.conftest import examples
from tests.engine.watched import watched
from tests.servers.scored import ScriptedCompleter
from tests.tables import cases


class Place(BaseModel):
    name: str
    inhabitants: int = Field(ge=0)


def add(a: int, b: int = 2) -> int:
    """adds two numbers

    At any length.
    """
    return a + b


async def search(query: str, /, *, limit: int = 3, kind: Literal["web", "book"] = "web") -> list[str]:
    await asyncio.sleep(0)
    return [f"{kind} {query}"] * limit


def fail(text: str) -> str:
    raise ValueError(f"no {text}\nat all")


def output(arguments: str, function: Any = add, made: int = 0) -> str:
    box = Toolbox([function])
    return asyncio.run(box.output(function.__name__, arguments, made=made))


# One call ------------------------------------------------------------------------------------------------------------


def test_a_tool_is_described_in_one_line() -> None:
    assert Tool(add).described == "add(a: int, b: int = 2) -> int: adds two numbers"
    assert lq.describe([add, fail]).splitlines() == [
        "- add(a: int, b: int = 2) -> int: adds two numbers",
        "- fail(text: str) -> str",
    ]


@pytest.mark.parametrize("text", ["[" * 5000 + "]" * 5000, "-" * 100_000 + "1", "'\0'", "9" * 5000], ids=len)
def test_arguments_that_no_parser_likes_are_refused_and_nothing_else_happens(text: str) -> None:
    assert output(text).startswith("error: ")


def test_a_tool_that_does_not_exist_and_one_call_too_many() -> None:
    box = Toolbox([add, search], max_calls=2)
    assert asyncio.run(box.output("ad", "1", made=0)) == "error: there is no ad, did you mean add?`"
    assert asyncio.run(box.output("weather", "", made=1)) == "error: there is no weather, there are add, search`"
    assert asyncio.run(box.output("add", "1", made=2)) == "error: no more than 2 calls can be made`"


def test_a_function_that_is_not_async_runs_in_a_thread_of_its_own() -> None:
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    async def inside() -> bool:
        return where()

    assert output("", where) == "false`" and output("", inside) == "true`"


def test_a_query_can_be_a_tool() -> None:
    @lq.query(model=lq.ScriptedModel(""))
    def shout(word: str) -> str:
        """lq
        return word.upper()
        """

    assert output("'a'", shout) == '"A"`'
    assert output("1", shout).startswith("error: word: input should be a valid string")


LITERALS = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False))
ARGUMENTS = st.recursive(
    LITERALS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LITERALS, inner, max_size=3), max_leaves=8
)


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(st.lists(ARGUMENTS, max_size=3), st.lists(st.sampled_from("ab"), unique=True), ARGUMENTS)
def test_literals_as_python_writes_them_are_read_as_python_reads_them(
    by_place: list[Any], names: list[str], value: Any
) -> None:
    text = ", ".join([*map(repr, by_place), *(f"{name}={value!r}" for name in names)])
    if "inf" not in text and "\\ud" not in text:  # half of a character, which JSON writes in two escapes
        assert literals(text) == (by_place, dict.fromkeys(names, value))


@cases("engine/tools/fill", "wrong tools are refused where they stand", globals())
def test_wrong_tools_are_refused_where_they_stand(tools: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        lq.run_sync('"[argmax(tools=tools) X]"', {"tools": tools}, model=lq.ScriptedModel(""))
    assert caught.value.span is not None and caught.value.span.source == "tools"


# A hole --------------------------------------------------------------------------------------------------------------

QUERY = '"Q:[argmax(tools=[add, search]) X]\\n" where STOPS_BEFORE(X, "\\n")\nreturn X'
TALK = (
    'Q: I `add(1, 2) # result: 3` see, and `search("Rome", limit=1) # result: ["web Rome"]` then `add(\'x\') # result: '
    "error: a: input should be a valid integer, unable to parse string as an integer, not 'x'` oh, `find(1) # result: "
    "error: there is no find, there are add, search` well, `len(x)` is no call.\n"
)
GIVEN = {"add": add, "search": search}
REACHING = (b" `add(", b'("', b'("Rome', b") #", b": 3`", b': ["we', b"`find(1) # ", b"` see", b".\n")
"""Tokens that reach over the ends of calls and of texts between them."""


def run(source: str = QUERY, inputs: Any = GIVEN, **options: Any) -> lq.Result:
    return lq.run_sync(source, inputs, **{"session": lq.Session(), **options})


@pytest.mark.parametrize("words", [(), REACHING, REACHING[::2], REACHING[1::2]], ids=["bytes", "all", "even", "odd"])
def test_calls_are_made_where_the_model_makes_them(words: tuple[bytes, ...]) -> None:
    session, model = lq.Session(), lq.ScriptedModel(TALK, words=words)
    cold = run(session=session, model=model)
    assert cold.prompt == TALK and cold.value == TALK[2:-1] and cold.endings["X"] == "stop"
    inserted = b"".join(token.data for token in cold.tokens if token.hole is None and token.source == "prompt")
    assert b'["web Rome"]`' in inserted or words
    warm, alone = run(session=session, model=model), run(model=model, cache=False)
    assert [token.id for token in warm.tokens] == [token.id for token in alone.tokens]
    assert warm.prompt == alone.prompt == cold.prompt and warm.usage.forward_passes == 0


@pytest.mark.parametrize("words", [(), REACHING], ids=["bytes", "reaching"])
def test_whatever_a_model_says_around_calls_the_run_is_repeatable_and_its_books_add_up(
    words: tuple[bytes, ...],
) -> None:
    calls = 0
    for seed in range(6):
        model = lq.ScriptedModel(TALK, certainty=9, seed=seed, words=words)
        options: dict[str, Any] = {"model": model, "decoder": "sample", "seed": seed, "max_tokens": 150}
        session = lq.Session()
        cold, warm = run(session=session, **options), run(session=session, **options)
        alone = run(cache=False, **options)
        cold.check_ledger()
        assert cold.prompt == warm.prompt == alone.prompt and warm.usage.forward_passes == 0
        assert [token.id for token in warm.tokens] == [token.id for token in alone.tokens]
        calls += cold.prompt.count("# result: ")
    assert calls > 6


def test_a_server_says_calls_freely_and_goes_on_in_one_request_where_it_guesses_the_results() -> None:
    model, session = ScriptedCompleter(TALK), lq.Session()
    assert run(model=model, session=session).prompt == TALK and model.requests == 1
    assert run(model=model, session=session).prompt == TALK and model.requests == 1


def test_a_result_is_the_tools_whatever_the_model_expected() -> None:
    wrong, right = b"Q: `add(1, 2) # result: 99` and more of that", b"Q: `add(1, 2) # result: 3` three\n"

    def script(said: bytes) -> bytes:
        return next((text[len(said) :] for text in (wrong, right) if text.startswith(said)), b"")

    for model in (lq.ScriptedModel(script), ScriptedCompleter(script)):
        assert run(model=model).prompt == right.decode()


def test_watchers_are_told_of_calls_and_the_texts_join_to_the_prompt() -> None:
    seen = watched(QUERY, GIVEN, model=lq.ScriptedModel(TALK))
    calls = [(event.name, event.arguments, event.output) for event in seen if isinstance(event, events.ToolCalled)]
    assert calls[:2] == [("add", "1, 2", "3"), ("search", '"Rome", limit=1', '["web Rome"]')]
    assert [name for name, _, _ in calls] == ["add", "search", "add", "find"]
    assert "".join(event.text for event in seen if isinstance(event, events.Text)) == TALK


def test_calls_of_a_model_that_is_sampled_are_made_as_it_wrote_them() -> None:
    calls = []
    for seed in range(20):
        model = lq.ScriptedModel("Q: `add(7, 1)", certainty=9, seed=seed)
        result = run('"Q:[sample(tools=[add], temperature=1) X]"', {"add": add}, model=model, seed=seed, max_tokens=60)
        calls += re.findall(r"`add\(([^`\n]*?)\) # result: (.*?`)", result["X"])
    assert len(calls) > 5 and any(arguments != "7, 1" for arguments, _ in calls)
    assert all(output(arguments) == result for arguments, result in calls)


def test_a_tool_that_is_cancelled_with_its_run_cleans_up() -> None:
    begun, ended = asyncio.Event(), list[bool]()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def main() -> None:
        query = lq.compile('"Q:[argmax(tools=[wait]) X]"')
        task = asyncio.create_task(query.run({"wait": wait}, model=lq.ScriptedModel("Q: `wait() # result: null`")))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended == [True]
