"""Data-set runs on Ray: each worker is an actor with its own model, and streams finished rows to this process.

Ray pickles the data that it transports, so both sides only send it bytes of JSON. Only this process writes the folder
of a run. If a worker dies, others run its unfinished rows.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import secrets
import sys
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from lmql_lite.api import compile as compile_query
from lmql_lite.data.job import EvalJob, eval_cache, fingerprint_of
from lmql_lite.data.rows import FileRow
from lmql_lite.data.run import Finish, attempt, failed_record
from lmql_lite.engine.rows import DataRow, constant_model, rows_at_once
from lmql_lite.engine.session import Session
from lmql_lite.errors import InputError, LmqlLiteError, ModelError
from lmql_lite.models.registry import load

LANES = 2
"""Parts that a worker has at a time, so that one of them is never waited for."""
ROUNDS = 4
"""Rows of a part, as a multiple of those that it runs at a time."""
LINGER_SECONDS = 0.02
"""Time that a record waits for others of its worker: a message costs as much as half a row."""
TRIES = 4
"""Workers that a row may take down with it."""


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Engine that runs the rows of a job on `workers` actors, in the cluster at `RAY_ADDRESS` or in one that is started
    for the run. `source` is the text of a query, or the name `module:function`, which workers import. `model` is an id,
    and `cache` the URL of a server that keeps the answers of all workers.
    """

    source: str
    is_module: bool
    model: str | None
    base_url: str | None
    workers: int
    gpus: float = 0.0
    cache: str | None = None

    async def run(self, job: EvalJob, rows: AsyncGenerator[DataRow, None], finish: Finish) -> None:
        """Runs rows and hands each record to `finish` as it ends. Raises InputError where Ray cannot be used."""
        ray = started(self.workers)
        try:
            kind = ray.remote(num_cpus=1, num_gpus=self.gpus, max_concurrency=LANES + 1, max_restarts=0)(RayWorker)
            parts = _Parts(rows)
            await asyncio.gather(*(self._work(ray, kind, job, parts, finish) for _ in range(self.workers)))
        finally:
            await rows.aclose()
            ray.shutdown()

    async def _work(self, ray: Any, kind: Any, job: EvalJob, parts: _Parts, finish: Finish) -> None:
        """One place for a worker: where it dies while there are rows, another one takes the place."""
        while parts.are_left or parts.again:
            worker = kind.remote(self._message(job))
            try:
                at_once = await worker.rows_at_once.remote()
                lanes = [self._lane(ray, worker, at_once, job, parts, finish) for _ in range(min(LANES, at_once))]
                ended = await asyncio.gather(*lanes, return_exceptions=True)
            except ray.exceptions.RayActorError as error:  # it did not even begin
                raise ModelError(f"a worker of Ray could not start: {_reason(error)}") from None
            except ray.exceptions.RayTaskError as error:
                raise _own_error(error) from None
            for failure in ended:
                if isinstance(failure, BaseException) and not isinstance(failure, ray.exceptions.RayActorError):
                    raise failure

    async def _lane(self, ray: Any, worker: Any, at_once: int, job: EvalJob, parts: _Parts, finish: Finish) -> None:
        share = max(1, at_once // LANES)
        while part := await parts.take(ROUNDS * share):
            message = json.dumps({"rows": [_row_message(row) for row in part.values()], "at_once": share}).encode()
            try:
                async for answer in worker.rows.remote(message):
                    records = json.loads(await answer)
                    new = [each for each in records if part.pop((each["id"], each["repeat"]), None) is not None]
                    await asyncio.gather(*map(finish, new))  # written as one group
            except ray.exceptions.RayActorError:
                for row in parts.requeue(part):
                    error = ModelError(f"{TRIES} workers of Ray ended while they ran this row")
                    await finish(failed_record(job, row, error))
                raise
            except ray.exceptions.RayTaskError as error:
                raise _own_error(error) from None

    def _folders(self, job: EvalJob) -> list[str]:
        """Folders whose modules the query may import; the last one comes first."""
        beside = [] if self.is_module else [str(Path(job.query.program.span.name).resolve().parent)]
        return [os.getcwd(), *beside]

    def _message(self, job: EvalJob) -> bytes:
        options = {name: job.options.get(name) for name in ("max_tokens", "cache_mode") if name in job.options}
        fields = ("columns", "id_column", "target", "variables", "seed", "concurrency", "timeout")
        return json.dumps({
            "source": self.source, "is_module": self.is_module, "model": self.model, "base_url": self.base_url,
            "options": options, "identity": dict(job.identity), "folders": self._folders(job),
            "cache": self.cache, "job": {name: getattr(job, name) for name in fields},
        }).encode()  # fmt: skip


@dataclass(slots=True)
class _Parts:
    """Rows to run. Rows of a worker that died come first."""

    rows: AsyncGenerator[DataRow, None]
    are_left: bool = True
    """True until the generator has ended."""
    again: deque[DataRow] = field(default_factory=deque)
    tries: dict[tuple[str, int], int] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(self, most: int) -> dict[tuple[str, int], DataRow]:
        """At most so many rows by id and repeat. One that a worker died with comes alone, so that others do not suffer
        for it."""
        part: dict[tuple[str, int], DataRow] = {}
        async with self.turn:  # a generator gives one row at a time
            if self.again:
                row = self.again.popleft()
                return {(row.id, row.repeat): row}
            while len(part) < most and self.are_left:
                try:
                    row = await anext(self.rows)
                except StopAsyncIteration:
                    self.are_left = False
                else:
                    part[row.id, row.repeat] = row
        return part

    def requeue(self, part: Mapping[tuple[str, int], DataRow]) -> list[DataRow]:
        """Rows of a worker that died; those that were tried often enough are returned, and not run again."""
        given_up = []
        for place, row in part.items():
            self.tries[place] = self.tries.get(place, 0) + 1
            if self.tries[place] < TRIES:
                self.again.append(row)
            else:
                given_up.append(row)
        return given_up


class RayWorker:
    """The actor. It has the query, the model and the token tree of its process."""

    def __init__(self, message: bytes) -> None:
        given = json.loads(message)
        for folder in given["folders"]:
            if folder not in sys.path and Path(folder).is_dir():
                sys.path.insert(0, folder)
        if given["is_module"]:
            module, _, function = given["source"].partition(":")
            query = getattr(importlib.import_module(module), function)
        else:
            query = compile_query(given["source"])
        session = Session()
        model = load(given["model"], base_url=given["base_url"]) if given["model"] is not None else None
        options = {"session": session, "model": model, "cache": eval_cache(given["cache"]), **given["options"]}
        self._job = EvalJob(query, Path(), cast("Any", options), given["identity"], **given["job"])
        self._problem = ""
        found = constant_model(model, query.program, session)
        here = None if found is None else fingerprint_of(found, session)
        if None not in (here, given["identity"]["fingerprint"]) and here != given["identity"]["fingerprint"]:
            self._problem = f"a worker has another version of the model: {here}, not {given['identity']['fingerprint']}"
        self._at_once = rows_at_once(model, query.program, session, self._job.concurrency)

    async def rows_at_once(self) -> int:
        if self._problem:
            raise ModelError(self._problem, hint="use the same files on all machines")
        return self._at_once

    async def rows(self, message: bytes) -> AsyncGenerator[bytes, None]:
        """Records of rows as they end, in lists of those that ended at nearly the same time."""
        given = json.loads(message)
        places = asyncio.Semaphore(given["at_once"])

        async def run(row: dict[str, Any]) -> dict[str, Any]:
            async with places:
                value = FileRow(row["line"], row["id"], row["values"], row["problem"])
                return await attempt(self._job, DataRow(row["number"], row["id"], row["repeat"], value))

        tasks = [asyncio.ensure_future(run(row)) for row in given["rows"]]
        left = set(tasks)
        try:
            while left:
                await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                ended, left = await asyncio.wait(left, timeout=LINGER_SECONDS)
                yield json.dumps([each.result() for each in ended]).encode()
        finally:
            for task in tasks:
                task.cancel()


def _row_message(row: DataRow) -> dict[str, Any]:
    source: FileRow = row.value
    return {"number": row.number, "id": row.id, "repeat": row.repeat, "line": source.line,
            "values": dict(source.values), "problem": source.problem}  # fmt: skip


def started(workers: int) -> Any:
    """Ray, connected to the cluster that `RAY_ADDRESS` names. One that is started here asks for a random token, and
    tells nobody of its use."""
    address = os.environ.get("RAY_ADDRESS")
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address is None:  # before the import, which reads them; Ray listens to all who reach this machine
            os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
        ray = importlib.import_module("ray")
    except ImportError:
        raise InputError("--workers needs Ray", hint="pip install 'lmql-lite[ray]'") from None
    try:
        if address is None:
            ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        else:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(
            f"Ray cannot be started: {_reason(error)}", hint="RAY_ADDRESS names a cluster that runs"
        ) from None
    return ray


def _own_error(error: Any) -> Exception:
    """The error that a worker raised, as one of the package."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, LmqlLiteError) else ModelError(f"a worker of Ray failed: {_reason(error)}")


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
