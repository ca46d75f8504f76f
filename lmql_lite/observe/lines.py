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
of its lines; of a file's absolute path only the name is written. Values are as in `plain.py`, and stay so when they
are read again. Whole numbers from 2**53 on are texts. `results` are all results, best first, of a run that was asked
for several. The last line is `done` or `error`: where neither is there, the end is missing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import secrets
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, cast

from lmql_lite.engine import events
from lmql_lite.engine.budget import Cost
from lmql_lite.engine.result import Result, Usage
from lmql_lite.errors import InputError, LmqlLiteError, Span
from lmql_lite.models.media.decoding import is_thumbnail, thumbnail
from lmql_lite.observe.alternatives import Alternative, alternatives
from lmql_lite.observe.codecs import Fields, Object, Wrong, field_of, public, read_as
from lmql_lite.plain import plain
from lmql_lite.redaction import redacted, without_secrets
from lmql_lite.tokens import Token

SCHEMA = 1
MAX_LENGTH = 2**28
"""Most bytes of a line that are read: a `done` has the whole prompt."""
MAX_ALTERNATIVES = 8
"""Alternatives of one token."""
CHOICE = ("allowed", "vocabulary", "alternatives")
STOPPED = "Stopped"
"""Kind of the error of a run that was cancelled."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a run: its number, its time and its event, which is None for a type of a later version. `choice` has
    the fields that describe the candidates of a token."""

    run: str
    seq: int
    ms: int
    record: events.Record | None
    choice: Object = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The line as JSON data."""
        assert self.record is not None, "only what was read may be unknown"
        envelope = {"schema": SCHEMA, "run": self.run, "seq": self.seq, "ms": self.ms}
        return {**envelope, **as_object(self.record), **self.choice}

    def text(self) -> str:
        """The line as it is written, with its line feed."""
        return json.dumps(self.as_dict(), separators=(",", ":")) + "\n"


class Lines:
    """Maker of the lines of one run, with their numbers and times."""

    def __init__(self) -> None:
        self._run = secrets.token_hex(8)
        self._seq = 0
        self._began: float | None = None

    def line(self, record: events.Record) -> Line:
        if isinstance(record, events.Started):
            self._run = record.run
        elif isinstance(record, events.MediaShown) and record.item is not None:
            record = replace(record, thumbnail=thumbnail(record.item), item=None)
        now = time.perf_counter()
        self._began = now if self._began is None else self._began
        self._seq += 1
        return Line(self._run, self._seq - 1, int(1000 * (now - self._began)), record, choice_of(record))


def read(file: BinaryIO, name: str) -> Iterator[Line]:
    """The lines of a recording, one by one. A last line that was cut off is left out.

    Raises InputError where it is none, where a newer version wrote it, and where lines are missing in the middle.
    """
    run, seq = "", 0
    while text := file.readline(MAX_LENGTH):
        try:
            line = read_line(text)
            if seq and line.run != run:
                raise Wrong("it belongs to another run")
            if line.seq != seq:
                raise Wrong(f"its number is {line.seq}, and {seq} was to come: lines are missing")
        except Wrong as wrong:
            if seq and not text.endswith(b"\n"):
                return
            raise InputError(f"{name!r} is not a recording of a run: line {seq + 1}: {wrong}") from None
        run, seq = line.run, seq + 1
        yield line
    if not seq:
        raise InputError(f"{name!r} is not a recording of a run: it is empty")


def read_line(text: bytes) -> Line:
    """One line. Raises Wrong where it is none, InputError where a newer version wrote it."""
    try:
        found = json.loads(text.decode(), parse_constant=_no_number)
    except RecursionError:
        raise Wrong("it is nested too deeply") from None
    except ValueError:
        raise Wrong("it is not JSON") from None
    if not isinstance(found, dict) or type(found.get("schema")) is not int:
        raise Wrong("it is not an object with a schema")
    if found["schema"] > SCHEMA:
        raise InputError(
            f"this recording has schema {found['schema']}, and this version reads up to {SCHEMA}",
            hint="install a newer lmql-lite",
        )
    run, seq, ms = (read_as(kind, field_of(found, name)) for name, kind in (("run", str), ("seq", int), ("ms", int)))
    choice = {name: found[name] for name in CHOICE if name in found}
    return Line(run, seq, ms, record_of(found), choice)


def _no_number(name: str) -> None:
    raise ValueError(name)


def as_object(record: events.Record) -> dict[str, Any]:
    """The fields of a line that are the record's own, `type` first."""
    name = NAMES[type(record)]
    match record:
        case events.TokenMoved(token) | events.Guessed(token):
            own = {**_TOKEN.to(token), "text": token.text, **_base64(token.text, token.data)}
        case events.Finished(result, results):
            others = {"results": [result_object(each) for each in results]} if results else {}
            own = {**result_object(result), **others}
        case events.Failed():
            own = _failure_to(record)
        case _:
            own = {}
    asked = asked_of(record) if isinstance(record, events.Started) else {}
    return {"type": name, **own, **_FIELDS[name].to(record), **asked}


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


def record_of(found: Object) -> events.Record | None:
    """The event of a line; None for a type of a later version. Raises Wrong for fields that are wrong."""
    name = read_as(str, field_of(found, "type"))
    if name not in _KINDS:
        return None
    kind: Any = _KINDS[name]
    try:
        own = _FIELDS[name].of(found)
        if kind in (events.TokenMoved, events.Guessed):
            own["token"] = Token(data=_bytes(found), **_TOKEN.of(found))
        elif kind is events.MediaShown and not is_thumbnail(own.get("thumbnail", "")):
            raise Wrong("its thumbnail is not a JPEG")
        elif kind is events.Finished:
            own["results"] = tuple(_result_of(read_as(dict, each)) for each in read_as(list, found.get("results", [])))
            own["result"] = _result_of(found)
        elif kind is events.Failed:
            return _failure_of(found)
        record: events.Record = kind(**own)
    except Wrong as wrong:
        raise Wrong(f"{name}: {wrong}") from None
    return record


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
        **_RESULT.to(result),
        "vars": plain(result.variables),
        "usage": result.usage.as_dict(),
        "cost": None if cost is None else {"amount": cost.amount, "told": cost.is_reported},
    }
    return {name: found[name] for name in _DONE}


def _result_of(found: Object) -> Result:
    """A result; its tokens stand in lines of their own."""
    cost = read_as(dict, found.get("cost") or {})
    usage = Usage(
        **_USAGE.of(read_as(dict, field_of(found, "usage"))),
        cost=Cost(**_COST.of({**cost, "is_reported": field_of(cost, "told")})) if cost else None,
    )
    variables = dict(read_as(dict, field_of(found, "vars")))
    return Result(**_RESULT.of(found), variables=variables, tokens=(), usage=usage)


def _failure_to(record: events.Failed) -> dict[str, Any]:
    return {**_FIELDS["error"].to(record), "others": [_failure_to(other) for other in record.others]}


def _failure_of(found: Object) -> events.Failed:
    others = tuple(_failure_of(read_as(dict, other)) for other in read_as(list, found.get("others", [])))
    return events.Failed(**_FIELDS["error"].of(found), others=others)


def _bytes(found: Object) -> bytes:
    try:
        if "base64" in found:
            return base64.b64decode(read_as(str, found["base64"]), validate=True)
        return str(read_as(str, field_of(found, "text"))).encode()
    except UnicodeEncodeError:
        raise Wrong("its text has half a character") from None
    except (binascii.Error, ValueError):
        raise Wrong("its bytes are not base64") from None


_KINDS: dict[str, type[Any]] = {
    "started": events.Started,
    "notice": events.Notice,
    "text": events.Text,
    "media": events.MediaShown,
    "thought": events.Thought,
    "token": events.TokenMoved,
    "guessed": events.Guessed,
    "hole.opened": events.HoleOpened,
    "hole.closed": events.HoleClosed,
    "forked": events.Forked,
    "pruned": events.Pruned,
    "tool": events.ToolCalled,
    "bound": events.Bound,
    "done": events.Finished,
    "error": events.Failed,
}
NAMES = {kind: name for name, kind in _KINDS.items()}
"""Types of lines by the class of their event."""
_FIELDS = {
    name: Fields(kind, without=("token", "choosable", "place", "item", "result", "results", "others"))
    for name, kind in _KINDS.items()
}
_TOKEN = Fields(Token, without=("data",))
_RESULT = Fields(Result, without=("variables", "tokens", "usage"))
_USAGE = Fields(Usage, without=("cost",))
_COST = Fields(Cost)
_DONE = ("value", "vars", "prompt", "endings", "usage", "cost", "seed", "model", "score", "notices")
