"""Data files as rows: jsonl, json, csv and tsv by the standard library, also with .gz; parquet by
pyarrow. Files are streamed, except JSON."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from lmql_lite.engine.rows import id_of
from lmql_lite.errors import InputError
from lmql_lite.plain import plain

FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
ROWS_PER_BATCH = 256
DELIMITERS = ",;\t|"


@dataclass(frozen=True, slots=True)
class FileRow:
    """One row of a data file. `line` counts from 1: lines of text, rows of other files. `problem` is a sentence about a
    row that cannot be used; `values` then has the readable part."""

    line: int
    id: str
    values: Mapping[str, Any]
    problem: str = ""


def read_rows(path: Path, id_column: str = "id") -> Iterator[FileRow]:
    """Rows of a file, with their ids; equal rows without an id are told apart by `#2`.

    Raises InputError for a file that cannot be read, and for an id that two rows have.
    """
    seen: dict[int, int] = {}
    for line, values, problem in _values(path):
        name = id_of(values, id_column)
        is_own = str(values.get(id_column)) == name
        key = hash(name)
        if (first := seen.get(key)) is None:
            seen[key] = line if is_own else 1
        elif is_own:
            raise InputError(
                f"{path}: lines {first} and {line} have the same {id_column}, {name!r}",
                hint="make them different, or name another column with --id-column",
            )
        else:
            seen[key] = first + 1
            name = f"{name}#{first + 1}"
        yield FileRow(line, name, values, problem)


def is_table(path: Path) -> bool:
    """True for a file whose cells are all texts: csv and tsv."""
    return _format(path) in (".csv", ".tsv")


def _format(path: Path) -> str:
    """Ending of a file's name in small letters, without that of its compression."""
    return (Path(path.stem).suffix if _is_compressed(path) else path.suffix).lower()


def _is_compressed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _opened(path: Path, newline: str | None = None) -> TextIO:
    if _is_compressed(path):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline=newline)
    return path.open(encoding="utf-8-sig", newline=newline)


Values = tuple[int, dict[str, Any], str]


def _values(path: Path) -> Iterator[Values]:
    form = _format(path)
    try:
        if form == ".jsonl":
            yield from _json_lines(path)
        elif form == ".json":
            yield from _json(path)
        elif form in (".csv", ".tsv"):
            yield from _table(path)
        elif form == ".parquet" and not _is_compressed(path):
            yield from _parquet_rows(path)
        else:
            known = ", ".join(FORMATS)
            raise InputError(f"{path} has an unknown format", hint=f"data files end in {known}; text files also in .gz")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text", hint="save it as UTF-8; Excel calls it CSV UTF-8") from None


def _json_lines(path: Path) -> Iterator[Values]:
    with _opened(path) as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                found = json.loads(text)
            except (ValueError, RecursionError) as error:
                yield number, {"line": text[:200]}, f"line {number} is not JSON ({error})"
                continue
            if isinstance(found, dict):
                yield number, found, ""
            else:
                yield number, {"line": text[:200]}, f"line {number} is not an object with columns"


def _json(path: Path) -> Iterator[Values]:
    try:
        with _opened(path) as file:
            found = json.load(file)
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error})", hint="one object a line is a .jsonl file") from None
    if not isinstance(found, list):
        raise InputError(f"{path} is not a list of objects", hint='[{"id": 1, ...}, ...]')
    for number, values in enumerate(found, start=1):
        if isinstance(values, dict):
            yield number, values, ""
        else:
            yield number, {"value": values}, f"row {number} is not an object with columns"


def _table(path: Path) -> Iterator[Values]:
    csv.field_size_limit(sys.maxsize)  # the module's own limit of 128 KiB ends long fields with an error
    with _opened(path, newline="") as file:
        first = file.readline()
        delimiter = _delimiter(first, "\t" if _format(path) == ".tsv" else ",")
        rows = _cells(path, chain([first] if first else [], file), delimiter)
        header = next(rows, (0, list[str]()))[1]
        if twice := [name for name in header if header.count(name) > 1]:
            raise InputError(f"{path} has two columns called {twice[0]!r}")
        for line, cells in rows:
            if not cells:
                continue
            values = dict(zip(header, cells, strict=False))
            problem = ""
            if len(cells) != len(header):
                problem = f"line {line} has {len(cells)} cells, and the header has {len(header)}"
            yield line, values, problem


def _delimiter(header: str, usual: str) -> str:
    """The delimiter that a header has most of, outside quotes; the usual one where no other has more."""
    unquoted = re.sub(r'"[^"]*"', "", header)
    return max(usual + DELIMITERS, key=unquoted.count)


def _cells(path: Path, lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Cells of each row, with the number of its first line."""
    row, number = list[str](), 1

    def remembered() -> Iterator[str]:
        for text in lines:
            row.append(text)
            yield text

    for cells in csv.reader(remembered(), delimiter=delimiter):
        if len(row) > 1 or row[0].count('"') % 2:
            _check_quotes(path, number, row, delimiter)
        yield number, cells
        number += len(row)
        row.clear()


def _check_quotes(path: Path, number: int, row: list[str], delimiter: str) -> None:
    """Raises InputError for a row that goes on over other lines because a quote is not closed."""
    try:
        list(csv.reader(row, delimiter=delimiter, strict=True))
    except csv.Error as error:
        if len(row) > 1 or "end of data" in str(error):
            raise InputError(
                f"{path}: a quote in line {number} is not closed, and takes in the text up to line "
                f"{number + len(row) - 1}",
                hint='close it; a quote inside a quoted cell is written ""',
            ) from None


def _parquet_rows(path: Path) -> Iterator[Values]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(f"{path} needs pyarrow", hint="pip install 'lmql-lite[data]'") from None
    try:
        batches = parquet.ParquetFile(path).iter_batches(batch_size=ROWS_PER_BATCH)
        for number, values in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
            yield number, plain(values), ""
    except arrow.ArrowException as error:
        raise InputError(f"{path} cannot be read: {error}") from None
