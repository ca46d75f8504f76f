"""Events as lines of JSON, and back: `lq run --format events`, `.lqrun` files, the page. No line holds the key of a
model; what a query generates stands there as it is.

Every line is one object in ASCII, so that no character in a text can be taken for the end of a line. It has

    schema  1. A higher number is for lines that a reader of this version would misunderstand; new fields and new
            types are not, and readers pass over what they do not know.
    run     the same text in all lines of a run
    seq     0, 1, 2 ... without a gap
    ms      milliseconds since the first line
    type    the type of the event

and the fields of an event (events.py) under their own names:

    started      model decoder seed returns name query inputs date
    notice       message
    text         text hole state role
    media        name thumbnail state
    thought      text hole state
    token        id text [base64] hole source fate logprob node parent state [allowed vocabulary [alternatives]]
    hole.opened  name span state
    hole.closed  name value ending state
    guessed      id text [base64] hole source fate logprob node parent state
    forked       parent children
    pruned       state
    tool         name arguments output state
    bound        name value state
    done         value vars prompt endings usage cost seed model score notices [results]
    error        kind message hint span others

`thumbnail` is a small JPEG as a `data:` address, or empty; the picture itself is in no line. `base64` are the bytes
of a token that are not whole characters; `text` then has U+FFFD for them. Where a model in this process was asked, a
`token` says how many of the `vocabulary` were `allowed` and, unless it was nearly certain, the likeliest
`alternatives`: id, text (null is the end of the text), logprob, allowed, and the clause that forbids it. A `span` is
file, line, column, end_line, end_column (all from 1, in code points, the end behind the last character) and the text
of its lines; of a file's absolute path only the name is written. Values are as in `plain.py`. Whole numbers from
2**53 on are texts. `results` are all results, best first, of a run that was asked
for several. The last line is `done` or `error`: where neither is there, the end is missing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO, cast

from lmql_lite.engine import events
from lmql_lite.engine.result import Result, Usage
from lmql_lite.errors import InputError, LmqlLiteError, Span
from lmql_lite.models.media.decoding import thumbnail
from lmql_lite.observe.alternatives import Alternative, alternatives
from lmql_lite.plain import plain
from lmql_lite.redaction import redacted, without_secrets

Line = Mapping[str, Any]
"""A line of a run, as JSON data."""
SCHEMA = 1
MAX_LENGTH = 2**28
"""Most bytes of a line that are read: a `done` has the whole prompt."""
MAX_ALTERNATIVES = 8
"""Alternatives of one token."""
STOPPED = "Stopped"
"""Kind of the error of a run that was cancelled."""


class Lines:
    """Maker of the lines of one run, with their numbers and times."""

    def __init__(self) -> None:
        self._run = secrets.token_hex(8)
        self._seq = 0
        self._began: float | None = None

    def line(self, record: events.Record) -> dict[str, Any]:
        if isinstance(record, events.Started):
            self._run = record.run
        elif isinstance(record, events.MediaShown) and record.item is not None:
            record = replace(record, thumbnail=thumbnail(record.item), item=None)
        now = time.perf_counter()
        self._began = now if self._began is None else self._began
        self._seq += 1
        envelope = {"schema": SCHEMA, "run": self._run, "seq": self._seq - 1, "ms": int(1000 * (now - self._began))}
        return {**envelope, **as_object(record), **choice_of(record)}


def written(line: Line) -> str:
    """The line as it is written, with its line feed."""
    return json.dumps(line, separators=(",", ":")) + "\n"


def read(file: BinaryIO, name: str) -> Iterator[Line]:
    """The lines of a recording, one by one. A last line that was cut off is left out.

    Raises InputError where it is none, where a newer version wrote it, and where lines are missing in the middle.
    """
    run, seq = "", 0
    while text := file.readline(MAX_LENGTH):
        line = _line(text)
        if line is None or line["seq"] != seq or (seq and line["run"] != run):
            if seq and not text.endswith(b"\n"):
                return
            what = "not of it, or lines before it are missing" if seq else "not its first line"
            raise InputError(f"{name!r} is not a recording of a run: line {seq + 1} is {what}")
        if line["schema"] > SCHEMA:
            raise InputError(
                f"this recording has schema {line['schema']}, and this version reads up to {SCHEMA}",
                hint="install a newer lmql-lite",
            )
        run, seq = line["run"], seq + 1
        yield line
    if not seq:
        raise InputError(f"{name!r} is not a recording of a run: it is empty")


def _line(text: bytes) -> Line | None:
    """An object with the fields of every line; None for other text."""
    try:
        found = json.loads(text.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    kinds = {"schema": int, "run": str, "seq": int, "ms": int, "type": str}
    is_line = isinstance(found, dict) and all(type(found.get(name)) is kind for name, kind in kinds.items())
    return found if is_line else None


def _no_number(name: str) -> None:
    raise ValueError(name)


def ended(line: Line) -> events.Finished | events.Failed | None:
    """The end of a run as far as its text, its values and its error go; None for another line. Raises InputError for
    fields that are wrong."""
    try:
        if line["type"] == "done":
            return events.Finished(_result_of(line), tuple(map(_result_of, line.get("results", ()))))
        return _failure_of(line) if line["type"] == "error" else None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"the end of the recorded run is damaged: a wrong {line['type']!r} line") from None


def as_object(record: events.Record) -> dict[str, Any]:
    """The fields of a line that are the record's own, `type` first."""
    own: dict[str, Any] = {}
    match record:
        case events.TokenMoved(token) | events.Guessed(token):
            own = {**_fields(token, without=("data",)), "text": token.text, **_base64(token.text, token.data)}
        case events.Finished(result, results):
            others = {"results": [result_object(each) for each in results]} if results else {}
            own = {**result_object(result), **others}
        case events.Failed():
            own = _failure_to(record)
    asked = asked_of(record) if isinstance(record, events.Started) else {}
    return {"type": NAMES[type(record)], **own, **_fields(record, without=_ELSEWHERE), **asked}


def _fields(record: Any, *, without: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a dataclass as JSON data."""
    found = {each.name: getattr(record, each.name) for each in fields(record) if each.name not in without}
    return {name: _written_span(value) if isinstance(value, Span) else plain(value) for name, value in found.items()}


def choice_of(record: events.Record) -> dict[str, Any]:
    """Fields of a line that say what a token was chosen from; empty where no model in this process was asked."""
    if not isinstance(record, events.TokenMoved) or record.choosable is None:
        return {}
    others = alternatives(record.choosable, MAX_ALTERNATIVES)
    found: dict[str, Any] = {"allowed": record.choosable.allowed, "vocabulary": len(record.choosable.mask)}
    return {**found, "alternatives": [_alternative(other) for other in others]} if len(others) > 1 else found


def _alternative(other: Alternative) -> dict[str, Any]:
    found = {"id": other.id, "logprob": round(other.logprob, 4), "allowed": other.is_allowed, "clause": other.clause}
    if other.data is None:
        return {**found, "text": None}
    text = other.data.decode("utf-8", "replace")
    return {**found, "text": text, **_base64(text, other.data)}


def _base64(text: str, data: bytes) -> dict[str, str]:
    return {} if text.encode() == data else {"base64": base64.b64encode(data).decode()}


def asked_of(started: events.Started) -> dict[str, Any]:
    """The query of a run and its inputs, as JSON data without keys. Of bytes, such as a picture's, their number."""
    inputs = {
        name: f"<{len(value):,} bytes>" if isinstance(value, bytes | bytearray | memoryview) else value
        for name, value in started.inputs.items()
    }
    asked = {"name": public(started.name), "query": started.query, "inputs": plain(inputs)}
    return cast(dict[str, Any], without_secrets(asked))


def failed(error: BaseException) -> events.Failed:
    """The record of a run that an exception has ended."""
    if isinstance(error, LmqlLiteError):
        # the class that users know, where the error is of a narrower one
        kind = next(each for each in type(error).__mro__ if LmqlLiteError in (each, *each.__bases__))
        others = tuple(failed(other) for other in error.others)
        return events.Failed(kind.__name__, redacted(error.message), error.hint, error.span, others)
    if isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt):
        return events.Failed(STOPPED, "the run was stopped")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.endswith(".py") and not frame.filename.startswith("<frozen")]
    place = None
    if own and own[-1].lineno is not None:  # the line of the query in which its own Python raised
        source = own[-1].line or ""
        place = Span(own[-1].filename, source, 0, len(source), own[-1].lineno)
    return events.Failed(type(error).__name__, redacted(str(error)), None, place)


# Types whose lines are flat, and their records not -------------------------------------------------------------------


def result_object(result: Result) -> dict[str, Any]:
    """A result without its tokens, as JSON data. What a server did not report is null."""
    cost = result.usage.cost
    found = {
        **_fields(result, without=("variables", "tokens", "usage", "posterior")),
        "vars": plain(result.variables),
        "usage": result.usage.as_dict(),
        "cost": None if cost is None else {"amount": cost.amount, "told": cost.is_reported},
    }
    return {name: found[name] for name in _DONE}


def _result_of(found: Line) -> Result:
    return Result(
        prompt=str(found["prompt"]),
        variables=dict(found["vars"]),
        value=found["value"],
        tokens=(),
        usage=Usage(),
        endings=dict(found["endings"]),
        seed=int(found["seed"]),
        model=str(found["model"]),
    )


def _failure_to(record: events.Failed) -> dict[str, Any]:
    return {**_fields(record, without=_ELSEWHERE), "others": [_failure_to(other) for other in record.others]}


def _failure_of(found: Line) -> events.Failed:
    hint, span = found["hint"], found["span"]
    return events.Failed(
        str(found["kind"]),
        str(found["message"]),
        None if hint is None else str(hint),
        None if span is None else _read_span(span),
        tuple(map(_failure_of, found["others"])),
    )


def public(name: str) -> str:
    """The name of a file, without its absolute path."""
    for path in (PurePosixPath(name), PureWindowsPath(name)):
        if path.is_absolute():
            return path.name
    return name


def _written_span(span: Span) -> dict[str, Any]:
    begin = span.text.rfind("\n", 0, span.start) + 1
    end = span.text.find("\n", span.end)
    covered = span.text[begin : span.end]
    return {
        "file": public(span.name),
        "line": span.line,
        "column": span.column,
        "end_line": span.line + covered.count("\n"),
        "end_column": len(covered) - covered.rfind("\n"),
        "text": span.text[begin : end if end >= 0 else len(span.text)],
    }


def _read_span(found: Line) -> Span:
    """The span in the text of its lines alone."""
    text, line = str(found["text"]), int(found["line"])
    rows = text.split("\n")[: int(found["end_line"]) - line]
    end = sum(len(row) + 1 for row in rows) + int(found["end_column"]) - 1
    return Span(str(found["file"]), text, max(int(found["column"]) - 1, 0), max(min(end, len(text)), 0), line)


NAMES: dict[type[Any], str] = {
    events.Started: "started",
    events.Notice: "notice",
    events.Text: "text",
    events.MediaShown: "media",
    events.Thought: "thought",
    events.TokenMoved: "token",
    events.Guessed: "guessed",
    events.HoleOpened: "hole.opened",
    events.HoleClosed: "hole.closed",
    events.Forked: "forked",
    events.Pruned: "pruned",
    events.ToolCalled: "tool",
    events.Bound: "bound",
    events.Finished: "done",
    events.Failed: "error",
}
"""Types of lines by the class of their event."""
_ELSEWHERE = ("token", "choosable", "place", "item", "result", "results", "others")
"""Fields of events that a line does not have under their own names."""
_DONE = ("value", "vars", "prompt", "endings", "usage", "cost", "seed", "model", "score", "notices")
