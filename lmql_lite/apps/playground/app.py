"""The routes of the playground: playground/PROTOCOL.md says what each asks and answers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from lmql_lite import __version__
from lmql_lite.apps.playground.files import Files
from lmql_lite.apps.playground.limits import Limits
from lmql_lite.apps.playground.memory import IS_BOUNDED
from lmql_lite.apps.playground.page import Page, examples, recording
from lmql_lite.apps.playground.questions import Questions
from lmql_lite.apps.playground.replies import Refused, reply
from lmql_lite.apps.playground.runs import Run, Runs
from lmql_lite.apps.playground.words import WORDS
from lmql_lite.runtime.shown.report import Moment, report
from lmql_lite.runtime.shown.wire import read

MOST_BYTES = 1_000_000
LONGEST_NAME = 200
LINES = "application/x-ndjson"
OPTIONS = (
    "model",
    "decoder",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "max_tokens",
    "n",
    "max_requests",
    "max_total_tokens",
    "cache_mode",
    "speculate",
)
"""What a page may say of a run; settings.py says which values they have."""


@dataclass(frozen=True, slots=True)
class Playground:
    """What the routes share. `fixed` are options of every run that the page cannot change."""

    runs: Runs
    checks: Questions
    plans: Questions
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
            Route("/api/examples/{name}/recording", self.recording),
            Route("/api/files", self.list_files),
            Route("/api/files/{name:path}", self.read_file),
            Route("/api/files/{name:path}", self.write_file, methods=["PUT"]),
            Route("/api/check", self.check, methods=["POST"]),
            Route("/api/plan", self.plan, methods=["POST"]),
            Route("/api/runs", self.list_runs),
            Route("/api/runs", self.start, methods=["POST"]),
            Route("/api/runs/{run}", self.stop, methods=["DELETE"]),
            Route("/api/runs/{run}/events", self.events),
            Route("/api/runs/{run}/report", self.report),
            Route("/{path:path}", self.static),
        ]
        return Starlette(routes=routes, exception_handlers={Refused: _refused, HTTPException: _not_routed})

    async def close(self) -> None:
        await asyncio.gather(self.runs.close(), self.checks.close(), self.plans.close())

    # What there is -----------------------------------------------------------------------------------------------

    async def static(self, request: Request) -> Response:
        if request.path_params["path"].startswith("api/"):
            raise Refused(404, "there is no such route")
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
                "start": {"file": only} if only else None,
                "limits": {
                    "seconds": limits.seconds,
                    "memory_bytes": limits.memory_bytes if IS_BOUNDED else None,
                    "printed_bytes": limits.printed_bytes,
                    "events": limits.events,
                    "event_bytes": limits.event_bytes,
                    "at_once": limits.at_once,
                },
                "words": WORDS,
            }
        )

    async def examples(self, request: Request) -> Response:
        return reply({"examples": examples()})

    async def recording(self, request: Request) -> Response:
        return Response(recording(request.path_params["name"]), media_type=LINES)

    async def list_files(self, request: Request) -> Response:
        if self.files is None:
            return reply({"files": [], "folder": False})
        found = [{"name": name, "bytes": self.files.size(name)} for name in self.files.names()]
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
            raise Refused(404, "the playground was started without a file or folder", "lq playground FOLDER")
        return self.files

    # Queries -----------------------------------------------------------------------------------------------------

    async def check(self, request: Request) -> Response:
        text = _field(await _body(request), "text", str)
        return reply(await self.checks.ask({"kind": "check", "text": text}))

    async def plan(self, request: Request) -> Response:
        return reply(await self.plans.ask({"kind": "plan", **self._job(await _body(request))}))

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
            raise Refused(429, sentence, "stop one of them, or wait")
        try:
            run = await self.runs.start({"kind": "run", **job})
        except OSError as error:
            raise Refused(503, f"no process can be started for the run: {error.strerror or error}") from None
        return reply({"run": run.id}, 201)

    async def events(self, request: Request) -> Response:
        run, given = self._run(request), request.query_params.get("after", "-1")
        if not given.removeprefix("-").isdecimal() or int(given) < -1:
            raise Refused(400, "after= is the number of a line, or -1")
        return StreamingResponse(run.journal.after(int(given)), media_type=LINES)

    async def report(self, request: Request) -> Response:
        run = self._run(request)
        if not run.journal.is_over:
            raise Refused(409, "the run is still under way", "stop it, or wait")
        page = await asyncio.to_thread(_report, run)
        name = {"Content-Disposition": f'attachment; filename="run-{run.id}.html"'}
        return Response(page, media_type="text/html", headers=name)

    async def stop(self, request: Request) -> Response:
        run = self._run(request)
        run.stop()
        return reply({"run": run.id, "state": run.state}, 202)

    def _run(self, request: Request) -> Run:
        run = self.runs.known.get(request.path_params["run"])
        if run is None:
            raise Refused(404, "there is no such run", "only the last ones are kept, and none when the server ends")
        return run

    def _job(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What a worker is told of a run."""
        text, name = _field(body, "text", str), _field(body, "name", str, None) or "query.lq"
        inputs, options = _field(body, "inputs", dict, None) or {}, _field(body, "options", dict, None) or {}
        for option in options:
            if option not in OPTIONS:
                raise Refused(400, f"there is no option {option!r}", f"there are {', '.join(OPTIONS)}")
        if options.get("model") not in (None, *self.models):
            hint = f"there are {', '.join(self.models)}; others are named when it is started: --model"
            raise Refused(400, f"this playground has no model {options['model']!r}", hint)
        said = {name: value for name, value in options.items() if value is not None}
        return {"text": text, "name": name[:LONGEST_NAME], "inputs": inputs, "options": {**said, **self.fixed}}


SESSION = "session.tokens"


def _report(run: Run) -> str:
    lines = io.BytesIO(b"".join(run.journal.lines))
    return report([Moment(told.ms, told.record) for told in read(lines, run.name) if told.record is not None])


async def _body(request: Request) -> Mapping[str, Any]:
    """Raises Refused for all but an object in JSON of a bounded size."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "the body of a request is application/json here")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MOST_BYTES:
            raise Refused(413, f"the body of a request has at most {MOST_BYTES:,} bytes")
    try:
        found = json.loads(bytes(data), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refused(400, "the body of this request is no JSON") from None
    if not isinstance(found, dict):
        raise Refused(400, "the body of this request is no object")
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
        what = "a text" if kind is str else "an object"
        raise Refused(400, f"{name!r} is {'missing' if value is None else f'not {what}'}")
    return value


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error.response()


def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Refused(error.status_code, "there is no such route").response()
