"""What the lines of the playground tell besides those of a recording (wire.py): what else a token might have been."""

from __future__ import annotations

import base64
from typing import Any

from lmql_lite.runtime import events
from lmql_lite.runtime.alternatives import Alternative
from lmql_lite.runtime.shown.wire import as_object

MOST = 8
"""Alternatives of one token."""


def told(event: events.Event) -> dict[str, Any]:
    """The line of an event, without what stands in every line."""
    line = as_object(event)
    if isinstance(event, events.TokenMoved) and event.choosable is not None:
        others = event.choosable.alternatives(MOST)
        line |= {"allowed": event.choosable.allowed, "vocabulary": len(event.choosable.mask)}
        if len(others) > 1:
            line["alternatives"] = [_line(other) for other in others]
    return line


def _line(other: Alternative) -> dict[str, Any]:
    found = {"id": other.id, "logprob": round(other.logprob, 4), "allowed": other.is_allowed, "clause": other.clause}
    if other.data is None:
        return {**found, "text": None}
    text = other.data.decode("utf-8", "replace")
    data = {} if text.encode() == other.data else {"base64": base64.b64encode(other.data).decode()}
    return {**found, "text": text, **data}
