"""`lq run --format events` and `--trace`: what a run tells other programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.observe.lines import read
from tests.apps.conftest import Shell
from tests.apps.test_servers import at
from tests.models.api import KEY
from tests.servers.kinds import VLLM
from tests.servers.stub import Fault, serving

SAY = '"Say:[X]" where len(X) < 9'


def told(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def in_a_process(*arguments: str, **how: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "lmql_lite", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)


# --format ----------------------------------------------------------------------------------------------------------


def test_every_event_is_a_line_and_the_last_one_is_what_json_says(shell: Shell) -> None:
    query = shell.write("q.lq", SAY)
    lines = told(shell("run", query, "--format", "events", "--seed", "3").out)
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    assert (lines[0]["type"], lines[-1]["type"]) == ("started", "done")
    assert "".join(line["text"] for line in lines if line["type"] == "text") == lines[-1]["prompt"]
    found = json.loads(shell("run", query, "--format", "json", "--seed", "3").out)
    del found["ok"], found["usage"]
    assert found.items() <= lines[-1].items()
    assert (
        shell("run", query, "--format", "json", "--seed", "3").out == shell("run", query, "--json", "--seed", "3").out
    )


def test_events_come_while_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "q.lq").write_text('import sys\n"one\\n[X]"\nsys.stdin.readline()\n"two\\n"\n', "utf-8")
    process = in_a_process(
        "run", "q.lq", "--format", "events", "--max-tokens", "2", cwd=tmp_path, stdin=subprocess.PIPE
    )
    assert process.stdout is not None
    while json.loads(process.stdout.readline())["type"] != "hole.closed":
        pass  # the query waits for its input: what came before has arrived
    out, err = process.communicate(b"\n", timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert told(out.decode())[-1]["type"] == "done"


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_is_the_last_line_of_events_and_of_a_recording(tmp_path: Path) -> None:
    (tmp_path / "q.lq").write_text('import time\n"a"\nwhile True:\n    time.sleep(0.01)\n', "utf-8")
    process = in_a_process("run", "q.lq", "--format", "events", "--trace", "r.lqrun", cwd=tmp_path)
    assert process.stdout is not None
    first = [json.loads(process.stdout.readline())["type"] for _ in range(2)]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (first, process.returncode) == (["started", "text"], 130) and b"interrupted" in err
    assert told(out.decode())[-1]["kind"] == "Stopped"
    with open(tmp_path / "r.lqrun", "rb") as file:
        assert [each["type"] for each in read(file, "r.lqrun")] == ["started", "text", "error"]


# --trace ---------------------------------------------------------------------------------------------------------


def test_a_recording_is_the_lines_of_the_events(shell: Shell) -> None:
    out = told(shell("run", shell.write("q.lq", SAY), "--format", "events", "--trace", "r.lqrun").out)
    kept = told((shell.folder / "r.lqrun").read_text("ascii"))
    assert [{**line, "ms": 0} for line in kept] == [{**line, "ms": 0} for line in out]


def test_a_long_recording_is_not_held_in_memory(shell: Shell) -> None:
    shell("run", shell.write("q.lq", '"a"'), "--trace", "r.lqrun")
    first, text, *_ = (shell.folder / "r.lqrun").read_text("ascii").splitlines()
    line = {**json.loads(text), "type": "notice", "message": "x" * 1000}
    with open(shell.folder / "long.lqrun", "w", encoding="ascii") as file:
        file.write(first + "\n")
        for seq in range(1, 5_000):
            file.write(json.dumps({**line, "seq": seq}) + "\n")
    code = (
        "import tracemalloc, lmql_lite.observe.lines as wire\n"
        "tracemalloc.start()\n"
        "with open('long.lqrun', 'rb') as file:\n"
        "    many = sum(1 for told in wire.read(file, 'long.lqrun'))\n"
        "print(many, tracemalloc.get_traced_memory()[1] < 2_000_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=shell.folder, capture_output=True, text=True, check=False)
    assert done.stdout == "5000 True\n", done.stderr


@pytest.mark.parametrize("fault", [None, Fault(status=401)], ids=["answered", "refused"])
def test_no_key_stands_in_anything_that_a_run_tells(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, fault: Fault | None
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    query = shell.write("q.lq", '"Say:[A]" where STOPS_AT(A, "\\n")\n')
    for form in ("text", "json", "events"):
        for suffix in ("json", "lqrun", "html"):
            with serving(VLLM, "Say: hello\n", fault) as server:
                ended = shell("run", query, *at(server), "--format", form, "--trace", f"r.{suffix}", "--cache", "off")
            written = (shell.folder / f"r.{suffix}").read_text("utf-8")
            assert KEY not in ended.out + ended.err + written
            assert (ended.code == 0) == (fault is None), ended.err
