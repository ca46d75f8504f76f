"""Sessions in a terminal as a user has them: each is a file's worth of commands, and what `lq` prints.

In `sessions/*.txt` a session begins with `### `, a file with `> NAME`, a command with `$ `. Below a command stands what
it writes to stdout, what it writes to stderr, after `! `, and its exit code if that is not 0, in brackets. `...` is any
text within a line, and any lines where it stands alone. Commands but `lq` are the shell's.

`python -m tests.apps.test_sessions NAME` writes the outputs of a file again; then put the `...` back.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest

from lmql_lite.apps.cli import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the other commands are those of Linux")

FILES = sorted((Path(__file__).parent / "sessions").glob("*.txt"))
SESSION = re.compile(r"^### (.+)\n((?:(?!### ).*\n)*)", re.MULTILINE)
STEP = re.compile(r"^([$>]) (.*)\n((?:(?![$>] |### ).*\n)*)", re.MULTILINE)
SESSIONS = {f"{file.stem}: {title}": text for file in FILES for title, text in SESSION.findall(file.read_text("utf-8"))}


def shown(command: str) -> str:
    """Output of a command in the form of the files. `lq` runs in this process."""
    words = shlex.split(command)
    if words[0] != "lq":
        return lines(subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout)
    if "<" in words:
        *words, _, name = words
        sys.stdin = TextIOWrapper(BytesIO(Path(name).read_bytes()), "utf-8")
    path, known, code = [*sys.path], set(sys.modules), 0
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        try:
            main(words[1:])
        except SystemExit as ended:
            code = int(ended.code or 0)
    sys.path[:] = path
    for name in set(sys.modules) - known:  # the next command imports its own
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(Path.cwd())):
            del sys.modules[name]
    said = "".join(f"! {line}".rstrip() + "\n" for line in err.getvalue().splitlines())
    return lines(out.getvalue()) + said + f"[{code}]\n" * bool(code)


def lines(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def pattern(expected: str) -> str:
    """Regular expression of what stands below a command. Blank lines at its end are those between sessions."""
    found = expected.rstrip("\n").split("\n") if expected.strip() else []
    return "".join("(?:.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n" for line in found)


@pytest.mark.parametrize("text", SESSIONS.values(), ids=SESSIONS)
def test_a_session_prints_what_stands_there(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO())
    for kind, head, below in STEP.findall(text):
        if kind == ">":
            Path(head).parent.mkdir(parents=True, exist_ok=True)
            Path(head).write_text(below.rstrip("\n") + "\n", "utf-8")
        else:
            found = shown(head)
            assert re.fullmatch(pattern(below), found), f"$ {head}\n{found}"
            assert "Traceback" not in found


def recorded(step: re.Match[str]) -> str:
    kind, head, below = step.groups()
    if kind == ">":
        Path(head).parent.mkdir(parents=True, exist_ok=True)
        Path(head).write_text(below.rstrip("\n") + "\n", "utf-8")
        return step[0]
    found = shown(head)
    same = re.fullmatch(pattern(below), found)
    return f"$ {head}\n{below if same else found}"


def recorded_session(session: re.Match[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        return f"### {session[1]}\n{STEP.sub(recorded, session[2]).rstrip()}\n\n"


if __name__ == "__main__":
    os.environ["LQ_MODEL"] = "demo"
    for file in FILES:
        if file.stem in sys.argv[1:]:
            file.write_text(SESSION.sub(recorded_session, file.read_text("utf-8")).rstrip() + "\n", "utf-8")
