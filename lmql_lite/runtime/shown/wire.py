"""Events as lines of JSON, and back: `lq run --format events`, `.lqrun` files, the page. No line holds the key of a
model; what a query says is told as it is.

Every line is one object in ASCII, so that no character in a text can be taken for the end of a line. It has

    schema  1. A higher number is for lines that a reader of this version would misunderstand; new fields and new
            types are not, and readers pass over what they do not know.
    run     the same text in all lines of a run
    seq     0, 1, 2 ... without a gap
    ms      milliseconds since the first line
    type    what the rest is

and the fields of an event (events.py) under their own names:

    started      model decoder seed returns
    notice       message
    text         text hole state role
    token        id text [base64] hole source fate logprob node parent state
    hole.opened  name span state
    hole.closed  name value ending state
    guessed      id text [base64] hole source fate logprob node parent state
    forked       parent children
    pruned       state
    tool         name arguments output state
    bound        name value state
    done         value vars prompt endings usage cost seed model score notices [results]
    error        kind message hint span others

`base64` are the bytes of a token that are no whole characters; `text` then has U+FFFD for them. A `span` is file, line,
column, end_line, end_column (all from 1, in code points, the end behind the last character) and the text of its lines;
of a file's absolute path only the name is told. Values are as in `plain.py`, and stay so when they are read again.
Whole numbers from 2**53 on are texts. `results` are all results, best first, of a run that was asked for several. The
last line is `done` or `error`: where neither is there, the end is missing.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, BinaryIO, get_args

from lmql_lite.errors import InputError
from lmql_lite.runtime import events
from lmql_lite.runtime.budget import Cost
from lmql_lite.runtime.result import Result, Usage
from lmql_lite.runtime.shown.fields import (
    ENDING,
    FLAG,
    FLOAT,
    SPAN,
    TEXT,
    VALUE,
    WHOLE,
    Codec,
    Object,
    Wrong,
    each_of,
    field_of,
    list_of,
    maybe,
    named,
    object_of,
    one_of,
)
from lmql_lite.runtime.shown.plain import plain
from lmql_lite.tokens import Fate, Role, Source, Token

SCHEMA = 1
LONGEST = 2**28
"""Bytes of a line that are read: a `done` has the whole prompt."""


@dataclass(frozen=True, slots=True)
class Told:
    """A line that was read: which one, when, and what it says; None where that is of a type that came later."""

    run: str
    seq: int
    ms: int
    record: events.Record | None


class Lines:
    """The lines of one run: they are numbered, and say when each was made."""

    def __init__(self) -> None:
        self._run = secrets.token_hex(8)
        self._seq = 0
        self._began: float | None = None

    def line(self, record: events.Record) -> str:
        """With the line feed at its end."""
        if isinstance(record, events.Started):
            self._run = record.run
        now = time.perf_counter()
        self._began = now if self._began is None else self._began
        ms = int(1000 * (now - self._began))
        envelope = {"schema": SCHEMA, "run": self._run, "seq": self._seq, "ms": ms}
        self._seq += 1
        return json.dumps(envelope | as_object(record), separators=(",", ":")) + "\n"


def read(file: BinaryIO, name: str) -> Iterator[Told]:
    """The lines of a recording, one by one. A last line that was cut off is left out.

    Raises InputError where it is none, where a newer version wrote it, and where something is missing in the middle.
    """
    run, seq = "", 0
    while line := file.readline(LONGEST):
        try:
            told = read_line(line)
            if seq and told.run != run:
                raise Wrong("it belongs to another run")
            if told.seq != seq:
                raise Wrong(f"its number is {told.seq}, and {seq} was to come: lines are missing")
        except Wrong as wrong:
            if seq and not line.endswith(b"\n"):
                return
            raise InputError(f"{name!r} is no recording of a run: line {seq + 1}: {wrong}") from None
        run, seq = told.run, seq + 1
        yield told
    if not seq:
        raise InputError(f"{name!r} is no recording of a run: it is empty")


def read_line(line: bytes) -> Told:
    """One line. Raises Wrong where it is none, InputError where a newer version wrote it."""
    try:
        found = json.loads(line.decode(), parse_constant=_no_number)
    except RecursionError:
        raise Wrong("it is nested too deeply") from None
    except ValueError:
        raise Wrong("it is no JSON") from None
    if not isinstance(found, dict) or type(found.get("schema")) is not int:
        raise Wrong("it is no object with a schema")
    if found["schema"] > SCHEMA:
        raise InputError(
            f"this recording has schema {found['schema']}, and this version reads up to {SCHEMA}",
            hint="install a newer lmql-lite",
        )
    run, seq, ms = (field.of(field_of(found, name)) for name, field in _ENVELOPE.items())
    return Told(run, seq, ms, record_of(found))


def as_object(record: events.Record) -> dict[str, Any]:
    """The fields of a line that are the record's own, `type` first."""
    name = _NAMES[type(record)]
    return {"type": name, **_KINDS[name].to(record)}


def record_of(found: Object) -> events.Record | None:
    """What a line says; None where it is of a type that came later. Raises Wrong for fields that are wrong."""
    name = TEXT.of(field_of(found, "type"))
    kind = _KINDS.get(name)
    try:
        return None if kind is None else kind.of(found)
    except Wrong as wrong:
        raise Wrong(f"{name}: {wrong}") from None


# Fields -----------------------------------------------------------------------------------


def _no_number(name: str) -> None:
    raise ValueError(name)


# Types of lines ------------------------------------------------------------------------------------------------------


class Kind:
    """A type of line whose fields are those of its record."""

    def __init__(self, record: type[Any], codecs: Mapping[str, Codec]) -> None:
        self.record = record
        self._codecs = codecs
        self._optional = {
            each.name for each in fields(record) if each.default is not MISSING or each.default_factory is not MISSING
        }

    def to(self, record: Any) -> dict[str, Any]:
        return {name: codec.to(getattr(record, name)) for name, codec in self._codecs.items()}

    def of(self, found: Object) -> Any:
        return self.record(**self.read(found))

    def read(self, found: Object) -> dict[str, Any]:
        """The fields that are there, and those that have to be."""
        names = [name for name in self._codecs if name in found or name not in self._optional]
        return {name: self._codecs[name].of(field_of(found, name)) for name in names}


class TokenKind(Kind):
    """What the token says stands beside where it moved."""

    def to(self, record: events.TokenMoved | events.Guessed) -> dict[str, Any]:
        token, text = record.token, record.token.text
        data = {} if text.encode() == token.data else {"base64": base64.b64encode(token.data).decode()}
        return {**_TOKEN.to(token), "text": text, **data, **super().to(record)}

    def of(self, found: Object) -> Any:
        said = {"data": _bytes(found), **_TOKEN.read(found)}
        return self.record(Token(**said), **self.read(found))


class DoneKind(Kind):
    """What a result says; its tokens were told before, and stand in no result that is read."""

    def to(self, record: events.Finished) -> dict[str, Any]:
        others = {"results": [result_object(each) for each in record.results]} if record.results else {}
        return {**result_object(record.result), **others}

    def of(self, found: Object) -> events.Finished:
        results = tuple(self._result(object_of(each)) for each in list_of(found.get("results", [])))
        return events.Finished(self._result(found), results)

    def _result(self, found: Object) -> Result:
        counts, cost = object_of(field_of(found, "usage")), object_of(found.get("cost") or {})
        usage = Usage(
            **{name: maybe(WHOLE).of(counts.get(name)) for name in Usage().as_dict()},
            cost=Cost(FLOAT.of(field_of(cost, "amount")), FLAG.of(field_of(cost, "told"))) if cost else None,
        )
        said = {name: codec.of(field_of(found, name)) for name, codec in _RESULT.items()}
        variables = dict(object_of(field_of(found, "vars")))
        return Result(**said, variables=variables, tokens=(), usage=usage)


def result_object(result: Result) -> dict[str, Any]:
    """A result without its tokens, as JSON data. What a server did not tell is null."""
    cost = result.usage.cost
    return {
        "value": plain(result.value),
        "vars": plain(result.variables),
        "prompt": result.prompt,
        "endings": dict(result.endings),
        "usage": result.usage.as_dict(),
        "cost": None if cost is None else {"amount": cost.amount, "told": cost.is_told},
        "seed": WHOLE.to(result.seed),
        "model": result.model,
        "score": FLOAT.to(result.score),
        "notices": list(result.notices),
    }


def _bytes(found: Object) -> bytes:
    if "base64" not in found:
        return _encoded(TEXT.of(field_of(found, "text")))
    try:
        return base64.b64decode(TEXT.of(found["base64"]), validate=True)
    except (binascii.Error, ValueError):
        raise Wrong("its bytes are no base64") from None


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Wrong("its text has half a character") from None


class FailedKind(Kind):
    """Its further problems are lines of the same kind inside it."""

    def to(self, record: events.Failed) -> dict[str, Any]:
        return {**super().to(record), "others": [self.to(other) for other in record.others]}

    def of(self, found: Object) -> events.Failed:
        others = tuple(self.of(object_of(other)) for other in list_of(found.get("others", [])))
        return events.Failed(**self.read(found), others=others)


_ENVELOPE = {"run": TEXT, "seq": WHOLE, "ms": WHOLE}
_TOKEN = Kind(
    Token,
    {
        "id": WHOLE,
        "hole": maybe(TEXT),
        "source": one_of(get_args(Source)),
        "fate": one_of(get_args(Fate)),
        "logprob": maybe(FLOAT),
    },
)
ROLE = one_of(get_args(Role))
_RESULT = {
    "value": VALUE,
    "prompt": TEXT,
    "endings": named(ENDING),
    "seed": WHOLE,
    "model": TEXT,
    "score": FLOAT,
    "notices": each_of(TEXT),
}
_KINDS = {
    "started": Kind(events.Started, {"run": TEXT, "model": TEXT, "decoder": TEXT, "seed": WHOLE, "returns": FLAG}),
    "notice": Kind(events.Notice, {"message": TEXT}),
    "text": Kind(events.Text, {"text": TEXT, "hole": maybe(TEXT), "state": WHOLE, "role": maybe(ROLE)}),
    "token": TokenKind(events.TokenMoved, {"node": WHOLE, "parent": WHOLE, "state": WHOLE}),
    "guessed": TokenKind(events.Guessed, {"node": WHOLE, "parent": WHOLE, "state": WHOLE}),
    "hole.opened": Kind(events.HoleOpened, {"name": TEXT, "span": SPAN, "state": WHOLE}),
    "hole.closed": Kind(events.HoleClosed, {"name": TEXT, "value": TEXT, "ending": ENDING, "state": WHOLE}),
    "forked": Kind(events.Forked, {"parent": WHOLE, "children": each_of(WHOLE)}),
    "pruned": Kind(events.Pruned, {"state": WHOLE}),
    "tool": Kind(events.ToolCalled, {"name": TEXT, "arguments": TEXT, "output": TEXT, "state": WHOLE}),
    "bound": Kind(events.Bound, {"name": TEXT, "value": VALUE, "state": WHOLE}),
    "done": DoneKind(events.Finished, {}),
    "error": FailedKind(events.Failed, {"kind": TEXT, "message": TEXT, "hint": maybe(TEXT), "span": maybe(SPAN)}),
}
_NAMES = {kind.record: name for name, kind in _KINDS.items()}
