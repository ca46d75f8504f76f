"""Results and events of a run on a terminal: as text, as JSON, as lines."""

from __future__ import annotations

import json
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
    usage = result.usage
    if usage.forward_passes is None:
        return _server_usage_line(result, seconds)
    out = [
        f"{usage.tokens_from_cache} cache",
        f"{usage.tokens_from_model} model",
        f"{usage.draft_accepted} draft",
        f"{usage.tokens_forced} forced",
    ]
    kept = (usage.completion_tokens or 0) - (usage.wasted_tokens or 0)
    wasted = f" + {usage.wasted_tokens} wasted" if usage.wasted_tokens else ""
    passes = f"{usage.forward_passes} forward pass{'es' * (usage.forward_passes != 1)}"
    requests = counted(usage.requests or 0, "request")
    tokens = f"tokens in {usage.prompt_tokens} out {kept} ({', '.join(out)}){wasted}"
    return f"{tokens} · {requests} · {passes} · {seconds:.1f} s"


def _server_usage_line(result: Result, seconds: float) -> str:
    """Usage in the server's own tokens, as far as it reports them, and the tokens received and kept."""
    usage = result.usage
    told = {name: "?" if count is None else f"{count}" for name, count in usage.as_dict().items()}
    kept = ", ".join(
        f"{told[name]} {source}"
        for source, name in (
            ("cache", "tokens_from_cache"),
            ("model", "tokens_from_model"),
            ("forced", "tokens_forced"),
        )
    )
    parts = [
        counted(usage.requests or 0, "request"),
        f"tokens in {told['prompt_tokens']} ({told['provider_cached_tokens']} cached by the server)"
        f" out {told['completion_tokens']}"
        + (f" ({told['reasoning_tokens']} thoughts)" if usage.reasoning_tokens else ""),
        f"received {told['received_tokens']} ({told['wasted_tokens']} wasted)",
        f"kept {kept}",
    ]
    if usage.cost is not None:
        parts.append(f"cost {'' if usage.cost.is_reported else 'at most '}{money(usage.cost.amount)}")
    return " · ".join([*parts, f"{seconds:.1f} s"])
