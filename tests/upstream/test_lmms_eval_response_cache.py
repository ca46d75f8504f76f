"""Promises of lmms-eval's response cache that its own tests check, at our public door; the numbers are theirs.

Different on purpose: the log begins with a line about itself, the key of every request holds the prompt and the model,
and samples and bad answers have no key in the log.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.cache.responses.keys import KeyMaker


class Model:
    """A model with prepared answers, which notes the documents that it is asked about."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[Any]()

    def generate_until(self, requests: list[lq.Request]) -> list[Any]:
        self.asked += [request.doc_id for request in requests]
        return [self.answers.pop(0) for _ in requests]

    loglikelihood = generate_until


def request(doc_id: int = 0, prompt: str = "prompt", idx: int = 0, **options: Any) -> lq.Request:
    """A request as tasks of lmms-eval make it."""
    arguments = (prompt, {"temperature": 0, "until": ["\n"]} | options, None, doc_id, "mme", "test")
    return lq.Request("generate_until", arguments, idx, {"task": "mme", "doc_id": doc_id, "repeats": 1})


def option(context: str, idx: int = 0) -> lq.Request:
    return lq.Request("loglikelihood", (context, " yes"), idx, {"task": "arc", "doc_id": 0})


def cache_in(folder: Path, name: str = "rank0", **options: Any) -> lq.ResponseCache:
    return lq.ResponseCache(folder / f"{name}.db", folder / f"{name}.jsonl", **options)


def key(one: lq.Request, tasks: Mapping[str, str] | None = None) -> str:
    return KeyMaker("m|", tasks, 0.0).key(one.request_type, one).key


def lines(log: Path) -> list[dict[str, Any]]:
    return [found for line in log.read_text("utf-8").splitlines() if (found := json.loads(line))["kind"] == "response"]


# -- which requests are deterministic (1 to 5)


@pytest.mark.parametrize("options", [{"temperature": 999}, {}, {"temperature": None}])
def test_a_loglikelihood_is_deterministic_whatever_its_options_say(options: dict[str, Any]) -> None:
    assert key(lq.Request("loglikelihood", ("a", "b", options)))


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.0}, {}, {"temperature": None}])
def test_a_temperature_of_zero_or_none_is_deterministic(options: dict[str, Any]) -> None:
    assert key(lq.Request("generate_until", ("a", options)))


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.7}, {"temperature": 1}, {"temperature": 0.01}, {"temperature": 0, "do_sample": True}, {"n": 2},
     {"best_of": 2}, {"num_return_sequences": 2}],
    ids=str,
)  # fmt: skip
def test_a_request_that_samples_has_no_key(options: dict[str, Any]) -> None:
    assert key(lq.Request("generate_until", ("a", options))) == ""


# -- keys (6 to 11)


def test_a_conditional_and_an_unconditional_loglikelihood_have_keys_of_their_own() -> None:
    assert key(option("a question")) != key(option(""))


def test_the_options_of_one_document_have_keys_of_their_own() -> None:
    assert key(option("a question")) != key(option("a question", 1))


def test_zero_as_a_whole_number_and_as_a_fraction_is_one_key() -> None:
    assert key(request(temperature=0)) == key(request(temperature=0.0))


def test_another_task_fingerprint_is_another_key() -> None:
    keys = {key(request(), {"mme": each}) for each in ("one", "two")}
    assert len(keys) == 2


def test_options_are_found_among_the_arguments_and_may_be_missing() -> None:
    assert key(request(max_new_tokens=5)) != key(request(max_new_tokens=6))
    assert key(lq.Request("generate_until", ("a", None, 3)))


# -- bad answers (12 to 15)


@pytest.mark.parametrize(
    ("kind", "answer", "is_kept"),
    [("generate_until", None, False), ("generate_until", "", False), ("generate_until", "  ", False),
     ("generate_until", "an answer", True), ("loglikelihood", [0.5], False), ("loglikelihood", "text", False),
     ("loglikelihood", [0.5, True], True)],
    ids=str,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*an answer is not kept")
def test_only_a_good_answer_is_kept(tmp_path: Path, kind: str, answer: Any, is_kept: bool) -> None:
    with cache_in(tmp_path) as cache:
        assert cache.execute(Model(answer), kind, [request()]) == [answer]
        assert cache.get_stats()["total_cached_entries"] == is_kept


# -- runs (16 to 25)


def test_a_second_run_is_served_from_the_cache(tmp_path: Path) -> None:
    requests = [request(number, f"prompt {number}") for number in range(3)]
    with cache_in(tmp_path) as cache:
        assert cache.execute(Model("a", "b", "c"), "generate_until", requests) == ["a", "b", "c"]
        assert cache.get_stats()["misses"] == 3
    silent = Model()
    with cache_in(tmp_path) as cache:
        assert cache.execute(silent, "generate_until", requests) == ["a", "b", "c"]
        assert cache.get_stats()["hits"] == 3 and silent.asked == []


def test_only_a_new_document_is_asked_about(tmp_path: Path) -> None:
    with cache_in(tmp_path) as cache:
        cache.execute(Model("a", "b"), "generate_until", [request(0), request(2)])
        model = Model("new")
        answers = cache.execute(model, "generate_until", [request(0), request(1), request(2)])
        assert answers == ["a", "new", "b"] and model.asked == [1]


@pytest.mark.parametrize("options", [{"temperature": 0.7}, {"temperature": 0, "do_sample": True}])
def test_repeats_of_a_sampling_request_are_all_asked_and_never_kept(tmp_path: Path, options: dict[str, Any]) -> None:
    repeats = [request(**options)] * 3
    for answers in (["a", "b", "c"], ["d", "e", "f"]):
        with cache_in(tmp_path) as cache:
            assert cache.execute(Model(*answers), "generate_until", repeats) == answers
            stats = cache.get_stats()
            assert (stats["skipped_non_deterministic"], stats["total_cached_entries"]) == (3, 0)
    logged = lines(tmp_path / "rank0.jsonl")
    assert len(logged) == 6 and not any(each["deterministic"] for each in logged)


def test_repeats_of_a_greedy_request_are_hits_of_one_row(tmp_path: Path) -> None:
    with cache_in(tmp_path) as cache:
        cache.execute(Model("a"), "generate_until", [request()])
        assert cache.execute(Model(), "generate_until", [request()] * 3) == ["a"] * 3
        assert (cache.get_stats()["hits"], cache.get_stats()["total_cached_entries"]) == (3, 1)


def test_a_mixed_batch_logs_both_kinds_and_keeps_one(tmp_path: Path) -> None:
    with cache_in(tmp_path) as cache:
        cache.execute(Model("greedy", "sampled"), "generate_until", [request(0), request(1, temperature=1)])
        assert cache.get_stats()["total_cached_entries"] == 1
    greedy, sampled = lines(tmp_path / "rank0.jsonl")
    assert greedy["deterministic"] and len(greedy["cache_key"]) == 64
    assert not sampled["deterministic"] and json.loads(sampled["response"]) == "sampled"


# -- crashes, ranks, models, counts (26 to 34)


def test_a_lost_database_is_made_again_from_the_log(tmp_path: Path) -> None:
    with cache_in(tmp_path) as cache:
        cache.execute(Model("survivor"), "generate_until", [request()])
    for path in tmp_path.glob("rank0.db*"):
        path.unlink()
    with cache_in(tmp_path) as cache:
        hit = cache.lookup(request())
        assert hit is not None and hit.response == "survivor"


def test_ranks_write_independently_and_a_reopened_one_has_its_answers(tmp_path: Path) -> None:
    """The cache is opened again without a fingerprint: it counts what is in its files."""
    for rank in range(2):
        with cache_in(tmp_path, f"rank{rank}", model_fingerprint="model A") as cache:
            cache.execute(Model("a", "b"), "generate_until", [request(2 * rank), request(2 * rank + 1)])
            assert cache.get_stats()["total_cached_entries"] == 2
    with cache_in(tmp_path) as cache:
        assert cache.get_stats()["total_cached_entries"] == 2 and cache.notices == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.db", "rank0.jsonl", "rank1.db", "rank1.jsonl"]


@pytest.mark.parametrize(("second", "count"), [(1, 2), (0, 1)])
def test_merged_shards_have_each_answer_once(tmp_path: Path, second: int, count: int) -> None:
    for rank, number in enumerate((0, second)):
        with cache_in(tmp_path, f"rank{rank}") as cache:
            cache.execute(Model("answer"), "generate_until", [request(number)])
    merged = tmp_path / "merged.db"
    lq.ResponseCache.merge_shards([tmp_path / "rank0.db", tmp_path / "rank1.db"], merged)
    database = sqlite3.connect(merged)
    assert database.execute("SELECT COUNT(*) FROM responses").fetchone() == (count,)
    database.close()


def test_the_fingerprint_of_the_model_is_in_the_database(tmp_path: Path) -> None:
    cache_in(tmp_path, model_fingerprint="model A|args").close()
    database = sqlite3.connect(tmp_path / "rank0.db")
    meta = dict(database.execute("SELECT key, value FROM meta"))
    database.close()
    assert meta["model_fingerprint"] == "model A|args" and len(meta["model_fingerprint_hash"]) == 16


def test_two_models_do_not_share_an_answer(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with cache_in(tmp_path, name, model_fingerprint=name) as cache:
            assert cache.execute(Model(f"of {name}"), "generate_until", [request()]) == [f"of {name}"]
            assert (cache.get_stats()["hits"], cache.get_stats()["misses"]) == (0, 1)


def test_the_number_of_answers_grows_over_reopening_and_the_counters_begin_anew(tmp_path: Path) -> None:
    with cache_in(tmp_path) as cache:
        cache.execute(Model(*"abcde"), "generate_until", [request(number) for number in range(5)])
    with cache_in(tmp_path) as cache:
        stats = cache.get_stats()
        assert (stats["hits"], stats["misses"], stats["skipped_non_deterministic"]) == (0, 0, 0)
        assert stats["total_cached_entries"] == 5
        cache.execute(Model(*"fg"), "generate_until", [request(5), request(6)])
    with cache_in(tmp_path) as cache:
        assert cache.get_stats()["total_cached_entries"] == 7


def test_a_thousand_requests_are_written_and_read_within_ten_seconds(tmp_path: Path) -> None:
    requests, answers = [request(number) for number in range(1000)], [f"answer {number}" for number in range(1000)]
    for model in (Model(*answers), Model()):
        began = time.process_time()
        with cache_in(tmp_path) as cache:
            assert cache.execute(model, "generate_until", requests) == answers
        assert time.process_time() - began < 10


# -- agentic rounds


def agentic(prompt: str) -> lq.Request:
    """A request of an agentic task: two of its arguments are functions."""

    def next_round(doc: Any, output: Any, number: int, state: Any) -> Any:
        return None, None, True, output, {"round": number, "before": state}

    arguments = (prompt, {"temperature": 0, "max_agentic_steps": 2}, lambda doc: [], next_round, 0, "agentic", "test")
    return lq.Request("generate_until", arguments, metadata={"task": "agentic", "doc_id": 0})


def test_a_round_of_an_agent_is_kept_by_its_prompt(tmp_path: Path) -> None:
    with cache_in(tmp_path, model_fingerprint="agent") as cache:
        model = Model("to a", "to b")
        for prompt in ("a", "b", "a", "b"):
            assert cache.execute(model, "generate_until", [agentic(prompt)]) == [f"to {prompt}"]
    assert model.asked == [0, 0]
