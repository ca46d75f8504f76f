"""Tokens and ledgers as HTML: no scripts, nothing from elsewhere, and whatever a model says stays text.

Everything stands in an element of the class `lq`, with a style of its own, in light, dark and forced colours. Colour is
never the only sign: each kind of token has a line of its own under it.
"""

from __future__ import annotations

import codecs
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from lmql_lite.tokens import Token

BLOCK = 400
"""So many tokens are laid out at once, by browsers that can."""

KINDS = {
    "prompt": "the program's text",
    "cache": "known before this run",
    "model": "said by the model",
    "draft": "guessed, and the model agreed",
    "forced": "the only thing that a condition allowed",
}
FATES = {
    "cut": "past the end of its hole",
    "removed": "of a nested query that has returned",
    "rejected": "taken back",
    "pruned": "of a hypothesis that was given up",
}

# light edge, dark edge, light fill, dark fill, line
_PALETTE = {
    "prompt": ("#6b7280", "#9aa3b2", "#f3f4f6", "#2b3038", "none"),
    "cache": ("#1f7a4f", "#4cc38a", "#bfe8d2", "#14523a", "solid"),
    "model": ("#3357c4", "#8aa5ff", "#cfdcfb", "#23407f", "solid"),
    "draft": ("#7a3fb5", "#c59bf0", "#e6d3f7", "#553079", "double"),
    "forced": ("#8a6100", "#f0c04a", "#fbe3ad", "#604708", "dotted"),
    "dropped": ("#b3261e", "#ff8a80", "#f9d4d0", "#6e2a24", "dashed"),
}


def _style() -> str:
    light = "".join(f"--{kind}:{edge};--{kind}-fill:{fill};" for kind, (edge, _, fill, _, _) in _PALETTE.items())
    dark = "".join(f"--{kind}:{edge};--{kind}-fill:{fill};" for kind, (_, edge, _, fill, _) in _PALETTE.items())
    kinds = "".join(
        f".lq .{kind}{{background:var(--{kind}-fill);border-bottom:"
        f"{'3px double' if line == 'double' else f'2px {line}'} var(--{kind})}}"
        for kind, (*_, line) in _PALETTE.items()
    )
    return (
        f".lq{{{light}--ink:#1a1c20;--paper:#ffffff;--faint:#5b6270;--rule:#c9ced6;"
        "color:var(--ink);background:var(--paper);font:15px/1.6 system-ui,sans-serif;padding:.8em 1em;"
        "overflow-wrap:anywhere}"
        f"@media (prefers-color-scheme:dark){{.lq{{{dark}"
        "--ink:#e6e8ec;--paper:#16181d;--faint:#a3abb8;--rule:#454b57}}"
        f"{kinds}"
        ".lq .dropped{text-decoration:line-through}"
        ".lq .text{font:14px/1.9 ui-monospace,monospace;white-space:pre-wrap;margin:.6em 0}"
        ".lq .text div{content-visibility:auto;contain-intrinsic-size:auto 30em}"
        ".lq .hole{outline:1px solid var(--faint);outline-offset:2px;border-radius:2px;margin:0 3px}"
        ".lq .hole>b{font:600 11px system-ui,sans-serif;color:var(--faint);user-select:none;padding:0 .4em}"
        ".lq .mark{color:var(--faint);font-size:.85em}"
        ".lq .legend{color:var(--faint);font-size:13px;margin:.4em 0}.lq .legend span{color:var(--ink);padding:0 .3em}"
        ".lq table{border-collapse:collapse;margin:.6em 0}"
        ".lq th,.lq td{text-align:left;vertical-align:top;padding:.15em .9em .15em 0}"
        ".lq th,.lq td{border-bottom:1px solid var(--rule)}"
        ".lq td.number{text-align:right;font-variant-numeric:tabular-nums}"
        ".lq pre{font:13px/1.5 ui-monospace,monospace;white-space:pre-wrap;margin:0}"
        "@media (forced-colors:active){.lq .hole{outline-color:CanvasText}"
        + "".join(f".lq .{kind}{{border-bottom-color:CanvasText}}" for kind in _PALETTE)
        + "}"
    )


STYLE = _style()


def shown(text: str) -> str:
    """A text as HTML. What would act on a screen or turn its direction stands there as a mark."""
    return _ACTING.sub(_mark, escape(text))


_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def _mark(found: re.Match[str]) -> str:
    character = found.group()
    name = "U+FFFD" if "\ud800" <= character <= "\udfff" else f"U+{ord(character):04X}"
    return f'<span class="mark" title="{escape(unicodedata.name(character, "control character"))}">⟨{name}⟩</span>'


def fragment(tokens: Sequence[Token], usage: Mapping[str, object]) -> str:
    """A whole view of what a run said, for a page that is somebody else's: style, legend, text and one line of sums."""
    kept = [token for token in tokens if token.fate == "kept"]
    return (
        f'<div class="lq"><style>{STYLE}</style>{legend(kept)}{text_of(kept)}'
        f'<div class="legend">{shown(in_a_line(usage))}</div></div>'
    )


def legend(tokens: Sequence[Token]) -> str:
    """The kinds that are there."""
    there = {token.source for token in tokens if token.fate == "kept"}
    parts = [f'<span class="{kind}">{kind}</span> {says}' for kind, says in KINDS.items() if kind in there]
    if any(token.fate != "kept" for token in tokens):
        parts.append('<span class="dropped">struck out</span> not in the text')
    return f'<div class="legend">{" · ".join(parts)}</div>'


def text_of(tokens: Sequence[Token]) -> str:
    """The text that tokens spell, each in its colour, holes in boxes. A character that several tokens make stands with
    the last of them."""
    blocks, parts, many = [], list[str](), 0
    for hole, run in _runs(tokens):
        inside = []
        for token, text in run:
            many += 1
            inside.append(f'<span class="{_kind(token)}" title="{_title(token)}">{shown(text)}</span>')
            if hole is None and many >= BLOCK and text.endswith("\n"):
                blocks.append("".join([*parts, *inside]))
                parts, inside, many = [], [], 0
        parts.append(
            "".join(inside) if hole is None else f'<span class="hole"><b>{shown(hole)}</b>{"".join(inside)}</span>'
        )
    blocks.append("".join(parts))
    return f'<div class="text">{"".join(f"<div>{block}</div>" for block in blocks if block)}</div>'


def _runs(tokens: Sequence[Token]) -> Iterator[tuple[str | None, list[tuple[Token, str]]]]:
    """Tokens of one hole, or of none, that follow one another; each with the characters that end in it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    run: list[tuple[Token, str]] = []
    for at, token in enumerate(tokens):
        if run and run[0][0].hole != token.hole:
            yield run[0][0].hole, run
            run = []
        run.append((token, decoder.decode(token.data, final=at == len(tokens) - 1)))
    if run:
        yield run[0][0].hole, run


def _kind(token: Token) -> str:
    return token.source if token.fate == "kept" else "dropped"


def _title(token: Token) -> str:
    said = [token.source if token.fate == "kept" else f"{token.source}, {FATES[token.fate]}", f"token {token.id}"]
    if token.logprob is not None:
        said.append(f"probability {math.exp(min(token.logprob, 0.0)):.3g}")
    return escape(" · ".join(said))


# Ledgers -------------------------------------------------------------------------------------------------------------

LEDGER = {
    "requests": "requests to a server",
    "forward_passes": "forward passes of a model in this process",
    "prompt_tokens": "tokens of the prompt",
    "completion_tokens": "tokens that were decided",
    "tokens_from_cache": "of the text, known before this run",
    "tokens_from_model": "of the text, said by the model",
    "draft_accepted": "of the text, guessed and agreed to by the model",
    "tokens_forced": "of the text, forced by conditions",
    "wasted_tokens": "decided, and not in the text",
    "draft_rejected": "guessed, and not come by",
    "received_tokens": "tokens that a server sent",
    "provider_cached_tokens": "tokens of the prompt that a server had in its own cache",
}


def ledger(usage: Mapping[str, object]) -> str:
    """A table; what was not reported is not 0."""
    rows = [
        f'<tr><td>{shown(LEDGER.get(name, name))}</td><td class="number">'
        f"{'not reported' if count is None else shown(str(count))}</td></tr>"
        for name, count in usage.items()
    ]
    return f"<table>{''.join(rows)}</table>"


def in_a_line(usage: Mapping[str, object]) -> str:
    parts = (
        ("tokens_from_cache", "from the cache"),
        ("tokens_from_model", "from the model"),
        ("draft_accepted", "guessed"),
        ("tokens_forced", "forced"),
        ("requests", "requests"),
        ("forward_passes", "forward passes"),
    )
    return " · ".join(f"{usage[name]} {what}" for name, what in parts if usage.get(name) is not None)
