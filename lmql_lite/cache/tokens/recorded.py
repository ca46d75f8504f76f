"""Rows of token trees as JSON lines that a reviewer can read in a diff: recordings, and what `lq cache export` writes.

A line is one entry, with a checksum (`store/log.py`). `after` is the end of the text before it and `says` the token, if
the vocabulary is known, and `logprob` that of the token; they are for people, and are not read. `place` and `parent`
are hashes of paths, and `tokens` lead from one to the other; the parent of the first entry is 0. `question` and `value`
are those of a `.tokens` file, in hexadecimal and base64.
"""

from __future__ import annotations

import math
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from lmql_lite.cache.tokens.rows import (
    VOCABULARY,
    ModelName,
    RowBatch,
    Rows,
    Stored,
    TreeRow,
    kind_of,
    packed_tokens,
    place_below,
    row_length,
    unpacked_row,
    unpacked_tokens,
)
from lmql_lite.cache.tokens.text import BYTES, Vocabulary, after_beginning, spelled
from lmql_lite.errors import CacheError
from lmql_lite.store.log import SCHEMA, LogWriter, line_of, read_lines

SUFFIX = ".jsonl"
SHOWN = 40
"""Maximum number of tokens, and of characters, before an entry that its line shows."""
_BEGINNING = b'{"kind":"'


def is_recording(path: Path) -> bool:
    """True for a file that begins like a log of JSON lines."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING
    except OSError:  # reported where the file is read
        return False


def read_recording(path: Path) -> tuple[list[Stored], int]:
    """Rows of a recording, and the number of damaged lines. Raises CacheError for a file that is not a recording, or
    that has damaged lines alone."""
    found, damaged = [], 0
    try:
        if path.stat().st_size and not is_recording(path):
            raise CacheError(
                f"{path} is not a recording", hint=f"if it is a cache: lq cache export {path} -o NAME{SUFFIX}"
            )
        for line in read_lines(path):
            try:
                found.append(_stored(line.record or {}))
            except (KeyError, TypeError, ValueError, OverflowError):
                damaged += 1
    except OSError as error:
        raise CacheError(f"{path} cannot be read ({error.strerror})") from error
    if damaged and not found:
        raise CacheError(
            f"{path} has no line that can be read: it is damaged, or was written by an earlier lmql-lite",
            hint="remove it, and make a new one",
        )
    return found, damaged


def line_of_row(stored: Stored, above: Sequence[int] = (), vocabulary: Vocabulary | None = None) -> bytes:
    """The line of a row. `above` are tokens before its place, as many as are known."""
    model, written, row = stored
    _, entry = unpacked_row(row)
    record: dict[str, Any] = {"kind": kind_of(row), "schema": SCHEMA}
    vocabulary = vocabulary or (BYTES if model.vocabulary_size == VOCABULARY else None)
    if vocabulary is not None:
        record["after"] = _text(after_beginning(above, vocabulary), vocabulary)[-SHOWN:]
        record["says"] = _text(entry.tokens, vocabulary) if entry.tokens[0] >= 0 else None
    record["logprob"] = float(str(np.float32(entry.logprob))) if math.isfinite(entry.logprob) else None
    record |= {"model": model.name, "fingerprint": model.fingerprint, "vocabulary": model.vocabulary_size}
    record |= {"written": written} if written else {}
    record |= {"place": f"{row.place:016x}", "parent": f"{row.parent:016x}", "tokens": [*unpacked_tokens(row.tokens)]}
    return line_of(record | {"question": row.question.hex(), "value": b64encode(row.value).decode()})


def _stored(record: Mapping[str, Any]) -> Stored:
    """The row of a line. Raises KeyError, TypeError, ValueError and OverflowError."""
    model = ModelName(str(record["fingerprint"]), str(record["model"]), int(record["vocabulary"]))
    place, parent = int(record["place"], 16), int(record["parent"], 16)
    tokens = [int(each) for each in record["tokens"]]
    if reduce(place_below, tokens, parent) != place:
        raise ValueError("the tokens do not lead to the place")
    value = b64decode(record["value"], validate=True)
    row = TreeRow(place, bytes.fromhex(record["question"]), parent, packed_tokens(tokens), value)
    unpacked_row(row._replace(vocabulary=model.vocabulary_size))
    return model, int(record.get("written") or 0), row


def _text(tokens: Sequence[int], vocabulary: Vocabulary) -> str:
    parts = []
    for token in tokens:
        part = vocabulary[token] if token < len(vocabulary) else None
        parts.append(spelled([token], vocabulary).encode() if part is None else part)
    return b"".join(parts).decode("utf-8", "replace")


class RecordedRows(Rows):
    """Rows of a recording in memory, for the trees of a test. With a `log` new rows are appended to it.

    `vocabularies` has those of the models that ran, by fingerprint, for the text in new lines. Nothing is refreshed
    here: a recording that is made anew is another file.
    """

    def __init__(self, rows: Sequence[Stored], log: LogWriter | None = None) -> None:
        super().__init__()
        self.notices: list[str] = []
        self.vocabularies: dict[str, Vocabulary | None] = {}
        self._log = log
        self._rows: dict[str, dict[int, list[TreeRow]]] = {}
        self._models: dict[str, ModelName] = {}
        self._longest: dict[str, int] = {}
        for model, _, row in rows:
            self._add(model, row)

    def _add(self, model: ModelName, row: TreeRow) -> bool:
        """Adds a row. False if its question has one."""
        fingerprint = model.fingerprint
        here = self._rows.setdefault(fingerprint, {}).setdefault(row.place, [])
        if any(known.question == row.question for known in here):
            return False
        here.append(row._replace(vocabulary=model.vocabulary_size))
        self._models[fingerprint] = model
        self._longest[fingerprint] = max(self._longest.get(fingerprint, 1), row_length(row))
        return True

    def open(self) -> None:
        """Does nothing, since the rows are in memory."""

    def follow(self) -> None:
        """Does nothing, since no other process writes the recording."""

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def longest(self, fingerprint: str) -> int:
        return self._longest.get(fingerprint, 1)

    def rows(self, fingerprint: str, places: Sequence[int]) -> list[TreeRow]:
        known = self._rows.get(fingerprint, {})
        return [row for place in places for row in known.get(place, ())]

    def stored(self) -> Iterator[Stored]:
        for fingerprint, model in self._models.items():
            yield from ((model, 0, row) for here in self._rows[fingerprint].values() for row in here)

    def write(self, model: ModelName, batch: Callable[[], RowBatch], *, clock: Callable[[], float] = time.time) -> bool:
        """Appends the rows of a batch. Returns True when the file has them; otherwise there is a notice. Lines have no
        time, so that the same answers make the same lines."""
        if self._log is None:
            return False
        new = [row for row in batch().rows if self._add(model, row)]
        vocabulary = self.vocabularies.get(model.fingerprint)
        lines = [line_of_row((model, 0, row), self._above(model.fingerprint, row), vocabulary) for row in new]
        try:
            if lines:
                self._log.append(lines)
        except OSError as error:
            self.notices.append(f"{self._log.path}: cannot be written ({error.strerror or error})")
            return False
        return True

    def _above(self, fingerprint: str, row: TreeRow) -> list[int]:
        """The last tokens before the place of a row."""
        found = [*unpacked_tokens(row.tokens)]
        while row.parent and len(found) < SHOWN:
            above = self.rows(fingerprint, [row.parent])
            if not above:
                break
            row = above[0]
            found = [*unpacked_tokens(row.tokens), *found]
        return found[-SHOWN:]
