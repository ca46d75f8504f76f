"""Who may ask the playground, and what it never does. Rows are those of the table in playground/PROTOCOL.md.

Against a server in a process of its own, through plain sockets where a client would be too polite. What only a browser
can try is in tests/browser/test_security.py.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import lmql_lite as lq
from tests.apps.playground_server import Page, Server, is_alive
from tests.models.api import KEY
from tests.servers.kinds import OPENAI_CHAT, VLLM
from tests.servers.stub import serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SECRET = "planted-secret-0123456789"
SAY = '"Say:[X]" where len(X) < 4'
API = (
    ("GET", "/api/about"),
    ("GET", "/api/examples"),
    ("GET", "/api/files"),
    ("GET", "/api/files/q.lq"),
    ("PUT", "/api/files/q.lq"),
    ("POST", "/api/check"),
    ("POST", "/api/plan"),
    ("GET", "/api/runs"),
    ("POST", "/api/runs"),
    ("DELETE", "/api/runs/x"),
    ("GET", "/api/runs/x/events"),
    ("GET", "/api/runs/x/report"),
    ("GET", "/api/none"),
)
STATIC = (("GET", "/"), ("GET", "/style.css"), ("GET", "/none.js"), ("GET", "/../pyproject.toml"))


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


@pytest.fixture
def fresh() -> Iterator[Server]:
    """Has not seen a wrong token yet."""
    server = Server()
    yield server
    assert server.end() == 0


def send(port: int, text: str) -> tuple[int, str]:
    """Bytes as they are. Gives the status (0: none) and all of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(text.encode("latin-1"))
        data = b""
        with suppress(ConnectionResetError):  # it need not have read all that it refuses
            while chunk := connection.recv(65536):
                data += chunk
    found = re.match(rb"HTTP/1\.1 (\d+) ", data)
    return int(found[1]) if found else 0, data.decode("latin-1")


def ask(server: Server, method: str, path: str, *headers: str, version: str = "1.1", body: str = "{}") -> int:
    """With the right token, and only these headers beside it."""
    own = (f"Authorization: Bearer {server.token}", "Content-Type: application/json", f"Content-Length: {len(body)}")
    lines = [f"{method} {path} HTTP/{version}", *headers, *own, "Connection: close", "", body]
    return send(server.port, "\r\n".join(lines))[0]


def runs(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.page().http.get("/api/runs").json()["runs"]
    return found


# Rows 1 to 4: the address, the token, no cookies -----------------------------------------------------------------


def test_it_listens_on_the_loopback_address_alone(server: Server) -> None:
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if line.split()[3] == "0A"]
    assert [place for place in listening if place.endswith(f":{server.port:04X}")] == [f"0100007F:{server.port:04X}"]
    if Path("/proc/net/tcp6").exists():
        assert f":{server.port:04X} " not in Path("/proc/net/tcp6").read_text()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward:
        try:
            outward.connect(("192.0.2.1", 9))  # sends nothing; says which address of this machine would be used
            others = {"127.0.0.2", outward.getsockname()[0]}
        except OSError:
            others = {"127.0.0.2"}
    for address in others - {"127.0.0.1"}:
        with pytest.raises(OSError), socket.create_connection((address, server.port), timeout=5):
            pass


def test_each_start_has_another_token_of_32_bytes(server: Server, fresh: Server) -> None:
    assert len(server.token) == len(fresh.token) == 43 and server.token != fresh.token
    with httpx.Client(base_url=fresh.base, headers={"Authorization": f"Bearer {server.token}"}) as other:
        assert other.get("/api/about").status_code == 401


def test_a_token_that_is_not_quite_right_is_401(fresh: Server) -> None:
    own = fresh.token
    given = ["", "Bearer", "Bearer ", f"Bearer {own[:-1]}", f"Bearer {own}x", f"Bearer  {own}", f"Bearer é{own}"]
    given += [f"Basic {own}", own, f"Bearer {own}\r\nAuthorization: Bearer {own}"]
    for header in given:
        said = f"Authorization: {header}\r\n" if header else ""
        status, answer = send(
            fresh.port, f"GET /api/about HTTP/1.1\r\nHost: 127.0.0.1:{fresh.port}\r\n{said}Connection: close\r\n\r\n"
        )
        assert status == 401 and "www-authenticate: bearer" in answer.lower() and "version" not in answer, header
    assert fresh.page().http.get("/api/about").status_code == 200


def test_every_route_of_the_api_wants_the_token_and_none_sets_a_cookie(fresh: Server) -> None:
    page = fresh.page()
    with httpx.Client(base_url=fresh.base, headers={"Authorization": "Bearer wrong"}) as stranger:
        for method, path in API:
            refused = stranger.request(method, path, json={"text": SAY})
            assert refused.status_code == 401 and refused.json()["error"]["hint"], path
            assert "set-cookie" not in refused.headers
    assert runs(fresh) == []
    for method, path in (*API, *STATIC):
        assert "set-cookie" not in page.http.request(method, path, json={"text": ""}).headers


def test_no_spelling_of_a_route_goes_without_the_token(fresh: Server) -> None:
    for path in (
        "//api/about",
        "/./api/about",
        "/API/about",
        "/api/../api/about",
        "/api%2fabout",
        "/%61pi/about",
        "/api",
    ):
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{fresh.port}\r\nConnection: close\r\n\r\n"
        status, answer = send(fresh.port, request)
        assert status in (401, 404) and "version" not in answer, path


def test_too_many_wrong_tokens_are_refused_and_the_right_one_is_let_in(fresh: Server) -> None:
    """Row 23."""
    with httpx.Client(base_url=fresh.base, headers={"Authorization": "Bearer guess"}) as guess:
        assert [guess.get("/api/about").status_code for _ in range(40)] == [401] * 30 + [429] * 10
    assert fresh.page().http.get("/api/about").status_code == 200


# Rows 5 to 7: Host, Origin, no other site ------------------------------------------------------------------------

HOSTS = {
    "another name": ["Host: evil.test:{port}"],
    "a longer name": ["Host: 127.0.0.1.evil.test:{port}"],
    "a dot at the end": ["Host: localhost.:{port}"],
    "another port": ["Host: 127.0.0.1:1"],
    "no port": ["Host: 127.0.0.1"],
    "another loopback": ["Host: 127.0.0.2:{port}"],
    "every address": ["Host: 0.0.0.0:{port}"],
    "a number": ["Host: 2130706433:{port}"],
    "user": ["Host: 127.0.0.1:{port}@evil.test"],
    "empty": ["Host:"],
    "none": [],
    "two": ["Host: 127.0.0.1:{port}", "Host: evil.test"],
    "two in one": ["Host: 127.0.0.1:{port}, evil.test"],
}


@pytest.mark.parametrize("headers", HOSTS.values(), ids=list(HOSTS))
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_no_route_answers_under_another_host(server: Server, headers: list[str], version: str) -> None:
    hosts = [header.format(port=server.port) for header in headers]
    for method, path in (("GET", "/"), ("GET", "/style.css"), ("GET", "/api/about"), ("POST", "/api/runs")):
        assert ask(server, method, path, *hosts, version=version, body='{"text": "1"}') in (400, 403), (method, path)
    assert ask(server, "GET", "http://evil.test/api/about", *hosts, version=version) in (400, 403)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost"])
def test_its_own_names_are_answered(server: Server, host: str) -> None:
    assert ask(server, "GET", "/api/about", f"Host: {host}:{server.port}") == 200
    assert ask(server, "GET", "/", f"Host: {host}:{server.port}") == 200


ORIGINS = [
    "http://127.0.0.1:1",
    "http://127.0.0.1",
    "https://127.0.0.1:{port}",
    "http://localhost:{port}",
    "http://evil.test:{port}",
    "http://127.0.0.1:{port}.evil.test",
    "http://127.0.0.1:{port}/",
    "null",
    "file://",
    "",
]


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_request_of_another_origin_is_refused_and_starts_nothing(server: Server, origin: str) -> None:
    before = len(runs(server))
    headers = (f"Host: 127.0.0.1:{server.port}", f"Origin: {origin.format(port=server.port)}")
    for method, path in (*API, *STATIC):
        assert ask(server, method, path, *headers, body=json.dumps({"text": SAY})) == 403, (method, path)
    own = (f"Host: 127.0.0.1:{server.port}", f"Origin: http://127.0.0.1:{server.port}")
    assert ask(server, "GET", "/api/about", *own, headers[1]) == 403
    assert ask(server, "GET", "/api/about", *own) == 200
    assert len(runs(server)) == before


def test_no_other_site_is_given_leave(server: Server) -> None:
    for method, path in (*API, *STATIC):
        before = len(runs(server))
        status, answer = send(
            server.port,
            f"OPTIONS {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAccess-Control-Request-Method: {method}\r\n"
            "Access-Control-Request-Headers: authorization\r\nConnection: close\r\n\r\n",
        )
        assert status == 403 and "access-control-allow" not in answer.lower()
        assert len(runs(server)) == before
        told = server.page().http.request(method, path, json={"text": ""})
        assert not [name for name in told.headers if name.startswith("access-control")]


# Rows 8 to 10: bodies, GET, headers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json", None]
)
def test_a_body_that_a_form_could_send_is_415(page: Page, kind: str | None) -> None:
    for path in ("/api/check", "/api/plan", "/api/runs"):
        headers = {} if kind is None else {"Content-Type": kind}
        assert page.http.post(path, content=b'{"text": "1"}', headers=headers).status_code == 415


def test_what_is_too_large_or_no_object_is_refused(server: Server, page: Page) -> None:
    def status(body: bytes) -> int:
        answer = page.http.post("/api/check", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200 or answer.json()["error"]["message"]
        return int(answer.status_code)

    assert status(json.dumps({"text": "#" * 1_000_000}).encode()) == 413
    assert status(json.dumps({"text": "#" * 900_000}).encode()) == 200
    for body in (b"", b"[]", b'"x"', b"{", b'{"text": NaN}', b"\xff", b'{"text": 1}', b"{}", b'{"text": null}'):
        assert status(body) == 400, body
    assert status(b"[" * 500_000) == 400
    assert status(b'{"text": "1", "x": ' + b"9" * 100_000 + b"}") == 400
    many = "".join(f"X-Header-{number}: {'x' * 1000}\r\n" for number in range(200))
    assert send(server.port, f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{many}\r\n")[0] in (0, 400, 431)


def test_a_value_that_is_nested_deeply_is_refused_or_given_to_the_run(page: Page) -> None:
    for depth in (100, 900, 960, 990, 1100):
        inputs = '{"x": ' + "[" * depth + "]" * depth + "}"
        body = f'{{"text": {json.dumps("print(len(x))")}, "inputs": {inputs}}}'
        answer = page.http.post("/api/runs", content=body, headers={"Content-Type": "application/json"})
        if answer.status_code == 201:
            last = list(page.lines(answer.json()["run"]))[-1]
            assert last["type"] == "done" or "deep" in last["message"] or last["kind"] == "RecursionError", last
        else:
            assert answer.status_code == 400 and depth > 100


def test_reading_changes_nothing(page: Page, server: Server) -> None:
    run = page.start(SAY)
    list(page.lines(run))
    reads = [path for method, path in API if method == "GET"]
    reads += [f"/api/runs/{run}/events", f"/api/runs/{run}/report", "/", "/style.css"]

    def state() -> list[Any]:
        files = page.http.get("/api/files").json()
        return [runs(server), files, page.http.get("/api/files/q.lq").json()]

    before = state()
    for path in reads:
        first, again = page.http.get(path), page.http.get(path)
        assert first.status_code == again.status_code
        if path != "/":  # which has another nonce each time
            assert first.content == again.content
    assert state() == before
    assert page.http.get(f"/api/runs/{run}").status_code == 404  # DELETE alone stops


def test_every_answer_has_the_headers_that_keep_others_out(server: Server) -> None:
    wanted = {
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }
    nonces = set()
    page, stranger = server.page(), Page(server.base, "wrong")
    for method, path in (*API, *STATIC, ("OPTIONS", "/")):
        for who in (page, stranger):
            headers = who.http.request(method, path, json={"text": ""}).headers
            assert {name: headers.get(name) for name in wanted} == wanted, path
            rules = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
            nonces.add(rules.pop("style-src").removeprefix("'self' 'nonce-").removesuffix("'"))
            assert rules == {
                "default-src": "'none'",
                "script-src": "'self'",
                "img-src": "'self' data:",
                "font-src": "'self'",
                "connect-src": "'self'",
                "frame-ancestors": "'none'",
                "base-uri": "'none'",
                "form-action": "'none'",
            }
            assert "server" not in headers
    stranger.http.close()
    assert len(nonces) == 2 * len((*API, *STATIC, "OPTIONS")) and all(len(nonce) > 20 for nonce in nonces)
    shown = page.http.get("/")
    assert "__NONCE__" not in shown.text and "script-src 'self';" in shown.headers["content-security-policy"]


# Rows 12, 15, 16, 17, 20, 25: what it does not tell, read, or run ------------------------------------------------


def test_no_answer_and_no_run_holds_a_key(server: Server, page: Page) -> None:
    shows = "import os\nprint(dict(os.environ))\n"
    lines = page.run(shows + f'print("{SECRET}")\n"[X]" where len(X) < 3')
    told = json.dumps(lines)
    assert "[hidden]" in told and "OPENAI_API_KEY" not in told and "HF_TOKEN" not in told
    texts = [told, json.dumps(page.run(f'raise ValueError("{SECRET} " + "{server.token}")')), server.errors]
    texts += [page.http.get(path).text for method, path in (*API, *STATIC) if method == "GET" and "q.lq" not in path]
    texts += [page.http.get(f"/api/runs/{run['run']}/report").text for run in runs(server) if run["state"] != "running"]
    texts += [page.post("/api/plan", text=shows).text, page.post("/api/check", text=shows).text]
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


@pytest.mark.parametrize(
    "name",
    [
        "../outside.lq",
        "%2e%2e/outside.lq",
        "..%2foutside.lq",
        "sub/../../outside.lq",
        "/etc/hostname.lq",
        "//etc/hostname.lq",
        "./q.lq",
        ".hidden.lq",
        "link.lq",
        "linked/outside.lq",
        "q.lq%00.txt",
        "%00.lq",
        "C:%5coutside.lq",
        "C:/outside.lq",
        "sub%5c..%5coutside.lq",
        "outside.txt",
        "q.lq/",
        "pipe.lq",
        "folder.lq",
        "x" * 300 + ".lq",
        "é" * 150 + ".lq",
    ],
)
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


@pytest.mark.parametrize("path", ["/..%2fpyproject.toml", "/%2e%2e/%2e%2e/pyproject.toml", "/.git/config",
    "/node_modules/esbuild/package.json", "/src/../../pyproject.toml", "/build.mjs%00.txt", "//etc/passwd.txt",
    "/C:/x.txt", "/src%5c..%5cx.txt", "/package-lock.json/"])  # fmt: skip
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
        for path in ("/api/check", "/api/plan"):
            assert page.post(path, text=text).status_code == 200, text
            assert not canary.exists(), (path, text)
    assert page.run(texts[0])[-1]["type"] == "done" and canary.exists()


def _module(folder: Path) -> Path:
    module = folder / "lq_canary_module.py"
    module.write_text(f"open({str(folder / 'canary')!r}, 'w')\n")
    return module


def test_a_text_that_takes_all_memory_to_read_is_bounded(server: Server) -> None:
    """Row 18, for what is looked at before anybody runs it."""
    small = Server(memory_bytes=2**28)
    answer = small.page().post("/api/plan", text='x = "a" * 10**10\n"{x}[X]" where len(X) < 3')
    assert answer.status_code in (200, 422) and answer.json()
    assert small.page().post("/api/plan", text=SAY).json()["lines"]
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
apart = subprocess.Popen(["sleep", "1000"], start_new_session=True).pid
print("processes", os.getpid(), apart, flush=True)
re.match("(a+)+$", "a" * 64 + "b")
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], ids=lambda how: how.name)
def test_a_run_in_the_middle_of_c_code_and_what_it_has_detached_die_with_the_server(how: signal.Signals) -> None:
    server = Server(grace_seconds=1)
    page = server.page()
    said = page.until(page.start(LEAVES), lambda line: "processes" in line.get("text", ""))["text"]
    processes = [int(number) for number in said.split()[1:]]
    server.end(how)
    deadline = time.monotonic() + 30
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [process for process in processes if is_alive(process)]


def test_a_run_in_the_middle_of_c_code_is_stopped(server: Server, page: Page) -> None:
    run = page.start(LEAVES)
    said = page.until(run, lambda line: "processes" in line.get("text", ""))["text"]
    page.http.delete(f"/api/runs/{run}")
    assert list(page.lines(run))[-1]["kind"] == "Stopped"
    assert not [process for process in said.split()[1:] if is_alive(int(process))]


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
        assert page.post("/api/plan", text=SAY).json()["lines"]
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


@contextmanager
def _elsewhere() -> Iterator[tuple[str, list[str | None]]]:
    """A server that sends everybody to another host; the keys that arrive there."""
    arrived: list[str | None] = []

    class There(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers["Host"].startswith("localhost"):
                arrived.append(self.headers["Authorization"])
                self.send_error(404)
            else:
                self.send_response(307)
                self.send_header("Location", f"http://localhost:{self.server.server_address[1]}{self.path}")
                self.send_header("Content-Length", "0")
                self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), There) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_address[1]}/v1", arrived
        finally:
            listener.shutdown()
            thread.join()


def test_a_server_that_points_elsewhere_does_not_get_the_key_sent_there() -> None:
    with _elsewhere() as (base_url, arrived):
        model = lq.model("openai/x", base_url=base_url, api_key=KEY)
        with pytest.raises(lq.ModelError):
            lq.run_sync('"Say:[X]" where STOPS_AT(X, "\\n")', model=model, session=lq.Session())
        assert not [key for key in arrived if key is not None]


# Where the system has less ---------------------------------------------------------------------------------------


def test_its_modules_can_be_read_where_there_is_no_posix() -> None:
    script = (
        "import sys\n"
        "for name in ('fcntl', 'resource', 'pwd', 'grp', 'termios', 'readline'): sys.modules[name] = None\n"
        "import lmql_lite.apps.cli, lmql_lite.apps.playground.orphans, lmql_lite.apps.playground.memory\n"
        "import lmql_lite.apps.playground.process, lmql_lite.apps.playground.runs, lmql_lite.apps.playground.files\n"
        "import lmql_lite.apps.playground.guard, lmql_lite.apps.playground.keys\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
