"""Pages of data-set runs: the report of one, and two of them side by side. Each begins with the result and with what
was run; below it stand the rows, to filter and to sort, with their outputs and trees one click away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from lmql_lite.data.folder import facts_of, last_attempts
from lmql_lite.data.metrics import answer_of
from lmql_lite.data.report import compare, is_wrong, report_in
from lmql_lite.html import bundle, ledger, page, run_view, shown
from lmql_lite.store.files import replace_file

MAX_ROWS = 2_000
"""Rows on a page: the first of those that are wrong or changed, and then others."""
MAX_INPUT = 600
"""Characters of an input that a row shows."""
MAX_ANSWER = 200
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
    const kinds = row.className.split(" ");
    row.hidden = kind.value && !kinds.includes(kind.value) || !texts.get(row).includes(find.value.toLowerCase());
  }
  count.textContent = `${rows.filter((row) => !row.hidden).length.toLocaleString("en")} rows`;
};
const heads = [...document.querySelectorAll("#rows th")], order = new Intl.Collator(undefined, {numeric: true});
heads.forEach((head, at) => {
  head.firstChild.onclick = () => {
    const sign = head.ariaSort === "ascending" ? -1 : 1;
    for (const each of heads) each.ariaSort = each !== head ? null : sign > 0 ? "ascending" : "descending";
    const keys = new Map(rows.map((row) => [row, textOf(row.cells[at])]));
    const isNumber = [...keys.values()].every((key) => !key || !isNaN(key));
    const compare = (a, b) => isNumber ? a - b : order.compare(a, b);
    body.append(...[...rows].sort((a, b) => sign * compare(keys.get(a), keys.get(b))));
  };
});
"""
Record = Mapping[str, Any]


def write_report(run: Path, notes: Iterable[str]) -> Path:
    """Writes `report.html` into the folder of a run, and returns its path. `notes` are sentences about the result.

    Raises InputError for a folder that is not a run.
    """
    report, records = report_in(run), list(last_attempts(run).values())
    ordered, zeros = _chosen(records, is_wrong), _zeros(records)
    metrics = list(dict.fromkeys(name for record in ordered for name in record.get("scores", {})))
    view = {
        "result": {"heads": ["metric", "mean", "95 % interval", "n", "no score"],
                   "rows": [_result(each) for each in report["metrics"]]},
        "facts": {"rows": list(_facts(run, report).items())},
        "by_column": [_part(each) for each in report["by_column"]],
        "confusion": report["confusion"],
        "chosen": "those that are wrong, and the first others",
        "kinds": [("wrong", "wrong rows"), ("right", "right rows"), ("error", "errors")],
        "heads": ["line", "id", "input", "target", "answer", *metrics],
        "numbers": ["line", *metrics],
        "rows": [_row(record, metrics, zeros) for record in ordered],
    }  # fmt: skip
    return _write(run / "report.html", run.name, view, notes, len(records), zeros)


def write_comparison(first: Path, second: Path, notes: Iterable[str], cluster: str | None = None) -> Path:
    """Writes `compare.html` into the folder of the second of two runs, and returns its path. Raises InputError as
    `compare` does."""
    found = compare(first, second, cluster)
    left, right = last_attempts(first), last_attempts(second)
    places = [place for place in left if place in right]
    zeros = _zeros([*left.values(), *right.values()])
    metrics = [each["name"] for each in found["metrics"]]
    of_places = [(left[place], right[place]) for place in places]
    pairs = _chosen(of_places, lambda pair: _change(pair[0], pair[1], metrics) != "equal")
    of_both = [_facts(run, report_in(run)) for run in (first, second)]
    view = {
        "result": {
            "heads": ["metric", "A", "B", "B - A", "95 % interval", "better", "equal", "worse", "p (sign flips)"],
            "rows": [_difference(each) for each in found["metrics"]],
        },
        "facts": {
            "heads": ["", f"A: {first}", f"B: {second}"],
            "rows": [(name, *(facts.get(name, "") for facts in of_both)) for name in of_both[0]],
        },
        "chosen": "those that changed, and the first others",
        "kinds": [("changed", "changed rows"), ("better", "better rows"), ("worse", "worse rows"), ("error", "errors")],
        "heads": ["line", "id", "input", "target", "answer A", "answer B",
                  *(f"{name} {side}" for name in metrics for side in "AB")],
        "numbers": ["line", *(f"{name} {side}" for name in metrics for side in "AB")],
        "rows": [_pair(one, other, metrics, zeros) for one, other in pairs],
    }  # fmt: skip
    return _write(second / "compare.html", f"{first.name} and {second.name}", view, notes, len(places), zeros)


def _write(
    path: Path, title: str, view: Mapping[str, Any], notes: Iterable[str], total: int, zeros: Sequence[str]
) -> Path:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_escaped)
    template = environment.from_string(Path(__file__).with_name("report.jinja").read_text("utf-8"))
    sentences = [note.strip() for note in notes if note.strip()]
    body = template.generate(view, notes=sentences, total=total)
    script = SCRIPT.replace("ZEROS", json.dumps(dict.fromkeys(zeros, 0)))
    replace_file(path, (part.encode() for part in page(title, body, script)))
    return path


def _escaped(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup(shown(str(value)))


def _chosen(records: Sequence[Any], is_first: Callable[[Any], bool]) -> list[Any]:
    """At most `MAX_ROWS` of them in the order of the data, of more those that come first."""
    chosen = records if len(records) <= MAX_ROWS else sorted(records, key=lambda each: not is_first(each))[:MAX_ROWS]
    return sorted(chosen, key=_place)


def _place(record: Any) -> tuple[int, int]:
    one = record[0] if isinstance(record, tuple) else record
    return one["line"], one["repeat"]


# The result ----------------------------------------------------------------------------------------------------------


def _result(metric: Mapping[str, Any]) -> Sequence[str]:
    return metric["name"], f"{metric['mean']:.4f}", _interval(metric), f"{metric['n']:,}", f"{metric['failed']:,}"


def _difference(metric: Mapping[str, Any]) -> Sequence[str]:
    delta = metric["delta"]
    counts = (f"{metric[name]:,}" for name in ("wins", "ties", "losses"))
    means = f"{metric['first']:.4f}", f"{metric['second']:.4f}", f"{delta['mean']:+.4f}"
    return metric["name"], *means, _interval(delta), *counts, f"{metric['p_sign_flips']:.4g}"


def _interval(found: Mapping[str, Any]) -> str:
    return "none" if found["low"] is None else f"[{found['low']:.4f}, {found['high']:.4f}]"


def _facts(run: Path, report: Mapping[str, Any]) -> dict[str, str]:
    identity, facts = report["identity"], facts_of(run)
    failed = sum(report["errors"].values())
    settings = [f"{name} {_text(value)}" for name, value in identity["settings"].items() if value not in (None, {})]
    return {
        "rows": f"{report['attempts']:,} attempts of {report['ids']:,} rows",
        "errors": f"{failed:,}, counted as wrong" if failed else "0",
        "model": str(identity["model"]),
        "settings": ", ".join(settings),
        "data": str(identity["data"]),
        "command": " ".join(map(str, facts.get("command", ()))),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(facts["time"])) if "time" in facts else "",
    }


def _part(found: Mapping[str, Any]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for value in found["values"] for name in value["means"]))
    rows = [
        (value["value"], *(f"{value['means'][name]:.4f}" if name in value["means"] else "" for name in names),
         f"{value['n']:,}")
        for value in found["values"]
    ]  # fmt: skip
    return {"heads": [found["column"], *names, "n"], "rows": rows}


# Rows ----------------------------------------------------------------------------------------------------------------


def _row(record: Record, metrics: Sequence[str], zeros: Sequence[str]) -> dict[str, Any]:
    kinds = ["wrong" if is_wrong(record) else "right", *(["error"] if record.get("error") else [])]
    scores = [("number score", _score(record, name)) for name in metrics]
    return {"kind": " ".join(kinds), "cells": [*_beginning(record), ("answer", _answer(record, zeros)), *scores]}


def _pair(one: Record, other: Record, metrics: Sequence[str], zeros: Sequence[str]) -> dict[str, Any]:
    change = _change(one, other, metrics)
    kinds = [change] if change == "equal" else ["changed", change]
    kinds += ["error"] if one.get("error") or other.get("error") else []
    scores = [("number score", _score(record, name)) for name in metrics for record in (one, other)]
    answers = [("answer", _answer(record, zeros)) for record in (one, other)]
    return {"kind": " ".join(kinds), "cells": [*_beginning(other), *answers, *scores]}


def _change(one: Record, other: Record, metrics: Sequence[str]) -> str:
    """`better` or `worse` by the first metric whose scores differ; else `mixed` for other answers, or `equal`."""
    for name in metrics:
        before, after = (_number(record, name) for record in (one, other))
        if before != after:
            return "better" if after > before else "worse"
    return "equal" if _plain_answer(one) == _plain_answer(other) else "mixed"


def _number(record: Record, metric: str) -> float:
    found = record.get("scores", {}).get(metric)
    return found if isinstance(found, float) else 0.0


def _beginning(record: Record) -> list[tuple[str, str]]:
    target = _text(record["target"]) if "target" in record else ""
    inputs = _input(record)
    return [("number", str(record["line"])), ("", str(record["id"])), ("text", inputs), ("text", target)]


def _input(record: Record) -> str:
    """The columns of a row without its id and target, each cut in the middle."""
    columns = {
        name: value
        for name, value in record.get("columns", {}).items()
        if name != record.get("target_name") and str(value) != record["id"]
    }
    if len(columns) == 1:
        return _cut(_text(*columns.values()), MAX_INPUT)
    return "\n".join(f"{name}: {_cut(_text(value), MAX_INPUT // 2)}" for name, value in columns.items())


def _plain_answer(record: Record) -> str:
    error = record.get("error")
    return f"{error['type']}: {error['message']}" if error else _text(answer_of(record))


def _answer(record: Record, zeros: Sequence[str]) -> Markup:
    answer = _plain_answer(record)
    run = shown(answer) if record.get("error") else _run(record, zeros)
    return Markup(f"<details><summary>{shown(_cut(answer, MAX_ANSWER))}</summary>{run}</details>")


def _score(record: Record, metric: str) -> str | Markup:
    found = record.get("scores", {}).get(metric)
    if isinstance(found, float):
        return f"{found:.4g}"
    return "" if found is None else Markup(f'<span title="{shown(found["error"])}">none</span>')


def _zeros(records: Sequence[Record]) -> Sequence[str]:
    """Counts that every row reports, so that a row without one of them has counted 0."""
    usages = [record["usage"] for record in records if record.get("usage")]
    return [name for name in (usages[0] if usages else ()) if all(name in usage for usage in usages)]


def _run(record: Record, zeros: Sequence[str]) -> str:
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
    if bundle() is not None:
        return run_view(found, "", lazy=True)
    text = "".join(token[0] for token in found["tokens"])
    return run_view(found, f"<pre>{shown(text)}</pre>{ledger(usage)}", lazy=True)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"
