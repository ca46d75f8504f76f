"""`report.html` of a data-set run: the result, what was run, and its rows, each with its output and tree one click
away."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmql_lite.data.eval_report import is_wrong
from lmql_lite.data.metrics import answer_of
from lmql_lite.data.run_folder import facts_of
from lmql_lite.html import bundle, ledger, page, run_view, shown
from lmql_lite.store.atomic_file import replace_file

MAX_ROWS = 2_000
"""Rows on a page: all that are wrong, if there are not more of them, and the first others."""
MAX_INPUT = 600
"""Characters of an input that a row shows."""
PREPARED = ("task_prompt", "task_options", "task_choices", "task_target")
STYLE = (
    "<style>body.lq{max-width:none}.lq table.rows{width:100%}.lq .rows td,.lq .rows th{padding-right:1em}"
    ".lq .rows td.text{white-space:pre-wrap;max-width:36em}.lq th button{font:inherit;font-weight:bold;border:0;"
    "padding:0;background:none;color:inherit;cursor:pointer}.lq .result td{font-size:1.2em}"
    ".lq tr.wrong td.score{font-weight:bold}.lq .bar{margin:1.2em 0 .4em;"
    "display:flex;gap:1em;align-items:baseline;flex-wrap:wrap}</style>"
)
SCRIPT = """
for (const each of document.querySelectorAll("lq-view > script")) {
  const run = JSON.parse(each.textContent);
  run.usage = {...ZEROS, ...run.usage};
  each.textContent = JSON.stringify(run);
}
const body = document.querySelector("#rows tbody"), rows = [...body.rows];
const [kind, find, count] = ["kind", "find", "count"].map((name) => document.getElementById(name));
const textOf = (cell) => (cell.querySelector("summary") ?? cell).textContent;
const texts = new Map(rows.map((row) => [row, [...row.cells].map(textOf).join("\\n").toLowerCase()]));
kind.onchange = find.oninput = () => {
  for (const row of rows) {
    row.hidden = !row.className.includes(kind.value) || !texts.get(row).includes(find.value.toLowerCase());
  }
  count.textContent = `${rows.filter((row) => !row.hidden).length} rows`;
};
let sorted = -1;
document.querySelectorAll("#rows th button").forEach((button, at) => {
  button.onclick = () => {
    const sign = sorted === at ? -1 : 1, order = new Intl.Collator(undefined, {numeric: true});
    const keys = new Map(rows.map((row) => [row, textOf(row.cells[at])]));
    sorted = sign < 0 ? -1 : at;
    const isNumber = [...keys.values()].every((key) => !key || !isNaN(key));
    const compare = (a, b) => isNumber ? a - b : order.compare(a, b);
    body.append(...[...rows].sort((a, b) => sign * compare(keys.get(a), keys.get(b))));
  };
});
"""


def write_page(
    run: Path, report: Mapping[str, Any], notes: Sequence[str], records: Sequence[Mapping[str, Any]]
) -> Path:
    """Writes the page into the folder of a run and returns its path. `notes` are sentences about the result."""
    path = run / "report.html"
    ordered = sorted(records, key=lambda each: (each["line"], each["repeat"]))
    if len(ordered) > MAX_ROWS:
        chosen = sorted(ordered, key=lambda each: not is_wrong(each))[:MAX_ROWS]
        ordered = sorted(chosen, key=lambda each: (each["line"], each["repeat"]))
    zeros = _always_counted(ordered)
    script = SCRIPT.replace("ZEROS", json.dumps(dict.fromkeys(zeros, 0)))
    body = _body(run, report, notes, ordered, len(records), zeros)
    replace_file(path, (part.encode() for part in page(run.name, body, script)))
    return path


def _always_counted(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the counts that every row reports, so that a row that lacks one has counted 0."""
    usages = [record["usage"] for record in records if record.get("usage")]
    return [name for name in (usages[0] if usages else ()) if all(name in usage for usage in usages)]


def _body(
    run: Path,
    report: Mapping[str, Any],
    notes: Sequence[str],
    records: Sequence[Mapping[str, Any]],
    total: int,
    zeros: Sequence[str],
) -> Iterator[str]:
    is_drawn = bundle() is not None
    yield STYLE
    yield _table(["metric", "mean", "95 % interval", "n", "no score"], map(_result, report["metrics"]), "result")
    yield f"<p>{'<br>'.join(shown(note.strip()) for note in notes if note.strip())}</p>"
    yield _table([], _facts(run, report), "facts")
    if total > len(records):
        yield f"<p>{len(records):,} of {total:,} rows: those that are wrong, and the first others</p>"
    yield (
        '<div class="bar"><select id="kind" aria-label="rows"><option value="">all rows</option>'
        '<option value="wrong">wrong rows</option><option value="error">errors</option></select>'
        '<input id="find" type="search" placeholder="find" aria-label="find">'
        f'<span id="count">{len(records)} rows</span></div>'
    )
    metrics = list(dict.fromkeys(name for record in records for name in record.get("scores", {})))
    names = ("line", "id", "input", "target", "answer", *metrics)
    heads = "".join(f"<th><button>{shown(name)}</button></th>" for name in names)
    yield f'<table class="rows" id="rows"><thead><tr>{heads}</tr></thead><tbody>'
    target = next((record["target_name"] for record in records if "target_name" in record), None)
    for record in records:
        yield _row(record, metrics, target, zeros, is_drawn)
    yield "</tbody></table>"


def _table(heads: Sequence[str], rows: Iterator[Sequence[str]], name: str) -> str:
    head = "".join(f"<th>{shown(each)}</th>" for each in heads)
    lines = "".join(f"<tr>{''.join(f'<td>{shown(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table class="{name}">{f"<tr>{head}</tr>" if heads else ""}{lines}</table>'


def _result(metric: Mapping[str, Any]) -> Sequence[str]:
    interval = "none" if metric["low"] is None else f"[{metric['low']:.4f}, {metric['high']:.4f}]"
    return metric["name"], f"{metric['mean']:.4f}", interval, f"{metric['n']:,}", f"{metric['failed']:,}"


def _facts(run: Path, report: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    identity, facts = report["identity"], facts_of(run)
    failed = sum(report["errors"].values())
    yield "rows", f"{report['attempts']:,} attempts of {report['ids']:,} rows"
    yield "errors", f"{failed:,}, {report['errors_count_as']}" if failed else "0"
    yield "model", str(identity["model"])
    yield "data", str(identity["data"])
    yield (
        "settings",
        ", ".join(f"{name} {_text(value)}" for name, value in identity["settings"].items() if value not in (None, {})),
    )
    yield "command", " ".join(map(str, facts.get("command", ())))
    if "time" in facts:
        yield "date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(facts["time"]))


def _row(
    record: Mapping[str, Any], metrics: Sequence[str], target: str | None, zeros: Sequence[str], is_drawn: bool
) -> str:
    error = record.get("error")
    answer = f"{error['type']}: {error['message']}" if error else _text(answer_of(record))
    first = _cut(answer, 200)
    run = shown(answer) if error else _run(record, zeros, is_drawn)
    cells = [
        f"<td>{record['line']}</td>",
        f"<td>{shown(str(record['id']))}</td>",
        f'<td class="text">{shown(_input(record, target))}</td>',
        f'<td class="text">{shown(_text(record["target"]) if "target" in record else "")}</td>',
        f"<td><details><summary>{shown(first)}</summary>{run}</details></td>",
        *(f'<td class="score">{_score(record.get("scores", {}).get(name))}</td>' for name in metrics),
    ]
    kind = " ".join(name for name, holds in (("wrong", is_wrong(record)), ("error", bool(error))) if holds)
    return f"<tr{f' class={json.dumps(kind)}' if kind else ''}>{''.join(cells)}</tr>\n"


def _input(record: Mapping[str, Any], target: str | None) -> str:
    """The columns of a row without its id and target, each cut in the middle."""
    columns = {
        name: value
        for name, value in record.get("columns", {}).items()
        if name not in (target, *PREPARED) and str(value) != record["id"]
    }
    if len(columns) == 1:
        return _cut(_text(*columns.values()), MAX_INPUT)
    return "\n".join(f"{name}: {_cut(_text(value), MAX_INPUT // 2)}" for name, value in columns.items())


def _score(found: Any) -> str:
    if isinstance(found, list):
        return f"{found[0]:.4g}"
    return "" if found is None else f'<span title="{shown(found["error"])}">none</span>'


def _run(record: Mapping[str, Any], zeros: Sequence[str], is_drawn: bool) -> str:
    """Output, tree and ledger of a row."""
    cost, usage = record.get("cost"), record.get("usage", {})
    found = {
        "tokens": record.get("tokens", ()),
        "usage": {name: count for name, count in usage.items() if count or name not in zeros},
        "cost": None if cost is None else {"amount": cost, "told": False},
        "value": record.get("value"),
        "vars": record.get("variables", {}),
        "endings": record.get("endings", {}),
    }
    if is_drawn:
        return run_view(found, "", lazy=True)
    text = "".join(token[0] for token in found["tokens"])
    return run_view(found, f"<pre>{shown(text)}</pre>{ledger(usage)}", lazy=True)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"
