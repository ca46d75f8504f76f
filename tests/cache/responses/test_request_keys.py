"""Keys of requests. Numbers are the statements and checks (A) of the response cache's reference."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmql_lite.cache.responses.canonical import Unkeyable
from lmql_lite.cache.responses.request import Request, generation_options, is_deterministic, rejection
from lmql_lite.cache.responses.request_key import (
    KeyMaker,
    canonical_options,
    fingerprint_model,
    fingerprint_task,
    model_hash,
    seed_content_hash,
    seed_key,
    seed_options,
)
from tests.cache.responses.models import GREEDY, generation
from tests.conftest import ROOT

SOMETHING = object()
KEYS = KeyMaker("m|", {"mme": "tf1"}, "full", 0.0)


def by_the_seed(payload: dict[str, Any]) -> str:
    """The seed's formula, computed without our code."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


GOLDEN = [
    ("generate_until", "mme", 3, 0, '{"temperature":0}', {"temperature": 0.0}, "", ""),
    ("generate_until", "mme", 3, 0, '{"temperature":0}', {"temperature": 0, "unknown": 1}, "", "abc"),
    ("generate_until", "mme", "3", 0, "{}", {}, "", ""),
    ("generate_until", "mme", 3, 0, "{}", None, "", ""),
    ("generate_until", "mme", -3, 2, '{"top_p":0.95}', {"top_p": 0.95}, "", ""),
    ("generate_until", "日本", "é", 0, '{"until":"\\n"}', {"until": "\n"}, "", ""),
    ("generate_until", "mme", 3, 0, '{"until":["\\n","b"]}', {"until": ["\n", "b"]}, "", ""),
    ("generate_until", "mme", 3, 0, '{"until":["b","\\n"]}', {"until": ["b", "\n"]}, "", ""),
    ("generate_until", "mme", 3, 0, '{"do_sample":true}', {"do_sample": True}, "", ""),
    ("generate_until", "mme", 3, 0, '{"do_sample":1}', {"do_sample": 1}, "", ""),
    ("generate_until", "mme", 3, 0, '{"top_k":40}', {"top_k": 40.0}, "", ""),
    ("generate_until", "mme", 3, 0, '{"top_k":-1}', {"top_k": -1}, "", ""),
    ("generate_until", "mme", 3, 0, '{"until":[1.0,{"a":2}]}', {"until": [1.0, {"a": 2}]}, "", ""),
    ("generate_until", "mme", 3, 0, '{"until":null}', {"until": None}, "", ""),
    ("generate_until", "", None, 0, '{"num_beams":4}', {"num_beams": 4}, "", ""),
    ("generate_until", "mme", 10**20, 0, '{"n":1}', {"n": 1}, "", ""),
    ("generate_until", "mme", 3, 0, '{"max_gen_toks":5,"max_new_tokens":5}', {"max_new_tokens": 5, "max_gen_toks": 5},
     "", ""),
    ("generate_until", "m\u2028\ud83d", 3, 0, "{}", {"api_key": "x"}, "", ""),
    ("loglikelihood", "arc", 1, 3, "{}", {}, seed_content_hash(("q", " a")), ""),
    ("loglikelihood", "arc", 1, 3, "{}", {}, seed_content_hash(("", " a")), "abc"),
    ("loglikelihood", "arc", 1, 3, '{"repetition_penalty":1.1}', {"repetition_penalty": 1.1}, "0" * 16, "abc"),
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


def test_a_later_version_has_more_fields_and_another_key() -> None:
    """Statements 7, 15, 16."""
    payload = {"v": 3, "rt": "a", "tn": "b", "did": 1, "idx": 0, "gk": "{}", "mfh": "m" * 16, "ev": "0.6"}
    key = seed_key("a", "b", 1, 0, {}, model_fingerprint_hash="m" * 16, eval_version="0.6", version=3)
    assert key == by_the_seed(payload)
    assert seed_key("a", "b", 1, 0, {}) != seed_key("a", "b", 1, 0, {}, version=2)


def test_the_content_hash_of_the_seed_is_of_the_leading_texts() -> None:
    """Statement 14; upstream test 6."""
    assert seed_content_hash(("a", "b", {"x": 1}, "c")) == hashlib.sha256(b"a\0b").hexdigest()[:16]
    assert seed_content_hash(("q", " a")) != seed_content_hash(("", " a"))


def key(request: Request, keys: KeyMaker = KEYS) -> str:
    return keys.key(request.request_type, request).key


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
        variant(top_p=float("nan")), variant(top_p=float("inf")), variant(callback=print), variant(x={1: 2}),
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
    makers = [KEYS, KeyMaker("n|", {"mme": "tf1"}, "full", 0.0), KeyMaker("m|", {"mme": "tf2"}, "full", 0.0),
              KeyMaker("m|", {}, "full", 0.0)]  # fmt: skip
    assert len({key(generation(1), maker) for maker in makers}) == 4


@pytest.mark.parametrize(
    "request_",
    [
        Request("generate_until", ("a", object())),
        Request("generate_until", ("a", (each for each in "ab"))),
        Request("generate_until", ("a", Path("no such file.mp4"))),
        Request("generate_until", ("a", lambda: SOMETHING)),
        generation(1, {"callback": (each for each in "ab")}),
    ],
    ids=["object", "generator", "missing file", "function that reads an object", "generator in options"],
)
def test_a_request_that_no_key_can_stand_for_has_a_reason(request_: Request) -> None:
    """A4 and finding B16: never a crash, never a wrong merge."""
    keyed = KEYS.key("generate_until", request_)
    assert keyed.key == "" and keyed.problem


def test_a_request_nested_too_deeply_has_a_reason() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    for request in (Request("generate_until", (deep,)), generation(1, {"x": deep})):
        assert "nested" in KEYS.key("generate_until", request).problem


def test_a_dict_that_was_changed_in_place_gets_a_new_key() -> None:
    options: dict[str, Any] = {"temperature": 0, "stop": ["a"]}
    request = generation(1, options)
    first = key(request)
    options["stop"].append("b")
    assert key(request) != first
    options["temperature"] = 1
    assert key(request) == ""


def test_keys_do_not_depend_on_the_process() -> None:
    """A6: another hash seed, folder and process."""
    code = (
        "from tests.cache.responses.models import *; from tests.cache.responses.test_request_keys import KEYS, key;"
        "print(key(generation(1, {'allowed': {'a', 'b', 'c'}})))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)])},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert found == {key(generation(1, {"allowed": {"c", "b", "a"}})) + "\n"}


def test_options_are_the_first_dict_among_the_arguments() -> None:
    """Statement 23; upstream tests 10 and 11."""
    assert generation_options(Request("a", ("q", {"x": 1}, None, 3, {"y": 2}))) == {"x": 1}
    assert generation_options(Request("a", ("q", "r"))) == {}


DETERMINISM: list[tuple[str, dict[str, Any] | None, bool]] = [
    ("loglikelihood", {"temperature": 999}, True), ("loglikelihood", {}, True), ("loglikelihood", None, True),
    ("generate_until", {"temperature": 0}, True), ("generate_until", {"temperature": 0.0}, True),
    ("generate_until", {}, True), ("generate_until", {"temperature": None}, True), ("generate_until", None, True),
    ("generate_until", {"temperature": 0.7}, False), ("generate_until", {"temperature": 1}, False),
    ("generate_until", {"temperature": 0.01}, False),
    ("generate_until", {"temperature": 0, "do_sample": True}, False), ("generate_until", {"do_sample": False}, True),
    ("generate_until", {"n": 2}, False), ("generate_until", {"best_of": 2}, False),
    ("generate_until", {"num_return_sequences": 3}, False), ("generate_until", {"n": None, "best_of": 0}, True),
    # A7: what upstream gets wrong
    ("generate_until", {"temperature": "0.7"}, False), ("generate_until", {"temperature": "0"}, True),
    ("generate_until", {"temperature": np.float32(0.7)}, False), ("generate_until", {"temperature": "hot"}, False),
    ("generate_until", {"temperature": float("nan")}, False), ("generate_until", {"temperature": -1}, False),
    ("generate_until", {"temperature": [0]}, False), ("generate_until", {"n": "3"}, False),
    ("generate_until", {"n": "1"}, True), ("generate_until", {"n": "many"}, False),
    ("generate_until", {"do_sample": "False"}, True), ("generate_until", {"do_sample": "True"}, False),
    ("generate_until", {"do_sample": np.zeros(2)}, False), ("generate_until", {"top_p": 0.9}, True),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "expected"), DETERMINISM, ids=str)
def test_which_requests_are_deterministic(kind: str, options: dict[str, Any] | None, expected: bool) -> None:
    """Statements 17, 18 and A7; upstream tests 1 to 5."""
    assert is_deterministic(kind, options) is expected


def test_a_model_may_sample_where_a_request_names_no_temperature() -> None:
    """Finding B8."""
    assert not is_deterministic("generate_until", {}, default_temperature=1.0)
    assert is_deterministic("generate_until", {"temperature": 0}, default_temperature=1.0)


INF = float("inf")


@pytest.mark.parametrize(
    ("kind", "answer", "is_kept"),
    [
        ("generate_until", None, False), ("generate_until", "", False), ("generate_until", "  \n", False),
        ("generate_until", "answer", True), ("generate_until", ["", ""], True),
        ("generate_until", "Error: rate limit", True), ("generate_until", {"a": 1}, True),
        ("loglikelihood", [0.5], False), ("loglikelihood", "text", False), ("loglikelihood", None, False),
        ("loglikelihood", [0.5, True], True), ("loglikelihood", (-1.0, False), True),
        ("loglikelihood", [None, None], False), ("loglikelihood", (float("nan"), True), False),
        ("loglikelihood", ("a", "b"), False), ("loglikelihood", (-INF, True), False),
        ("loglikelihood", (INF, True), False),
        ("loglikelihood", (True, True), False), ("loglikelihood", (-1.0, 1), False),
    ],
    ids=str,
)  # fmt: skip
def test_which_answers_may_be_kept(kind: str, answer: Any, is_kept: bool) -> None:
    """Statements 32, 33; upstream tests 12 to 15."""
    assert (rejection(kind, answer) is None) is is_kept


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


def test_a_tasks_fingerprint_ignores_addresses_and_order() -> None:
    """Statement 13 and finding B7."""
    assert fingerprint_task(None) == fingerprint_task({}) == ""
    one = fingerprint_task({"f": test_which_answers_may_be_kept, "names": {"a", "b", "c"}, "n": 1})
    assert one == fingerprint_task({"n": 1, "names": {"c", "b", "a"}, "f": test_which_answers_may_be_kept})
    assert one != fingerprint_task({"n": 2}) and len(one) == 16


def test_options_of_two_names_are_not_folded_into_one() -> None:
    assert canonical_options({"max_tokens": 1, "max_new_tokens": 2}) == '{"max_new_tokens":2,"max_tokens":1}'
    with pytest.raises(Unkeyable):
        seed_options({"until": object()})
