"""What the playground never reads, tells, runs, spends or leaves: rows 12 to 26 of playground/PROTOCOL.md's table."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apps.playground_server import API, STATIC, Page, Server, ask, ends, is_alive, runs
from tests.models.api import KEY
from tests.servers.kinds import OPENAI_CHAT, VLLM
from tests.servers.stub import serving
from tests.tables import cases

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SECRET = "planted-secret-0123456789"
SAY = '"Say:[X]" where len(X) < 4'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("queries")
    (folder / "q.lq").write_text(SAY)
    keys = {"OPENAI_API_KEY": SECRET, "MY_SECRET": SECRET, "HF_TOKEN": SECRET, "DB_PASSWORD": SECRET}
    server = Server(files=folder, environment=keys, at_once=50)
    yield server
    assert server.end() == 0
    assert SECRET not in server.errors and server.token not in server.errors


@pytest.fixture
def page(server: Server) -> Page:
    return server.page()


# Rows 12, 15, 16, 17, 20, 25: what it does not tell, read, or run ------------------------------------------------


def test_no_answer_and_no_run_holds_a_key(server: Server, page: Page) -> None:
    shows = "import os\nprint(dict(os.environ))\n"
    lines = page.run(shows + f'print("{SECRET}")\n"[X]" where len(X) < 3')
    told = json.dumps(lines)
    assert "[hidden]" in told and "OPENAI_API_KEY" not in told and "HF_TOKEN" not in told
    texts = [told, json.dumps(page.run(f'raise ValueError("{SECRET} " + "{server.token}")')), server.errors]
    texts += [page.http.get(path).text for method, path in (*API, *STATIC) if method == "GET" and "q.lq" not in path]
    texts += [page.http.get(f"/api/runs/{run['run']}/report").text for run in runs(server) if run["state"] != "running"]
    texts.append(page.post("/api/check", text=shows).text)
    assert [text for text in texts if SECRET in text or server.token in text] == []


def test_the_key_of_a_model_reaches_its_server_and_nobody_else(tmp_path: Path) -> None:
    with serving(OPENAI_CHAT, "Say: hello\n") as api:
        name = f"openai/{api.config.model}"
        server = Server(
            models={name: {"base_url": api.base_url, "api_key": KEY}, "demo": {}},
            environment={"OPENAI_API_KEY": KEY},
            cache=tmp_path / "own.tokens",
        )
        page = server.page()
        lines = page.run('import os\nprint(dict(os.environ))\n"Say:[X]" where STOPS_AT(X, "\\n")')
        assert lines[-1]["type"] == "done" and KEY in api.keys
        about = page.http.get("/api/about")
        assert [model["id"] for model in about.json()["models"]] == [name, "demo"]
        report = page.http.get(f"/api/runs/{lines[0]['run']}/report")
        assert server.end() == 0
        kept = (tmp_path / "own.tokens").read_bytes().decode("latin-1")
        assert KEY not in json.dumps(lines) + about.text + report.text + server.errors + kept


@cases("apps/playground", "no name leads out of the folder")
def test_no_name_leads_out_of_the_folder(name: str, server: Server, page: Page) -> None:
    assert server.files is not None
    folder, outside = server.files, server.files.parent / "outside.lq"
    outside.write_text(SECRET)
    (folder / ".hidden.lq").write_text(SECRET)
    for link, target in (("link.lq", outside), ("linked", folder.parent)):
        if not (folder / link).is_symlink():
            (folder / link).symlink_to(target)
    if not (folder / "pipe.lq").exists():
        os.mkfifo(folder / "pipe.lq")
        (folder / "folder.lq").mkdir()
    before = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    for method, body in (("GET", ""), ("PUT", '{"text": "changed", "version": null}')):
        status = ask(server, method, f"/api/files/{name}", f"Host: 127.0.0.1:{server.port}", body=body)
        assert status in (400, 404, 405, 409, 422), method
    assert {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()} == before
    assert [each["name"] for each in page.http.get("/api/files").json()["files"]] == ["q.lq"]


def test_a_text_that_looks_like_a_path_or_a_file_is_a_text(page: Page) -> None:
    for text in ("./q.lq", "/etc/hostname", "q.lq"):
        last = page.run(text)[-1]
        assert last["kind"] in ("QueryError", "NameError", "InputError")
    assert "root" not in page.post("/api/check", text="@/etc/passwd").text


@cases("apps/playground", "nothing but the page's own files is served")
def test_nothing_but_the_pages_own_files_is_served(server: Server, path: str) -> None:
    assert ask(server, "GET", path, f"Host: 127.0.0.1:{server.port}") == 404


def test_looking_at_a_query_runs_nothing_of_it(page: Page, tmp_path: Path) -> None:
    canary, module = tmp_path / "canary", _module(tmp_path)
    texts = [
        f"open({str(canary)!r}, 'w')\n\"a[X]\"",
        f'import sys\nsys.path.insert(0, {str(module.parent)!r})\nimport {module.stem}\n"a[X]"',
        f"def loud(f):\n    open({str(canary)!r}, 'w')\n    return f\n@loud\ndef f():\n    pass\n\"a[X]\"",
        f"\"a{{open({str(canary)!r}, 'w')}}[X]\"",
        f"\"a[X: open({str(canary)!r}, 'w')]\"",
        f"\"a[X]\" where X in open({str(canary)!r}, 'w')",
        f"argmax(n=open({str(canary)!r}, 'w'))\n    \"a[X]\"\nfrom 'demo'\n",
        f"class A(metaclass=open({str(canary)!r}, 'w')):\n    pass\n\"a[X]\"",
    ]
    for text in texts:
        assert page.post("/api/check", text=text).status_code == 200, text
        assert not canary.exists(), text
    assert page.run(texts[0])[-1]["type"] == "done" and canary.exists()


def _module(folder: Path) -> Path:
    module = folder / "lq_canary_module.py"
    module.write_text(f"open({str(folder / 'canary')!r}, 'w')\n")
    return module


def test_a_text_that_takes_all_memory_to_read_is_bounded(server: Server) -> None:
    """Row 18, for what is looked at before anybody runs it."""
    small = Server(memory_bytes=2**28)
    assert small.page().post("/api/check", text="(" * 900_000).status_code in (200, 422)
    assert small.page().post("/api/check", text=SAY).json()["problems"] == []
    assert small.end() == 0


def test_a_planted_file_is_no_cache_and_is_not_executed(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    planted = tmp_path / "planted.tokens"
    planted.write_bytes(f"cposix\nsystem\n(S'touch {canary}'\ntR.".encode())
    server = Server(cache=planted)
    last = server.page().run(SAY)[-1]
    assert (last["type"], last["kind"]) == ("error", "CacheError") and not canary.exists()
    assert server.end() == 0


# Rows 18 and 23: nothing is left -------------------------------------------------------------------------------------

LEAVES = """
import os, re, subprocess
child = subprocess.Popen(["sleep", "1000"]).pid
print("processes", os.getpid(), child, flush=True)
re.match("(a+)+$", "a" * 64 + "b")
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], ids=lambda how: how.name)
def test_a_run_in_the_middle_of_c_code_and_its_children_die_with_the_server(how: signal.Signals) -> None:
    server = Server(grace_seconds=1)
    page = server.page()
    said = page.until(page.start(LEAVES), lambda line: "processes" in line.get("text", ""))["text"]
    processes = [int(number) for number in said.split()[1:]]
    assert server.end(how) == (-9 if how == signal.SIGKILL else 0)
    deadline = time.monotonic() + 30
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [process for process in processes if is_alive(process)]


def test_a_run_in_the_middle_of_c_code_is_stopped(server: Server, page: Page) -> None:
    run = page.start(LEAVES)
    said = page.until(run, lambda line: "processes" in line.get("text", ""))["text"]
    page.http.delete(f"/api/runs/{run}")
    assert list(page.lines(run))[-1]["kind"] == "Stopped"
    assert not [process for process in said.split()[1:] if not ends(int(process))]


def test_old_runs_are_dropped_and_running_ones_are_not() -> None:
    server = Server(kept=3)
    page = server.page()
    sleeping = page.start('import time\ntime.sleep(1000)\n"a[X]"')
    old = [page.run(SAY)[0]["run"] for _ in range(6)]
    known = [run["run"] for run in runs(server)]
    assert known[0] == sleeping and known[1:] == old[-len(known) + 1 :] and len(known) <= 5
    assert page.http.get(f"/api/runs/{old[0]}/events").status_code == 404
    assert server.end() == 0


# Rows 21 and 22: nothing is spent that was not named -----------------------------------------------------------------


def test_a_key_in_the_environment_asks_nobody() -> None:
    with serving(VLLM, "Say: hello\n") as api:
        server = Server(environment={"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": api.base_url})
        page = server.page()
        assert page.run(SAY)[-1]["type"] == "done"
        assert page.run(f'argmax\n    "a[X]"\nfrom "openai/{api.config.model}"\n')[-1]["kind"] == "ModelError"
        assert server.end() == 0
        assert (api.requests, api.looks) == (0, 0)


def test_the_cost_that_a_run_may_have_is_the_servers_to_say() -> None:
    with serving(VLLM, "Say: hello\n") as api:
        models = {f"openai/{api.config.model}": {"base_url": api.base_url, "api_key": KEY}}
        server = Server(models=models, bounds={"prices": [1.0, 1.0], "max_cost": 0.000001})
        page = server.page()
        for option in ("max_cost", "prices"):
            assert page.post("/api/runs", text=SAY, options={option: 1000}).status_code == 400
        last = page.run('"Say:[A]" where STOPS_AT(A, "\\n")')[-1]
        assert last["kind"] == "BudgetError" and api.requests == 0
        assert server.end() == 0


# What is kept, and what is said of all this ------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_what_runs_have_learned_is_for_the_user_alone_and_goes_with_the_server(
    how: signal.Signals, tmp_path: Path
) -> None:
    """Row 14."""
    server = Server(environment={"TMPDIR": str(tmp_path)})
    assert server.page().run(SAY)[-1]["type"] == "done"
    (own,) = tmp_path.iterdir()
    beside = {"session.tokens-wal", "session.tokens-shm"}  # while the file is open
    assert {path.name for path in own.iterdir()} - beside == {"session.tokens"}
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    server.end(how)
    deadline = time.monotonic() + 30
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


def test_the_table_of_rules_names_tests_that_there_are(root: Path) -> None:
    short = {
        "S": "apps/test_playground_security.py",
        "T": "apps/test_playground_reach.py",
        "R": "apps/test_playground.py",
        "B": "browser/test_security.py",
    }
    text = (root / "playground" / "PROTOCOL.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.*)\|$", text, re.M)
    assert [int(number) for number, _, _ in rows] == list(range(1, 27))
    for number, _, tests in rows:
        file = ""
        assert tests.strip() or number == "19"
        for word in re.findall(r"[STRB](?= `)|`[^`]+`", tests):
            name = word.strip("`")
            if not name.startswith("test_") or name.endswith(".py"):
                file = (root / "tests" / short.get(name, name)).read_text("utf-8")
            else:
                assert re.search(rf"^def {name}\(", file, re.M), (number, name)


# Where the system has less ---------------------------------------------------------------------------------------


def test_its_modules_can_be_read_where_there_is_no_posix() -> None:
    script = (
        "import sys\n"
        "for name in ('fcntl', 'resource', 'pwd', 'grp', 'termios', 'readline'): sys.modules[name] = None\n"
        "import lmql_lite.apps.cli, lmql_lite.apps.playground.cleaner\n"
        "import lmql_lite.apps.playground.process, lmql_lite.apps.playground.runs, lmql_lite.apps.playground.files\n"
        "import lmql_lite.apps.playground.guard, lmql_lite.apps.playground.runs\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
