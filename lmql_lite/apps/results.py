"""Results and events of a run on a terminal: as text, as JSON, as lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lmql_lite.apps.terminal import counted, money
from lmql_lite.plain import plain

if TYPE_CHECKING:
    from lmql_lite.engine.events import Finished
    from lmql_lite.engine.result import Result


def with_distributions(result: Result) -> str:
    """The whole text, and below it a line for each option that was weighed for one of its holes."""
    text = result.prompt
    for name, pairs in result.variables.items():
        if name.startswith("P("):  # the name of a hole has no such character
            lines = [f"{share:.4f}  {json.dumps(plain(option), ensure_ascii=False)}" for option, share in pairs]
            text = "\n".join([text.removesuffix("\n"), name, *lines]) + "\n"
    return text


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False, indent=2)


def as_object(finished: Finished) -> dict[str, Any]:
    """The last event line of a run as an object, with all results if there are several."""
    from lmql_lite.observe.lines import as_object as line_of

    found = line_of(finished)
    del found["type"]
    return {"ok": True, **found, "schema": 1}


def as_shown(finished: Finished, *, returns: bool) -> str:
    """The returned value, or the text of the run; of several results all, best first."""
    results = finished.results or (finished.result,)
    if returns:
        return as_text(finished.result.value if len(results) == 1 else [result.value for result in results])
    return "---\n".join(_ended(with_distributions(result), len(results) > 1) for result in results)


def _ended(text: str, ends: bool) -> str:
    """The text with its last line ended, if anything follows it."""
    return text if not ends or text.endswith("\n") else f"{text}\n"


def usage_line(result: Result, seconds: float) -> str:
    """Requests, or passes of a model in this process; tokens as the model or the server counts them, and where those of
    the text came from. What a server does not report is a question mark."""
    usage = result.usage
    shown = {name: "?" if count is None else f"{count}" for name, count in usage.as_dict().items()}
    is_server = usage.forward_passes is None
    cached = f" ({shown['provider_cached_tokens']} cached by the server)" if is_server else ""
    thoughts = f" ({shown['reasoning_tokens']} thoughts)" if usage.reasoning_tokens else ""
    parts = [
        counted(usage.requests or 0, "request") if is_server else counted(usage.forward_passes or 0, "forward pass"),
        f"tokens in {shown['prompt_tokens']}{cached} out {shown['completion_tokens']}{thoughts}",
        *([f"received {shown['received_tokens']} ({shown['wasted_tokens']} wasted)"] if is_server else []),
        kept({source: getattr(usage, count) for source, count in SOURCES.items()}),
    ]
    if usage.cost is not None:
        parts.append(f"cost {'' if usage.cost.is_reported else 'at most '}{money(usage.cost.amount)}")
    return " · ".join([*parts, f"{seconds:.1f} s"])


SOURCES = {
    "cache": "tokens_from_cache",
    "model": "tokens_from_model",
    "draft": "draft_accepted",
    "forced": "tokens_forced",
}
"""Sources of the tokens in a text, and their counts."""


def kept(counts: Mapping[str, int | None]) -> str:
    """`kept 3 cache, 12 model, 0 draft, 1 forced`; a source that a server cannot have is left out."""
    return f"kept {', '.join(f'{counts[source]} {source}' for source in SOURCES if counts[source] is not None)}"
