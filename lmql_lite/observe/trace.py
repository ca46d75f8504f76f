"""The file of a run that its caller names (`trace=`); its suffix says which one.

`.lqrun`  the lines of its events (lines.py), each written as it comes, so that a crash leaves what came before.
`.json`   a certificate: every call of a model with what was asked and answered, how long it took and what it cost.
`.html`   a report to look at (report.py).

The last two are made from the lines at the end, however the run ends, and replace an old file in one step. No file has
the key of a model; the certificate has nothing that looks like one, also where a query writes it (redaction.py).
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiofiles
from aiofiles.threadpool.text import AsyncTextIOWrapper

from lmql_lite.engine import events
from lmql_lite.engine.calls import Call, Calls
from lmql_lite.errors import InputError
from lmql_lite.observe.lines import SCHEMA, Line, Lines, failed, public, written
from lmql_lite.observe.report import report
from lmql_lite.plain import plain
from lmql_lite.redaction import without_secrets


class Trace:
    """The trace of one run. Its methods may raise OSError."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.calls = Calls() if self.path.suffix.lower() == ".json" else None
        """Collects the calls of models, where the file has them."""
        self._began = datetime.now(UTC)
        self._lines = Lines()
        self._kept: list[Line] = []
        self._file: AsyncTextIOWrapper | None = None

    async def begin(self) -> None:
        """Finds out, before anything is asked, whether the file can be written."""
        if self.path.suffix.lower() == ".lqrun":
            self._file = await aiofiles.open(self.path, "w", encoding="ascii", newline="\n")
            return
        if self.path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not self.path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not os.access(self.path if self.path.exists() else self.path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    async def add(self, records: Sequence[events.Record]) -> None:
        lines = [self._lines.line(record) for record in records]
        if self._file is None:
            self._kept += lines
            return
        await self._file.write("".join(map(written, lines)))
        await self._file.flush()

    async def end(self) -> None:
        """Writes what is still to be written. Called once, after the last record."""
        if self._file is not None:
            await self._file.close()
        else:
            await asyncio.to_thread(self._replace)

    def _replace(self) -> None:
        if self.calls is None:
            replace_text(self.path, report(self._kept))
        else:
            found = certificate(self._kept, self.calls, self._began)
            replace_text(self.path, json.dumps(without_secrets(found), indent=1) + "\n")


async def traced(stream: AsyncGenerator[events.Batch, None], trace: Trace) -> AsyncGenerator[events.Batch, None]:
    """The events of a run; each is in the trace before its watcher sees it, and the file is there before the result is.

    Raises InputError, before anything is asked, if the file cannot be written, and later if it no longer can.
    """
    with _writing(trace.path):
        await trace.begin()
    is_over = False
    try:
        async with aclosing(stream):
            async for batch in stream:
                with _writing(trace.path):
                    await trace.add(batch)
                    if batch and isinstance(batch[-1], events.Finished):
                        is_over = True
                        await trace.end()
                yield batch
    except BaseException as error:
        if not is_over:
            try:
                await trace.add([failed(error)])
                await trace.end()
            except OSError as problem:
                error.add_note(f"its trace could not be written: {problem}")
        raise


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "make its folder first" if isinstance(error, FileNotFoundError) else None
        raise InputError(
            f"the trace cannot be written to {os.fspath(path)!r}: {error.strerror or error}", hint=hint
        ) from None


def replace_text(path: Path, text: str) -> None:
    """Writes the whole file, or nothing: a reader sees the old one until the new one is whole."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(aside, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


# Certificates --------------------------------------------------------------------------------------------------------


def certificate(lines: Sequence[Line], calls: Calls, began: datetime) -> dict[str, Any]:
    """One JSON object: schema, began (UTC), ms, the first and the last line as `started` and `ended`, parameters
    (options of caller and header), and calls in the order in which they began.

    A call has kind, model, at_ms, ms, asked, answered; spent and error where there are any. `scores` of a model in this
    process asks requests (length of the prefix, the text at its end, new tokens, positions) and answers with the best
    token at each position. `stream` and `score` of a server ask a prompt and a request, or options.
    """
    return {
        "schema": SCHEMA,
        "began": began.isoformat(timespec="milliseconds"),
        "ms": calls.now(),
        "started": next((line for line in lines if line["type"] == "started"), None),
        "ended": lines[-1],
        "parameters": {name: _option(value) for name, value in calls.options.items() if name != "trace"},
        "calls": [_call(each) for each in calls.made],
    }


def _call(call: Call) -> dict[str, Any]:
    """A call without fields that are empty."""
    return {name: value for name, value in plain(call).items() if value not in (None, {})}


def _option(value: Any) -> Any:
    """An option of a run; of a cache only the file."""
    path = getattr(value, "path", None)
    return public(os.fspath(path)) if path is not None else plain(value)
