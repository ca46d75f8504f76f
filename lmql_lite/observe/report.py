"""A run as one self-contained HTML page, for keeping, sending and printing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version

from lmql_lite.engine import events
from lmql_lite.engine.result import Result, Usage
from lmql_lite.html import ledger, page, run_view, shown
from lmql_lite.models.media.decoding import is_thumbnail
from lmql_lite.observe.lines import Line, asked_of
from lmql_lite.plain import plain

WIDTH = 100
"""Characters of a value that stand on one line."""


def report(lines: Sequence[Line]) -> str:
    """The page of one run, ended well or not."""
    started = next((line.record for line in lines if isinstance(line.record, events.Started)), None)
    return "".join(page("a run" if started is None else f"a run of {started.model}", _body(lines, started)))


def _body(lines: Sequence[Line], started: events.Started | None) -> Iterator[str]:
    if started is not None:
        yield from _asked(started, lines[-1].ms)
    records = [line.record for line in lines if line.record is not None]
    known = [line.as_dict() for line in lines if line.record is not None]
    yield "<h2>Run</h2>"
    yield run_view([{**line, "seq": number} for number, line in enumerate(known)], "".join(_plainly(records)))
    if thoughts := "".join(record.text for record in records if isinstance(record, events.Thought)):
        yield f"<details><summary>Thoughts of the model</summary><pre>{shown(thoughts)}</pre></details>"


def _asked(started: events.Started, ms: int) -> Iterator[str]:
    """The query that was run, when, and by which version."""
    said = f"{started.decoder}, seed {started.seed}, {ms / 1000:.2f} s, {started.date}, lq {version('lmql-lite')}"
    yield f"<p>{shown(said)}</p>"
    asked = asked_of(started)
    if asked["query"]:
        yield f"<h2>Query {shown(asked['name'])}</h2><pre>{shown(asked['query'])}</pre>"
    if asked["inputs"]:
        rows = (f"<tr><th>{shown(name)}</th><td>{_json(value)}</td></tr>" for name, value in asked["inputs"].items())
        yield f"<h2>Inputs</h2><table>{''.join(rows)}</table>"


def _plainly(records: Sequence[events.Record]) -> Iterator[str]:
    """The run for a reader without scripts."""
    ended = records[-1] if records else None
    if isinstance(ended, events.Failed):
        yield f"<h2>It failed</h2>{_failure(ended)}"
    if isinstance(ended, events.Finished):
        for number, result in enumerate(ended.results or (ended.result,), start=1):
            yield from _result(result, f" {number}" if ended.results else "")
    else:
        text = "".join(record.text for record in records if isinstance(record, events.Text) and record.state == 0)
        yield f"<h2>Text so far</h2><pre>{shown(text)}</pre>"
    pictures = [one for one in records if isinstance(one, events.MediaShown)]
    if any(one.thumbnail for one in pictures):
        yield "<h2>Shown to the model</h2>"
        yield from map(_picture, pictures)


def _result(result: Result, number: str) -> Iterator[str]:
    yield f"<h2>Text{number}</h2><pre>{shown(result.prompt)}</pre>"
    if result.value is not None:
        yield f"<h2>Value{number}</h2>{_json(result.value)}"
    if result.variables:
        yield f"<h2>Holes{number}</h2><table><tr><th>name</th><th>value</th><th>ended by</th></tr>"
        for name, value in result.variables.items():
            ending = result.endings.get(name, "")
            word = "complete" if ending == "forced" else ending  # a forced token is another thing, counted below
            yield f"<tr><th>{shown(name)}</th><td>{_json(value)}</td><td>{shown(word)}</td></tr>"
        yield "</table>"
    yield f"<h2>Ledger{number}</h2><p>{shown(saved(result.usage))}</p>{ledger(result.usage.as_dict())}"
    if result.usage.cost is not None:
        yield f"<p>cost {'' if result.usage.cost.is_reported else 'at most '}{result.usage.cost.amount:.6f}</p>"
    yield from (f"<p>note: {shown(notice)}</p>" for notice in result.notices)


def saved(usage: Usage) -> str:
    """Sources of the output tokens, and the share that the cache saved."""
    known, forced, drafted = usage.tokens_from_cache or 0, usage.tokens_forced or 0, usage.draft_accepted or 0
    kept = known + (usage.tokens_from_model or 0) + drafted + forced
    share = f" ({known / kept:.0%})" if kept else ""
    return (
        f"{kept} tokens of output = {known} cache + {usage.tokens_from_model or 0} model + {drafted} drafted"
        f" + {forced} forced; saved {known} of {kept}{share} versus no cache"
    )


def _picture(media: events.MediaShown) -> str:
    is_there = media.thumbnail and is_thumbnail(media.thumbnail)
    picture = f'<img src="{media.thumbnail}" alt=""> ' if is_there else ""
    return f"<p>{picture}{shown(media.name)}</p>"


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
