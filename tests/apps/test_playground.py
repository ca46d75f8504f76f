"""The playground's runs: processes that are bounded, stopped, read by any number of pages, and learn for each other."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmql_lite.observe.lines import read
from tests.apps.playground_server import Page, Server, ends, is_alive, printed
from tests.tables import cases

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SHORT = '"Say hello:[TEXT]" where len(TEXT) < 12'
SPIN = 'def spin():\n    while True:\n        pass\nspin()\n"a[X]"'
ENDLESS = f"import os\nprint('process', os.getpid())\n{SPIN}"
SLEEPS = "import time\nprint('sleeps')\ntime.sleep(1000)\n\"a[X]\""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(
        memory_bytes=2**29, printed_bytes=2000, flood_bytes=20_000_000, events=4000, at_once=3, grace_seconds=1
    )
    yield server
    assert server.end() == 0
    assert "Traceback" not in server.errors and server.token not in server.errors


@pytest.fixture
def page(server: Server) -> Page:
    return server.page()


def lq(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lmql_lite", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


# What a run tells ------------------------------------------------------------------------------------------------


def test_a_run_is_told_line_by_line_and_its_lines_are_a_recording(page: Page, tmp_path: Path) -> None:
    lines = page.run(SHORT, name="hello.lq")
    assert len({line["run"] for line in lines}) == 1
    assert lines[0]["type"] == "started" and lines[-1]["vars"]["TEXT"]
    recording = tmp_path / "hello.lqrun"
    recording.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with open(recording, "rb") as file:
        assert len(list(read(file, "hello.lqrun"))) == len(lines)


def test_inputs_are_values_and_never_read_a_file(page: Page) -> None:
    query = 'print(type(x).__name__, y)\n"{y}[X]" where len(X) < 3'
    assert "list @/etc/hostname" in printed(page.run(query, inputs={"x": [1], "y": "@/etc/hostname"}))
    last = page.run(query, inputs={"x": 1})[-1]
    assert (last["type"], last["kind"]) == ("error", "InputError") and "y" in last["message"]


def test_a_query_that_does_not_compile_tells_all_its_problems(page: Page) -> None:
    last = page.run('"a[X]" where FOO(X)\n"b[Y]" where BAR(Y)')[-1]
    assert last["kind"] == "QueryError" and [other["span"]["line"] for other in last["others"]] == [2]


@pytest.mark.parametrize("how", ["header", "option"])
def test_only_models_that_were_named_are_asked(page: Page, how: str) -> None:
    if how == "option":
        answer = page.post("/api/runs", text=SHORT, options={"model": "openai/gpt-9"})
        assert answer.status_code == 400 and "openai/gpt-9" in answer.json()["error"]["message"]
    else:
        last = page.run('argmax\n    "a[X]"\nfrom "openai/gpt-9"\n')[-1]
        assert last["kind"] == "ModelError" and last["hint"] == "start it with --model openai/gpt-9"


def test_options_of_a_run_are_those_of_lq_run(page: Page) -> None:
    assert page.run(SHORT, options={"decoder": "sample", "seed": 7, "max_tokens": 2})[0]["seed"] == 7
    assert page.run(SHORT, options={"seed": "many"})[-1]["kind"] == "InputError"
    for name in ("trace", "cache", "session", "prices", "__class__"):
        assert page.post("/api/runs", text=SHORT, options={name: "x.json"}).status_code == 400


def test_a_run_that_has_ended_can_be_read_again_and_reported(page: Page) -> None:
    run = page.start('"<script>alert(1)</script>[X]" where len(X) < 4')
    lines = list(page.lines(run))
    assert list(page.lines(run)) == lines and list(page.lines(run, lines[-3]["seq"])) == lines[-2:]
    assert list(page.lines(run, 10_000)) == []
    report = page.http.get(f"/api/runs/{run}/report")
    assert report.headers["content-disposition"].startswith("attachment")
    assert "<script>alert" not in report.text and "&lt;script&gt;alert" in report.text
    assert {"run": run, "name": "query.lq", "state": "done", "lines": len(lines)} in page.http.get("/api/runs").json()[
        "runs"
    ]


# Stopping and losing ---------------------------------------------------------------------------------------------


def test_stop_ends_a_loop_that_never_ends_and_that_run_alone(page: Page) -> None:
    sleeping, endless = page.start(SLEEPS), page.start(ENDLESS)
    process = int(page.until(endless, lambda line: "process" in line.get("text", ""))["text"].split()[1])
    assert is_alive(process)
    assert page.http.delete(f"/api/runs/{endless}").status_code == 202
    last = list(page.lines(endless))[-1]
    assert (last["kind"], last["message"]) == ("Stopped", "the run was stopped") and ends(process)
    states = {run["run"]: run["state"] for run in page.http.get("/api/runs").json()["runs"]}
    assert (states[sleeping], states[endless]) == ("running", "error")
    page.http.delete(f"/api/runs/{sleeping}")
    assert list(page.lines(sleeping))[-1]["kind"] == "Stopped"


def test_stop_ends_a_query_that_refuses_to_end(page: Page) -> None:
    run = page.start(f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf')\n{SPIN}")
    page.until(run, lambda line: line["type"] == "log")
    page.http.delete(f"/api/runs/{run}")
    assert list(page.lines(run))[-1]["kind"] == "Stopped"


def test_what_a_stopped_run_has_learned_is_kept(page: Page) -> None:
    query = '"My favourite number, by far:[X]" where len(X) < 20\nimport time\nprint("now")\ntime.sleep(seconds)'
    run = page.start(query, inputs={"seconds": 1000})
    page.until(run, lambda line: line["type"] == "log")
    page.http.delete(f"/api/runs/{run}")
    assert list(page.lines(run))[-1]["kind"] == "Stopped"
    usage = page.run(query, inputs={"seconds": 0})[-1]["usage"]
    assert usage["tokens_from_model"] == 0 < usage["tokens_from_cache"]


def test_no_more_runs_than_fit_are_under_way(page: Page) -> None:
    runs = [page.start(SLEEPS) for _ in range(3)]
    refused = page.post("/api/runs", text=SHORT)
    assert refused.status_code == 429 and refused.json()["error"]["message"].startswith("3 runs are under way")
    for run in runs:
        page.http.delete(f"/api/runs/{run}")
    assert [list(page.lines(run))[-1]["kind"] for run in runs] == ["Stopped"] * 3
    assert page.run(SHORT)[-1]["type"] == "done"


# Runaway runs ----------------------------------------------------------------------------------------------------


@cases("apps/playground", "a query that runs away ends with a sentence")
def test_a_query_that_runs_away_ends_with_a_sentence(page: Page, text: str, kind: str, sentence: str) -> None:
    lines = page.run(f'{text}\n"a[X]" where len(X) < 5')
    assert lines[-1]["kind"] == kind and sentence in lines[-1]["message"]
    assert len(lines) < 4100 and sum(len(line.get("text", "")) for line in lines) < 30_000
    assert page.run(SHORT)[-1]["type"] == "done"


def test_a_query_that_takes_too_long_is_ended() -> None:
    server = Server(seconds=3, grace_seconds=1)
    last = server.page().run(ENDLESS)[-1]
    assert (last["kind"], last["message"]) == (
        "BudgetError",
        "the run has taken longer than the 3 seconds that it may take",
    )
    assert server.end() == 0


def test_what_is_printed_is_told_up_to_a_bound_and_the_run_goes_on(page: Page) -> None:
    lines = page.run('print("x" * 100_000)\nprint("y")\n"a[X]" where len(X) < 5')
    assert lines[-1]["type"] == "done" and printed(lines).count("x") <= 2001
    assert printed(lines).endswith("[no more than 2,000 characters are shown of what is printed]\n")


def test_a_value_that_is_too_long_to_be_told_is_a_sentence(page: Page) -> None:
    last = page.run("'text'\nreturn 'x' * 70_000_000")[-1]
    assert last["kind"] == "BudgetError" and "67,108,864 bytes" in last["message"] and "return" in last["hint"]


def test_stop_ends_a_process_that_was_forked_past_python_and_holds_the_runs_own_pipes(page: Page) -> None:
    forks = "import ctypes, os, time\nif ctypes.CDLL(None).fork() == 0:\n    print('forked', os.getpid(), flush=True)"
    run = page.start(forks + '\n    time.sleep(1000)\ntime.sleep(1000)\n"a[X]"')
    said = page.until(run, lambda line: "forked" in line.get("text", ""))["text"]
    page.http.delete(f"/api/runs/{run}")
    assert list(page.lines(run))[-1]["kind"] == "Stopped" and ends(int(said.split()[1]))


def test_characters_of_what_is_printed_arrive_whole(page: Page) -> None:
    lines = page.run('import os\nos.write(1, "日本\\u202e\\x1b[1m".encode() + b"\\xff")\n"a[X]" where len(X) < 5')
    assert printed(lines) == "日本\u202e\x1b[1m\ufffd"


FAMILY = """
import os, subprocess, sys, time
print("child", subprocess.Popen(["sleep", "1000"]).pid)
read, write = os.pipe()
if os.fork() == 0:
    print("forked", os.getpid(), flush=True)
    os.write(write, b".")
    time.sleep(1000)
os.read(read, 1)
{then}
"a[X]" where len(X) < 5
"""


@pytest.mark.parametrize("then", ["pass", "os.abort()", "time.sleep(1000)"], ids=["ends", "crashes", "is stopped"])
def test_children_of_a_run_die_with_it(page: Page, then: str) -> None:
    run = page.start(FAMILY.replace("{then}", then))
    if "1000" in then:
        page.until(run, lambda line: "forked" in line.get("text", ""))
        page.http.delete(f"/api/runs/{run}")
    lines = list(page.lines(run))
    assert lines[-1]["type"] == ("done" if then == "pass" else "error")
    processes = dict(re.findall(r"(child|forked) (\d+)", printed(lines)))
    assert sorted(processes) == ["child", "forked"]
    assert not [name for name, process in processes.items() if not ends(int(process))]


def test_a_run_that_forks_is_told_by_one_process(page: Page) -> None:
    lines = page.run('import os\nfor _ in range(3):\n    os.fork()\nprint("here")\n"a[X]" where len(X) < 5')
    assert lines[-1]["type"] == "done"
    assert [line["type"] for line in lines].count("started") == 1


# The server ------------------------------------------------------------------------------------------------------


def test_a_port_that_is_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = lq("playground", "--no-open", "--port", str(port), folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"port {port} is in use\n    hint: name another one; --port 0 takes one that is free\n"


@cases("apps/playground", "what is wrong on the command line is one sentence", globals())
def test_what_is_wrong_on_the_command_line_is_one_sentence(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    for name in ("notes.txt", "x\u202e.lq"):
        (tmp_path / name).write_text("notes")
    done = lq("playground", "--no-open", *arguments, folder=tmp_path)
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr


def test_the_command_prints_its_address_and_needs_neither_display_nor_browser(tmp_path: Path) -> None:
    without = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    command = [sys.executable, "-m", "lmql_lite", "playground", "--cache", "kept.tokens"]
    server = subprocess.Popen(
        command, cwd=tmp_path, env=without, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    found = re.fullmatch(r"Playground ready: (http://127\.0\.0\.1:\d+)/#token=(\S{43})\n", server.stdout.readline())
    assert found is not None
    page = Page(found[1], found[2])
    assert page.run(SHORT)[-1]["type"] == "done"
    assert page.http.get("/api/about").json()["cache"] == {"name": "kept.tokens", "session": False}
    page.http.close()
    server.send_signal(signal.SIGINT)
    assert server.wait(30) == 0 and found[2] not in server.communicate()[1]
    assert (tmp_path / "kept.tokens").is_file()


def test_a_browser_that_does_not_return_keeps_nobody_waiting(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(
        '#!/bin/sh\necho "$1" > asked.tmp\nmv asked.tmp asked\nwhile [ ! -e closed ]; do sleep 0.1; done\n'
    )
    browser.chmod(0o700)
    server = subprocess.Popen(
        [sys.executable, "-m", "lmql_lite", "playground"],
        cwd=tmp_path,
        env={**os.environ, "DISPLAY": ":0", "BROWSER": f"{browser} %s"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().removeprefix("Playground ready: ").strip()
        page = Page(*address.split("/#token="))
        deadline = time.monotonic() + 60
        while not (tmp_path / "asked").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (tmp_path / "asked").read_text().strip() == address
        assert page.http.get("/api/about").status_code == 200
        page.http.close()
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
    finally:
        (tmp_path / "closed").touch()
        server.kill()
        server.communicate()
