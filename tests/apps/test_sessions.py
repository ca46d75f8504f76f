"""Sessions in a terminal as a user has them: each is a file's worth of commands, and what `lq` prints.

In `sessions/*.txt` a session begins with `### `, a file with `> NAME`, a command with `$ `. Below a command stands what
it writes to stdout, what it writes to stderr, after `! `, and its exit code if that is not 0, in brackets. `...` is any
text within a line, and any lines where it stands alone. Commands but `lq` are the shell's. `& KIND TEXT` starts a stub
of a server that says the text; its address is URL in the commands after it.

`python -m tests.apps.test_sessions NAME` writes the outputs of a file again; then put the `...` back.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from unittest.mock import patch

import pytest

from lmql_lite.apps.cli import main
from lmql_lite.models.openai import gate
from tests.servers.kinds import OPENAI_CHAT, VLLM
from tests.servers.stub import serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the other commands are those of Linux")

KINDS = {"VLLM": VLLM, "OPENAI_CHAT": OPENAI_CHAT, "LOCKED": replace(VLLM, key="sk-test-0123456789")}
FILES = sorted((Path(__file__).parent / "sessions").glob("*.txt"))
SESSION = re.compile(r"^### (.+)\n((?:(?!### ).*\n)*)", re.MULTILINE)
STEP = re.compile(r"^([$>&]) (.*)\n((?:(?![$>&] |### ).*\n)*)", re.MULTILINE)
SESSIONS = {f"{file.stem}: {title}": text for file in FILES for title, text in SESSION.findall(file.read_text("utf-8"))}


class Terminal(ExitStack):
    """The servers of a session, and its steps. `lq` runs in this process."""

    url = ""

    def step(self, kind: str, head: str, below: str) -> str:
        """Output of a command, in the form of the files."""
        if kind == "$":
            return self._shown(re.sub(r"\bURL\b", self.url, head))
        if kind == "&":
            name, _, text = head.partition(" ")
            server = self.enter_context(serving(KINDS[name], text.replace("\\n", "\n")))
            self.url = server.base_url
        else:
            Path(head).parent.mkdir(parents=True, exist_ok=True)
            Path(head).write_text(below.rstrip("\n") + "\n", "utf-8")
        return below

    def _shown(self, command: str) -> str:
        variables = dict(re.findall(r"([A-Z_]+)=(\S*) ", command.partition("lq ")[0]))
        words = shlex.split(command)[len(variables) :]
        if words[0] != "lq":
            return lines(subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout)
        typed = b""
        if "<" in words:
            *words, _, name = words
            typed = Path(name).read_bytes()
        path, known, code = [*sys.path], set(sys.modules), 0
        stdin = patch.object(sys, "stdin", TextIOWrapper(BytesIO(typed), "utf-8"))
        streams = redirect_stdout(StringIO()), redirect_stderr(StringIO())
        with streams[0] as out, streams[1] as err, stdin, patch.dict(os.environ, variables):
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
    monkeypatch.setattr(gate, "FIRST_PAUSE", 0.001)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with Terminal() as terminal:
        for kind, head, below in STEP.findall(text):
            found = terminal.step(kind, head, below)
            assert kind != "$" or re.fullmatch(pattern(below), found), f"$ {head}\n{found}"
            assert "Traceback" not in found


def recorded(session: re.Match[str]) -> str:
    """The session with what its commands print now, where that is something else."""
    steps = []
    with tempfile.TemporaryDirectory() as folder, Terminal() as terminal:
        os.chdir(folder)
        for kind, head, below in STEP.findall(session[2]):
            found = terminal.step(kind, head, below)
            steps.append(f"{kind} {head}\n{below if re.fullmatch(pattern(below), found) else found}")
    return f"### {session[1]}\n{''.join(steps).rstrip()}\n\n"


if __name__ == "__main__":
    os.environ["LQ_MODEL"] = "demo"
    for file in FILES:
        if file.stem in sys.argv[1:]:
            file.write_text(SESSION.sub(recorded, file.read_text("utf-8")).rstrip() + "\n", "utf-8")
