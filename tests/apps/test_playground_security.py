"""Who may ask the playground: rows 1 to 10 of the table in playground/PROTOCOL.md, and 23.

Against a server in a process of its own, through plain sockets where a client would be too polite. What only a browser
can try is in tests/browser/test_security.py.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.apps.playground_server import API, STATIC, Page, Server, ask, runs, send
from tests.tables import cases

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SAY = '"Say:[X]" where len(X) < 4'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("queries")
    (folder / "q.lq").write_text(SAY)
    server = Server(files=folder, at_once=50)
    yield server
    assert server.end() == 0
    assert "Traceback" not in server.errors and server.token not in server.errors


@pytest.fixture
def page(server: Server) -> Page:
    return server.page()


@pytest.fixture
def fresh() -> Iterator[Server]:
    """Has not seen a wrong token yet."""
    server = Server()
    yield server
    assert server.end() == 0


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


@cases("apps/playground_security", "no route answers under another host")
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


@cases("apps/playground_security", "a request of another origin is refused and starts nothing")
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
    for path in ("/api/check", "/api/runs"):
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
