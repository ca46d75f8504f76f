"""A run as one page of HTML that needs nothing else: to keep, to send, to print."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from lmql_lite.runtime import events
from lmql_lite.runtime.drawing import STYLE, ledger, legend, shown, text_of
from lmql_lite.runtime.result import Result, Usage
from lmql_lite.runtime.shown.plain import plain
from lmql_lite.tokens import Token

LONGEST = 200
"""Characters of a text that a line of the list of events shows."""
WIDTH = 100
"""Characters of a value that stand on one line."""
STYLE_OF_PAGE = (
    "html{color-scheme:light dark;background:Canvas}body.lq{max-width:60rem;margin:0 auto;padding:1.5em 1em}"
    "h1{font-size:1.5em;margin:0}h2{font-size:1.1em;margin:1.6em 0 .4em}"
)
SAID: dict[type[events.Record], str] = {
    events.Started: "started",
    events.Notice: "notice",
    events.Text: "text",
    events.TokenMoved: "tokens",
    events.Guessed: "guesses",
    events.HoleOpened: "hole opened",
    events.HoleClosed: "hole closed",
    events.Forked: "forked",
    events.Pruned: "given up",
    events.ToolCalled: "tool",
    events.Bound: "value",
    events.Finished: "done",
    events.Failed: "failed",
}


@dataclass(frozen=True, slots=True)
class Moment:
    """What a run told, and when: in milliseconds from its start."""

    ms: int
    record: events.Record


def report(moments: Sequence[Moment]) -> str:
    """The page of one run, ended well or not."""
    records = [moment.record for moment in moments]
    started = next((record for record in records if isinstance(record, events.Started)), None)
    ended = records[-1] if records else None
    title = "a run" if started is None else f"a run of {started.model}"
    parts = [f"<h1>{shown(title)}</h1>"]
    if started is not None:
        parts.append(f"<p>{shown(f'{started.decoder}, seed {started.seed}, {moments[-1].ms / 1000:.2f} s')}</p>")
    if isinstance(ended, events.Failed):
        parts.append(f"<h2>It failed</h2>{_failure(ended)}")
    results = ended.results or (ended.result,) if isinstance(ended, events.Finished) else ()
    for number, result in enumerate(results, start=1):
        parts += _result(result, f" {number}" if len(results) > 1 else "")
    if not results:
        tokens = _left(records)
        parts.append(f"<h2>Text so far</h2>{legend(tokens)}{text_of(tokens)}")
    parts += ["<h2>Events</h2>", "<table><tr><th>ms</th><th>what</th><th></th></tr>", *_rows(moments), "</table>"]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{shown(title)}</title><style>{STYLE}{STYLE_OF_PAGE}</style></head>"
        f'<body class="lq">{"".join(parts)}</body></html>\n'
    )


def _result(result: Result, number: str) -> Iterator[str]:
    kept = [token for token in result.tokens if token.fate == "kept"]
    yield f"<h2>Text{number}</h2>{legend(kept)}{text_of(kept)}"
    if result.value is not None:
        yield f"<h2>Value{number}</h2>{_json(result.value)}"
    if result.variables:
        yield f"<h2>Holes{number}</h2><table><tr><th>name</th><th>value</th><th>ended by</th></tr>"
        for name, value in result.variables.items():
            ending = shown(result.endings.get(name, ""))
            yield f"<tr><th>{shown(name)}</th><td>{_json(value)}</td><td>{ending}</td></tr>"
        yield "</table>"
    dropped = [token for token in result.tokens if token.fate != "kept"]
    if dropped:
        yield f"<h2>Thrown away{number}</h2>{text_of(dropped)}"
    yield f"<h2>Ledger{number}</h2><p>{shown(saved(result.usage))}</p>{ledger(result.usage.as_dict())}"
    if result.usage.cost is not None:
        yield f"<p>cost {'' if result.usage.cost.is_told else 'at most '}{result.usage.cost.amount:.6f}</p>"
    yield from (f"<p>note: {shown(notice)}</p>" for notice in result.notices)


def saved(usage: Usage) -> str:
    """Where the output came from, and what that saved: each token from the cache is one that nobody was asked for."""
    known, forced, guessed = usage.tokens_from_cache or 0, usage.tokens_forced or 0, usage.draft_accepted or 0
    kept = known + (usage.tokens_from_model or 0) + guessed + forced
    share = f" ({known / kept:.0%})" if kept else ""
    return (
        f"{kept} tokens of output = {known} cache + {usage.tokens_from_model or 0} model + {guessed} guessed"
        f" + {forced} forced; saved {known} of {kept}{share} versus no cache"
    )


def _left(records: Sequence[events.Record]) -> list[Token]:
    """The tokens that stand in the text of the first hypothesis when the run broke off, and as one more the text that
    was to become tokens when the model would be asked."""
    tokens: dict[tuple[int, int], Token] = {}
    for record in records:
        if isinstance(record, events.TokenMoved) and record.state == 0:
            if record.token.fate == "kept":
                tokens[record.parent, record.node] = record.token
            else:
                tokens.pop((record.parent, record.node), None)
    spelled = b"".join(token.data for token in tokens.values())
    said = "".join(record.text for record in records if isinstance(record, events.Text) and record.state == 0).encode()
    pending = said[len(spelled) :] if said.startswith(spelled) else b""
    return [*tokens.values(), *([Token(-1, pending, None, "prompt", "kept", None)] if pending else [])]


def _failure(failed: events.Failed) -> str:
    place = f"{failed.span.name}:{failed.span.line}:{failed.span.column}: " if failed.span else ""
    lines = [f"{place}{failed.kind}: {failed.message}"]
    if failed.span is not None:
        lines.append(failed.span.excerpt())
    if failed.hint:
        lines.append(f"hint: {failed.hint}")
    return f"<pre>{shown(chr(10).join(lines))}</pre>" + "".join(_failure(other) for other in failed.others)


def _json(value: object) -> str:
    plainly = plain(value)
    text = plainly if isinstance(plainly, str) else json.dumps(plainly, ensure_ascii=False)
    if len(text) > WIDTH and not isinstance(plainly, str):
        text = json.dumps(plainly, ensure_ascii=False, indent=1)
    return f"<pre>{shown(text)}</pre>"


def _rows(moments: Sequence[Moment]) -> Iterator[str]:
    """Tokens and texts that follow one another share a line."""
    for kind, run in groupby(moments, key=lambda moment: type(moment.record)):
        together = list(run)
        if kind in (events.TokenMoved, events.Guessed, events.Text):
            yield _row(together[0].ms, f"{len(together)} × {SAID[kind]}", "".join(map(_said, together)))
        else:
            yield from (_row(moment.ms, SAID[kind], _said(moment)) for moment in together)


def _row(ms: int, what: str, said: str) -> str:
    text = said if len(said) <= LONGEST else f"{said[:LONGEST]}..."
    return f'<tr><td class="number">{ms}</td><td>{shown(what)}</td><td><pre>{shown(text)}</pre></td></tr>'


def _said(moment: Moment) -> str:
    match moment.record:
        case events.Started(model, decoder, seed):
            return f"{model}, {decoder}, seed {seed}"
        case events.Notice(message) | events.Failed(message=message):
            return message
        case events.Text(text):
            return text
        case events.TokenMoved(token):
            return token.text if token.fate == "kept" else f"⌫{token.text}"
        case events.Guessed(token):
            return token.text
        case events.HoleOpened(name, span):
            return f"[{name}] at {span.line}:{span.column}"
        case events.HoleClosed(name, value, ending):
            return f"[{name}] = {value!r}, ended by {ending}"
        case events.Forked(parent, children):
            return f"{parent} -> {', '.join(map(str, children))}"
        case events.Pruned(state):
            return str(state)
        case events.ToolCalled(name, arguments, output):
            return f"{name}({arguments}) -> {output}"
        case events.Bound(name, value):
            return f"{name} = {json.dumps(plain(value), ensure_ascii=False)}"
        case events.Finished():
            return ""
