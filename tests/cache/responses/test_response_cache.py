"""The response cache. Numbers are those of its reference: statements, findings (B), checks (A), upstream's tests."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import random
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmql_lite as lq
from lmql_lite.cache.responses.cache import ResponseCache
from lmql_lite.cache.responses.values import UnknownType, decoded, encoded
from lmql_lite.errors import CacheError, InputError, ModelError
from tests.cache.responses.models import Counting, OneByOne, generation, generations

COLUMNS = ["cache_key", "request_type", "task_name", "doc_id", "idx", "gen_kwargs", "response", "created_at"]


def pair(folder: Path, name: str = "rank0", **options: Any) -> ResponseCache:
    """A cache of one index and one log, as upstream's tests open it."""
    return ResponseCache(folder / f"{name}.db", folder / f"{name}.jsonl", **options)


def opened(folder: Path, rank: int = 0, **options: Any) -> ResponseCache:
    return ResponseCache.open(folder, model="m", rank=rank, **options)


def records(log: Path) -> list[dict[str, Any]]:
    return [
        record for line in log.read_text("utf-8").split("\n")[:-1] if (record := json.loads(line))["kind"] == "response"
    ]


# -- layout


def test_no_file_is_made_where_nothing_is_opened(tmp_path: Path) -> None:
    """Statement 1."""
    with opened(tmp_path, policy=lq.CachePolicy(mode="off")) as cache:
        assert len(cache.execute(Counting(), "generate_until", generations(2))) == 2
    assert list(tmp_path.iterdir()) == []


def test_files_of_a_rank_stand_under_the_model(tmp_path: Path) -> None:
    """Statements 2, 3, 5, 6 and A25: who may read them."""
    with opened(tmp_path, rank=3) as cache:
        cache.execute(Counting(), "generate_until", generations(1))
        folder = tmp_path / "6868c90d0c3f6533"
        assert {"rank3.db", "rank3.jsonl"} <= {path.name for path in folder.iterdir()}
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    with sqlite3.connect(folder / "rank3.db") as database:
        meta = dict(database.execute("SELECT key, value FROM meta"))
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        columns = [row[1] for row in database.execute("PRAGMA table_info(responses)")]
        indexes = database.execute("SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL").fetchall()
    database.close()
    about = {"model_fingerprint": "m|", "schema_version": "1", "model_fingerprint_hash": folder.name}
    assert meta.items() >= about.items()
    assert columns[:8] == COLUMNS and "(task_name, doc_id)" in indexes[0][0]  # statement 4


# -- asking


def test_only_new_requests_are_asked_and_the_order_is_kept(tmp_path: Path) -> None:
    """Statements 21, 22, A2 and upstream test 17."""
    with pair(tmp_path) as cache:
        cache.execute(Counting(), "generate_until", generations(500))
        mixed, model = generations(1000), Counting()
        random.Random(4).shuffle(mixed)
        answers = cache.execute(model, "generate_until", mixed)
        assert cache.execute(model, "generate_until", []) == []
    assert answers == [f"answer to {request.args[0]}" for request in mixed]
    assert model.calls == 1
    assert [request.doc_id for request in model.asked] == [each.doc_id for each in mixed if each.doc_id >= 500]


def test_counts_last_after_a_cache_is_closed_twice(tmp_path: Path) -> None:
    """Statements 40 and 41."""
    cache = pair(tmp_path)
    cache.execute(Counting(), "generate_until", generations(5))
    cache.close()
    cache.close()
    assert cache.get_stats()["total_cached_entries"] == 5 and cache.get_stats()["hit_rate"] == 0.0
    with pair(tmp_path) as cache:
        cache.execute(Counting(), "generate_until", generations(7))
        assert cache.get_stats()["hit_rate"] == 5 / 7


def test_a_cache_that_is_forgotten_closes_its_files(tmp_path: Path) -> None:
    """Statement 41."""
    cache = pair(tmp_path)
    cache.execute(Counting(), "generate_until", generations(1))
    del cache
    gc.collect()
    pair(tmp_path).close()  # the lock is free


def test_a_model_without_the_method_and_wrong_options_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pair(tmp_path) as cache:
        with pytest.raises(InputError, match="the model has no method 'generate'"):
            cache.execute(Counting(), "generate", generations(1))
        with pytest.raises(ModelError, match="the model returned str"):
            cache.execute(
                type("M", (), {"generate_until": lambda _, requests: "abc"})(), "generate_until", generations(3)
            )
    for wrong in ({"mode": "read"}, {"on_error": "stop"}, {"expiry": "soon"}, {"expiry": timedelta(days=1)}):
        with pytest.raises(InputError):
            lq.CachePolicy(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [2, 4])
def test_too_few_answers_or_too_many_are_an_error(tmp_path: Path, given: int) -> None:
    """Finding B20."""
    model = type("M", (), {"generate_until": lambda _, requests: ["x"] * given})()
    lazy = type("M", (), {"generate_until": lambda _, requests: iter(["x"] * given)})()
    with pair(tmp_path) as cache:
        for each in (model, lazy):
            with pytest.raises(ModelError, match=r"the model returned \d answers to 3 requests"):
                cache.execute(each, "generate_until", generations(3))


# -- sampling


def test_greedy_repeats_are_one_call_and_one_row(tmp_path: Path) -> None:
    """Statement 20, A8, finding B19 and upstream test 20."""
    for expected in (1, 0):
        model = Counting()
        with pair(tmp_path) as cache:
            assert cache.execute(model, "generate_until", [generation(1)] * 3) == ["answer to question 1"] * 3
            assert len(model.asked) == expected
            assert cache.get_stats()["total_cached_entries"] == 1
            assert cache.get_stats()["shared" if expected else "hits"] == (2 if expected else 3)


# -- the log


def test_each_answer_is_a_line_of_the_log(tmp_path: Path) -> None:
    """Statements 25, 26, 27 and upstream tests 24 and 25."""
    with pair(tmp_path) as cache:
        mixed = [generation(1), generation(2, {"temperature": 0.7}), generation(3, prompt="日本\u2028 \x00 'é'")]
        cache.execute(Counting(), "generate_until", mixed)
        data = (tmp_path / "rank0.jsonl").read_bytes()  # `tail -f` sees it before the cache is closed
    lines = data.decode("utf-8").split("\n")
    assert lines[-1] == "" and len(lines) == 5 and "日本" in lines[3]
    first, second, third = records(tmp_path / "rank0.jsonl")
    assert set(first) >= set(COLUMNS)
    assert first["deterministic"] and len(first["cache_key"]) == 64
    assert (second["deterministic"], second["cache_key"]) == (False, "")
    assert json.loads(third["response"]) == "answer to 日本\u2028 \x00 'é'"
    assert abs(first["created_at"] - time.time()) < 60
    assert first["gen_kwargs"] == '{"max_tokens":16,"temperature":0}'


# -- poisoning


POISON = [("generate_until", each) for each in (None, "", " \n")] + [
    ("loglikelihood", each) for each in ([0.5], (float("nan"), True), ["a", "b"])
]


@pytest.mark.parametrize(("kind", "answer"), POISON, ids=str)
def test_a_bad_answer_is_returned_and_never_served(tmp_path: Path, kind: str, answer: Any) -> None:
    """Statements 27, 31, 32, 34, A14, finding B1: not after a reopen, nor when the index is lost."""
    is_malformed = answer is not None and kind == "loglikelihood"
    for _ in range(3):
        model = Counting(lambda _: answer)
        with pair(tmp_path) as cache:
            with pytest.warns(RuntimeWarning, match="is not kept") if is_malformed else nullcontext():
                got = cache.execute(model, kind, [generation(1)])[0]
            assert len(cache.notices) == is_malformed
            assert got is answer
            assert len(model.asked) == 1
            stats = cache.get_stats()
            assert (stats["rejected"], stats["total_cached_entries"]) == (1, 0)
        (tmp_path / "rank0.db").unlink()
    logged = records(tmp_path / "rank0.jsonl")
    assert len(logged) == 3 and all(each["cache_key"] == "" and each["rejected"] for each in logged)


# -- values


VALUES: list[Any] = [
    "plain", "NUL \x00", "a\u2028b", "😀 عربى 日本", "\ud83d", "\ud83d\ude00 and \ud800", 'quote " and \\ back', "{}",
    "x" * 100_000,
    ["a", ["b", 1]], ("a", ("b",)), {"a": 1, "b": [None, True]}, {1: "int name"}, {"$": "tag"}, b"bytes\xff", 5, 2.5,
    10**30, float("inf"), True, [float("nan")], ("\ud800", {"\udfff": 1}), [], {},
    lq.Reply("text", {"completion_tokens": 5, "prompt_tokens": None}, "stop"),
    lq.Reply("", None, "tool_calls", [{"name": "f", "arguments": {"x": (1, 2)}}]),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: ascii(value)[:30])
def test_a_hit_equals_the_miss_in_value_and_type(tmp_path: Path, value: Any) -> None:
    """Statement 24, A23, findings B15 and B17."""
    model = Counting(lambda _: value)
    with pair(tmp_path) as cache:
        assert cache.execute(model, "generate_until", [generation(1)])[0] is value
    for _ in range(2):
        with pair(tmp_path) as cache:
            hit = cache.execute(model, "generate_until", [generation(1)])[0]
        assert repr(hit) == repr(value) and type(hit) is type(value)
        (tmp_path / "rank0.db").unlink()
    assert len(model.asked) == 1


@pytest.mark.slow
def test_an_answer_of_64_mib_is_kept(tmp_path: Path) -> None:
    """A23."""
    text = "ab\n" * (64 * 2**20 // 3)
    with pair(tmp_path) as cache:
        cache.execute(Counting(lambda _: text), "generate_until", [generation(1)])
    (tmp_path / "rank0.db").unlink()
    with pair(tmp_path) as cache:
        hit = cache.lookup(generation(1))
        assert hit is not None and hit.response == text


class Own:
    pass


@pytest.mark.parametrize(
    "value", [Own(), {"a": Own()}, {1, 2}, np.zeros(3), Counting], ids=lambda value: type(value).__name__
)
def test_an_unknown_type_is_returned_and_refused_in_a_sentence(tmp_path: Path, value: Any) -> None:
    """A23, finding B17 and the bad input of the issue."""
    with pair(tmp_path) as cache:
        with pytest.warns(RuntimeWarning, match="cannot be kept"):
            assert cache.execute(Counting(lambda _: value), "generate_until", [generation(1)])[0] is value
        assert cache.get_stats()["rejected"] == 1
        assert not cache.store(generation(1), value)
    assert "cannot be kept" in records(tmp_path / "rank0.jsonl")[0]["rejected"]
    with pytest.raises(UnknownType, match="cannot be kept"):
        encoded(value)


def test_a_number_of_numpy_is_kept_as_a_number() -> None:
    assert decoded(encoded((np.float64(-1.5), np.int32(2)))) == (-1.5, 2)


def test_values_that_only_a_newer_version_knows_are_no_answer() -> None:
    with pytest.raises(ValueError, match="unknown kind of value"):
        decoded('{"$":"picture","v":1}')


@pytest.mark.parametrize("pair_of", [(np.float32(-1.5), np.bool_(True)), [np.float64(-1.5), True],
                                     (-2, np.bool_(False)), (np.float16(-1.5), False)], ids=repr)  # fmt: skip
def test_a_loglikelihood_of_numpy_is_kept_as_python_numbers(tmp_path: Path, pair_of: Any) -> None:
    model = Counting(lambda _: pair_of)
    for _ in range(2):
        with pair(tmp_path) as cache:
            got = cache.execute(model, "loglikelihood", [generation(1)])[0]
            assert list(got) == list(pair_of) and type(got) is type(pair_of)
            assert cache.get_stats()["rejected"] == 0 and cache.notices == []
    assert len(model.asked) == 1 and {type(each) for each in got} <= {int, float, bool}


def test_an_answer_that_cannot_be_kept_is_one_warning_for_each_cause(tmp_path: Path) -> None:
    answers: list[Any] = [object(), object(), "", None, {1, 2}]
    with opened(tmp_path) as cache:
        with pytest.warns(RuntimeWarning, match="an answer is not kept, and is asked for again") as caught:
            cache.execute(Counting(lambda each: answers[each.doc_id]), "generate_until", generations(5))
        cache_again = [str(each.message) for each in caught]
        assert len(cache_again) == len(cache.notices) == 2
        cache.execute(Counting(lambda each: answers[each.doc_id]), "generate_until", generations(5))
        assert cache.get_stats()["rejected"] == 10


def test_loglikelihoods_of_options_are_kept_and_found(tmp_path: Path) -> None:
    """Statements 12, 14 and A24: the gap that the seed names."""
    requests = [
        lq.Request("loglikelihood", (context, f" option {option}"), option, {"task": "arc", "doc_id": 7})
        for option in range(4)
        for context in ("which?", "")
    ]
    scores = {(each.args[0], each.idx): (-0.5 - each.idx - len(each.args[0]), each.idx == 2) for each in requests}
    model = Counting(lambda request: scores[request.args[0], request.idx])
    for run in range(2):
        with pair(tmp_path) as cache:
            answers = cache.execute(model, "loglikelihood", requests)
            assert answers == [scores[each.args[0], each.idx] for each in requests]
            assert all(type(each) is tuple and type(each[0]) is float and type(each[1]) is bool for each in answers)
            assert cache.get_stats()["total_cached_entries"] == 8
        assert model.calls == 1, run
    with pair(tmp_path, "b", policy=lq.CachePolicy(minus_infinity=True)) as cache:
        cache.execute(Counting(lambda _: (float("-inf"), False)), "loglikelihood", requests)
        assert cache.lookup(requests[0]) is not None


# -- errors of the model


def test_what_was_answered_before_an_error_is_kept(tmp_path: Path) -> None:
    """A11, findings B2: item 900 of 1000 fails."""
    with pair(tmp_path) as cache, pytest.raises(RuntimeError, match="out of memory"):
        cache.execute(OneByOne(fail_at=900), "generate_until", generations(1000))
    with pair(tmp_path) as cache:
        model = OneByOne()
        assert len(cache.execute(model, "generate_until", generations(1000))) == 1000
        assert len(model.asked) == 100


# -- policies


def test_a_refreshed_answer_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """A25, finding B18: live and after the index is lost."""
    with pair(tmp_path) as cache:
        cache.execute(Counting(lambda _: "first"), "generate_until", generations(2))
    with pair(tmp_path, policy=lq.CachePolicy(mode="refresh")) as cache:
        cache.execute(Counting(lambda _: "second"), "generate_until", generations(1))
    for _ in range(2):
        with pair(tmp_path) as cache:
            assert cache.execute(Counting(), "generate_until", generations(2)) == ["second", "first"]
        (tmp_path / "rank0.db").unlink()


def test_the_first_answer_stays_where_nothing_replaces_it(tmp_path: Path) -> None:
    """Statements 28 and 29, finding B18: one rule, live and after the index is lost."""
    with pair(tmp_path) as cache:
        assert cache.store(generation(1), "first") and cache.store(generation(1), "second")
        hit = cache.lookup(generation(1))
        assert hit is not None and hit.response == "first"
    (tmp_path / "rank0.db").unlink()
    with pair(tmp_path) as cache:
        assert cache.execute(Counting(), "generate_until", [generation(1)]) == ["first"]


def test_an_old_answer_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A25: expiry."""
    with pair(tmp_path) as cache:
        cache.execute(Counting(lambda _: "old"), "generate_until", generations(1))
    later = time.time() + 8 * 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    for _ in range(2):
        with pair(tmp_path, policy=lq.CachePolicy(expiry="7D")) as cache:
            assert cache.execute(Counting(lambda _: "new"), "generate_until", generations(1)) == ["new"]
            assert len(records(tmp_path / "rank0.jsonl")) == 2
    with pair(tmp_path) as cache:
        assert cache.execute(Counting(), "generate_until", generations(1)) == ["new"]


def test_a_cache_that_only_reads_changes_nothing(tmp_path: Path) -> None:
    """A25: read-only."""
    with opened(tmp_path) as cache:
        cache.execute(Counting(), "generate_until", generations(2))
    log = next(tmp_path.rglob("*.jsonl"))
    before = log.read_bytes()
    model = Counting()
    with opened(tmp_path, policy=lq.CachePolicy(mode="ro")) as cache:
        assert len(cache.execute(model, "generate_until", generations(3))) == 3
        assert not cache.store(generation(9), "x")
    assert [each.doc_id for each in model.asked] == [2] and log.read_bytes() == before


def test_a_key_of_an_api_is_in_no_file(tmp_path: Path) -> None:
    """A25 and finding B28."""
    options = {"temperature": 0, "api_key": "sk-secret-1", "extra_headers": {"Authorization": "Bearer sk-secret-2"}}
    with ResponseCache.open(tmp_path / "a b ü", model="m", model_args="api_key=sk-secret-3") as cache:
        cache.execute(Counting(), "generate_until", [generation(1, options), generation(2, options | {"n": 2})])
    pair(tmp_path / "a b ü", model_fingerprint="m|x=1,api_key=sk-secret-4").close()
    found = b"".join(path.read_bytes() for path in (tmp_path / "a b ü").rglob("*") if path.is_file())
    assert b"answer to question 1" in found and b"sk-secret" not in found


def test_one_file_cannot_be_index_and_log(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be both the index and the log"):
        ResponseCache(tmp_path / "x.db", tmp_path / "x.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_may_be_a_link(tmp_path: Path) -> None:
    """A25 and finding B33."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with opened(tmp_path / "link") as cache:
        cache.execute(Counting(), "generate_until", generations(1))
    with opened(tmp_path / "real") as cache:
        assert cache.lookup(generation(0)) is not None


# -- many at once


def test_threads_that_ask_the_same_ask_once(tmp_path: Path) -> None:
    """A18, finding B21: 16 threads on 50 prompts."""
    model, got = Counting(), []

    def slow(request: lq.Request) -> str:
        time.sleep(0.001)
        return f"answer to {request.args[0]}"

    model.answer = slow
    with opened(tmp_path) as cache:

        def work(seed: int) -> None:
            requests = generations(50)
            random.Random(seed).shuffle(requests)
            for start in range(0, 50, 5):
                part = requests[start : start + 5]
                got.append(cache.execute(model, "generate_until", part) == [slow(each) for each in part])

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == [True] * 160
    assert sorted(each.doc_id for each in model.asked) == list(range(50))


class Async:
    """A model with async methods: a coroutine and an async iterator."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.fail = False

    async def generate_until(self, requests: list[lq.Request]) -> list[str]:
        await asyncio.sleep(0.001)
        if self.fail:
            self.fail = False
            raise RuntimeError("the server is down")
        self.asked += [request.doc_id for request in requests]
        return [f"answer to {request.args[0]}" for request in requests]

    async def loglikelihood(self, requests: list[lq.Request]) -> AsyncIterator[Any]:
        for request in requests:
            self.asked.append(request.doc_id)
            yield -1.0, True


def test_tasks_that_ask_the_same_ask_once(tmp_path: Path) -> None:
    """A18: 200 tasks on 50 prompts, a coroutine, an async iterator, and a blocking model."""

    async def run() -> None:
        model, blocking = Async(), Counting()
        with opened(tmp_path) as cache:
            answers = await asyncio.gather(
                *(cache.aexecute(model, "generate_until", [generation(number % 50)]) for number in range(200))
            )
            assert answers == [[f"answer to question {number % 50}"] for number in range(200)]
            assert sorted(model.asked) == list(range(50))
            assert await cache.aexecute(model, "loglikelihood", generations(3)) == [(-1.0, True)] * 3
            assert await cache.aexecute(blocking, "generate_until", generations(3, 100)) == [
                f"answer to question {number}" for number in (100, 101, 102)
            ]
            assert await cache.aexecute(OneByOne(), "generate_until", generations(2, 200)) != []
            assert cache.get_stats()["total_cached_entries"] == 58

    asyncio.run(run())


def test_where_the_first_asker_fails_the_next_one_asks(tmp_path: Path) -> None:
    """A18: only the one whose call failed sees the error."""

    async def run() -> None:
        model = Async()
        model.fail = True
        with opened(tmp_path) as cache:
            answers = await asyncio.gather(
                *(cache.aexecute(model, "generate_until", [generation(1)]) for _ in range(5)), return_exceptions=True
            )
        assert sorted(map(str, answers)) == ["['answer to question 1']"] * 4 + ["the server is down"]
        assert model.asked == [1]

    asyncio.run(run())


def test_a_task_that_is_cancelled_leaves_the_question_to_another(tmp_path: Path) -> None:
    async def run() -> None:
        model = Async()
        with opened(tmp_path) as cache:
            first = asyncio.create_task(cache.aexecute(model, "generate_until", [generation(1)]))
            await asyncio.sleep(0)
            second = asyncio.create_task(cache.aexecute(model, "generate_until", [generation(1)]))
            await asyncio.sleep(0)
            first.cancel()
            assert await second == ["answer to question 1"]
            with pytest.raises(asyncio.CancelledError):
                await first

    asyncio.run(run())


def test_a_model_that_asks_the_cache_itself_does_not_wait_for_itself(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        inner = Counting()
        outer = Counting(lambda request: cache.execute(inner, "generate_until", [request])[0])
        assert cache.execute(outer, "generate_until", [generation(1)]) == ["answer to question 1"]

        class Outer:
            async def generate_until(self, requests: list[lq.Request]) -> list[Any]:
                return await cache.aexecute(inner, "generate_until", requests)

        for model in (Outer(), outer):
            asked = cache.aexecute(model, "generate_until", [generation(len(inner.asked) + 1)])
            assert asyncio.run(asyncio.wait_for(asked, 60)) == [f"answer to question {len(inner.asked)}"]


def test_answers_in_flight_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding B23: 64 in flight need far fewer syncs than answers; with one in flight it is one each."""
    syncs = []
    import os as real

    fsync = real.fsync
    monkeypatch.setattr("os.fsync", lambda descriptor: (syncs.append(descriptor), time.sleep(0.004), fsync(descriptor)))

    async def run(width: int, count: int, start: int) -> None:
        with opened(tmp_path) as cache:
            waiting = iter(generations(count, start))

            async def worker() -> None:
                for each in waiting:
                    await cache.aexecute(Async(), "generate_until", [each])

            await asyncio.gather(*(worker() for _ in range(width)))

    asyncio.run(run(64, 640, 0))
    assert len(syncs) < 64
    syncs.clear()
    asyncio.run(run(1, 10, 1000))
    assert 10 <= len(syncs) <= 11


# -- our own models


def test_our_models_answer_requests_through_an_adapter(tmp_path: Path) -> None:
    prompt = "Things to pack for the beach:\n-"
    requests = [lq.Request("generate_until", (prompt, {"until": ["\n"], "max_new_tokens": 20})),
                lq.Request("generate_until", (prompt, {"max_tokens": 3, "temperature": 0.0}))]  # fmt: skip
    whale = "Is a whale a bird, a fish or a mammal?\nAnswer:"
    scored = [lq.Request("loglikelihood", (whale, option), idx) for idx, option in enumerate((" bird", " mammal"))]

    async def run() -> tuple[list[Any], list[Any], dict[str, Any]]:
        model = lq.RequestModel("demo", lq.Session())
        with ResponseCache.open(tmp_path, model="demo") as cache:
            answers = await cache.aexecute(model, "generate_until", requests)
            scores = await cache.aexecute(model, "loglikelihood", scored)
            return answers, scores, cache.get_stats()

    first, second = asyncio.run(run()), asyncio.run(run())
    assert first[:2] == second[:2] and (first[2]["hits"], second[2]["hits"]) == (0, 4)
    assert first[0][0] == lq.generate_sync(prompt, stop="\n", max_tokens=20, model="demo")
    options = lq.score_sync(whale, [" bird", " mammal"], model="demo")
    assert [score for score, _ in first[1]] == pytest.approx(list(options.logprobs))
    greedy = lq.generate_sync(whale, max_tokens=4, model="demo")
    assert [is_greedy for _, is_greedy in first[1]] == [greedy.startswith(each.args[1]) for each in scored]


def test_the_adapter_refuses_what_a_query_does_not_have(tmp_path: Path) -> None:
    async def run(request: lq.Request) -> None:
        with opened(tmp_path) as cache:
            await cache.aexecute(lq.RequestModel("demo", lq.Session()), "generate_until", [request])

    for request in (generation(1, {"num_beams": 4}), lq.Request("generate_until", (b"image",))):
        with pytest.raises(InputError, match=r"no option 'num_beams'|argument 1 of a request is a text"):
            asyncio.run(run(request))


def test_a_newer_index_or_log_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Statement 15, A15, finding B26, and the bad input of the issue."""
    pair(tmp_path).close()
    with sqlite3.connect(tmp_path / "rank0.db") as database:
        database.execute("UPDATE meta SET value = '2' WHERE key = 'schema_version'")
    database.close()
    before = (tmp_path / "rank0.db").read_bytes()
    with pytest.raises(CacheError, match="newer version"):
        pair(tmp_path)
    assert (tmp_path / "rank0.db").read_bytes() == before
    from lmql_lite.store.log import line_of

    log = tmp_path / "other.jsonl"
    log.write_bytes(line_of({"kind": "cache", "schema": 2, "model_hash": "x"}))
    with pytest.raises(CacheError, match="newer version"):
        pair(tmp_path, "other")
    assert log.read_bytes() == line_of({"kind": "cache", "schema": 2, "model_hash": "x"})


def test_the_page_runs_as_it_stands(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (root / "docs" / "responses.md").read_text("utf-8")
    names: dict[str, Any] = {}
    for text in page.split("```python\n")[1:]:
        exec(compile(text.split("```")[0], "responses.md", "exec"), names)
    assert capsys.readouterr().out.splitlines() == [
        "['I say: Question 1', 'I say: Question 2'] 2",
        "['I say: Question 1', 'I say: Question 2'] 2",
    ]


def test_every_policy_and_command_is_on_the_page(root: Path) -> None:
    from lmql_lite.apps.responses_command import responses

    page = (root / "docs" / "responses.md").read_text("utf-8")
    for field in dataclasses.fields(lq.CachePolicy):
        assert f"| `{field.name}` |" in page
    for name, command in responses.commands.items():
        assert f"`{name}" in page or f"responses {name}" in page, name
        assert command.help
