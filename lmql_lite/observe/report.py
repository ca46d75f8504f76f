"""A run as one self-contained HTML page, for keeping, sending and printing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version

from lmql_lite.engine import events
from lmql_lite.html import ledger, page, run_view, shown
from lmql_lite.models.media.decoding import is_thumbnail
from lmql_lite.observe.lines import Line, ended

WIDTH = 100
"""Characters of a value that stand on one line."""


def report(lines: Sequence[Line]) -> str:
    """The page of one run, ended well or not."""
    started = next((line for line in lines if line["type"] == "started"), None)
    return "".join(page("a run" if started is None else f"a run of {started['model']}", _body(lines, started)))


def _body(lines: Sequence[Line], started: Line | None) -> Iterator[str]:
    if started is not None:
        facts = f"{started['decoder']}, seed {started['seed']}, {lines[-1]['ms'] / 1000:.2f} s, {started['date']}"
        yield f"<p>{shown(facts)}, lq {version('lmql-lite')}</p>"
    yield run_view(lines, "".join(_plainly(lines)))
    if thoughts := "".join(line["text"] for line in lines if line["type"] == "thought"):
        yield f"<details><summary>Thoughts of the model</summary><pre>{shown(thoughts)}</pre></details>"
    if started is not None:
        yield from _query(started)


def _query(started: Line) -> Iterator[str]:
    """The query that was run, and its inputs. They follow the answer."""
    if started["query"]:
        yield f"<h2>Query {shown(started['name'])}</h2><pre>{shown(started['query'])}</pre>"
    if started["inputs"]:
        rows = (f"<tr><th>{shown(name)}</th><td>{_json(value)}</td></tr>" for name, value in started["inputs"].items())
        yield f"<h2>Inputs</h2><table>{''.join(rows)}</table>"


def _plainly(lines: Sequence[Line]) -> Iterator[str]:
    """The run for a reader without scripts."""
    end = ended(lines[-1]) if lines else None
    if isinstance(end, events.Failed):
        yield f"<h2>It failed</h2>{_failure(end)}"
    if isinstance(end, events.Finished):
        results = lines[-1].get("results", [])
        for number, result in enumerate(results or lines[-1:], start=1):
            yield from _result(result, f" {number}" if results else "")
    else:
        text = "".join(line["text"] for line in lines if line["type"] == "text" and line["state"] == 0)
        yield f"<h2>Text so far</h2><pre>{shown(text)}</pre>"
    pictures = [line for line in lines if line["type"] == "media"]
    if any(one["thumbnail"] for one in pictures):
        yield "<h2>Shown to the model</h2>"
        yield from map(_picture, pictures)


def _result(result: Line, number: str) -> Iterator[str]:
    yield f"<h2>Text{number}</h2><pre>{shown(result['prompt'])}</pre>"
    if result["value"] is not None:
        yield f"<h2>Value{number}</h2>{_json(result['value'])}"
    if result["vars"]:
        yield f"<h2>Holes{number}</h2><table><tr><th>name</th><th>value</th><th>ended by</th></tr>"
        for name, value in result["vars"].items():
            ending = result["endings"].get(name, "")
            word = "complete" if ending == "forced" else ending  # a forced token is another thing, counted below
            yield f"<tr><th>{shown(name)}</th><td>{_json(value)}</td><td>{shown(word)}</td></tr>"
        yield "</table>"
    yield f"<h2>Ledger{number}</h2>{ledger(result['usage'])}"
    if (cost := result["cost"]) is not None:
        yield f"<p>cost {'' if cost['told'] else 'at most '}{cost['amount']:.6f}</p>"
    yield from (f"<p>note: {shown(notice)}</p>" for notice in result["notices"])


def _picture(media: Line) -> str:
    picture = f'<img src="{media["thumbnail"]}" alt=""> ' if is_thumbnail(media["thumbnail"]) else ""
    return f"<p>{picture}{shown(media['name'])}</p>"


def _failure(failed: events.Failed) -> str:
    place = f"{failed.span.name}:{failed.span.line}:{failed.span.column}: " if failed.span else ""
    lines = [f"{place}{failed.kind}: {failed.message}"]
    if failed.span is not None:
        lines.append(failed.span.excerpt())
    if failed.hint:
        lines.append(f"hint: {failed.hint}")
    return f"<pre>{shown(chr(10).join(lines))}</pre>" + "".join(_failure(other) for other in failed.others)


def _json(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > WIDTH and not isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False, indent=1)
    return f"<pre>{shown(text)}</pre>"
