"""Rows of a data-set run as a table: csv or parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from lmql_lite.data.metrics import answer_of
from lmql_lite.errors import InputError
from lmql_lite.store.files import replace_file

Kind = Literal["csv", "parquet"]
Records = Sequence[Mapping[str, Any]]
COLUMNS = ("id", "repeat", "target", "answer", "error")
PART = 1 << 20


def write_table(records: Records, kind: Kind, output: Path) -> None:
    """Writes a new file, whole or not at all, in the order of the data. Half a character, which no UTF-8 file can
    hold, is replaced by U+FFFD.

    Raises InputError where the file is there or cannot be written, and where parquet lacks pyarrow.
    """
    rows = _rows(sorted(records, key=lambda each: (each["line"], each["repeat"])))
    if output.exists():
        raise InputError(f"{output} is there already", hint="name a new file")
    try:
        replace_file(output, _csv(rows) if kind == "csv" else [_parquet(list(rows))])
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror}", hint="name a new file") from None


def _rows(records: Records) -> Iterator[dict[str, Any]]:
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
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _csv(rows: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    text = StringIO(newline="")
    table = None
    for row in rows:
        if table is None:
            table = csv.DictWriter(text, row)
            table.writeheader()
        table.writerow(row)
        if text.tell() > PART:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    if table is None:
        csv.writer(text).writerow(COLUMNS)
    yield text.getvalue().encode()


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError("a parquet file needs pyarrow", hint="pip install 'lmql-lite[data]'") from None
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.Table.from_pylist(rows or [dict.fromkeys(COLUMNS)])[: len(rows)], sink)
    return bytes(sink.getvalue())
