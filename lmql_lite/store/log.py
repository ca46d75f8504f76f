"""Log for people and programs: one JSON object per line, whose last field is a checksum, written and synced in groups.

Only the holder of a log's lock writes, at the end, with one write and one sync for a group of lines. Incomplete or
damaged lines are skipped and left in place, and so are two lines whose line end is damaged.

Every record has a `kind` and the `schema` of its fields. `cache` opens a log, `response` is an answer of a model,
`attempt` a row of a data-set run. Readers skip unknown kinds.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Generic, TypeVar

from lmql_lite.errors import CacheError
from lmql_lite.store.files import replace_file, sync_folder, try_lock, unlock

Item = TypeVar("Item")
SCHEMA = 1
SUFFIX = ".jsonl"
RESPONSE, ATTEMPT = "response", "attempt"
BLOCK = 1 << 20
MAX_FIRST = 1 << 16
"""Maximum number of bytes of a log's first line that distinguish it from other logs."""

_AS_IT_IS = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_ESCAPED = json.JSONEncoder(separators=(",", ":")).encode
_TAIL = re.compile(rb',"crc32":"([0-9a-f]{8})"}')
_TAIL_BYTES = 20
_OPENING = b'{"kind":"cache","schema":'


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log. `record` is None if the line is damaged; `end` is the offset of the next line."""

    data: bytes
    record: dict[str, Any] | None
    end: int


def line_of(record: Mapping[str, Any]) -> bytes:
    """Line of a record, which has `kind` first. Text that UTF-8 cannot encode is escaped."""
    try:
        data = _AS_IT_IS(record)[:-1].encode()
    except UnicodeEncodeError:
        data = _ESCAPED(record)[:-1].encode()
    return b'%b,"crc32":"%08x"}\n' % (data, zlib.crc32(data))


def opening(fingerprint: str, model_hash: str) -> bytes:
    """First line of a log, whose bytes distinguish it from other logs of the same name."""
    return line_of({"kind": "cache", "schema": SCHEMA, "log_id": os.urandom(8).hex(), "created_at": time.time(),
                    "model_hash": model_hash, "model_fingerprint": fingerprint})  # fmt: skip


# Reading -------------------------------------------------------------------------------------------------------------


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
                rest, line = [data], b"".join(rest)
                end += len(line) + 1
                if line := line.strip(b"\r\0"):  # a file that was cut while it is written begins with zeros
                    yield LogLine(line, _checked(line, path), end)


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
    """Digest of a log's first line, at most of its first `MAX_FIRST` bytes; "" without one. It differs between logs of
    the same name."""
    try:
        with open(path, "rb") as file:
            first = file.readline(MAX_FIRST)
    except FileNotFoundError:
        return ""
    return f"{zlib.crc32(first):08x}{len(first)}" if first.endswith(b"\n") or len(first) == MAX_FIRST else ""


# Writing -------------------------------------------------------------------------------------------------------------


class ForeignFile(CacheError):
    """The file at the place of a log is not a log, and nothing may be written to it."""


def refuse_foreign(path: Path) -> None:
    """Raises ForeignFile for anything but a log, even a damaged one, an empty file, or a name that is free."""
    if not os.path.exists(path):
        return
    is_log = False
    if os.path.isfile(path):
        with open(path, "rb") as file:
            head = file.read(len(_OPENING))
        is_log = _OPENING.startswith(head) or any(line.record is not None for line in read_lines(path))
    if not is_log:
        raise ForeignFile(
            f"{path} is not a log of lmql_lite, and is left as it is",
            hint="name another file",
        )


class LogWriter:
    """Writer of a log, which holds its lock.

    Raises OSError if the file cannot be created, BlockingIOError if another process writes it, and ForeignFile for a
    file that is not a log.

        log = LogWriter(Path("rows.jsonl"), opening("demo", ""))
        log.append([line_of({"kind": "attempt", "schema": SCHEMA, "key": "1"})])
    """

    def __init__(self, path: Path, first_line: bytes) -> None:
        self.path, self._pid = path, os.getpid()
        refuse_foreign(path)
        self._file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600), "r+")
        try:
            if not try_lock(self._file):
                raise BlockingIOError(f"{path} is being written by another process")
            if not self.is_current():
                raise BlockingIOError(f"{path} was replaced by another process")
            self.end = os.fstat(self._file.fileno()).st_size
            self._before = b"" if self.end else first_line
            """Bytes that come before the next line: the first line, or the end of an incomplete one."""
            if self.end:
                self._file.seek(self.end - 1)
                self._before = b"" if self._file.read(1) == b"\n" else b"\n"
        except BaseException:
            self._file.close()
            raise

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
        rest = memoryview(b"".join([self._before, *lines]))
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
        self._before = b""
        if is_new:
            sync_folder(self.path.parent)

    def close(self) -> None:
        """Releases the lock, also if forked processes have the file too, and closes the file. In a forked process, the
        parent keeps the lock."""
        if self._pid == os.getpid() and not self._file.closed:
            unlock(self._file)
        self._file.close()


class Shared(Future[Any]):
    """Future that callers on any threads and event loops wait for, and never cancel. Tasks of one loop are woken
    together."""

    def __init__(self) -> None:
        super().__init__()
        self._events: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}

    async def ended(self) -> None:
        """Waits on the running event loop until there is a result or an error."""
        loop = asyncio.get_running_loop()
        event = self._events.get(loop)
        if event is None:
            event = self._events[loop] = asyncio.Event()
            self.add_done_callback(lambda _: _wake(loop, event))
        await event.wait()


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed, so nobody waits any more
        loop.call_soon_threadsafe(event.set)


class GroupCommit(Generic[Item]):
    """Thread that writes items of many callers: those that arrive while one group is written form the next group.

    `write` takes the items of a group. There is no timer: the first item of a group starts it.
    """

    def __init__(self, write: Callable[[list[Item]], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lmql-lite-log")
        self._waiting: list[Item] = []
        self._group: Shared | None = None
        """The write of the waiting items; None if there are none."""

    def add(self, items: list[Item]) -> Shared:
        """Adds items to the next group. The future ends after its write, with its error, if any."""
        with self._lock:
            self._waiting += items
            if self._group is not None:
                return self._group
            group = self._group = Shared()
            with suppress(RuntimeError):  # the interpreter is shutting down, and starts no threads
                self._thread.submit(self._flush, group)
                return group
        self._flush(group)
        return group

    def _flush(self, group: Shared) -> None:
        with self._lock:
            items, self._waiting, self._group = self._waiting, [], None
        try:
            self._write(items)
        except BaseException as error:
            group.set_exception(error)
        else:
            group.set_result(None)

    def close(self) -> None:
        """Waits until all items are written."""
        self._thread.shutdown()


def rewrite(path: Path, lines: Iterator[bytes]) -> int:
    """Replaces a log by other lines; a crash leaves the old log. A link stays a link. Returns the number of bytes."""
    path = Path(os.path.realpath(path))
    size = replace_file(path, lines, durable=True)
    os.chmod(path, 0o600)
    return size
