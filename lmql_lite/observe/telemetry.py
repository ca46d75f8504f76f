"""Log records and OpenTelemetry spans of runs, from their events.

The logger `lmql_lite` records the beginning, the end and each notice of a run at INFO, and each hole at DEBUG. A span
has the attributes `gen_ai.*` of OpenTelemetry's conventions, and no text of prompts or answers. Both are off unless the
program sets a level for the logger, or a tracer provider.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from lmql_lite.engine import events
from lmql_lite.engine.result import Result
from lmql_lite.redaction import redacted

LOGGER = logging.getLogger("lmql_lite")
TRACE = "opentelemetry.trace"
OPERATION = "text_completion"
SHOWN = 80
"""Characters of a value in a record."""


async def watched(batches: AsyncGenerator[events.Batch, None]) -> AsyncGenerator[events.Batch, None]:
    """The batches of a run, which are also logged, and become a span where the program has imported OpenTelemetry."""
    trace: Any = sys.modules.get(TRACE)
    span: Any = None
    began, name = time.perf_counter(), ""
    try:
        async with aclosing(batches) as stream:
            async for batch in stream:
                for event in batch:
                    if isinstance(event, events.Started):
                        name = event.model
                        span = _opened(trace, event) if trace is not None else None
                    _log(event, name, began)
                    if span is not None:
                        _add(event, span)
                yield batch
    except Exception as error:
        LOGGER.info("run on %s failed: %s", name or "a model", redacted(f"{type(error).__name__}: {error}"))
        if span is not None:
            span.record_exception(error)
            span.set_attributes({"error.type": type(error).__name__})
            span.set_status(trace.StatusCode.ERROR, redacted(str(error)))
        raise
    finally:
        if span is not None:
            span.end()


def _log(event: events.Event, model: str, began: float) -> None:
    match event:
        case events.Started(_, decoder, seed):
            LOGGER.info("run on %s began: decoder %s, seed %d", model, decoder, seed)
        case events.Notice(text):
            LOGGER.info("run on %s: %s", model, text)
        case events.HoleClosed(hole, value, ending):
            LOGGER.debug("run on %s: [%s] is %r, ended by %s", model, hole, redacted(value[:SHOWN]), ending)
        case events.ToolCalled(tool):
            LOGGER.debug("run on %s: %s() was called", model, tool)
        case events.Finished(result):
            LOGGER.info("run on %s ended in %.3f s: %r", model, time.perf_counter() - began, result.usage)


def _add(event: events.Event, span: Any) -> None:
    match event:
        case events.HoleClosed(hole, _, ending):
            span.add_event("lmql_lite.hole", {"lmql_lite.hole.name": hole, "lmql_lite.hole.ending": ending})
        case events.ToolCalled(tool):
            span.add_event("gen_ai.execute_tool", {"gen_ai.tool.name": tool})
        case events.Finished(result):
            span.set_attributes(_attributes(result))


def _opened(trace: Any, started: events.Started) -> Any:
    attributes = {
        "gen_ai.operation.name": OPERATION,
        "gen_ai.provider.name": "lmql_lite",
        "gen_ai.request.model": started.model,
        "gen_ai.request.seed": started.seed,
        "gen_ai.request.choice.count": started.results,
        "lmql_lite.decoder": started.decoder,
    }
    return trace.get_tracer("lmql_lite").start_span(f"{OPERATION} {started.model}", attributes=attributes)


def _attributes(result: Result) -> dict[str, Any]:
    usage = result.usage
    found: dict[str, Any] = {
        "gen_ai.response.model": result.model,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "lmql_lite.usage.requests": usage.requests,
        "lmql_lite.usage.forward_passes": usage.forward_passes,
        "lmql_lite.usage.tokens_from_cache": usage.tokens_from_cache,
    }
    if result.endings:
        found["gen_ai.response.finish_reasons"] = tuple(dict.fromkeys(result.endings.values()))
    if usage.cost is not None:
        found["lmql_lite.usage.cost"] = usage.cost.amount
    return {name: value for name, value in found.items() if value is not None}
