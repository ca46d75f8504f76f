"""`report.html` of a data-set run: wrong rows first, each with its output, tree and ledger one click away."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmql_lite.data.metrics import answer_of
from lmql_lite.engine.drawing import ledger, page, run_view, shown
from lmql_lite.store.atomic_file import replace_file

MOST_ROWS = 2_000
"""Rows on a page; the first ones are those that are wrong."""


def write_page(run: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """Writes the page into the folder of a run and returns its path."""
    path = run / "report.html"
    ordered = sorted(records, key=_rank)
    replace_file(path, (part.encode() for part in page(run.name, _body(ordered))))
    return path


def _rank(record: Mapping[str, Any]) -> float:
    """Errors first, then by the first score."""
    if record.get("error"):
        return -1.0
    first = next(iter(record.get("scores", {}).values()), None)
    return float(first[0]) if isinstance(first, list) else 0.0


def _body(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if len(records) > MOST_ROWS:
        yield f"<p>the first {MOST_ROWS:,} of {len(records):,} rows</p>"
    yield "<table><tr><th>id</th><th>scores</th><th>target</th><th>answer</th></tr>"
    for record in records[:MOST_ROWS]:
        error = record.get("error")
        answer = f"{error['type']}: {error['message']}" if error else _text(answer_of(record))
        scores = " ".join(
            f"{metric} {found[0]:.3g}" if isinstance(found, list) else f"{metric}: {found['error']}"
            for metric, found in record.get("scores", {}).items()
        )
        run = "" if error else _run(record)
        detail = f"<details><summary>{shown(answer[:200])}</summary>{run}</details>"
        cells = (shown(str(record["id"])), shown(scores), shown(_text(record.get("target"))), detail)
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    yield "</table>"


def _run(record: Mapping[str, Any]) -> str:
    """Output, tree and ledger of a row."""
    cost = record.get("cost")
    found = {
        "tokens": record.get("tokens", ()),
        "usage": record.get("usage", {}),
        "cost": None if cost is None else {"amount": cost, "told": False},
        "value": record.get("value"),
        "vars": record.get("variables", {}),
        "endings": record.get("endings", {}),
    }
    text = "".join(token[0] for token in found["tokens"])
    return run_view(found, f"<pre>{shown(text)}</pre>{ledger(found['usage'])}", lazy=True)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
