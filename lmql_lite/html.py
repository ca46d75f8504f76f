"""Runs and ledgers as HTML, for notebooks, reports and other pages.

A run is an element `<lq-view>` that holds its data as JSON and is drawn by the playground's modules
(playground/src/component.js, bundled as `lq-view.js`). The element also holds plain text and a table, for places where
no script runs. Nothing is loaded from elsewhere, and generated text is always escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from lmql_lite.assets import asset
from lmql_lite.tokens import Token

STYLE = (
    ".lq{--ink:#1a1c20;--paper:#ffffff;--faint:#5b6270;--rule:#c9ced6;"
    "color:var(--ink);background:var(--paper);font:15px/1.6 system-ui,sans-serif;padding:.8em 1em;"
    "overflow-wrap:anywhere}"
    "@media (prefers-color-scheme:dark){.lq{--ink:#e6e8ec;--paper:#16181d;--faint:#a3abb8;--rule:#454b57}}"
    ".lq .mark{color:var(--faint);font-size:.85em}.lq .hint{color:var(--faint);font-size:13px;margin:.4em 0}"
    ".lq table{border-collapse:collapse;margin:.6em 0}"
    ".lq th,.lq td{text-align:left;vertical-align:top;padding:.15em .9em .15em 0}"
    ".lq th,.lq td{border-bottom:1px solid var(--rule)}"
    ".lq td.number{text-align:right;font-variant-numeric:tabular-nums}"
    ".lq pre{font:13px/1.5 ui-monospace,monospace;white-space:pre-wrap;margin:0}"
)
BUNDLE = "dist/lq-view.js"
WITHOUT_BUNDLE = (
    "Plain text: colours, tree and ledger of a run are drawn by the bundle of the playground, which is not built here "
    "(npm ci && npm run build, in playground/)."
)


def shown(text: str) -> str:
    """A text as HTML. Marks replace control characters and those that change the direction of text."""
    return _ACTING.sub(_mark, escape(text))


_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def _mark(found: re.Match[str]) -> str:
    character = found.group()
    name = "U+FFFD" if "\ud800" <= character <= "\udfff" else f"U+{ord(character):04X}"
    return f'<span class="mark" title="{escape(unicodedata.name(character, "control character"))}">⟨{name}⟩</span>'


def framed(html: str) -> str:
    """A view with its style."""
    return f'<div class="lq"><style>{STYLE}</style>{html}</div>'


# Runs ----------------------------------------------------------------------------------------------------------------


def bundle() -> str | None:
    """The script that draws every `<lq-view>` of its page; None if it is not built."""
    try:
        return asset("playground", BUNDLE).read_text("utf-8")
    except OSError:
        return None


def run_view(data: object, plain: str, *, lazy: bool = False) -> str:
    """View of one run: `data` as playground/src/component.js reads it, and `plain`, the HTML shown without a script.

    A `lazy` view is drawn when it is scrolled into view.
    """
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return f'<lq-view{" lazy" if lazy else ""}><script type="application/json">{text}</script>{plain}</lq-view>'


def kept(tokens: Sequence[Token]) -> list[list[Any]]:
    """Tokens of a result for a `run_view`: text, source, hole, log-probability, and the bytes if they are incomplete
    characters."""
    found: list[list[Any]] = []
    for token in tokens:
        if token.fate == "kept":
            cut = [] if token.text.encode() == token.data else [base64.b64encode(token.data).decode()]
            likely = token.logprob if token.logprob is not None and math.isfinite(token.logprob) else None
            found.append([token.text, token.source, token.hole, likely, *cut])
    return found


def fragment(data: Mapping[str, Any], text: str) -> str:
    """View of a result's run for another page, such as a notebook, with the script that draws it."""
    script = bundle()
    plain = f'<pre>{shown(text)}</pre><p class="hint">{shown(in_a_line(data["usage"]))}</p>'
    if script is None:
        return framed(f'{plain}<p class="hint">{WITHOUT_BUNDLE}</p>')
    return framed(f"{run_view(data, plain)}<script>{script}</script>")


STYLE_OF_PAGE = (
    "html{color-scheme:light dark;background:Canvas}body.lq{max-width:60rem;margin:0 auto;padding:1.5em 1em}"
    "h1{font-size:1.5em;margin:0}h2{font-size:1.1em;margin:1.6em 0 .4em}summary{cursor:pointer}"
)


def page(title: str, body: Iterable[str], own: str = "") -> Iterator[str]:
    """A self-contained HTML page. Its only script is the page's `own` one, and then draws every `run_view` of the
    body."""
    drawing = bundle()
    script = own if drawing is None else f"{own}{drawing}"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    yield (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{shown(title)}</title><style>{STYLE}{STYLE_OF_PAGE}</style></head>"
        f'<body class="lq"><main><h1>{shown(title)}</h1>'
    )
    yield from body
    yield f'<p class="hint">{WITHOUT_BUNDLE}</p></main>' if drawing is None else "</main>"
    yield f"<script>{script}</script>" if script else ""
    yield "</body></html>\n"


# Ledgers -------------------------------------------------------------------------------------------------------------

LEDGER = {
    "requests": "requests to a server",
    "forward_passes": "forward passes of a model in this process",
    "prompt_tokens": "prompt tokens",
    "completion_tokens": "tokens chosen for holes",
    "tokens_from_cache": "of the text: in the cache before this run",
    "tokens_from_model": "of the text: generated by the model",
    "draft_accepted": "of the text: drafted, and accepted by the model",
    "tokens_forced": "of the text: forced by conditions",
    "wasted_tokens": "chosen, but not in the text",
    "draft_rejected": "drafted, but not reached",
    "received_tokens": "tokens that a server sent",
    "provider_cached_tokens": "tokens of the prompt that a server had in its own cache",
    "reasoning_tokens": "thoughts of a model on a server, in tokens",
    "tokens_fed": "tokens that the network in this process computed",
    "kv_from_memory": "tokens whose keys and values were in memory",
    "kv_from_disk": "tokens whose keys and values were on disk",
    "kv_from_redis": "tokens whose keys and values were on a Redis server",
    "close_calls": "choices that the noise of the scores might have made otherwise",
}


def ledger(usage: Mapping[str, object]) -> str:
    """A table of a ledger; numbers that were not reported are left out, not shown as 0."""
    return table(
        (LEDGER.get(name, name), "not reported" if count is None else str(count)) for name, count in usage.items()
    )


def table(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names, with a number for each."""
    lines = (f'<tr><td>{shown(name)}</td><td class="number">{shown(number)}</td></tr>' for name, number in rows)
    return f"<table>{''.join(lines)}</table>"


def grid(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table with a header of column names."""
    head = "".join(f"<th>{shown(name)}</th>" for name in columns)
    lines = ("".join(f"<td>{shown(cell)}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def in_a_line(usage: Mapping[str, object]) -> str:
    parts = (
        ("tokens_from_cache", "from the cache"),
        ("tokens_from_model", "from the model"),
        ("draft_accepted", "drafted"),
        ("tokens_forced", "forced"),
        ("requests", "requests"),
        ("forward_passes", "forward passes"),
    )
    return " · ".join(f"{usage[name]} {what}" for name, what in parts if usage.get(name) is not None)
