"""Keys of requests. Numbers are the statements and checks (A) of the response cache's reference."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lmql_lite as lq
from lmql_lite.cache.responses.keys import (
    KeyMaker,
    canonical_options,
    fingerprint_model,
    fingerprint_task,
    model_hash,
    seed_key,
    seed_options,
    without_user,
)
from lmql_lite.cache.responses.request import Request, is_deterministic, rejection
from tests.cache.responses.models import GREEDY, Counting, generation

KEYS = KeyMaker("m|", {"mme": "tf1"}, 0.0)


def by_the_seed(payload: dict[str, Any]) -> str:
    """The seed's formula, computed without our code."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


GOLDEN = [
    ("generate_until", "mme", 3, 0, '{"temperature":0}', {"temperature": 0.0}, "", ""),
    ("generate_until", "mme", 3, 0, '{"temperature":0}', {"temperature": 0, "unknown": 1}, "", "abc"),
    ("generate_until", "mme", "3", 0, "{}", {}, "", ""),
    ("generate_until", "mme", -3, 2, '{"top_p":0.95}', {"top_p": 0.95}, "", ""),
    ("generate_until", "mme", 3, 0, '{"until":["\\n","b"]}', {"until": ["\n", "b"]}, "", ""),
    ("generate_until", "mme", 3, 0, '{"do_sample":1}', {"do_sample": 1}, "", ""),
    ("generate_until", "mme", 3, 0, '{"top_k":40}', {"top_k": 40.0}, "", ""),
    ("generate_until", "mme", 3, 0, '{"until":[1.0,{"a":2}]}', {"until": [1.0, {"a": 2}]}, "", ""),
    ("generate_until", "mme", 3, 0, '{"max_gen_toks":5,"max_new_tokens":5}', {"max_new_tokens": 5, "max_gen_toks": 5},
     "", ""),
    ("generate_until", "m\u2028\ud83d", 3, 0, "{}", {"api_key": "x"}, "", ""),
    ("loglikelihood", "arc", 1, 3, "{}", {}, "0123", ""),
    ("loglikelihood", "arc", 1, 3, "{}", {}, "4567", "abc"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "task", "doc", "idx", "gk", "options", "ch", "tf"), GOLDEN)
def test_the_seeds_key_byte_for_byte(
    kind: str, task: str, doc: Any, idx: int, gk: str, options: Any, ch: str, tf: str
) -> None:
    """Statements 7 to 14, A3."""
    payload = {"v": 1, "rt": kind, "tn": task, "did": doc, "idx": idx, "gk": gk}
    payload |= {name: value for name, value in (("ch", ch), ("tf", tf)) if value}
    assert seed_options(options) == gk
    assert seed_key(kind, task, doc, idx, options, content_hash=ch, task_fingerprint=tf) == by_the_seed(payload)


def key(request: Request, keys: KeyMaker = KEYS) -> str:
    return keys.key(request.request_type, request).key


def test_a_key_stays_that_of_the_caches_on_disk() -> None:
    asked = Request("generate_until", ("question 1", {"temperature": 0}), metadata={"task": "mme", "doc_id": 1})
    assert key(asked) == "b3b7159b9da1ffb023c73ab0a53c8ff35e6901bc4ffc144cb2e216f11a35d180"


def variant(**changes: Any) -> Request:
    options = GREEDY | changes
    return generation(1, {name: value for name, value in options.items() if value is not ...})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (generation(1, {"temperature": 0.0}), generation(1, {"temperature": -0.0})),
        (generation(1, {"temperature": 0, "n": 1}), generation(1, {"n": 1.0, "temperature": 0.0})),
        (generation(1, {"max_new_tokens": 5}), generation(1, {"max_tokens": 5})),
        (generation(1, {"until": "a"}), generation(1, {"stop": ["a"]})),
        (generation(1, {"stop": ("a", "b")}), generation(1, {"stop": ["a", "b"]})),
        (generation(1, {"top_k": np.int64(5)}), generation(1, {"top_k": 5})),
        (variant(api_key="sk-1"), variant(api_key="sk-2")),
        (variant(timeout=1, retries=2, batch_size=8), variant(timeout=9)),
        (variant(extra_body={"a": 1, "b": 2.0}), variant(extra_body={"b": 2, "a": 1})),
        (generation(1, {"allowed": {"a", "b", "c"}}), generation(1, {"allowed": {"c", "b", "a"}})),
    ],
)
def test_what_means_the_same_has_one_key(one: Request, other: Request) -> None:
    """Statement 10, A4, A6; upstream test 8."""
    assert key(one) and key(one) == key(other)


@pytest.mark.parametrize(
    "other",
    [
        generation(1, prompt="another prompt"),
        Request("generate_until", ("system text", "question 1", GREEDY), metadata={"task": "mme", "doc_id": 1}),
        variant(seed=1), variant(max_new_tokens=17), variant(stop=["b"]), variant(logit_bias={"5": 1}),
        variant(response_format={"type": "json"}), variant(tools=[{"name": "f"}]), variant(where="len(X) < 3"),
        variant(decoder="beam"), variant(hole="ANSWER"), variant(do_sample=False), variant(max_new_tokens=True),
        variant(max_tokens=16), generation(2, prompt="question 1"), generation(1, task="mmb"),
        Request("generate_until", ("question 1", GREEDY, b"png"), metadata={"task": "mme", "doc_id": 1}),
        Request("generate_until", ("question 1", GREEDY, b"gif"), metadata={"task": "mme", "doc_id": 1}),
        Request("generate_until", ("question 1", GREEDY), metadata={"task": "mme", "doc_id": "1"}),
        Request("generate_until", ("question 1", GREEDY), 1, metadata={"task": "mme", "doc_id": 1}),
        Request("loglikelihood", ("question 1", GREEDY), metadata={"task": "mme", "doc_id": 1}),
        variant(top_p=float("nan")), variant(top_p=float("inf")), variant(x={1: 2}),
        variant(x={"1": 2}),
    ],
    ids=str,
)  # fmt: skip
def test_what_may_change_the_answer_changes_the_key(other: Request) -> None:
    """Statements 11, 12, 14 and A5; upstream test 7."""
    assert key(other) and key(other) != key(generation(1))


def test_every_content_is_told_apart() -> None:
    """Statement 14 for every type of request, and finding B30: parts cannot be shifted between arguments."""
    arguments: list[tuple[Any, ...]] = [
        ("a", "b"), ("ab",), ("a\0b",), ("a", "b", ""), (b"a", "b"), (["a", "b"],), ("a", {"$": "options"}, "b"),
        ("a", GREEDY, "b"), ("a", "b", GREEDY), ({"$": "set", "v": ["a"]},), ({1.5: 2} and {"a"},), (b"image 1",),
        ([{"role": "user", "content": "a"}],), ([{"role": "system", "content": "a"}],), (None,), ("null",),
        (True,), (1,),
    ]  # fmt: skip
    keys = [key(Request("generate_until", each)) for each in arguments]
    assert all(keys) and len(set(keys)) == len(keys)


def test_model_and_task_are_in_the_key() -> None:
    """Statements 3, 13, finding B5; upstream test 9."""
    makers = [KEYS, KeyMaker("n|", {"mme": "tf1"}, 0.0), KeyMaker("m|", {"mme": "tf2"}, 0.0),
              KeyMaker("m|", {}, 0.0)]  # fmt: skip
    assert len({key(generation(1), maker) for maker in makers}) == 4


def test_a_request_that_no_key_can_stand_for_has_a_reason() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    for request in (Request("generate_until", (deep,)), generation(1, {"x": deep})):
        assert "nested" in KEYS.key("generate_until", request).problem
    keyed = KEYS.key("generate_until", generation(1, {"callback": (each for each in "ab")}))
    assert keyed.key == "" and "generator" in keyed.problem


def test_a_dict_that_was_changed_in_place_gets_a_new_key() -> None:
    options: dict[str, Any] = {"temperature": 0, "stop": ["a"]}
    request = generation(1, options)
    first = key(request)
    options["stop"].append("b")
    assert key(request) != first
    options["temperature"] = 1
    assert key(request) == ""


GREEDY_OPTIONS: list[dict[str, Any] | None] = [
    {}, None, {"temperature": 0.0}, {"temperature": None}, {"do_sample": False}, {"n": None, "best_of": 0},
    {"gen_kwargs": "temperature=0.0, max_gen_toks=9"}, {"temperature": 0, "stop": "temperature=1.0"},
    {"temperature": "0"}, {"n": "1"}, {"do_sample": "False"}, {"top_p": 0.9}, {"seed": 1},
    {"generation_kwargs": {"temperature": 0, "do_sample": False, "n": 1}},
    {"temperature": 0, "extra_body": {"temperature": None}},
    {"sampling_params": SimpleNamespace(temperature=0.0, n=1)},
    {"tools": [{"function": {"parameters": {"properties": {"temperature": {}, "n": {}}}}}]},
    {"response_format": {"schema": {"properties": {"temperature": {"type": "number"}}}}},
    {"extra_body": {"guided_json": {"n": 3}}, "metadata": {"temperature": 30}},
    {"messages": [{"role": "user", "content": {"temperature": 30}}]},
]  # fmt: skip
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.7}, {"temperature": 1}, {"temperature": 0, "do_sample": True}, {"n": 2}, {"best_of": 2},
    {"num_return_sequences": 3}, {"temperature": 1, "seed": 1},
    # A7: what upstream gets wrong
    {"temperature": "0.7"}, {"temperature": np.float32(0.7)}, {"temperature": "hot"}, {"temperature": float("nan")},
    {"temperature": -1}, {"temperature": [0]}, {"n": "3"}, {"n": "many"}, {"do_sample": "True"},
    {"do_sample": np.zeros(2)},
    # at any depth, under any name, in texts and in objects
    {"gen_kwargs": "temperature=1.0,do_sample=True"}, {"temperature": 0, "extra_body": '{"temperature": 1.0}'},
    {"generation_kwargs": {"temperature": 1.0, "do_sample": True}}, {"x": 0, "extra_body": {"temperature": 1}},
    {"gen_kwargs": {"temperature": "0.7"}}, {"sampling_params": {"n": 2}}, {"x": [{"y": {"best_of": 2}}]},
    {"x": ({"do_sample": "true"},)}, {"generationConfig": {"temperature": 1, "candidateCount": 1}},
    {"generationConfig": {"candidateCount": 4}}, {"options": {"Temperature": 0.5}},
    {"sampling_params": SimpleNamespace(temperature=0.7)},
    {"config": SimpleNamespace(sampling=SimpleNamespace(do_sample=True))}, {"call": partial(print, temperature=0.7)},
    {"extra_body": {"temperature": {"value": 1}}},
]  # fmt: skip
DETERMINISM: list[tuple[str, dict[str, Any] | None, bool]] = [
    *(("generate_until", each, True) for each in GREEDY_OPTIONS),
    *(("generate_until", each, False) for each in SAMPLING),
    ("loglikelihood", {"temperature": 999}, True), ("loglikelihood_rolling", {"temperature": 1}, True),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "expected"), DETERMINISM, ids=str)
def test_which_requests_are_deterministic(kind: str, options: dict[str, Any] | None, expected: bool) -> None:
    """Statements 17, 18 and A7; upstream tests 1 to 5."""
    assert is_deterministic(kind, options) is expected


def test_a_model_may_sample_where_a_request_names_no_temperature() -> None:
    """Finding B8."""
    assert not is_deterministic("generate_until", {}, default_temperature=1.0)
    assert is_deterministic("generate_until", {"temperature": 0}, default_temperature=1.0)


SAMPLING_ARGUMENTS: list[tuple[Any, ...]] = [
    ({"prompt": "q"}, {"temperature": 1}), (["q"], [{"temperature": 0}, {"temperature": 1}]),
    ("q", {"a": 1}, {"b": {"n": 2}}), ("q", SimpleNamespace(temperature=0.7)),
    ([{"role": "user", "content": "q"}], {"temperature": 0}, {"temperature": 0.1}),
]  # fmt: skip


@pytest.mark.parametrize("arguments", SAMPLING_ARGUMENTS, ids=str)
def test_options_in_any_argument_decide_whether_a_request_samples(arguments: tuple[Any, ...]) -> None:
    keyed = KEYS.key("generate_until", Request("generate_until", arguments))
    assert keyed.key == "" and not keyed.is_deterministic and not keyed.problem


def test_a_turn_of_a_chat_is_not_an_option() -> None:
    turns = [{"role": "user", "content": [{"type": "text", "text": "q", "temperature": 30, "n": 5}]}]
    assert key(Request("generate_until", (turns, {"temperature": 0})))


SERVERS = ["o1", "o3-mini", "chatgpt-4o-latest", "litellm", "deepseek-chat", "mistral-large-latest", "grok-4",
           "gpt-4o", "claude-3-haiku", "litellm/x", "groq/x", "https://host/v1", "openai/gpt-4o", "async_openai",
           "openai_compatible", "azure_openai", "claude", "anthropic/x", "gemini_api",
           "local-chat-completions"]  # fmt: skip


@pytest.mark.parametrize("model", [*SERVERS, "vllm"])
def test_a_request_to_a_server_without_a_temperature_is_not_kept_and_one_warning_says_why(
    tmp_path: Path, model: str
) -> None:
    asked, arguments = Counting(), "base_url=http://127.0.0.1:1/v1" if model == "vllm" else ""
    requests = [generation(number, {"max_tokens": 5}) for number in range(3)]
    with lq.ResponseCache.open(tmp_path, model=model, model_args=arguments) as cache:
        with pytest.warns(RuntimeWarning, match="name no temperature") as caught:
            cache.execute(asked, "generate_until", requests)
        cache.execute(asked, "generate_until", requests)
        assert len(caught) == 1 and len(asked.asked) == 6
        cache.execute(asked, "generate_until", [generation(9, {"temperature": 0})] * 2)
        assert len(asked.asked) == 7
    for _ in range(2):
        with lq.ResponseCache.open(tmp_path, model=model, model_args=arguments, policy=GREEDY_POLICY) as cache:
            cache.execute(asked, "generate_until", requests)
            assert len(asked.asked) == 10 and cache.notices == []


GREEDY_POLICY = lq.CachePolicy(default_temperature=0.0)


@pytest.mark.parametrize("model", ["m", "openai-community/gpt2", "qwen2_5_vl", "vllm", "hf", "gpt2", "completions"])
def test_a_request_to_a_model_in_this_process_without_a_temperature_is_kept(tmp_path: Path, model: str) -> None:
    asked = Counting()
    with lq.ResponseCache.open(tmp_path, model=model, model_args="pretrained=x") as cache:
        for _ in range(2):
            cache.execute(asked, "generate_until", [generation(1, {})])
    assert len(asked.asked) == 1


HEADERS: list[tuple[Any, Any]] = [
    ({"extra_headers": {"X-Route": "a"}}, {"extra_headers": {"X-Route": "b"}}),
    ({"extra_headers": {"X-Route": "a"}}, {}),
    ({"extra_headers": {"X-Route": "a"}}, {"extra_headers": {"X-Other": "a"}}),
    ({"headers": {"X-Route": "a"}}, {"headers": {"X-Route": "b"}}),
    ({"headers": [("X-Route", "a")]}, {"headers": [("X-Route", "b")]}),
    ({"default_headers": {"X-Route": b"a"}}, {"default_headers": {"X-Route": b"b"}}),
    ({"user": "a"}, {"user": "b"}),
    ({"extra_query": {"v": "1"}}, {"extra_query": {"v": "2"}}),
    ({"default_query": {"v": "1"}}, {"default_query": {"v": "2"}}),
    ({"generation_kwargs": {"extra_headers": {"X": "a"}}}, {"generation_kwargs": {"extra_headers": {"X": "b"}}}),
    ({"extra_body": {"provider": "a"}}, {"extra_body": {"provider": "b"}}),
    ({"extra_body": {"user": "a"}}, {"extra_body": {"user": "b"}}),
    ({"tools": [{"properties": {"password": {"type": "string"}}}]}, {"tools": [{"properties": {"password": {}}}]}),
    ({"extra_headers": {"OpenAI-Beta": "a"}}, {"extra_headers": {"OpenAI-Beta": "b"}}),
    ({"extra_headers": {"OpenAI-Organization": "a"}}, {"extra_headers": {"OpenAI-Organization": "b"}}),
    ({"extra_headers": {"x-portkey-virtual-key": "a"}}, {"extra_headers": {"x-portkey-virtual-key": "b"}}),
]


@pytest.mark.parametrize(("one", "other"), HEADERS, ids=str)
def test_requests_with_other_headers_or_parameters_are_asked_for_themselves(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any]
) -> None:
    model = Counting()
    with lq.ResponseCache.open(tmp_path, model="m") as cache:
        for options in (one, other, one, other):
            cache.execute(model, "generate_until", [generation(1, GREEDY | options)])
    assert len(model.asked) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"Authorization": "Bearer sk-secret-1"}, {"Authorization": "Bearer sk-secret-2"}),
        ({"authorization": "sk-secret-1"}, {"Authorization": "sk-secret-2"}),
        ({"X-Api-Key": "sk-secret-1"}, {}), ({"api-key": "sk-secret-1"}, {"api-key": "sk-secret-2"}),
        ({"Cookie": "sk-secret-1"}, {"Cookie": "sk-secret-2"}), ({"X-Auth-Token": "sk-secret-1"}, {}),
        ({"X-Request-ID": "1"}, {"X-Request-ID": "2"}), ({"traceparent": "1"}, {"User-Agent": "2"}),
        ({"X-Route": "a"}, {"x-route": "a"}), ({"A": "1", "B": "2"}, {"B": "2", "A": "1"}),
    ],
    ids=str,
)  # fmt: skip
def test_credentials_and_traces_in_headers_are_no_part_of_a_key_and_in_no_file(
    tmp_path: Path, one: dict[str, str], other: dict[str, str]
) -> None:
    model = Counting()
    with lq.ResponseCache.open(tmp_path, model="m") as cache:
        for headers in (one, other):
            for name in ("extra_headers", "headers"):
                cache.execute(model, "generate_until", [generation(1, GREEDY | {name: headers})])
    assert len(model.asked) == 2
    assert b"sk-secret" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_secrets_below_the_first_level_and_in_unknown_headers_are_in_no_file(tmp_path: Path) -> None:
    options = GREEDY | {"extra_body": {"api_key": "sk-secret-1", "auth": [{"password": "sk-secret-2"}]},
                        "extra_headers": {"X-Mine": "sk-secret-3"}, "extra_query": {"key": "sk-secret-4"}}  # fmt: skip
    arguments = {"default_headers": {"X-Mine": "sk-secret-5", "Authorization": "sk-secret-6"}}
    with lq.ResponseCache.open(tmp_path, model="m", model_args=arguments) as cache:
        cache.execute(Counting(), "generate_until", [generation(1, options)])
    assert b"sk-secret" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


INF = float("inf")


@pytest.mark.parametrize(
    ("kind", "answer", "is_kept"),
    [
        ("generate_until", None, False), ("generate_until", "  \n", False), ("generate_until", ["", ""], True),
        ("generate_until", "Error: rate limit", True), ("generate_until", {"a": 1}, True),
        ("loglikelihood", [0.5], False), ("loglikelihood", "text", False), ("loglikelihood", (-1.0, False), True),
        ("loglikelihood", [None, None], False), ("loglikelihood", (float("nan"), True), False),
        ("loglikelihood", ("a", "b"), False), ("loglikelihood", (-INF, True), False),
        ("loglikelihood", (INF, True), False),
        ("loglikelihood", (True, True), False), ("loglikelihood", (-1.0, 1), False),
        ("loglikelihood", (np.float32(-1.5), np.bool_(True)), True), ("loglikelihood", (-1, True), True),
        ("loglikelihood", [np.float64(-1.5), False], True), ("loglikelihood", (np.int64(-2), np.bool_(False)), True),
        ("loglikelihood", (np.array(-1.5), np.array(True)), True), ("loglikelihood", (np.float16(-1), True), True),
        ("loglikelihood", (10**400, True), True),
        ("loglikelihood", (np.float32("nan"), True), False), ("loglikelihood", (np.float32("-inf"), True), False),
        ("loglikelihood", (np.bool_(True), True), False), ("loglikelihood", (-1.0, np.int64(1)), False),
        ("loglikelihood", (np.array([-1.5]), True), False), ("loglikelihood", (-1.0, None), False),
        ("generate_until", np.str_(" "), False), ("generate_until", np.str_("a"), True),
    ],
    ids=str,
)  # fmt: skip
def test_which_answers_may_be_kept(kind: str, answer: Any, is_kept: bool) -> None:
    """Statements 32, 33; upstream tests 12 to 15."""
    assert (rejection(kind, answer) is None) is is_kept


def test_an_answer_of_tensors_may_be_kept() -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
    assert rejection("loglikelihood", (torch.tensor(-1.5), torch.tensor(True))) is None


def test_minus_infinity_may_be_admitted() -> None:
    """Statement 32."""
    assert rejection("loglikelihood", (-INF, True), minus_infinity=True) is None
    assert rejection("loglikelihood", (INF, True), minus_infinity=True) is not None


def test_the_folder_of_a_model_is_a_hash_of_its_name_and_arguments() -> None:
    """Statement 3, with arguments in any order."""
    assert model_hash(fingerprint_model("m")) == hashlib.sha256(b"m|").hexdigest()[:16]
    assert fingerprint_model("m", "b=2,a=x") == fingerprint_model("m", {"a": "x", "b": 2}) == 'm|{"a":"x","b":2}'
    assert fingerprint_model("m", "a=1") != fingerprint_model("m", "a=2")


def test_credentials_are_no_part_of_a_model() -> None:
    """A6, A25 and finding B28."""
    one = fingerprint_model("m", "base_url=http://me:pw@host/v1,api_key=sk-1,hf_token=t,max_tokens=5")
    assert one == 'm|{"base_url":"http://host/v1","max_tokens":5}'
    assert without_user("m|x=1,api_key=sk-123,url=http://me:pw@host/") == "m|x=1,,url=http://host/"


def test_a_tasks_fingerprint_ignores_addresses_and_order() -> None:
    """Statement 13 and finding B7."""
    assert fingerprint_task(None) == fingerprint_task({}) == ""
    one = fingerprint_task({"f": test_which_answers_may_be_kept, "names": {"a", "b", "c"}, "n": 1})
    assert one == fingerprint_task({"n": 1, "names": {"c", "b", "a"}, "f": test_which_answers_may_be_kept})
    assert one != fingerprint_task({"n": 2}) and len(one) == 16


def test_none_in_a_set_is_part_of_the_key() -> None:
    assert canonical_options({"skip": {None, 1}}) != canonical_options({"skip": {1}})


def test_options_of_two_names_are_not_folded_into_one() -> None:
    assert canonical_options({"max_tokens": 1, "max_new_tokens": 2}) == '{"max_new_tokens":2,"max_tokens":1}'
