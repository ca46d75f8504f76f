"""Recordings that no model had to write: long ones, and such as say things that a page must not obey."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lmql_lite.engine import events
from lmql_lite.engine.result import Result, Usage
from lmql_lite.errors import Span
from lmql_lite.observe.lines import SCHEMA, as_object
from lmql_lite.tokens import Source, Token

WORDS = (" one", " two", " three", " four", " five", " six", " seven,", " eight.\n")
SOURCES: tuple[Source, ...] = ("model", "cache", "draft", "forced")


def lines(records: Iterable[Mapping[str, Any] | events.Record], milliseconds: float = 0.2) -> Iterator[str]:
    """A recording, line by line; some milliseconds lie between two lines."""
    for number, record in enumerate(records):
        said = record if isinstance(record, Mapping) else as_object(record)
        envelope = {"schema": SCHEMA, "run": "r1", "seq": number, "ms": int(milliseconds * number)}
        yield json.dumps({**said, **envelope}) + "\n"


def token(text: str, node: int, source: Source = "model", hole: str | None = "TEXT") -> events.TokenMoved:
    """A token that joins the path behind the one with the number before its own."""
    said = Token(node % 1000, text.encode(), hole, source, "kept", -0.5 if source != "forced" else None)
    return events.TokenMoved(said, node, node - 1)


def long_run(count: int) -> Iterator[Mapping[str, Any] | events.Record]:
    """So many tokens of one hole, from four sources in turn, each run of them eight long."""
    yield events.Started("demo", "argmax", 1)
    yield events.Text("Numbers:")
    yield token("Numbers:", 1, "prompt", None)
    yield events.HoleOpened("TEXT", Span("q.lq", '"Numbers:[TEXT]"', 9, 15))
    said = []
    for number in range(count):
        text = WORDS[number % len(WORDS)]
        said.append(text)
        yield token(text, number + 2, SOURCES[number // len(WORDS) % len(SOURCES)])
        yield events.Text(text, "TEXT")
    whole = "".join(said)
    yield events.HoleClosed("TEXT", whole, "end-of-text")
    quarter = count // 4
    usage = Usage(
        forward_passes=quarter,
        prompt_tokens=1,
        completion_tokens=count,
        tokens_from_cache=quarter,
        tokens_from_model=count - 3 * quarter,
        draft_accepted=quarter,
        tokens_forced=quarter,
    )
    yield events.Finished(
        Result(f"Numbers:{whole}", {"TEXT": whole}, None, (), usage, {"TEXT": "end-of-text"}, 1, "demo")
    )
