"""Export of a data-set run: a table as csv or parquet, or samples of lm-evaluation-harness."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from lmql_lite.data.metrics import answer_of
from lmql_lite.errors import InputError

Kind = Literal["csv", "parquet", "lm-eval"]
Records = Sequence[Mapping[str, Any]]
PREPARED = ("task_prompt", "task_options", "task_choices", "task_target")
"""Columns that `lq eval --from lm-eval` adds to a row."""


def export_rows(records: Records, kind: Kind, output: Path) -> None:
    """Writes a new file. Raises InputError where it is there, cannot be written, or needs pyarrow."""
    ordered = sorted(records, key=lambda each: (each["line"], each["repeat"]))
    try:
        if kind == "parquet":
            _write_parquet(list(_table(ordered)), output)
            return
        with output.open("x", encoding="utf-8", newline="") as file:
            if kind == "lm-eval":
                file.writelines(json.dumps(each, ensure_ascii=False) + "\n" for each in _samples(ordered))
            else:
                rows = list(_table(ordered))
                table = csv.DictWriter(file, rows[0] if rows else [])
                table.writeheader()
                table.writerows(rows)
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror}", hint="name a new file") from None


def _table(records: Records) -> Iterator[dict[str, Any]]:
    """A row of texts and numbers for each record; values that are neither are JSON text."""
    names = list(dict.fromkeys(name for each in records for name in each.get("scores", {})))
    for record in records:
        scores = [record.get("scores", {}).get(name) for name in names]
        yield {
            "id": record["id"],
            "repeat": record["repeat"],
            "target": _cell(record.get("target")),
            "answer": _cell(answer_of(record)),
            "error": record.get("error", {}).get("message"),
            **{name: each[0] if isinstance(each, list) else None for name, each in zip(names, scores, strict=True)},
        }


def _cell(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else json.dumps(value, ensure_ascii=False)


def _write_parquet(rows: list[dict[str, Any]], output: Path) -> None:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError("a parquet file needs pyarrow", hint="pip install 'lmql-lite[data]'") from None
    if output.exists():
        raise InputError(f"{output} cannot be written: File exists", hint="name a new file")
    parquet.write_table(arrow.Table.from_pylist(rows), output)


def _samples(records: Records) -> Iterator[dict[str, Any]]:
    """Lines as the harness writes them with `--log_samples`. Whether an option is greedy is not known."""
    documents = {line: number for number, line in enumerate(sorted({each["line"] for each in records}))}
    for record in records:
        columns, value = record["columns"], record.get("value")
        prompt, options = columns.get("task_prompt"), columns.get("task_options")
        doc = {name: each for name, each in columns.items() if name not in PREPARED}
        if isinstance(value, dict) and "logprobs" in value:
            answers = [[[str(each), None]] for each in value["logprobs"]]
        else:
            answers = [[answer_of(record)]]
        requests = [] if prompt is None else [(prompt, each) for each in options] if options else [(prompt, {})]
        scores = {name: each[0] for name, each in record.get("scores", {}).items() if isinstance(each, list)}
        yield {
            "doc_id": documents[record["line"]],
            "doc": doc,
            "target": record.get("target"),
            "arguments": {
                f"gen_args_{number}": {"arg_0": first, "arg_1": second}
                for number, (first, second) in enumerate(requests)
            },
            "resps": answers,
            "filtered_resps": [each[0] for each in answers],
            "filter": "none",
            "metrics": list(scores),
            "doc_hash": _hash(json.dumps(doc, indent=2, ensure_ascii=False)),
            "prompt_hash": _hash(prompt or ""),
            "target_hash": _hash(str(record.get("target"))),
            **scores,
        }


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
