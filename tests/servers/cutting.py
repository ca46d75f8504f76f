"""A raw server whose answers are cut at any byte, or never end.

with cutting(Cut(body, at=30), Cut(body)) as server:
    server.base_url, server.bodies
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Cut:
    """An answer with this body, of which `at` bytes are sent; all of them with None.

    `is_whole`: the body is one JSON text, not a stream. `is_reset`: the connection is reset, not closed. `endless` is
    sent after it again and again.
    """

    body: bytes
    at: int | None = None
    is_whole: bool = False
    is_reset: bool = False
    endless: bytes = b""

    def encoded(self) -> bytes:
        kind = b"application/json" if self.is_whole else b"text/event-stream"
        length = b"Content-Length: %d\r\n" % len(self.body) if self.is_whole or self.at is not None else b""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%bConnection: close\r\n\r\n" % (kind, length)
        return head + self.body[: self.at]


Answer = Callable[[str, Mapping[str, Any]], Cut]


@dataclass(slots=True)
class Cutting:
    """The server while it runs: `bodies` of the POSTs so far, with their paths."""

    base_url: str
    posts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body in self.posts]


def events(*texts: str, chat: bool, end: str | None = "stop", done: bool = True, model: str = "m") -> bytes:
    """The body of a stream: an event for each text, one with the word for its end unless that is None, `[DONE]`."""

    def event(text: str, finish: str | None) -> dict[str, Any]:
        part = {"delta": {"content": text}} if chat else {"text": text}
        return {"model": model, "choices": [{"index": 0, **part, "finish_reason": finish}]}

    lines = [json.dumps(event(text, None), ensure_ascii=False) for text in texts]
    lines += [] if end is None else [json.dumps(event("", end))]
    lines += ["[DONE]"] if done else []
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def whole(text: str, *, chat: bool, end: str | None = "stop") -> bytes:
    """The body of an answer in one piece."""
    part = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return json.dumps({"model": "m", "choices": [{"index": 0, **part, "finish_reason": end}]}).encode()


@contextmanager
def cutting(answers: Sequence[Cut] | Answer, *, chat: bool = True, probed: bool = True) -> Iterator[Cutting]:
    """POSTs get these answers in order, the last one again and again, or those of a function of path and body.

    `probed`: requests for so few tokens that only a probe sends them get an answer of their own. A server of a `chat`
    has no `/completions`.
    """
    left = list(answers) if not callable(answers) else []

    def answer(connection: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(1 << 16) or b"\r\n\r\n"
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += connection.recv(1 << 16)
        path = head.split(b" ")[1].decode()
        if not head.startswith(b"POST") or (chat and path.endswith("/v1/completions")):
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        asked = json.loads(body)
        if probed and min(asked.get("max_tokens", 99), asked.get("max_completion_tokens", 99)) == 1:
            connection.sendall(Cut(events("a", chat=chat, end="length")).encoded())
            return
        server.posts.append((path, asked))
        kept = left[: len(left) == 1] or [left.pop(0)] if left else []
        made = answers(path, asked) if callable(answers) else kept[0]
        connection.sendall(made.encoded())
        while made.endless:
            time.sleep(0.05)
            connection.sendall(made.endless)
        if made.is_reset:
            time.sleep(0.02)  # what was written before is on its way
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def served(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            answer(connection)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=served, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Cutting(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
