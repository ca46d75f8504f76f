"""The Python face: compile, run, stream, `@query` (S27), blocking inside a running loop."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import signal
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine import events

MODEL = lq.ScriptedModel("Things for Rome: a hat\nand more")
SUFFIX = " for"


@lq.query(model=MODEL)
def packing(place: str, what: str = "Things") -> Any:
    """lq
    "{what}{SUFFIX} {place}:[THING]" where STOPS_BEFORE(THING, "\n")
    return THING.strip()
    """


@lq.query(model=MODEL)
async def packing_later(place: str) -> Any:
    """lmql
    "Things for {place}:[THING]" where STOPS_BEFORE(THING, "\n")
    return THING.strip()
    """


class Traveller:
    def __init__(self, place: str) -> None:
        self.place = place

    @lq.query(model=MODEL)
    def packing(self) -> Any:
        r"""lq
        "Things for {self.place}:[THING]" where STOPS_BEFORE(THING, "\n")
        """


def test_an_async_function_is_awaited_and_a_blocking_one_works_inside_a_loop() -> None:
    async def inside() -> tuple[Any, Any, Any]:
        return await packing_later("Rome"), packing("Rome"), lq.run_sync('"a"').prompt

    assert asyncio.run(inside()) == ("a hat", "a hat", "a")


def test_an_error_inside_a_loop_comes_through_the_other_thread() -> None:
    async def inside() -> None:
        lq.run_sync('x = 1 / 0\n"a"')

    with pytest.raises(ZeroDivisionError):
        asyncio.run(inside())


def test_ctrl_c_inside_a_loop_ends_the_run_in_the_other_thread() -> None:
    ended: list[str] = []

    async def interrupted() -> None:
        try:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            ended.append("cleaned up")

    async def main() -> None:
        lq.run_sync("await interrupted()", {"interrupted": interrupted})

    loop = asyncio.new_event_loop()  # asyncio.run would handle the signal itself
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(main())
    loop.close()
    assert ended == ["cleaned up"]


def test_a_method_sees_its_object_and_without_return_gives_the_result() -> None:
    result = Traveller("Rome").packing()
    assert isinstance(result, lq.Result)
    assert result["THING"] == " a hat"


def test_names_come_from_the_definition_not_from_the_caller_S27() -> None:
    greeting = "Hello"  # noqa: F841  (only the query reads it)

    @lq.query(model=lq.ScriptedModel("x"))
    def greet(name: str) -> Any:
        """lq
        "{greeting} {name}"
        """

    def caller() -> Any:
        greeting = "never"
        return greet("Ada"), greeting

    assert caller()[0].prompt == "Hello Ada"

    @lq.query
    def lost() -> Any:
        """lq
        "{nowhere}"
        """

    with pytest.raises(lq.InputError, match="'nowhere' is missing"):
        lost()


def test_a_mistake_in_a_docstring_is_found_at_once_with_the_line_of_the_python_file() -> None:
    with pytest.raises(lq.QueryError) as caught:

        @lq.query
        def broken() -> Any:
            """lq
            "fine"
            "[1X]"
            """

    span = caught.value.span
    assert span is not None
    line = Path(__file__).read_text("utf-8").splitlines()[span.line - 1]
    assert (span.name, line.strip()) == (__file__, '"[1X]"')


def test_stream_gives_typed_events_and_its_texts_join_to_the_prompt() -> None:
    source = '"Things for {place}:[A]" where STOPS_BEFORE(A, "and")\n"...[B]" where len(B) == 2'

    async def collect() -> list[events.Event]:
        query = lq.compile(source)
        return [event async for event in query.stream({"place": "Rome"}, model=MODEL, session=lq.Session())]

    seen = asyncio.run(collect())
    assert isinstance(seen[0], events.Started) and seen[0].decoder == "argmax"
    assert isinstance(seen[-1], events.Finished)
    result = seen[-1].result
    assert "".join(event.text for event in seen if isinstance(event, events.Text)) == result.prompt
    closed = [event for event in seen if isinstance(event, events.HoleClosed)]
    assert [(event.name, event.value) for event in closed] == [("A", " a hat\n"), ("B", result["B"])]
    moves = [event.token.fate for event in seen if isinstance(event, events.TokenMoved)]
    assert moves.count("kept") == len(result.tokens)
    assert moves.count("cut") == sum(token.fate == "cut" for token in result.tokens) > 0


def test_leaving_several_samples_whose_events_wait_for_a_reader_ends_them_all() -> None:
    """A run that had to wait for its reader could not say that it has ended, and so it never did."""
    told = 0

    def tell() -> str:
        nonlocal told
        told += 1
        return "a"

    async def leave() -> set[asyncio.Task[Any]]:
        query = lq.compile('for i in range(1000):\n    "{tell()}[A]" where len(A) == 1')
        stream = query.stream({"tell": tell}, n=4, decoder="sample", model=MODEL, session=lq.Session())
        await anext(stream)
        before = -1
        while before != told:  # until nothing goes on without a reader
            before = told
            for _ in range(100):
                await asyncio.sleep(0)
        await asyncio.wait_for(stream.aclose(), 60)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(leave()) == set()


def test_a_path_and_a_name_with_suffix_are_files_and_all_else_is_text(tmp_path: Path) -> None:
    file = tmp_path / "q.lq"
    file.write_text('"from a file"', "utf-8")
    assert lq.run_sync(file).prompt == "from a file"
    assert lq.run_sync(str(file)).prompt == "from a file"
    assert lq.run_sync('"q.lq is text"').prompt == "q.lq is text"
    with pytest.raises(lq.InputError, match="there is no file"):
        lq.compile("nowhere.lq")


def test_a_keyword_that_no_model_takes_is_refused() -> None:
    with pytest.raises(TypeError, match="has no option 'base_ulr': did you mean base_url"):
        lq.model("openai/NAME", base_ulr="http://localhost:1/v1")  # type: ignore[call-arg]


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises((TypeError, lq.InputError), match="tempreature"):
        lq.run_sync('"a"', tempreature=1)


def test_a_query_is_called_with_its_inputs_and_pickles() -> None:
    query = lq.compile('return f"{greeting} {name}"')
    assert query("Hi", name="Ada") == query(greeting="Hi", name="Ada", seed=3) == "Hi Ada"
    again = pickle.loads(pickle.dumps(query))
    assert again("Hi", "Ada") == "Hi Ada" and repr(again) == repr(query)
    for arguments, named in ((("a", "b", "c"), {}), (("a",), {"greeting": "b"}), (("a", "b"), {"nam": "c"})):
        with pytest.raises(lq.InputError):
            query(*arguments, **named)
    with pytest.raises(lq.InputError, match="inputs must be a dict") as refused:
        query.run_sync("Hi")  # type: ignore[arg-type]
    assert "a call takes values: query(...)" in (refused.value.hint or "")


def test_a_result_is_a_mapping_with_a_short_repr() -> None:
    result = lq.run_sync('"{a}[X]"', {"a": "long " * 500}, model=lq.ScriptedModel("long " * 500 + "end"))
    assert dict(result) == {"X": "end"} and "X" in result and "Y" not in result and result.get("Y") is None
    assert len(repr(result)) < 200 and "'end'" in repr(result)
    with pytest.raises(KeyError, match="leave out the number"):
        result[0]  # type: ignore[index]
    found = json.loads(result.to_json())
    assert found == result.to_dict() and found["variables"] == {"X": "end"} and "tokens" not in found


def test_a_closed_session_lets_its_model_go() -> None:
    async def main() -> weakref.ref[lq.ScriptedModel]:
        model = lq.ScriptedModel("Say: hi")
        async with lq.Session(model) as session:
            result = await lq.run('"Say:[X]"', session=session)
            assert result["X"] == " hi"
            session.default = None
        return weakref.ref(model)

    gone = asyncio.run(main())
    gc.collect()
    assert gone() is None
