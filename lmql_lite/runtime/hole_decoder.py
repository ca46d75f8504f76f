"""The decoder of one hole: `[sample(temperature=0.8) X]`, `[argmax(tools=[search]) X]`. Read when the hole opens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import CodeType
from typing import Any, NamedTuple

from lmql_lite.constraints.terms import Term
from lmql_lite.errors import InputError, Span
from lmql_lite.program.ops import Hole
from lmql_lite.runtime.settings import Settings
from lmql_lite.runtime.state import State
from lmql_lite.runtime.tools.fill import ToolFill
from lmql_lite.runtime.tools.offered import MAX_CALLS, Toolbox
from lmql_lite.runtime.writer import Filling, Outlook, Writer
from lmql_lite.tokens import Sampling


class HoleDecoding(NamedTuple):
    """How a hole is filled; `toolbox` is what the model may call meanwhile."""

    sampling: Sampling
    toolbox: Toolbox | None

    def filling(
        self, op: Hole, term: Term, state: State, limit: int, writer: Writer, outlook: Callable[[], Outlook]
    ) -> Filling:
        """`term` is what the hole's condition says, `limit` the most tokens that it may have."""
        if self.toolbox is None:
            return writer.fill(op, state, self.sampling, limit, outlook)
        return ToolFill(op, term, self.toolbox, self.sampling, limit, writer)


async def decoding_of(
    op: Hole, settings: Settings, sampling: Sampling, python: Callable[[CodeType, Span], Awaitable[Any]]
) -> HoleDecoding:
    """As the hole says, and else as in the whole run. Raises InputError for a wrong option, at its place."""
    decoder = op.decoder
    if decoder is None:
        return HoleDecoding(sampling, None)
    values = {option.name: await python(option.value, option.span) for option in decoder.options}
    spans = {option.name: option.span for option in decoder.options}
    tools, max_calls = values.pop("tools", None), values.pop("max_calls", MAX_CALLS)
    sampling = settings.at_hole(op.name, decoder.name, decoder.span, values, spans, sampling)
    if tools is None:
        return HoleDecoding(sampling, None)
    try:
        return HoleDecoding(sampling, Toolbox(tools, max_calls))
    except InputError as error:
        raise InputError(error.message, span=spans["tools"], hint=error.hint) from None
