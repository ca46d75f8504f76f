"""Rows of a data-set run as a CSV table."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from lmql_lite.data.metrics import answer_of
from lmql_lite.errors import InputError
from lmql_lite.store.files import replace_file

COLUMNS = ("id", "repeat", "target", "answer", "error")


def write_table(records: Sequence[Mapping[str, Any]], output: Path) -> None:
    """Writes a new file, whole or not at all, in the order of the data. Half a character, which no UTF-8 file can
    hold, is replaced by U+FFFD.

    Raises InputError where the file is there or cannot be written.
    """
    if output.exists():
        raise InputError(f"{output} is there already", hint="name a new file")
    names = list(dict.fromkeys(name for each in records for name in each.get("scores", {})))
    text = StringIO(newline="")
    table = csv.writer(text)
    table.writerow((*COLUMNS, *names))
    for record in sorted(records, key=lambda each: (each["line"], each["repeat"])):
        cells = (record["id"], record["repeat"], record.get("target"), answer_of(record))
        scores = [score if isinstance(score := record.get("scores", {}).get(name), float) else None for name in names]
        table.writerow([*map(_cell, cells), _cell(record.get("error", {}).get("message")), *scores])
    try:
        replace_file(
            output, [text.getvalue().encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()]
        )
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror}", hint="name a new file") from None


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
