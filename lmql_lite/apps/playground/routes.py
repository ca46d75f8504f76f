"""Routes of the playground. playground/PROTOCOL.md describes their requests and responses."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from lmql_lite import __version__
from lmql_lite.apps.completions import WORDS
from lmql_lite.apps.playground.files import Files, Page, examples, key_of
from lmql_lite.apps.playground.guard import RequestRefused, reply
from lmql_lite.apps.playground.process import Checker, Workers
from lmql_lite.apps.playground.runs import Limits, PageRun, Runs
from lmql_lite.observe.lines import read
from lmql_lite.observe.report import report
from lmql_lite.options import DECODERS, OPTIONS

MAX_BODY_BYTES = 1_000_000
MAX_NAME_LENGTH = 200
LINES = "application/x-ndjson"
FORM = [
    {
        "name": row.name,
        "help": row.help,
        "type": {int: "int", float: "float", bool: "bool"}.get(row.type, "text"),
        "low": row.low,
        "choices": tuple(DECODERS) if row.name == "decoder" else row.choices,
    }
    for row in OPTIONS.values()
    if row.on_page
]
"""Options that a page may give, for its form."""


@dataclass(frozen=True, slots=True)
class Playground:
    """State that the routes share. `fixed` are options of every run that the page cannot change."""

    workers: Workers
    runs: Runs
    checks: Checker
    models: tuple[str, ...]
    fixed: Mapping[str, Any]
    cache_name: str
    files: Files | None = None
    limits: Limits = Limits()  # noqa: RUF009  a frozen value
    page: Page = field(default_factory=Page.find)

    def app(self) -> Starlette:
        routes = [
            Route("/api/about", self.about),
            Route("/api/examples", self.examples),
            Route("/api/files", self.list_files),
            Route("/api/files/{name:path}", self.read_file),
            Route("/api/files/{name:path}", self.write_file, methods=["PUT"]),
            Route("/api/check", self.check, methods=["POST"]),
            Route("/api/runs", self.list_runs),
            Route("/api/runs", self.start, methods=["POST"]),
            Route("/api/runs/{run}", self.stop, methods=["DELETE"]),
            Route("/api/runs/{run}/events", self.events),
            Route("/api/runs/{run}/report", self.report),
            Route("/{path:path}", self.static),
        ]
        return Starlette(routes=routes, exception_handlers={RequestRefused: _refused, HTTPException: _not_routed})

    async def close(self) -> None:
        await asyncio.gather(self.runs.close(), self.checks.close())
        await asyncio.to_thread(self.workers.close)

    # What there is -----------------------------------------------------------------------------------------------

    async def static(self, request: Request) -> Response:
        if request.path_params["path"].startswith("api/"):
            raise RequestRefused(404, "there is no such route")
        return self.page.file(request.path_params["path"], request.state.nonce)

    async def about(self, request: Request) -> Response:
        limits, only = self.limits, self.files.only if self.files else None
        return reply(
            {
                "version": __version__,
                "bundled": self.page.build is None,
                "build": self.page.build,
                "models": [{"id": model, "demo": model == "demo"} for model in self.models],
                "cache": {"name": self.cache_name, "session": self.cache_name == SESSION},
                "drafts": self.files.key if self.files else key_of(""),
                "start": {"file": only} if only else None,
                "limits": {
                    "seconds": limits.seconds,
                    "memory_bytes": limits.memory_bytes if sys.platform == "linux" else None,
                    "printed_bytes": limits.printed_bytes,
                    "events": limits.events,
                    "event_bytes": limits.event_bytes,
                    "at_once": limits.at_once,
                },
                "words": WORDS,
                "options": FORM,
            }
        )

    async def examples(self, request: Request) -> Response:
        return reply({"examples": examples()})

    async def list_files(self, request: Request) -> Response:
        if self.files is None:
            return reply({"files": [], "folder": False})
        shipped = {example["name"]: example["text"] for example in examples()}
        found = [
            {
                "name": name,
                "bytes": self.files.size(name),
                "shipped": name in shipped and self.files.is_copy(name, shipped[name]),
            }
            for name in self.files.names()
        ]
        return reply({"files": found, "folder": self.files.only is None})

    async def read_file(self, request: Request) -> Response:
        name = request.path_params["name"]
        text, version = self._named().read(name)
        return reply({"name": name, "text": text, "version": version})

    async def write_file(self, request: Request) -> Response:
        body, name = await _body(request), request.path_params["name"]
        text, version = _field(body, "text", str), _field(body, "version", str, None)
        return reply({"name": name, "version": self._named().write(name, text, version)})

    def _named(self) -> Files:
        if self.files is None:
            raise RequestRefused(404, "the playground was started without a file or folder", "lq playground FOLDER")
        return self.files

    # Queries -----------------------------------------------------------------------------------------------------

    async def check(self, request: Request) -> Response:
        text = _field(await _body(request), "text", str)
        return reply(await self.checks.ask({"kind": "check", "text": text}))

    async def list_runs(self, request: Request) -> Response:
        known = self.runs.known.values()
        found = [
            {"run": run.id, "name": run.name, "state": run.state, "lines": len(run.journal.lines)} for run in known
        ]
        return reply({"runs": found})

    async def start(self, request: Request) -> Response:
        job = self._job(await _body(request))
        if len(self.runs.under_way) >= self.limits.at_once:
            sentence = f"{self.limits.at_once} runs are under way, and no more may be at once"
            raise RequestRefused(429, sentence, "stop one of them, or wait")
        try:
            run = await self.runs.start({"kind": "run", **job})
        except OSError as error:
            raise RequestRefused(503, f"no process can be started for the run: {error.strerror or error}") from None
        return reply({"run": run.id}, 201)

    async def events(self, request: Request) -> Response:
        run, given = self._run(request), request.query_params.get("after", "-1")
        if not given.removeprefix("-").isdecimal() or int(given) < -1:
            raise RequestRefused(400, "after= is the number of a line, or -1")
        return StreamingResponse(run.journal.after(int(given)), media_type=LINES)

    async def report(self, request: Request) -> Response:
        run = self._run(request)
        if not run.journal.is_over:
            raise RequestRefused(409, "the run is still under way", "stop it, or wait")
        page = await asyncio.to_thread(_report, run)
        name = {"Content-Disposition": f'attachment; filename="run-{run.id}.html"'}
        return Response(page, media_type="text/html", headers=name)

    async def stop(self, request: Request) -> Response:
        run = self._run(request)
        run.stop()
        return reply({"run": run.id, "state": run.state}, 202)

    def _run(self, request: Request) -> PageRun:
        run = self.runs.known.get(request.path_params["run"])
        if run is None:
            raise RequestRefused(
                404, "there is no such run", "only the last ones are kept, and none when the server ends"
            )
        return run

    def _job(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The job of a worker for a run."""
        text, name = _field(body, "text", str), _field(body, "name", str, None) or "query.lq"
        inputs, options = _field(body, "inputs", dict, None) or {}, _field(body, "options", dict, None) or {}
        for option in options:
            if option not in OPTIONS or not OPTIONS[option].on_page:
                known = ", ".join(name for name, row in OPTIONS.items() if row.on_page)
                raise RequestRefused(400, f"there is no option {option!r}", f"there are {known}")
        if options.get("model") not in (None, *self.models):
            hint = f"there are {', '.join(self.models)}; others are named when it is started: --model"
            raise RequestRefused(400, f"this playground has no model {options['model']!r}", hint)
        given = {name: value for name, value in options.items() if value is not None}
        if (prefill := body.get("prefill")) is not None:
            given["prefill"] = prefill
        typed = _field(body, "typed", list, None) or []
        if not all(isinstance(line, str) and "\n" not in line for line in typed):
            raise RequestRefused(400, "'typed' is not a list of lines")
        return {
            "text": text,
            "name": name[:MAX_NAME_LENGTH],
            "inputs": inputs,
            "typed": typed,
            "options": {**given, **self.fixed},
        }


SESSION = "session.tokens"


def _report(run: PageRun) -> str:
    lines = io.BytesIO(b"".join(run.journal.lines))
    return report(list(read(lines, run.name)))


async def _body(request: Request) -> Mapping[str, Any]:
    """Raises Refused for all but an object in JSON of a bounded size."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestRefused(415, "the body of a request is application/json here")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise RequestRefused(413, f"the body of a request has at most {MAX_BODY_BYTES:,} bytes")
    try:
        found = json.loads(bytes(data), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise RequestRefused(400, "the body of this request is not JSON") from None
    if not isinstance(found, dict):
        raise RequestRefused(400, "the body of this request is not an object")
    return found


def _no_number(name: str) -> None:
    raise ValueError(name)


_REQUIRED = object()


def _field(body: Mapping[str, Any], name: str, kind: type, default: object = _REQUIRED) -> Any:
    """Null is the same as missing where there is a default."""
    value = body.get(name)
    if value is None and default is not _REQUIRED:
        return default
    if not isinstance(value, kind):
        what = "a text" if kind is str else "a list" if kind is list else "an object"
        raise RequestRefused(400, f"{name!r} is {'missing' if value is None else f'not {what}'}")
    return value


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)
    return error.response()


def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return RequestRefused(error.status_code, "there is no such route").response()
