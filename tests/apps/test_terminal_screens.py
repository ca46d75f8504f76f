"""The screen of `lq` as a terminal draws it: progress is gone before the result, and nothing is drawn over anything."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from lmql_lite.assets import asset

pyte = pytest.importorskip("pyte")

PACK = '"Things to pack for {place}:\\n-[THING]" where STOPS_AT(THING, "\\n")\n'
SLOW = "import time\ntime.sleep(0.7)\n"
"""Long enough for a counter."""
HEIGHT, WIDTH = 24, 100


class Terminal:
    """A program in a pseudo-terminal, and the screen that it draws."""

    def __init__(self, folder: Path, *arguments: str, variables: Mapping[str, str]) -> None:
        self.screen = pyte.Screen(WIDTH, HEIGHT)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH), **variables}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lmql_lite", *arguments],
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
        )
        os.close(theirs)

    def until(self, pattern: str) -> None:
        """Reads until the screen shows the pattern."""
        end = time.monotonic() + 60
        while not re.search(pattern, "\n".join(self.lines)):
            assert time.monotonic() < end, self.lines
            self._read()

    def ended(self) -> tuple[int, list[str]]:
        """Exit code and the lines on the screen at the end."""
        while self._read():
            pass
        os.close(self.ours)
        return self.process.wait(60), self.lines

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in "\n".join(self.screen.display).rstrip().split("\n")]

    def _read(self) -> bool:
        if not select.select([self.ours], [], [], 60)[0]:
            raise AssertionError(f"nothing came for a minute: {self.lines}")
        try:
            data = os.read(self.ours, 4096)
        except OSError:  # Linux: the other side is closed
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)


Started = Callable[..., Terminal]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pack.lq").write_text(PACK)
    (tmp_path / "value.lq").write_text(f"{PACK}{SLOW}{PACK}return [THING]\n")
    (tmp_path / "wrong.lq").write_text('"[ANSWER]"\n"{ANSWR}"\nreturn ANSWR\n')
    return tmp_path


@pytest.fixture
def started(folder: Path) -> Iterator[Started]:
    """`lq` in terminals of its own, none of which outlives the test."""
    terminals = []

    def start(*arguments: str, **variables: str) -> Terminal:
        terminals.append(Terminal(folder, *arguments, variables=variables))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.process.kill()
        terminal.process.wait()


def test_the_counter_is_erased_before_the_result_is_written(started: Started) -> None:
    terminal = started("run", "value.lq", "--var", "place=Rome")
    code, lines = terminal.ended()
    assert b" tokens" in terminal.raw, "a counter was drawn"
    assert (code, lines) == (0, ["[", '  " Camera\\n"', "]"])


def test_a_model_that_is_loaded_shows_that_it_is_and_for_how_long(started: Started) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
    model = f"local:{asset('demo/model', 'config.json').parent}"
    terminal = started("run", "value.lq", "--var", "place=Rome", "--model", model)
    terminal.until(r"loading local:.* [1-9]\d* s")
    code, lines = terminal.ended()
    assert (code, lines[0], lines[-1]) == (0, "[", "]")


@pytest.mark.parametrize("command", [("run", "value.lq", "--var", "place=Rome"), ("eval", "value.lq", "d.csv")])
def test_a_server_that_is_silent_shows_what_is_waited_for(
    started: Started, folder: Path, command: tuple[str, ...]
) -> None:
    (folder / "d.csv").write_text("id,place\n1,Rome\n")
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, and never answers
        address = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        terminal = started(*command, "--model", "openai/some", "--base-url", address)
        terminal.until(r"waiting for openai/some · [1-9]\d* s")
        terminal.process.send_signal(signal.SIGINT)
        code, lines = terminal.ended()
    assert code == 130
    assert not any("waiting" in line for line in lines)


def test_nothing_is_drawn_in_a_pipe_while_a_server_is_silent(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        command = ["run", "value.lq", "--var", "place=Rome", "--model", "openai/some", "--base-url", address]
        command += ["--timeout", "4"]
        run = subprocess.run(
            [sys.executable, "-m", "lmql_lite", *command], cwd=folder, capture_output=True, timeout=200
        )
    assert run.returncode and b"waiting for" not in run.stdout + run.stderr and b"\x1b" not in run.stderr


def test_a_line_that_is_typed_is_not_drawn_over(started: Started, folder: Path) -> None:
    (folder / "asks.lq").write_text(f"name = input('Name? ')\n{PACK.replace('{place}', '{name}')}return name\n")
    terminal = started("run", "asks.lq")
    terminal.until("Name")
    time.sleep(2.5)
    os.write(terminal.ours, b"Ada\n")
    code, lines = terminal.ended()
    assert (code, lines[0], lines[-1]) == (0, "Name? Ada", "Ada")
    assert b"the model" not in terminal.raw


def test_a_line_that_the_query_prints_stands_above_the_counter(started: Started, folder: Path) -> None:
    (folder / "prints.lq").write_text(
        f"{PACK}{SLOW}{PACK}print('one\\ntw', end='')\nprint('o')\n{SLOW}{PACK}print('rest', end='')\nreturn [THING]\n"
    )
    terminal = started("run", "prints.lq", "--var", "place=Rome", COLUMNS="12")
    code, lines = terminal.ended()
    assert re.search(rb"1 tokens|[2-9] tokens", terminal.raw), "a counter was drawn"
    assert (code, lines) == (0, ["one", "two", "rest[", '  " Camera\\n"', "]"])


def test_text_comes_as_it_is_generated_where_nothing_is_returned(started: Started, folder: Path) -> None:
    (folder / "slow.lq").write_text(f"{PACK}import time\ntime.sleep(3)\n{PACK}")
    terminal = started("run", "slow.lq", "--var", "place=Rome")
    terminal.until("Passport")
    assert terminal.process.poll() is None, "it goes on"
    whole = ["Things to pack for Rome:", "- Passport", "Things to pack for Rome:", "- Camera"]
    assert terminal.ended() == (0, whole)
    assert b" tokens" not in terminal.raw


def test_an_error_stands_alone_with_its_caret_under_its_name(started: Started) -> None:
    terminal = started("run", "wrong.lq")
    code, lines = terminal.ended()
    assert code == 2
    assert lines[0].startswith("wrong.lq:2:3: ")
    assert lines[1:3] == ['    "{ANSWR}"', "      ^^^^^"]
    assert lines[3].startswith("    hint: ")
    assert b"\x1b[1;31m" in terminal.raw or b"\x1b[1m" in terminal.raw


@pytest.mark.parametrize(
    ("options", "variables"), [([], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"}), (["--color=never"], {})]
)
def test_no_colour_is_no_escape_at_all(started: Started, options: list[str], variables: dict[str, str]) -> None:
    terminal = started("run", "wrong.lq", *options, **variables)
    assert terminal.ended()[0] == 2
    assert b"\x1b" not in terminal.raw


def test_ctrl_c_says_what_is_kept_and_where(started: Started, folder: Path) -> None:
    (folder / "endless.lq").write_text(f"argmax(cache='joke.tokens')\n    {PACK}    import time\n    time.sleep(600)\n")
    terminal = started("run", "endless.lq", "--var", "place=Rome")
    terminal.until("Passport")
    terminal.process.send_signal(signal.SIGINT)
    code, lines = terminal.ended()
    assert code == 130
    assert lines[:2] == ["Things to pack for Rome:", "- Passport"]
    said = r"interrupted; \d+ tokens? kept in joke\.tokens; run the same command to continue"
    assert re.fullmatch(said, lines[2]) and len(lines) == 3
    assert (folder / "joke.tokens").stat().st_size > 100


def test_a_data_set_run_that_goes_on_counts_what_was_known_and_says_what_ctrl_c_keeps(
    started: Started, folder: Path
) -> None:
    (folder / "q.lq").write_text('import asyncio\nawait asyncio.sleep(0.5)\n"{word}"\nreturn "a"\n')
    (folder / "d.csv").write_text("id,word,target\n" + "".join(f"r{n},w{n},a\n" for n in range(40)))
    command = ("eval", "q.lq", "d.csv", "-o", "r", "-m", "exact", "-j", "1")
    first = started(*command, "--limit", "2")
    assert first.ended()[0] == 0 and "exact 1.000" in first.raw.decode()
    terminal = started(*command, COLUMNS="40")
    terminal.until(r"[45]/40 rows · 0 errors · 0:\d\d left")
    terminal.process.send_signal(signal.SIGINT)
    code, lines = terminal.ended()
    assert code == 130
    said = r"interrupted; \d+ of 40 answers are kept in r; run the same command to continue"
    assert re.fullmatch(said, " ".join(map(str.strip, lines))), "\n".join(lines)
    drawn = [line.split("\x1b[K")[-1] for line in terminal.raw.decode().split("\r") if "rows ·" in line]
    assert not any(re.match(r"(\x1b\[2m)?[012]/40", line) for line in drawn)
    assert all(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) < 40 for line in drawn)
    _, shown = started("eval", "show", "r", COLUMNS="40").ended()
    assert all(len(line) <= 40 for line in shown) and re.search(r"exact +1\.0000 ", " ".join(shown))
    code, refused = started("run", "-e", '"[X]"', "--model", "gpt-9", COLUMNS="40").ended()
    words = " ".join(map(str.strip, refused))
    assert code == 5 and all(len(line) <= 40 for line in refused)
    assert "no model is called 'gpt-9'" in words and "did you mean openai/gpt-9?" in words


def test_a_chat_shows_questions_and_answers_in_turn(started: Started, folder: Path) -> None:
    (folder / "chat.lq").write_text(
        'while question := input():\n    "Q: {question}\\nA:[A]\\n" where STOPS_BEFORE(A, "\\n")\n'
    )
    terminal = started("chat", "chat.lq")
    terminal.until("(?m)^>$")
    os.write(terminal.ours, b"What is the capital of France?\n")
    terminal.until(r"(?m)Paris.*\n>$")
    os.write(terminal.ours, b"\x04")
    code, lines = terminal.ended()
    assert code == 0
    assert lines[0] == "> What is the capital of France?" and "Paris" in lines[1]
    assert lines[-1].startswith("1 answer · kept ")
