"""`map`: many rows, so many at a time, in order; errors, cancellation and seeds (S28, S34)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.runtime.rows import each, seed_of_row

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
    assert caught.value.__notes__ == ["in rows[0] of a map"]
    with pytest.raises(lq.InputError, match="reads no input 'wrod'"):
        WORD.map_sync([{"wrod": 1}])


def test_rows_of_a_function_are_calls() -> None:
    assert [result.value for result in shouted.map_sync(["a", {"word": "b", "times": 2}])] == ["A", "BB"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'wrod'"):
        shouted.map_sync([{"word": "a", "wrod": "a"}])


def test_no_more_rows_are_taken_than_run_at_once() -> None:
    taken, running, most = 0, 0, 0

    def rows() -> Iterator[str]:
        nonlocal taken
        for number in range(20):
            taken += 1
            assert taken <= number + 1
            yield str(number)

    async def work(number: int, row: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert taken <= number + 3
        await asyncio.sleep(0)
        running -= 1
        return row

    told: list[tuple[int, int | None]] = []
    answers = asyncio.run(each(rows(), work, 3, lambda done, total: told.append((done, total)), "raise"))
    assert answers == [str(number) for number in range(20)] and most == 3
    assert told == [(done, None) for done in range(1, 21)]


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
    assert isinstance(second, ZeroDivisionError) and second.__notes__ == ["in rows[1] of a map"]


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
    assert caught.value.__notes__ == ["in rows[3] of a map"]
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
    assert [result.seed for result in results] == [seed_of_row(7, number) for number in range(5)]
    again = DICE.map_sync([{}] * 5, model=RANDOM, session=lq.Session(), concurrency=1, **said)
    assert [result.prompt for result in again] == [result.prompt for result in results]
    alone = DICE.run_sync(model=RANDOM, seed=results[3].seed)
    assert alone["X"] == results[3]["X"]


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
        ({"concurrency": 0}, "concurrency is a whole number"),
        ({"concurrency": True}, "concurrency is a whole number"),
        ({"on_error": "kepe"}, "on_error is 'raise' or 'keep'"),
    ],
    ids=["none", "bool", "on_error"],
)
def test_wrong_options_are_refused(options: Any, sentence: str) -> None:
    with pytest.raises(lq.InputError, match=sentence):
        WORD.map_sync(["a"], **options)


@pytest.mark.parametrize("rows", ["abc", {"word": "a"}, 3], ids=["text", "mapping", "number"])
def test_what_is_no_series_of_rows_is_refused(rows: Any) -> None:
    with pytest.raises(lq.InputError, match="rows are a list"):
        WORD.map_sync(rows)
