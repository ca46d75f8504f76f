"""The events of a run, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import lmql_lite as lq
from lmql_lite.engine import events


def watched(
    source: str, given: Mapping[str, Any] | None = None, until: type[events.Event] | None = None, **options: Any
) -> list[events.Event]:
    """All events of a run in a session of its own, or those up to the first of a type, at which the reader leaves."""

    async def watch() -> list[events.Event]:
        seen = list[events.Event]()
        query = lq.compile(source)
        async with aclosing(query.stream(given, **{"session": lq.Session(), **options})) as stream:
            async for event in stream:
                seen.append(event)
                if until is not None and isinstance(event, until):
                    break
        return seen

    return asyncio.run(watch())


def shown(source: str, given: Mapping[str, Any] | None = None, hole: str | None = None, **options: Any) -> list[str]:
    """The texts of a run, or of one hole of it, as they are emitted."""
    texts = [event for event in watched(source, given, **options) if isinstance(event, events.Text)]
    return [event.text for event in texts if hole in (None, event.hole)]
