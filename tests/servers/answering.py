"""A server that answers each request by a function, over real sockets: for what the stub's kinds do not do.

with answering(lambda request: Reply(429)) as server:
    server.base_url, server.requests
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived; `headers` in lower case, `body` empty for a GET."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `content`: objects are JSON, a list is an event stream of them, bytes go as they are.

    With `at`, so many bytes are sent, and the connection is closed, or reset if `is_reset`. `endless` is sent after the
    content again and again.
    """

    status: int = 200
    content: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    at: int | None = None
    is_reset: bool = False
    endless: bytes = b""

    def encoded(self) -> tuple[str, bytes]:
        if isinstance(self.content, bytes):
            return "text/event-stream", self.content
        if isinstance(self.content, list):
            lines = (each if isinstance(each, str) else json.dumps(each) for each in self.content)
            return "text/event-stream", "".join(f"data: {line}\n\n" for line in lines).encode()
        return "application/json", json.dumps(self.content).encode()


NOT_FOUND = Reply(404, {"detail": "Not Found"})


@dataclass(slots=True)
class Answering:
    """The server while it runs."""

    root: str
    requests: list[Request] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return f"{self.root}/v1"

    @property
    def posts(self) -> list[Request]:
        return [request for request in self.requests if request.method == "POST"]


@contextmanager
def answering(answer: Callable[[Request], Reply]) -> Iterator[Answering]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else the end of each answer waits 40 ms for an acknowledgement

        def handle_one(self) -> None:
            parts = urlsplit(self.path)
            data = self.rfile.read(int(self.headers.get("content-length") or 0))
            request = Request(
                self.command,
                parts.path,
                dict(parse_qsl(parts.query)),
                {name.lower(): value for name, value in self.headers.items()},
                json.loads(data) if data else {},
            )
            server.requests.append(request)
            reply = answer(request)
            kind, content = reply.encoded()
            with suppress(ConnectionError):
                self.send_response(reply.status)
                for name, value in {"Content-Type": kind, **reply.headers}.items():
                    self.send_header(name, value)
                if not reply.endless:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: reply.at])
                while reply.endless:
                    time.sleep(0.05)
                    self.wfile.write(reply.endless)
            self.close_connection |= reply.at is not None or bool(reply.endless)
            if reply.is_reset:
                time.sleep(0.05)  # what was written before is on its way
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self.connection.close()

        do_GET = do_POST = do_CONNECT = handle_one

        def log_message(self, *words: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        request_queue_size = 256
        daemon_threads = True

        def handle_error(self, *words: object) -> None:
            pass

    with Quiet(("127.0.0.1", 0), Handler) as listener:
        server = Answering(f"http://127.0.0.1:{listener.server_address[1]}")
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()
