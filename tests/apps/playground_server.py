"""A playground in a process of its own, and a page that talks to it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

Line = dict[str, Any]

API = (
    ("GET", "/api/about"),
    ("GET", "/api/examples"),
    ("GET", "/api/files"),
    ("GET", "/api/files/q.lq"),
    ("PUT", "/api/files/q.lq"),
    ("POST", "/api/check"),
    ("GET", "/api/runs"),
    ("POST", "/api/runs"),
    ("DELETE", "/api/runs/x"),
    ("GET", "/api/runs/x/events"),
    ("GET", "/api/runs/x/report"),
    ("GET", "/api/none"),
)
STATIC = (("GET", "/"), ("GET", "/style.css"), ("GET", "/none.js"), ("GET", "/../pyproject.toml"))
"""Its routes, as somebody might ask for them."""

SCRIPT = """
import json, sys
from pathlib import Path
from lmql_lite.apps.playground.files import Files
from lmql_lite.apps.playground.runs import Limits
from lmql_lite.apps.playground.serving import ServerOptions, listening, serve

asked = json.loads(sys.argv[1])
files = Files.of(Path(asked["files"])) if asked["files"] else None
cache = Path(asked["cache"]) if asked["cache"] else None
serve(
    ServerOptions(asked["models"], files, cache, asked["bounds"], Limits(**asked["limits"])),
    listening(0),
    lambda address: print(address, flush=True),
)
"""


class Server:
    """What it writes to stderr is in `errors` after `end`."""

    def __init__(
        self,
        *,
        files: Path | None = None,
        cache: Path | None = None,
        environment: dict[str, str] | None = None,
        models: dict[str, dict[str, str]] | None = None,
        bounds: dict[str, Any] | None = None,
        **limits: float,
    ) -> None:
        asked = {"files": str(files or ""), "cache": str(cache or ""), "limits": limits}
        asked |= {"models": models or {"demo": {}}, "bounds": bounds}
        self.files = files
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(asked)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        found = re.fullmatch(r"(http://127\.0\.0\.1:(\d+))/#token=(\S+)", self.address)
        assert found is not None, self.process.communicate()
        self.base, self.port, self.token = found[1], int(found[2]), found[3]
        self.errors = ""
        self._pages: list[Page] = []

    def page(self) -> Page:
        """One tab. It is closed when the server ends."""
        self._pages.append(Page(self.base, self.token))
        return self._pages[-1]

    def end(self, how: int = signal.SIGINT) -> int:
        for page in self._pages:
            page.http.close()
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.errors = self.process.communicate(timeout=30)[1]
        return self.process.returncode


class Page:
    def __init__(self, base: str, token: str) -> None:
        self.http = httpx.Client(base_url=base, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def start(self, text: str, **body: Any) -> str:
        answer = self.post("/api/runs", text=text, **body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["run"])

    def lines(self, run: str, after: int = -1) -> Iterator[Line]:
        with self.http.stream("GET", f"/api/runs/{run}/events", params={"after": after}) as stream:
            assert stream.headers["content-type"] == "application/x-ndjson"
            yield from (json.loads(line) for line in stream.iter_lines() if line)

    def until(self, run: str, holds: Callable[[Line], bool]) -> Line:
        """The first line of which something holds; the connection is lost then."""
        for line in self.lines(run):
            if holds(line):
                return line
        raise AssertionError("the run ended before")

    def run(self, text: str, **body: Any) -> list[Line]:
        lines = list(self.lines(self.start(text, **body)))
        assert [line["seq"] for line in lines] == list(range(len(lines)))
        assert [line["type"] in ("done", "error") for line in lines] == [False] * (len(lines) - 1) + [True]
        return lines


def printed(lines: list[Line]) -> str:
    return "".join(line["text"] for line in lines if line["type"] == "log")


def is_alive(process: int) -> bool:
    """A zombie is not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(process: int, seconds: float = 10) -> bool:
    """Whether it is gone soon: a signal takes its moment to arrive."""
    deadline = time.monotonic() + seconds
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(process)


def runs(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.page().http.get("/api/runs").json()["runs"]
    return found


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
