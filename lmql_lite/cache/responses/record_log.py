"""Log of records for people and programs: one JSON object per line, whose last field is a checksum.

The log is the authoritative data of a response cache. Only the holder of its lock writes, at the end, with one write
and one sync for a group of lines. Incomplete or damaged lines are skipped and left in place.

Every record has a `kind`, the `schema` of its fields and the `model_hash` of its model. `cache` opens a log, `response`
is an answer of a model, `attempt` a row of a data-set run. Readers skip unknown kinds.
"""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from lmql_lite.errors import CacheError
from lmql_lite.store.atomic_file import replace_file, sync_folder
from lmql_lite.store.file_lock import try_lock

SCHEMA = 1
SUFFIX = ".jsonl"
ATTEMPT = "attempt"
BLOCK = 1 << 20

_TAIL = re.compile(rb',"crc32":"([0-9a-f]{8})"}')
_TAIL_BYTES = 20
_FIRST = b'{"kind":"'
_OPENING = b'{"kind":"cache","schema":'


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log. `record` is None if the line is damaged; `end` is the offset of the next line."""

    data: bytes
    record: dict[str, Any] | None
    end: int


def sealed(body: str) -> bytes:
    """Line of a record, from the JSON text of its fields without the closing brace. `kind` comes first."""
    data = body.encode()
    return b'%b,"crc32":"%08x"}\n' % (data, zlib.crc32(data))


def line_of(record: Mapping[str, Any]) -> bytes:
    """Line of a record. Text that UTF-8 cannot encode is escaped."""
    fields = {"kind": record["kind"]} | {name: value for name, value in record.items() if name != "crc32"}
    try:
        return sealed(json.dumps(fields, ensure_ascii=False, separators=(",", ":"))[:-1])
    except UnicodeEncodeError:
        return sealed(json.dumps(fields, separators=(",", ":"))[:-1])


def opening(fingerprint: str, model_hash: str) -> bytes:
    """First line of a log, whose bytes distinguish it from other logs of the same name."""
    return line_of({"kind": "cache", "schema": SCHEMA, "model_hash": model_hash, "model_fingerprint": fingerprint,
                    "log_id": os.urandom(8).hex(), "created_at": time.time()})  # fmt: skip


def read_lines(path: Path, start: int = 0) -> Iterator[LogLine]:
    """Complete lines from an offset on, without an incomplete one at the end.

    Raises CacheError for a record of a newer schema, and OSError if the file cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        rest, end = [], start
        while block := file.read(BLOCK):
            first, *others = block.split(b"\n")
            rest.append(first)
            for data in others:
                line = b"".join(rest)
                end += len(line) + 1
                yield from _records(line, end, path)
                rest = [data]


def _records(data: bytes, end: int, path: Path) -> Iterator[LogLine]:
    """The record of a line. A damaged line may contain several complete records, joined by a damaged line end."""
    if not data.strip():
        return
    if (record := _checked(data, path)) is not None:
        yield LogLine(data, record, end)
        return
    place, covered = data.find(_FIRST), 0
    while place >= 0:
        if (tail := _TAIL.search(data, place)) and (record := _checked(data[place : tail.end()], path)):
            covered += tail.end() - place
            yield LogLine(data[place : tail.end()], record, end)
        place = data.find(_FIRST, place + 1)
    if covered < len(data.rstrip(b"\r")):
        yield LogLine(data, None, end)


def _checked(data: bytes, path: Path) -> dict[str, Any] | None:
    tail = _TAIL.fullmatch(data, max(0, len(data) - _TAIL_BYTES))
    if tail is None or zlib.crc32(data[:-_TAIL_BYTES]) != int(tail[1], 16):
        return None
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if not isinstance(schema := record.get("schema"), int) or schema > SCHEMA:
        raise CacheError(f"{path} was written by a newer version of lmql_lite", hint="update lmql_lite to read it")
    return record


def identity(path: Path) -> str:
    """Digest of a log's first line, "" without one. It differs between logs of the same name."""
    try:
        with open(path, "rb") as file:
            first = file.readline(1 << 16)
    except FileNotFoundError:
        return ""
    return f"{zlib.crc32(first):08x}{len(first)}" if first.endswith(b"\n") else ""


class ForeignFile(CacheError):
    """The file at the place of a log is not a log, and nothing may be written to it."""


def is_log(path: Path) -> bool:
    """True for a log, even a damaged one, and for an empty file. Raises CacheError for a newer version, and OSError."""
    with open(path, "rb") as file:
        head = file.read(len(_OPENING))
    return _OPENING.startswith(head[: len(_OPENING)]) or any(line.record is not None for line in read_lines(path))


def refuse_foreign(path: Path) -> None:
    """Raises ForeignFile for anything but a log, an empty file, or a name that is free."""
    if os.path.exists(path) and (not os.path.isfile(path) or not is_log(path)):
        raise ForeignFile(
            f"{path} is not a log of lmql_lite, and is left as it is",
            hint="name another file; `lq responses import` takes over the caches of lmms-eval",
        )


class RecordLog:
    """Writer of a log, which holds its lock.

    Raises OSError if the file cannot be created, BlockingIOError if another process writes it, and ForeignFile for a
    file that is not a log.
    """

    def __init__(self, path: Path, first_line: bytes) -> None:
        self.path = path
        refuse_foreign(path)
        self._file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600), "r+")
        try:
            if not try_lock(self._file):
                raise BlockingIOError(f"{path} is being written by another process")
            if not self.is_current():
                raise BlockingIOError(f"{path} was replaced by another process")
            self.end = os.fstat(self._file.fileno()).st_size
            self._first_line = first_line if not self.end else b""
            self._mend()
        except BaseException:
            self._file.close()
            raise

    def _mend(self) -> None:
        """Ends an incomplete line, so that the next line is separate."""
        if self.end:
            self._file.seek(self.end - 1)
            self._is_torn = self._file.read(1) != b"\n"
        else:
            self._is_torn = False

    def is_current(self) -> bool:
        """True if the path still names the open file."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.path))
        except FileNotFoundError:
            return False

    def append(self, lines: list[bytes]) -> None:
        """Writes all lines or none, and waits until the disk has them. Raises OSError."""
        if not self.is_current():
            raise FileNotFoundError(f"{self.path} was removed or replaced")
        rest = memoryview(b"".join([b"\n" if self._is_torn else self._first_line, *lines]))
        size, is_new = len(rest), not self.end
        try:
            self._file.seek(self.end)
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
            os.fsync(self._file.fileno())
        except BaseException:
            with suppress(OSError):
                self._file.truncate(self.end)
            raise
        self.end += size
        self._first_line, self._is_torn = b"", False
        if is_new:
            sync_folder(self.path.parent)

    def close(self) -> None:
        """Closes the file, which releases the lock. After a fork, the parent keeps the lock."""
        self._file.close()


def rewrite(path: Path, lines: Iterator[bytes]) -> int:
    """Replaces a log by other lines; a crash leaves the old log. A link stays a link. Returns the number of bytes."""
    path = Path(os.path.realpath(path))
    size = replace_file(path, lines, durable=True)
    os.chmod(path, 0o600)
    return size
