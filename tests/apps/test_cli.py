"""`lq`: result on stdout, the rest on stderr, exit codes, and one clear diagnostic for every mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.apps.conftest import Shell
from tests.tables import cases

GREET = "\"Say 'this is a test':[TEXT]\" where len(TEXT) < 20\n"


def test_a_query_without_return_prints_its_text(shell: Shell) -> None:
    ended = shell("run", shell.write("q.lq", '"a{x}[B]" where B == "c"'), "--var", "x=é")
    assert (ended.code, ended.out, ended.err) == (0, "aéc\n", "")


def test_json_is_one_object_and_its_ledger_adds_up(shell: Shell) -> None:
    ended = shell("run", shell.write("q.lq", GREET), "--json", "--seed", "4")
    told = json.loads(ended.out)
    assert told["ok"] is True and told["seed"] == 4 and told["model"] == "demo" and told["schema"] == 1
    assert told["prompt"].endswith(told["vars"]["TEXT"])
    usage = told["usage"]
    kept = usage["tokens_from_cache"] + usage["tokens_from_model"] + usage["draft_accepted"] + usage["tokens_forced"]
    assert kept == usage["completion_tokens"] - usage["wasted_tokens"]
    assert usage["provider_cached_tokens"] is None


@cases("apps/command_line", "wrong usage is one sentence and its code", globals())
def test_wrong_usage_is_one_sentence_and_its_code(shell: Shell, arguments: list[str], code: int, sentence: str) -> None:
    shell.write("q.lq", '"a[B]" where B == "c"')
    ended = shell(*arguments)
    assert ended.code == code
    assert sentence in ended.err
    assert ended.out == ""


@cases("apps/command_line", "bad input is one clear diagnostic and its code", globals())
def test_bad_input_is_one_clear_diagnostic_and_its_code(
    shell: Shell, text: str | bytes, code: int, place: str, sentence: str
) -> None:
    ended = shell("run", shell.write("q.lq", text))
    assert (ended.code, ended.out) == (code, ""), ended.err
    assert ended.err.startswith(place), ended.err
    assert sentence in ended.err
    told = shell("run", "q.lq", "--json")
    assert told.code == code
    assert json.loads(told.out)["ok"] is False


def test_check_loads_neither_numpy_nor_a_model(tmp_path: Path) -> None:
    (tmp_path / "q.lq").write_text(GREET, "utf-8")
    code = (
        "import sys\nfrom lmql_lite.apps.cli import main\n"
        "try:\n    main(['check', 'q.lq'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'torch', 'starlette', 'tokenizers', 'openai', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "q.lq: ok\n"), done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["check", "--help"], ["--version"]])
def test_help_and_version(shell: Shell, arguments: list[str]) -> None:
    ended = shell(*arguments)
    assert ended.code == 0
    assert "lq" in ended.out


def test_control_characters_of_a_model_do_not_reach_a_terminal(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    query = shell.write("q.lq", 'return "a\\x1b[31mb\\u202ec\\n"')
    assert shell("run", query).out == "a\x1b[31mb\u202ec\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert shell("run", query).out == "a[31mbc\n"


LOST = """
import os, signal, time
class Lost:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
print("ready", flush=True)
Lost()
time.sleep(600)
"""
"""A module in which Python drops what a signal raises: it would come back here for ten minutes."""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("q.lq", 'import time\nprint("ready", flush=True)\ntime.sleep(600)\n', ["run", "q.lq"]),
        ("m.py", LOST, ["eval", "m:f", "d.csv"]),
    ],
    ids=["sleep", "lost"],
)
def test_ctrl_c_stops_with_130(tmp_path: Path, name: str, text: str, command: list[str]) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "d.csv").write_text("a\n1\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "lmql_lite", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.05)
    if text != LOST:
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, "interrupted")


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "q.lq").write_text("return 'x' * 70000", "utf-8")
    done = subprocess.run(
        f"{sys.executable} -m lmql_lite run q.lq | head -c 10",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (b"x" * 10, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
@pytest.mark.parametrize(
    "arguments", [["run", "q.lq"], ["run", "q.lq", "--json"], ["run", "q.lq", "--format", "events"], ["check", "q.lq"]]
)
def test_a_full_disk_is_one_sentence_and_no_bug(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "q.lq").write_text(GREET)
    command = [sys.executable, "-m", "lmql_lite", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "Error: the result cannot be written: No space left on device\n")


CHOOSE = '"Should I take an umbrella? It is {weather}. Answer:[ANSWER]" where ANSWER in [" yes", " no"]\n'
CHOOSE += 'return "umbrella" if ANSWER == " yes" else "hat"\n'
RAIN = '[[case]]\nname = "rain"\ninputs.weather = "rainy"\n'


@cases("apps/command_line", "a case that does not hold says why")
def test_a_case_that_does_not_hold_says_why(shell: Shell, line: str, problem: str) -> None:
    shell.write("choose.lq", CHOOSE)
    ended = shell("test", shell.write("choose.cases.toml", RAIN + line))
    assert ended.code == 4
    assert "  FAIL  rain  (line 1)" in ended.out and f"        {problem}" in ended.out.splitlines()


@cases("apps/command_line", "what is no case is a sentence with its place", globals())
def test_what_is_no_case_is_a_sentence_with_its_place(shell: Shell, cases: str, problem: str, hint: str) -> None:
    shell.write("choose.lq", CHOOSE)
    shell.write("choose.cases.toml", cases)
    ended = shell("test", "choose.lq")
    assert ended.code == 2 and problem in ended.err and hint in ended.err


@pytest.mark.parametrize(("named", "offered"), [("", ["demo"]), ("openai/some", ["openai/some", "demo"])])
def test_the_page_offers_the_model_of_the_environment_first(
    monkeypatch: pytest.MonkeyPatch, named: str, offered: list[str]
) -> None:
    from lmql_lite.apps.playground.command import _offered

    monkeypatch.setenv("LQ_MODEL", named)
    assert list(_offered((), None)) == offered
