"""Files, drafts and typed lines of the playground, as its server has them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps.playground_server import Page, Server, printed
from tests.conftest import ROOT

DATES = (ROOT / "examples" / "06_dates.lq").read_text("utf-8")
READS = 'while line := input():\n    "<{line}>"\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tmp_path = tmp_path_factory.mktemp("files")
    (tmp_path / "06_dates.lq").write_text(DATES, "utf-8")
    (tmp_path / "07_record.lq").write_text('"my own"\n', "utf-8")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "06_dates.lq").write_text(DATES, "utf-8")
    server = Server(files=tmp_path)
    yield server
    server.end()


@pytest.fixture
def page(server: Server) -> Page:
    return server.page()


def test_the_list_tells_a_copy_of_an_example_from_a_file_of_its_name(page: Page) -> None:
    files = page.http.get("/api/files").json()["files"]
    assert {file["name"]: file["shipped"] for file in files} == {
        "06_dates.lq": True,
        "07_record.lq": False,
        "sub/06_dates.lq": False,
    }


def put(page: Page, name: str, version: str | None) -> tuple[int, dict[str, Any]]:
    answer = page.http.put(f"/api/files/{name}", json={"text": '"x"\n', "version": version})
    return answer.status_code, answer.json().get("error", {})


def test_a_save_that_would_overwrite_says_what_is_in_its_way(page: Page, server: Server) -> None:
    assert server.files is not None
    version = page.http.get("/api/files/07_record.lq").json()["version"]
    assert put(page, "07_record.lq", None) == (
        409,
        {"message": "there is already a file '07_record.lq'", "hint": "open it, or save under another name"},
    )
    (server.files / "07_record.lq").write_text('"theirs"\n')
    status, error = put(page, "07_record.lq", version)
    assert status == 409 and error["message"] == "'07_record.lq' has changed since it was read"
    (server.files / "07_record.lq").unlink()
    status, error = put(page, "07_record.lq", version)
    assert status == 409 and error["message"] == "'07_record.lq' is no longer in the folder"
    assert put(page, "07_record.lq", None) == (200, {})


@pytest.mark.parametrize("name", ["con.lq", "NUL.lq", "aux.x.lq", "com1.lq", "LPT9.lmql", "sub/prn.lq"])
def test_a_name_that_windows_cannot_have_is_refused_with_a_sentence(page: Page, name: str) -> None:
    status, error = put(page, name, None)
    assert status == 422 and error["message"] == f"{name!r} names a device on Windows, not a file"
    assert put(page, name.replace(".", "x.", 1), None)[0] == 200


def start(folder: Path | None) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "lmql_lite", "playground", "--no-open", *([str(folder)] if folder else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
    assert found is not None
    return process, found[1]


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)


@pytest.mark.slow
def test_a_folder_has_the_same_port_at_each_start_so_that_its_drafts_are_found(tmp_path: Path) -> None:
    """The browser keeps drafts by address."""
    ports = []
    for _ in range(2):
        process, port = start(tmp_path)
        ports.append(port)
        stop(process)
    assert ports[0] == ports[1] and 20_000 <= int(ports[0]) < 30_000
    first, port = start(tmp_path)
    second, other = start(tmp_path)
    stop(first)
    stop(second)
    assert port == ports[0] and other != port, "a second one at the same time takes another one"


@pytest.mark.slow
def test_the_key_of_the_drafts_is_that_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "a.lq").write_text('"a"\n')
    keys = []
    for files in (tmp_path / "one", tmp_path / "one" / "a.lq", tmp_path / "two", None):
        server = Server(files=files)
        keys.append(server.page().http.get("/api/about").json()["drafts"])
        server.end()
    folder, file, other, none = keys
    assert folder == file and len({folder, other, none}) == 3
    assert all(re.fullmatch("[0-9a-f]{16}", key) for key in keys)


@pytest.mark.parametrize(
    ("typed", "text"),
    [(["a", "b", ""], "<a><b>"), (["é 日", ""], "<é 日>"), ([""], "")],
    ids=["lines", "other characters", "an empty line"],
)
def test_input_reads_the_lines_of_the_box(page: Page, typed: list[str], text: str) -> None:
    last = page.run(READS, typed=typed)[-1]
    assert (last["type"], last["prompt"]) == ("done", text)


def test_standard_input_is_the_lines_of_the_box(page: Page) -> None:
    lines = page.run('import sys\nprint(list(sys.stdin.read()))\n"x"\n', typed=["a", "b"])
    assert printed(lines) == "['a', '\\n', 'b', '\\n']\n"


@pytest.mark.parametrize("typed", ["a", {"a": 1}, [1], ["a\nb"]], ids=["text", "object", "number", "two lines"])
def test_lines_that_are_none_are_refused(page: Page, typed: object) -> None:
    assert page.post("/api/runs", text=READS, typed=typed).status_code == 400


def test_a_query_is_checked_while_it_is_written(page: Page) -> None:
    found = page.post("/api/check", text='"{x}[Y]" where len(Y) < 3\n').json()
    assert (found["problems"], found["inputs"], found["holes"]) == ([], ["x"], ["Y"])
    (problem,) = page.post("/api/check", text='"[Y"\n').json()["problems"]
    assert (problem["line"], problem["column"]) == (1, 2)
