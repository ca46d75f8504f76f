"""`map`: many rows, so many at a time, in order; errors, cancellation and seeds (S28, S34)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq

SHOUT = lq.compile("return await shout(word) if aloud else word")
DICE = lq.compile('sample(seed=7)\n    "[X]"\nwhere len(X) == 4')
RANDOM = lq.ScriptedModel("", certainty=0)
WORD = lq.compile('"{word}!"\nreturn word.upper()')


@lq.query
def shouted(word: str, times: int = 1) -> str:
    """lq
    return word.upper() * times
    """


def test_results_stand_in_the_order_of_their_rows_whatever_ends_first() -> None:
    async def slow_first(word: str) -> str:
        await asyncio.sleep(0.02 if word == "a" else 0)
        return word

    query = lq.compile("return await slow(word)")
    results = query.map_sync([{"word": word, "slow": slow_first} for word in "abc"])
    assert [result.value for result in results] == ["a", "b", "c"]


def test_a_row_that_is_no_mapping_is_the_only_input() -> None:
    assert [result.value for result in WORD.map_sync(["a", {"word": "b"}])] == ["A", "B"]
    with pytest.raises(lq.InputError, match="a row names its inputs") as caught:
        SHOUT.map_sync(["a"])
    assert caught.value.__notes__[-1] == "in rows[0]"
    with pytest.raises(lq.InputError, match="has no input 'wrod'"):
        WORD.map_sync([{"wrod": 1}], columns="strict")


def test_columns_that_the_query_does_not_read_are_carried_along() -> None:
    async def main() -> list[lq.FinishedRow]:
        rows = [{"word": "a", "target": "A"}, {"word": "b", "re": 1}]
        return [finished async for finished in WORD.rows(rows, concurrency=1)]

    first, second = asyncio.run(main())
    assert (first.result.value, first.row["target"]) == ("A", "A")
    assert (second.result.value, second.row["re"]) == ("B", 1)
    with pytest.raises(lq.InputError, match="the row has no column 'word'") as caught:
        WORD.map_sync([{"wrod": 1, "target": 2}])
    assert caught.value.hint == "did you mean wrod?"


def test_rows_of_a_function_are_calls() -> None:
    assert [result.value for result in shouted.map_sync(["a", {"word": "b", "times": 2}])] == ["A", "BB"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'wrod'"):
        shouted.map_sync([{"word": "a", "wrod": "a"}], columns="strict")
    assert shouted.map_sync([{"word": "a", "wrod": "a"}])[0].value == "A"


def test_rows_that_the_caller_has_not_asked_for_are_held_and_no_more_begin() -> None:
    taken = 0

    def rows() -> Iterator[str]:
        nonlocal taken
        for number in range(20):
            taken += 1
            yield str(number)

    async def main() -> None:
        seen = 0
        async for _ in WORD.rows(rows(), concurrency=3):
            await asyncio.sleep(0.001)
            assert taken <= seen + 4
            seen += 1

    asyncio.run(main())
    assert taken == 20


def test_async_rows_are_taken_one_after_the_other_and_a_list_says_how_many_there_are() -> None:
    async def rows() -> AsyncIterator[str]:
        for word in "abcd":
            await asyncio.sleep(0)
            yield word

    told: list[tuple[int, int | None]] = []
    assert [result.value for result in WORD.map_sync(rows())] == list("ABCD")
    WORD.map_sync(list("ab"), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
    assert WORD.map_sync([]) == []


def test_an_error_stands_in_the_place_of_its_result_where_it_is_kept() -> None:
    query = lq.compile("return 6 // number")
    first, second, third = query.map_sync([1, 0, 3], on_error="keep")
    assert (first.value, third.value) == (6, 2)
    assert isinstance(second, ZeroDivisionError) and second.__notes__ == ["in rows[1]"]


def test_the_first_error_ends_all_other_runs_and_their_clean_up_has_run() -> None:
    ended: list[str] = []
    waiting = asyncio.Semaphore(0)

    async def wait(number: int) -> int:
        if number == 3:
            for _ in range(3):
                await waiting.acquire()
            raise KeyError("three")
        waiting.release()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cleaned up")
        return number

    query = lq.compile("return await wait(number)")
    with pytest.raises(KeyError) as caught:
        query.map_sync([{"number": number, "wait": wait} for number in range(20)], concurrency=4)
    assert caught.value.__notes__ == ["in rows[3]"]
    assert ended == ["cleaned up"] * 3


def test_a_map_that_is_cancelled_leaves_nothing_under_way() -> None:
    closed: list[str] = []
    waiting = asyncio.Semaphore(0)

    async def rows() -> AsyncIterator[Any]:
        try:
            while True:
                yield {"wait": wait}
        finally:
            closed.append("rows")

    async def wait() -> None:
        waiting.release()
        try:
            await asyncio.sleep(60)
        finally:
            closed.append("run")

    async def main() -> set[asyncio.Task[Any]]:
        task = asyncio.create_task(lq.compile("await wait()").map(rows(), concurrency=2))
        for _ in range(2):
            await waiting.acquire()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]

    assert asyncio.run(main()) == set()
    assert sorted(closed) == ["rows", "run", "run"]


@pytest.mark.parametrize("said", [{}, {"seed": 7}], ids=["header", "call"])
def test_equal_rows_draw_differently_and_the_whole_map_is_repeatable(said: Any) -> None:
    results = DICE.map_sync([{}] * 5, model=RANDOM, session=lq.Session(), **said)
    assert len({result["X"] for result in results}) == 5
    again = DICE.map_sync([{}] * 5, model=RANDOM, session=lq.Session(), concurrency=1, **said)
    assert [result.prompt for result in again] == [result.prompt for result in results]
    alone = DICE.run_sync(model=RANDOM, seed=results[3].seed)
    assert alone["X"] == results[3]["X"]


def test_a_seed_is_of_the_id_and_not_of_the_place() -> None:
    rows = [{"id": name, "n": name} for name in "abcd"]
    query = lq.compile('sample(seed=7)\n    "{n}[X]"\nwhere len(X) == 4')
    whole = query.map_sync(rows, model=RANDOM, session=lq.Session())
    other = query.map_sync([{"id": "new", "n": "x"}, rows[3], rows[1]], model=RANDOM, session=lq.Session())
    assert [result.prompt for result in other[1:]] == [whole[3].prompt, whole[1].prompt]

    async def main() -> dict[tuple[str, int], str]:
        streamed = query.rows(rows[:2], repeat=2, model=RANDOM, session=lq.Session())
        return {(each.id, each.repeat): each.result.prompt async for each in streamed}

    found = asyncio.run(main())
    assert found["a", 0] == whole[0].prompt and len(set(found.values())) == 4


def test_more_rows_at_a_time_than_a_model_here_keeps_change_nothing() -> None:
    running, most = 0, 0

    async def busy() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    lq.compile("await busy()").map_sync([{"busy": busy}] * 30, concurrency=64, model="demo")
    assert most <= lq.model("demo").sequences  # type: ignore[union-attr]


def test_rows_share_the_tree_so_that_equal_rows_are_asked_once() -> None:
    query = lq.compile('"Rome:[X]" where STOPS_BEFORE(X, "\\n")')
    model = lq.ScriptedModel("Rome: a hat\n")
    single = lq.ScriptedModel("Rome: a hat\n")
    query.run_sync(model=single, session=lq.Session())
    results = query.map_sync([{}] * 6, model=model, session=lq.Session(), concurrency=3)
    assert {result["X"] for result in results} == {" a hat"}
    assert model.calls <= single.calls + 1


def test_what_the_rows_learned_is_in_the_file_when_the_map_is_over_S34() -> None:
    query = lq.compile('"{place}:[X]" where len(X) == 3')
    rows = [{"place": place} for place in "abc"]
    model = lq.ScriptedModel("", certainty=0)
    first = query.map_sync(rows, model=model, cache="x.tokens", session=lq.Session())
    again = query.map_sync(rows, model=model, cache="x.tokens", cache_mode="replay", session=lq.Session())
    assert [result.prompt for result in again] == [result.prompt for result in first]


def test_each_row_has_a_trace_of_its_own(tmp_path: Path) -> None:
    WORD.map_sync(["a", "b"], trace=tmp_path / "run.json")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.0.json", "run.1.json"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number"),
        ({"concurrency": True}, "concurrency must be a whole number"),
        ({"on_error": "kepe"}, "on_error must be 'raise' or 'keep'"),
        ({"columns": "all"}, "columns must be 'carry' or 'strict'"),
    ],
    ids=["none", "bool", "on_error", "columns"],
)
def test_wrong_options_are_refused(options: Any, sentence: str) -> None:
    with pytest.raises(lq.InputError, match=sentence):
        WORD.map_sync(["a"], **options)


@pytest.mark.parametrize("rows", ["abc", {"word": "a"}, 3], ids=["text", "mapping", "number"])
def test_what_is_no_series_of_rows_is_refused(rows: Any) -> None:
    with pytest.raises(lq.InputError, match="rows must be a list"):
        WORD.map_sync(rows)
