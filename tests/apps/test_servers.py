"""`lq` with models behind an API: how one is named, what a run has cost, what a dry run tells, and a sentence for each
way in which a server can fail."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.apps.terminal import money
from lmql_lite.engine.forms import TOKEN_BYTES, tokens_for
from lmql_lite.models.openai import gate
from tests.apps.test_cli import Shell
from tests.models.api import KEY
from tests.servers.kinds import LLAMA_CPP, OPENAI_CHAT, VLLM, Config
from tests.servers.stub import Fault, Server, serving
from tests.tables import cases

SAYS = "Say: hello\nYou say: stop\n"
QUERY = '"Say:[A]" where STOPS_AT(A, "\\n")\n'
OTHER = "sk-other-9876543210"


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


# What it costs -------------------------------------------------------------------------------------------------------


def test_a_run_tells_requests_and_tokens_as_the_server_does(shell: Shell) -> None:
    with serving(VLLM, SAYS) as server:
        ended = shell("run", "q.lq", *at(server), "-u", "--prices", "1000000,2000000")
        assert (ended.code, ended.out) == (0, "Say: hello\n")
        spent = server.prompt_tokens + 2 * server.completion_tokens
        told = f"tokens in {server.prompt_tokens} (0 cached by the server) out {server.completion_tokens}"
    line = "1 request · {} · received 7 (0 wasted) · kept 0 cache, 7 model, 0 draft, 0 forced · cost {} · "
    assert ended.err.startswith(line.format(told, spent))


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


def test_json_has_the_cost_and_whether_it_was_told(shell: Shell) -> None:
    with serving(VLLM, SAYS) as server:
        prices = ["--prices", "1000000,0"]
        told = json.loads(shell("run", "q.lq", *at(server), "--json", *prices).out)
        assert told["cost"] == {"amount": server.prompt_tokens, "told": True}
    with serving(OPENAI_CHAT, SAYS * 400) as server:  # what it says is broken off, and so its cost is not told
        told = json.loads(shell("run", "q.lq", *at(server), "--json", *prices).out)
        assert told["cost"]["told"] is False and told["cost"]["amount"] >= server.prompt_tokens
    assert json.loads(shell("run", "q.lq", "--json", *prices).out)["cost"] is None


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0.0, "0"), (0.00009, "0.00009"), (1e-9, "0.000001"), (0.0000011, "0.000002"), (12.5, "12.5"), (3e4, "30,000")],
)
def test_money_is_rounded_up_to_a_millionth(amount: float, shown: str) -> None:
    assert money(amount) == shown


def test_a_second_run_from_a_file_costs_nothing(shell: Shell) -> None:
    with serving(LLAMA_CPP, SAYS) as server:
        first = shell("run", "q.lq", *at(server), "--cache", "x.tokens")
        asked = server.requests
        again = shell("run", "q.lq", *at(server), "--cache", "x.tokens", "-u", "--max-requests", "0")
        assert (again.code, again.out, server.requests) == (0, first.out, asked)
        assert again.err.startswith(
            "0 requests · tokens in 0 (0 cached by the server) out 0 · received 0 (0 wasted) · "
        )


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (["--max-requests", "0"], "the run may make at most 0 requests, and needs another one"),
        (["--max-total-tokens", "3"], "the run may use at most 3 tokens"),
        (["--max-cost", "0.000001", "--prices", "1,1"], "the run may cost at most 1e-06"),
    ],
    ids=["requests", "tokens", "cost"],
)
def test_a_limit_ends_a_run_with_exit_code_7(shell: Shell, limits: list[str], sentence: str) -> None:
    with serving(VLLM, SAYS) as server:
        ended = shell("run", "q.lq", *at(server), *limits)
        assert (ended.code, ended.out, server.requests) == (7, "", 0)
        assert ended.err.startswith(sentence) and "hint: raise max_" in ended.err
        told = json.loads(shell("run", "q.lq", *at(server), *limits, "--json").out)
        assert (told["ok"], told["error"]["code"]) == (False, "BudgetError")


@cases("apps/servers", "wrong usage is a sentence and exit code 2", globals())
def test_wrong_usage_is_a_sentence_and_exit_code_2(shell: Shell, options: list[str], sentence: str) -> None:
    ended = shell("run", "q.lq", *options)
    assert (ended.code, ended.out) == (2, "")
    assert sentence in ended.err


def test_prices_may_stand_in_the_header_and_the_limit_on_the_command_line(shell: Shell) -> None:
    shell.write("p.lq", 'argmax(prices=(1, 1))\n    "Say:[A]"\nwhere STOPS_AT(A, "\\n")\n')
    with serving(VLLM, SAYS) as server:
        assert shell("run", "p.lq", *at(server), "--max-cost", "1").code == 0
        assert shell("run", "p.lq", *at(server), "--max-cost", "0", "--cache", "off").code == 7


# Keys ----------------------------------------------------------------------------------------------------------------


def test_the_key_comes_from_the_environment_and_there_is_no_option_for_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(replace(VLLM, key=KEY), SAYS) as server:
        none = shell("run", "q.lq", *at(server))
        assert none.code == 5 and "needs an API key" in none.err and "set OPENAI_API_KEY" in none.err
        monkeypatch.setenv("OPENAI_API_KEY", OTHER)
        wrong = shell("run", "q.lq", *at(server))
        assert wrong.code == 5 and "rejects the API key" in wrong.err and OTHER not in wrong.err
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        assert shell("run", "q.lq", *at(server)).code == 0
    assert shell("run", "q.lq", "--api-key", KEY).code == 2
    assert "OPENAI_API_KEY" in shell("run", "--help").out


def test_the_address_may_come_from_the_environment(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(VLLM, SAYS) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        assert shell("run", "q.lq", "--model", "openai/stub").out == "Say: hello\n"
        shell.write("from.lq", 'argmax\n    "Say:[A]"\nfrom "openai/stub"\nwhere STOPS_AT(A, "\\n")\n')
        assert shell("run", "from.lq").out == "Say: hello\n"


# Servers that fail ---------------------------------------------------------------------------------------------------


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


@pytest.mark.parametrize(
    ("arguments", "sentence", "hint"),
    [
        (["--model", "openai/stub", "--base-url", "CLOSED"], "no server answers at http://", "is it running"),
        (["--model", "openai/stub", "--base-url", "localhost:80"], "does not begin with http", "did you mean http://"),
        (["--model", "demo", "--base-url", "CLOSED"], "which 'demo' is not", "name a model of a server: openai/NAME"),
        (["--model", "openai/gpt-9"], "https://api.openai.com/v1 needs an API key", "set OPENAI_API_KEY"),
        (["--model", "gpt-9"], "no model is called 'gpt-9'", "did you mean openai/gpt-9?"),
    ],
    ids=["closed port", "no scheme", "a model of this process", "no key", "no kind"],
)
def test_a_model_that_cannot_be_asked_is_a_sentence_and_exit_code_5(
    shell: Shell, arguments: list[str], sentence: str, hint: str
) -> None:
    ended = shell("run", "q.lq", *(closed_port() if each == "CLOSED" else each for each in arguments))
    assert (ended.code, ended.out) == (5, "")
    first, *rest = ended.err.splitlines()
    assert sentence in first and hint in " ".join(rest)


def failing(shell: Shell, config: Config, *faults: Fault, model: str = "stub") -> tuple[int, list[str]]:
    with serving(config, SAYS, *faults) as server:
        ended = shell("run", "q.lq", "--model", f"openai/{model}", "--base-url", server.base_url)
    assert ended.out == ""
    return ended.code, ended.err.splitlines()


def test_an_unknown_model_is_named_with_one_that_is_there(shell: Shell) -> None:
    code, (sentence, hint) = failing(shell, VLLM, model="stup")
    assert (code, sentence, hint) == (5, "the server has no model called 'stup'", "    hint: did you mean stub?")


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
    code, (first, *rest) = failing(shell, VLLM, *faults)
    assert code == 5
    assert first.startswith("q.lq:1:6: [A] could not be filled: ") and sentence in first
    assert hint in " ".join(rest)


# Dry runs ------------------------------------------------------------------------------------------------------------


SEGMENT = """
ages = [str(age) for age in range(1, 120)]
'{{"name": "[NAME]", "age": [AGE]}}' where STOPS_BEFORE(NAME, '"') and AGE in ages and is_known(NAME)
while AGE == "1":
    "{place}[MORE]" where STOPS_AT(MORE, "\\n")
"""


def test_a_dry_run_tells_hole_by_hole_what_the_server_is_held_to_and_asks_it_nothing(shell: Shell) -> None:
    shell.write("s.lq", SEGMENT)
    with serving(VLLM, SAYS) as server:
        ended = shell("run", "s.lq", *at(server), "--dry-run", "--max-requests", "7", "--prices", "1,1")
        assert server.requests == 0
    assert (ended.code, ended.err) == (0, "")
    name, age, more = re.findall(r"^\[.*?(?=\n\n)", ended.out, re.DOTALL | re.MULTILINE)
    assert name.splitlines()[:3] == [
        "[NAME]  line 3",
        "    where  STOPS_BEFORE(NAME, '\"')",
        "    judged is_known(NAME)  (by Python, when the value is complete)",
    ]
    assert "held to a grammar" in age and more.startswith("[MORE]  line 5\n")
    assert "the run ends before it passes 7 requests\n" in ended.out
    assert "inputs that are not given: is_known, place" in ended.out


def test_a_dry_run_fails_as_a_run_would(shell: Shell) -> None:
    assert shell("run", "q.lq", "--dry-run", "--model", "openai/x", "--base-url", closed_port()).code == 5
    assert shell("run", shell.write("bad.lq", '"a[1B]"'), "--dry-run").code == 3
    assert shell("run", "q.lq", "--dry-run", "--var", "x=1").code == 2


# Files ---------------------------------------------------------------------------------------------------------------


def test_what_a_server_said_is_shown_as_text_with_its_turns(shell: Shell) -> None:
    with serving(OPENAI_CHAT, "Say: hi\n") as server:
        shell("run", "q.lq", *at(server), "--cache", "x.tokens")
        other = shell.write("other.lq", '"Tell:[A]" where STOPS_AT(A, "\\n")\n')
        miss = shell("run", other, "--cache", "x.tokens", "--cache-mode", "replay", *at(server))
        assert miss.code == 6 and 'at byte 2, after <user>: stored "S", asked "T"' in miss.err
    shown = shell("cache", "inspect", "x.tokens").out
    # a line ends with the last place of which something is known, and what is known of that is what came next
    assert '<user> "Say:" <assistant> "hi' in shown and "bytes" in shown and "<258>" not in shown


def test_the_last_word_is_kept_where_the_server_was_left_before_the_next_one(shell: Shell) -> None:
    silent = Fault(hang=True, after=4)
    with serving(OPENAI_CHAT, "Say: hi\n", None, None, silent) as server:  # two to find out what it can do
        first = shell("run", "q.lq", *at(server), "--cache", "x.tokens")
        again = shell("run", "q.lq", *at(server), "--cache", "x.tokens", "--cache-mode", "replay")
        assert (again.code, again.out) == (0, first.out) == (0, "Say:hi\n")
    assert '"hi"  8 bytes, 3 top-k entries' in shell("cache", "inspect", "x.tokens").out


def test_what_only_python_could_say_of_a_server_has_a_flag(shell: Shell) -> None:
    """R24: a timeout, a revision, a tokenizer, a number of requests at once."""
    with serving(replace(VLLM, seconds_per_token=0.01), "a b c d e f\n") as server:
        flags_of = at(server)
        assert shell("run", "q.lq", *flags_of, "--timeout", "9", "--concurrency", "2", "--revision", "r1").code == 0
        for flags, sentence in (
            (("--timeout", "0"), "timeout must be a number of seconds above 0"),
            (("--concurrency", "0"), "concurrency must be a number of requests"),
            (("--tokenizer", "nowhere"), "nowhere has no tokenizer.json"),
        ):
            ended = shell("run", "q.lq", *flags_of, *flags)
            assert ended.code == 5 and sentence in ended.err


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


def test_the_models_of_a_server_are_listed(shell: Shell) -> None:
    with serving(VLLM, "") as server:
        ended = shell("models", "--base-url", server.base_url)
        assert (ended.code, ended.out, server.requests) == (0, "openai/stub\n", 0)
        told = json.loads(shell("models", "--base-url", server.base_url, "--json").out)
        assert told["ok"] and told["models"] == ["openai/stub"]
        ended = shell("models", "--base-url", server.base_url.removesuffix("/v1"))
        assert ended.code == 5 and "did you mean" in ended.err
