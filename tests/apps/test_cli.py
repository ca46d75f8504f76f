"""`lq`: result on stdout, the rest on stderr, exit codes, and one clear diagnostic for every mistake."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmql_lite.apps.cli import main
from tests.tables import cases


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


class Shell:
    """Runs `lq` in this process, inside a folder of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def write(self, name: str, text: str | bytes) -> str:
        data = text.encode() if isinstance(text, str) else text
        (self.folder / name).write_bytes(data)
        return name

    def __call__(self, *arguments: str) -> Ended:
        code = 0
        try:
            main(list(arguments))
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = self._capsys.readouterr()
        assert "Traceback" not in captured.err + captured.out
        return Ended(code, captured.out, captured.err)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)


GREET = "\"Say 'this is a test':[TEXT]\" where len(TEXT) < 20\n"


def test_a_query_without_return_prints_its_text(shell: Shell) -> None:
    ended = shell("run", shell.write("q.lq", '"a{x}[B]" where B == "c"'), "--var", "x=é")
    assert (ended.code, ended.out, ended.err) == (0, "aéc\n", "")


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("'text\\n'", "text\n"),
        ("[1, 'é']", '[\n  1,\n  "é"\n]\n'),
        ("None", "null\n"),
        ("{'a': True}", '{\n  "a": true\n}\n'),
    ],
)
def test_a_returned_value_is_printed_text_as_it_is_else_as_json(shell: Shell, value: str, printed: str) -> None:
    assert shell("run", shell.write("q.lq", f'"prompt"\nreturn {value}')).out == printed


def test_a_query_that_says_nothing_is_told_what_a_prompt_is(shell: Shell) -> None:
    ended = shell("run", shell.write("q.lq", 'text = "a[B]"'))
    assert ended.code == 0 and "only a string that stands alone is part of it" in ended.err


def test_json_is_one_object_and_its_ledger_adds_up(shell: Shell) -> None:
    ended = shell("run", shell.write("q.lq", GREET), "--json", "--seed", "4")
    told = json.loads(ended.out)
    assert told["ok"] is True and told["seed"] == 4 and told["model"] == "demo" and told["schema"] == 1
    assert told["prompt"].endswith(told["vars"]["TEXT"])
    usage = told["usage"]
    kept = usage["tokens_from_cache"] + usage["tokens_from_model"] + usage["draft_accepted"] + usage["tokens_forced"]
    assert kept == usage["completion_tokens"] - usage["wasted_tokens"]
    assert usage["provider_cached_tokens"] is None


def test_usage_is_one_line_on_stderr(shell: Shell) -> None:
    ended = shell("run", shell.write("q.lq", '"a[B]" where B == " yes"'), "-u")
    assert ended.out == "a yes\n"
    assert ended.err.startswith("0 forward passes · tokens in 1 out 2 · kept 0 cache, 0 model, 0 draft, 2 forced")


def test_inputs_from_text_file_and_json(shell: Shell) -> None:
    shell.write("note.txt", "from a file")
    query = shell.write("q.lq", "return [a, b, c]")
    ended = shell("run", query, "--var", "a=x=y", "--var", "b=@note.txt", "--var-json", 'c={"n": [1]}')
    assert json.loads(ended.out) == ["x=y", "from a file", {"n": [1]}]


def test_a_query_from_stdin(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO('"é[B]" where B == "c"'.encode()), "utf-8"))
    assert shell("run", "-").out == "éc\n"


def test_a_cache_file_is_written_and_replayed(shell: Shell) -> None:
    query = shell.write("q.lq", '"Say:[X]" where len(X) < 9')
    first = shell("run", query, "--cache", "x.tokens", "-u")
    assert first.code == 0 and (shell.folder / "x.tokens").exists()
    again = shell("run", query, "--cache", "x.tokens", "--cache-mode", "replay", "-u")
    assert again.out == first.out and again.err.startswith("0 forward passes")
    other = shell.write("r.lq", '"Tell:[X]" where len(X) < 9')
    missed = shell("run", other, "--cache", "x.tokens", "--cache-mode", "replay")
    assert missed.code == 6 and "the recording has no answer of demo at token" in missed.err
    assert "needs" not in shell("run", query, "--cache-mode", "ro").out
    assert shell("run", query, "--cache-mode", "ro").code == 2


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


def test_a_query_that_returns_nothing_shows_its_distributions_below_its_text(shell: Shell) -> None:
    query = '"Is a penguin a bird or a fish?\\nAnswer:[KIND]." distribution KIND in [" bird", " fish"]\n'
    ended = shell("run", shell.write("q.lq", query))
    lines = ended.out.splitlines()
    assert lines[:3] == ["Is a penguin a bird or a fish?", "Answer: bird.", "P(KIND)"]
    assert re.fullmatch(r'0\.9\d\d\d  " bird"', lines[3]) and re.fullmatch(r'0\.0\d\d\d  " fish"', lines[4])
    told = json.loads(shell("run", "q.lq", "--json").out)
    assert [option for option, _ in told["vars"]["P(KIND)"]] == [" bird", " fish"]
    assert shell("run", shell.write("r.lq", query + "return KIND")).out == " bird\n"


def test_crlf_and_tabs_are_ordinary(shell: Shell) -> None:
    ended = shell("run", shell.write("q.lq", 'for i in range(2):\r\n\t"a{i}\\n"\r\n"""b\r\nc"""\r\n'))
    assert (ended.code, ended.out) == (0, "a0\na1\nb\nc\n")


def test_check_reports_every_problem_and_asks_no_model(shell: Shell) -> None:
    shell.write("good.lq", GREET)
    shell.write("bad.lq", '"a[1B]"\n"b{"\n')
    ended = shell("check", "good.lq", "bad.lq", "nowhere.lq")
    assert ended.code == 3
    assert "good.lq: ok" in ended.out
    assert "bad.lq:1:4" in ended.out and "bad.lq:2:3" in ended.out and "nowhere.lq" in ended.out
    assert ended.err == "3 problems found\n"
    assert shell("check", "good.lq").code == 0


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


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_stops_with_130(tmp_path: Path) -> None:
    (tmp_path / "q.lq").write_text(
        'import time, sys\nprint("ready", flush=True)\nwhile True:\n    time.sleep(0.01)\n', "utf-8"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "lmql_lite", "run", "q.lq"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "\ninterrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "q.lq").write_text("\"{'x' * 70000}\\n\" ", "utf-8")
    done = subprocess.run(
        f"{sys.executable} -m lmql_lite run q.lq | head -c 10",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (b"x" * 10, b"")


def test_check_warns_of_a_condition_that_is_always_true_and_the_file_is_fine(shell: Shell) -> None:
    ended = shell("check", shell.write("q.lq", '"[X]" where X == "a" or "b"\n'))
    assert ended.code == 0
    assert ended.out.splitlines() == [
        'q.lq:1:25: warning: `"b"` alone is always true',
        '    "[X]" where X == "a" or "b"',
        "                            ^^^",
        '    hint: write X == "b"',
        "q.lq: ok, with 1 warning",
    ]


def test_check_reports_a_condition_that_cannot_be_met(shell: Shell) -> None:
    ended = shell("check", shell.write("q.lq", '"[X]" where X in []\n"[Y: f(]"\n'))
    assert ended.code == 3 and "'(' is never closed" in ended.out
    ended = shell("check", shell.write("q.lq", '"[X]" where X in []\n"[Y]" where len(Y) < 0\n'))
    assert ended.code == 4 and ended.out.count("nothing can fill") == 2
    assert ended.err == "2 problems found\n"


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("serve-model", "local:NAME"),
        ("usage", "--help"),
        ("version", "--version"),
        ("fmt", "lq check"),
        ("chekc", "check"),
    ],
)
def test_a_command_that_is_not_here_says_what_to_write(shell: Shell, command: str, instead: str) -> None:
    ended = shell(command)
    assert ended.code == 2 and f"there is no command {command}" in ended.err and instead in ended.err


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
