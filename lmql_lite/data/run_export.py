"""Export of a data-set run: a table as csv or parquet, or samples of lm-evaluation-harness."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from lmql_lite.data.metrics import answer_of
from lmql_lite.errors import InputError
from lmql_lite.store.atomic_file import replace_file

Kind = Literal["csv", "parquet", "lm-eval"]
Records = Sequence[Mapping[str, Any]]
COLUMNS = ("id", "repeat", "target", "answer", "error")
PART = 1 << 20
PREPARED = ("task_prompt", "task_options", "task_choices", "task_target")
"""Columns that `lq eval --from lm-eval` adds to a row."""


def export_rows(records: Records, kind: Kind, output: Path) -> None:
    """Writes a new file, whole or not at all. Raises InputError where it is there, cannot be written, or needs pyarrow.

    Half a character, which no UTF-8 file can hold, is replaced by U+FFFD in a table, and escaped in samples.
    """
    ordered = sorted(records, key=lambda each: (each["line"], each["repeat"]))
    if output.exists():
        raise InputError(f"{output} is there already", hint="name a new file")
    try:
        if kind == "parquet":
            _write_parquet(list(_table(ordered)), output)
        elif kind == "lm-eval":
            replace_file(output, (f"{_json(each)}\n".encode() for each in _samples(ordered)))
        else:
            replace_file(output, _csv(_table(ordered)))
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror}", hint="name a new file") from None


def _csv(rows: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    text, first = StringIO(newline=""), next(rows, None)
    table = csv.DictWriter(text, COLUMNS if first is None else first)
    table.writeheader()
    for row in rows if first is None else chain([first], rows):
        table.writerow(row)
        if text.tell() > PART:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


def _json(value: Any) -> str:
    """JSON as the harness writes it; in ASCII where UTF-8 cannot encode it."""
    text = json.dumps(value, ensure_ascii=False)
    return text if _encodable(text) == text else json.dumps(value)


def _encodable(text: str) -> str:
    """A text with U+FFFD for each half of a character that stands alone."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _table(records: Records) -> Iterator[dict[str, Any]]:
    """A row of texts and numbers for each record; values that are neither are JSON text."""
    names = list(dict.fromkeys(name for each in records for name in each.get("scores", {})))
    for record in records:
        scores = [record.get("scores", {}).get(name) for name in names]
        yield {
            "id": _cell(record["id"]),
            "repeat": record["repeat"],
            "target": _cell(record.get("target")),
            "answer": _cell(answer_of(record)),
            "error": _cell(record.get("error", {}).get("message")),
            **{name: each[0] if isinstance(each, list) else None for name, each in zip(names, scores, strict=True)},
        }


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    return _encodable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _write_parquet(rows: list[dict[str, Any]], output: Path) -> None:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError("a parquet file needs pyarrow", hint="pip install 'lmql-lite[data]'") from None
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.Table.from_pylist(rows or [dict.fromkeys(COLUMNS)])[: len(rows)], sink)
    replace_file(output, [sink.getvalue()])


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
