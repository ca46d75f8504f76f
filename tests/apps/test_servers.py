"""`lq` with servers that do not tell what a run has cost, that are left in the middle of an answer, or that fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.apps.terminal import money
from lmql_lite.engine.forms import TOKEN_BYTES, tokens_for
from lmql_lite.models.openai import gate
from tests.apps.conftest import Shell
from tests.servers.kinds import OPENAI_CHAT, VLLM
from tests.servers.stub import Fault, Server, serving
from tests.tables import cases

SAYS = "Say: hello\nYou say: stop\n"
QUERY = '"Say:[A]" where STOPS_AT(A, "\\n")\n'


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setattr(gate, "FIRST_PAUSE", 0.001)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    shell = Shell(tmp_path, capsys)
    shell.write("q.lq", QUERY)
    return shell


def at(server: Server) -> list[str]:
    return ["--model", f"openai/{server.config.model}", "--base-url", server.base_url]


def test_what_the_server_does_not_tell_is_a_question_mark_and_a_bound_law_6(shell: Shell) -> None:
    with serving(replace(VLLM, tells_usage=False), SAYS) as server:
        ended = shell("run", "q.lq", *at(server), "-u", "--max-tokens", "9", "--prices", "1000000,2000000")
        assert ended.err.startswith("1 request · tokens in ? (? cached by the server) out ? · received 7 (0 wasted) · ")
        most = len("Say") + 1 + 2 * (1 + tokens_for(9 * TOKEN_BYTES))  # the colon is said again
        assert f" · cost at most {most} · " in ended.err
        told = json.loads(shell("run", "q.lq", *at(server), "--cache", "off", "--json", "--max-tokens", "9").out)
    unknown = ("prompt_tokens", "completion_tokens", "provider_cached_tokens", "forward_passes")
    assert [told["usage"][name] for name in unknown] == [None] * 4
    assert (told["usage"]["received_tokens"], told["cost"]) == (7, None)


def test_the_cost_of_an_answer_that_was_broken_off_is_not_told(shell: Shell) -> None:
    with serving(OPENAI_CHAT, SAYS * 400) as server:
        told = json.loads(shell("run", "q.lq", *at(server), "--json", "--prices", "1000000,0").out)
        assert told["cost"]["told"] is False and told["cost"]["amount"] >= server.prompt_tokens


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0.0, "0"), (0.00009, "0.00009"), (1e-9, "0.000001"), (0.0000011, "0.000002"), (12.5, "12.5"), (3e4, "30,000")],
)
def test_money_is_rounded_up_to_a_millionth(amount: float, shown: str) -> None:
    assert money(amount) == shown


@cases("apps/servers", "wrong usage is a sentence and exit code 2", globals())
def test_wrong_usage_is_a_sentence_and_exit_code_2(shell: Shell, options: list[str], sentence: str) -> None:
    ended = shell("run", "q.lq", *options)
    assert (ended.code, ended.out) == (2, "")
    assert sentence in ended.err


FAULTS: list[Any] = [
    pytest.param([Fault(html=True)], "answers with a web page", "ends in /v1", id="a web page"),
    pytest.param([Fault(reset=True)] * 9, "closes the connection without an answer", "its own log", id="resets"),
    pytest.param([Fault(status=500)] * 9, "failed 5 times: out of order", "its own log", id="fails"),
    pytest.param([Fault(status=400, message="no")], "refuses the request: no", "", id="refuses"),
    pytest.param([Fault(status=403, message="no")], "rejects this key", "a key", id="403"),
    pytest.param(
        [Fault(status=429, code="insufficient_quota", message="insufficient_quota")],
        "the quota of this key",
        "raise the quota",
        id="no quota",
    ),
]


@pytest.mark.parametrize(("faults", "sentence", "hint"), FAULTS)
def test_a_server_that_fails_is_a_sentence_with_the_hole_and_exit_code_5(
    shell: Shell, faults: list[Fault], sentence: str, hint: str
) -> None:
    with serving(VLLM, SAYS, *faults) as server:
        ended = shell("run", "q.lq", *at(server))
    assert (ended.code, ended.out) == (5, "")
    first, *rest = ended.err.splitlines()
    assert first.startswith("q.lq:1:6: [A] could not be filled: ") and sentence in first
    assert hint in " ".join(rest)


def test_the_last_word_is_kept_where_the_server_was_left_before_the_next_one(shell: Shell) -> None:
    silent = Fault(hang=True, after=4)
    with serving(OPENAI_CHAT, "Say: hi\n", None, None, silent) as server:  # two to find out what it can do
        first = shell("run", "q.lq", *at(server), "--cache", "x.tokens")
        again = shell("run", "q.lq", *at(server), "--cache", "x.tokens", "--cache-mode", "replay")
        assert (again.code, again.out) == (0, first.out) == (0, "Say:hi\n")


def test_the_models_of_this_machine_are_listed_without_a_key(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LQ_BASE_URL", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with serving(VLLM, "") as server, serving(OPENAI_CHAT, "") as other:
        usual = {"ollama": server.base_url, "vllm": "http://localhost:9/v1", "llamacpp": other.base_url + "/nothing"}
        monkeypatch.setattr("lmql_lite.models.registry.SERVERS", usual)
        monkeypatch.setattr("lmql_lite.models.registry.here", lambda: ("demo", "local:org/tiny"))
        ended = shell("models")
        assert (ended.code, ended.out) == (0, "demo\nlocal:org/tiny\nollama/stub\n")
        monkeypatch.setenv("LQ_BASE_URL", server.base_url)
        assert shell("models").out.endswith("ollama/stub\nopenai/stub\n")
