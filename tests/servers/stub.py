"""A strict stub of servers that speak the OpenAI protocol, over real sockets, with a model behind it.

    with serving(VLLM, "what it says") as server:
        OpenAIModel(server.config.model, base_url=server.base_url)
        server.requests, server.prompt_tokens, server.completion_tokens

Strict: a field that the imitated server does not have is refused, as is one of the wrong type, though some real servers
would ignore it. All stubs of a process share one port, which stays open until its end, so that a new one costs nothing.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lmql_lite.models.base import Scorer
from lmql_lite.models.scripted import Script, ScriptedModel
from tests.servers.answers import Answer, Refused, scored, text_of
from tests.servers.kinds import Config, about
from tests.servers.voice import Voice


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one request. Each POST takes the next one; None is a request that goes well.

    `status`: an error, with `headers` and `message`, or with `html`. `reset`: the connection is closed without a word.
    `hang`: nothing comes, after `after` tokens of the stream if it is set. `cut`: the connection is closed after so
    many. `bytewise`: every byte is sent alone. `html` alone: a page with status 200.
    """

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = "out of order"
    code: str | None = None
    html: bool = False
    reset: bool = False
    hang: bool = False
    cut: bool = False
    after: int | None = None
    bytewise: bool = False
    plain: str | None = None
    """The whole body, as an event stream; with `status` as text."""


class Server:
    """A stub while it is served. Its counts may be read at any time."""

    def __init__(self, config: Config, voice: Voice, port: int, number: int) -> None:
        self.config = config
        self.base_url = f"http://127.0.0.1:{port}/{number}/v1"
        self.voice = voice
        self.faults: deque[Fault | None] = deque()
        self.requests = 0
        """POSTs, those that were refused included."""
        self.looks = 0
        """GETs, and what is posted only to be looked at."""
        self.failing: dict[str, list[int]] = {}
        """Status codes of the next GETs of a path; after those it answers."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        """Those that were generated, also where nobody heard them."""
        self.disconnects = 0
        """Answers that were left before their end."""
        self.open = 0
        self.most_open = 0
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.clients: set[tuple[str, int]] = set()
        """The connections that there were."""
        self.kept = 0
        """POSTs whose connections are to stay open."""
        self.prompts: deque[tuple[int, ...]] = deque(maxlen=64)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Until the server has seen it, in its own thread. Raises TimeoutError after a while."""
        deadline = time.monotonic() + 10
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("the server has not seen it")
            time.sleep(0.002)

    async def answer(self, request: Request) -> Response:
        path = request.path_params["path"]
        client = request.client
        self.clients.add((client.host, client.port) if client else ("", 0))
        if request.method == "GET":
            self.looks += 1
            if self.failing.get(path):
                status = self.failing[path].pop(0)
                return JSONResponse({"error": {"message": "Loading model"}}, status)
            return self._look(path, request)
        if path == "apply-template" and self.config.kind == "llama.cpp":
            self.looks += 1
            return self._templated(await self._body(request))
        self.requests += 1
        self.kept += request.headers.get("connection") != "close"
        fault = (self.faults.popleft() if self.faults else None) or Fault()
        if fault.reset:
            _transport(request).abort()
            return Response()
        if fault.hang and fault.after is None:
            while not await request.is_disconnected():
                await asyncio.sleep(0.01)
            return Response()
        if fault.html:
            return HTMLResponse("<html><title>Welcome</title></html>", status_code=fault.status or 200)
        if fault.plain is not None:
            kind = "text/event-stream" if fault.status is None else "text/plain"
            return Response(fault.plain, fault.status or 200, media_type=kind)
        if fault.status is not None:
            return self._error(Refused(fault.status, fault.message, code=fault.code), fault.headers)
        try:
            self._authorize(request)
            body = await self._body(request)
            self.bodies.append(body)
            return await self._said(path, body, fault, request)
        except Refused as refused:
            return self._error(refused, {})

    def _look(self, path: str, request: Request) -> Response:
        try:
            if path.startswith("v1/"):
                self._authorize(request)
        except Refused as refused:
            return self._error(refused, {})
        found = about(self.config, path)
        return JSONResponse({"detail": "Not Found"}, 404) if found is None else JSONResponse(found)

    def _templated(self, body: dict[str, Any]) -> Response:
        """What llama.cpp would make of a chat."""
        turns = "\n".join(f"{message['role']}: {text_of(message)}" for message in body["messages"])
        goes_on = self.config.prefills and body["messages"][-1]["role"] == "assistant"
        return JSONResponse({"prompt": turns if goes_on else f"{turns}\nassistant:"})

    def _authorize(self, request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.keys.add(given)
        if self.config.key is not None and given != self.config.key:
            raise Refused(401, f"Incorrect API key provided: {given}", code="invalid_api_key")

    async def _body(self, request: Request) -> dict[str, Any]:
        try:
            body = json.loads(await request.body())
        except ValueError:
            raise Refused(400, "the body is not JSON") from None
        if not isinstance(body, dict):
            raise Refused(400, "the body is no object")
        return body

    async def _said(self, path: str, body: dict[str, Any], fault: Fault, request: Request) -> Response:
        answer = Answer(self.config, self.voice, path, body)
        ids = answer.prompts
        self.prompt_tokens += sum(map(len, ids))
        cached = max((_common(ids[0], known) for known in self.prompts), default=0)
        self.prompts.append(ids[0])
        if answer.is_scoring:
            self.completion_tokens += len(ids)
            return JSONResponse(await scored(answer))
        events = self._counted(answer.events(cached), answer, fault, request)
        if self.config.deaf:
            events = _unheard(events)
        first = await anext(events)  # a grammar that cannot be read is refused before anything is sent
        return StreamingResponse(_joined(first, events, fault.bytewise), media_type="text/event-stream")

    async def _counted(
        self, events: AsyncIterator[dict[str, Any]], answer: Answer, fault: Fault, request: Request
    ) -> AsyncIterator[str]:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        before, is_over = 0, False
        try:
            async for event in events:
                self.completion_tokens += answer.generated - before
                before = answer.generated
                if fault.after is not None and before > fault.after:
                    if fault.cut:
                        await asyncio.sleep(0.02)  # what was written before is on its way
                        _transport(request).abort()
                    while fault.hang and not await request.is_disconnected():
                        await asyncio.sleep(0.01)
                yield f"data: {json.dumps(event)}\n\n"
            if self.config.kind != "llama.cpp" or answer.chat:
                yield "data: [DONE]\n\n"
            is_over = True
        finally:
            self.open -= 1
            self.disconnects += not is_over

    def _error(self, refused: Refused, headers: Mapping[str, str]) -> Response:
        told = {"message": refused.message, "type": "invalid_request_error", "param": refused.param}
        if self.config.kind == "sglang":
            return JSONResponse({"object": "error", **told, "code": refused.status}, refused.status, headers)
        return JSONResponse({"error": told | {"code": refused.code}}, refused.status, headers)


def _transport(request: Request) -> asyncio.Transport:
    """The connection itself: uvicorn's own way to it is the object whose method receives."""
    transport: asyncio.Transport = request._receive.__self__.transport  # type: ignore[attr-defined]
    return transport


async def _joined(first: str, events: AsyncIterator[str], bytewise: bool) -> AsyncIterator[bytes]:
    event = first
    while event:
        data = event.encode()
        for part in (data[at : at + 1] for at in range(len(data))) if bytewise else (data,):
            yield part
        event = await anext(events, "")


async def _unheard(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """The same, which go on to their end when nobody reads them any more."""
    waiting: asyncio.Queue[str | BaseException | None] = asyncio.Queue()

    async def speak() -> None:
        try:
            async for event in events:
                waiting.put_nowait(event)
            waiting.put_nowait(None)
        except BaseException as error:  # it is raised to the reader, if there is one
            waiting.put_nowait(error)

    speaking = asyncio.create_task(speak())
    _SPEAKING.add(speaking)
    speaking.add_done_callback(_SPEAKING.discard)
    while (event := await waiting.get()) is not None:
        if isinstance(event, BaseException):
            raise event
        yield event


_SPEAKING: set[asyncio.Task[None]] = set()
"""Tasks of answers that go on without a reader, which nothing else keeps."""


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class _House:
    """One port and one thread for all stubs of a process."""

    def __init__(self) -> None:
        self._servers: dict[int, Server] = {}
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def open(self, config: Config, voice: Voice) -> tuple[int, Server]:
        with self._lock:
            if self._thread is None:
                self._start()
            number = next(self._numbers)
            self._servers[number] = Server(config, voice, self._port, number)
            return number, self._servers[number]

    def close(self, number: int) -> None:
        with self._lock:
            del self._servers[number]

    def _start(self) -> None:
        # asyncio sends small writes at once only where the protocol is named
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        self._port = listener.getsockname()[1]
        app = Starlette(routes=[Route("/{number:int}/{path:path}", self._answer, methods=["GET", "POST"])])
        settings = uvicorn.Config(
            app, loop="asyncio", http="h11", lifespan="off", log_config=None, log_level="critical"
        )
        server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), name="stub", daemon=True)
        self._thread.start()

    async def _answer(self, request: Request) -> Response:
        server = self._servers.get(request.path_params["number"])
        return JSONResponse({"detail": "Not Found"}, 404) if server is None else await server.answer(request)


_HOUSE = _House()


@contextmanager
def serving(config: Config, script: str | Script | Scorer, *faults: Fault | None) -> Iterator[Server]:
    """A stub with this model behind it: a text that it speaks, or any Scorer."""
    scorer = ScriptedModel(script) if isinstance(script, str) or callable(script) else script
    number, server = _HOUSE.open(config, Voice(scorer))
    server.faults.extend(faults)
    try:
        yield server
    finally:
        _HOUSE.close(number)
