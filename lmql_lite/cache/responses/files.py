"""Response logs as files: summary, check, pruning and export."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmql_lite.cache.responses.index import checksum, remove_index, row_of
from lmql_lite.errors import CacheError
from lmql_lite.store.log import ATTEMPT, SUFFIX, LogWriter, opening, read_lines, rewrite


@dataclass(slots=True)
class LogSummary:
    """Contents of one log in numbers. `sampled` and `rejected` answers are not served; `damaged` counts lines and rows.
    In the log of a data-set run, finished rows count as answers and failed rows as rejected."""

    path: Path
    model: str = ""
    model_hash: str = ""
    answers: int = 0
    superseded: int = 0
    sampled: int = 0
    rejected: int = 0
    other: int = 0
    damaged: int = 0
    bytes: int = 0
    oldest: float = 0.0
    newest: float = 0.0
    tasks: dict[str, int] = field(default_factory=dict)

    def add_attempt(self, record: Mapping[str, Any], keys: set[str]) -> None:
        """Counts a row of a data-set run. A later answer replaces an earlier one; an error does not."""
        if record.get("error"):
            self.rejected += 1
            return
        self.superseded += record["key"] in keys
        keys.add(record["key"])
        self.oldest = min(self.oldest or record["created_at"], record["created_at"])
        self.newest = max(self.newest, record["created_at"])


def find_logs(path: Path) -> list[Path]:
    """Logs under a folder, or the log at a path, which may be that of its index. Raises CacheError if there is none."""
    if path.is_dir():
        found = sorted(path.rglob(f"*{SUFFIX}"))
    else:
        found = [log] if (log := path.with_suffix(SUFFIX)).is_file() else []
    if not found:
        raise CacheError(f"{path} holds no response log", hint="name the folder that the cache was opened with")
    return found


def summary(path: Path) -> LogSummary:
    """Contents of a log in numbers. Raises CacheError for a log of a newer version, or one that cannot be read."""
    found, keys = LogSummary(path), set[str]()
    with _readable(path):
        found.bytes = path.stat().st_size
        for line in read_lines(path):
            record = line.record
            if record is None:
                found.damaged += 1
                continue
            found.model_hash = found.model_hash or record.get("model_hash", "")
            if record.get("kind") == "cache":
                found.model = record.get("model_fingerprint", "")
            elif record.get("kind") == ATTEMPT:
                found.add_attempt(record, keys)
            elif record.get("kind") != "response":
                found.other += 1
            elif not record.get("deterministic"):
                found.sampled += 1
            elif (row := row_of(record, record.get("model_hash", ""))) is None:
                found.rejected += 1
            else:
                found.tasks[row.task_name] = found.tasks.get(row.task_name, 0) + (row.cache_key not in keys)
                found.superseded += row.cache_key in keys
                keys.add(row.cache_key)
                found.oldest = min(found.oldest or row.created_at, row.created_at)
                found.newest = max(found.newest, row.created_at)
    found.answers = len(keys)
    return found


def damaged_rows(log: Path) -> int:
    """Number of damaged rows in the index beside a log; 1 if the whole index cannot be read."""
    index = log.with_suffix(".db")
    if not index.is_file():
        return 0
    try:
        with closing(sqlite3.connect(f"{index.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as database:
            problems = database.execute("PRAGMA quick_check").fetchone()[0] != "ok"
            rows = database.execute("SELECT cache_key, response, checksum FROM responses")
            return int(problems) + sum(1 for row in rows if checksum(*row[:2]) != row[2])
    except (sqlite3.Error, TypeError):
        return 1


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Records of a log, without damaged lines."""
    with _readable(path):
        yield from (line.record for line in read_lines(path) if line.record is not None)


class LogInUse(CacheError):
    """Another process writes the log."""


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheError(f"{path} cannot be read ({error.strerror})") from error


@contextmanager
def writing(log: Path) -> Iterator[LogWriter]:
    """Holds the lock of a log, so that no cache writes it meanwhile. Raises LogInUse if one does, and CacheError."""
    try:
        held = LogWriter(log, b"")
    except BlockingIOError:
        raise LogInUse(f"{log} is in use by another process", hint="wait until it has ended") from None
    except OSError as error:
        raise CacheError(f"{log} cannot be written ({error.strerror})") from error
    with closing(held):
        yield held


def prune(log: Path, keep: Callable[[dict[str, Any]], bool], max_bytes: int | None = None) -> int:
    """Drops the records that `keep` rejects, then the oldest until a log has at most `max_bytes`. Returns their number.

    Damaged lines are dropped too. Raises CacheError if a cache writes the log.
    """
    with writing(log), _readable(log):
        model, model_hash, sizes, dropped = "", "", [], 0
        for line in read_lines(log):
            record = line.record
            if record is not None and record.get("kind") == "cache":
                model, model_hash = record.get("model_fingerprint", ""), record.get("model_hash", "")
            elif record is None or not keep(record):
                dropped += 1
            else:
                sizes.append(len(line.data) + 1)
        first, skipped = opening(model, model_hash), 0
        excess = len(first) + sum(sizes) - max_bytes if max_bytes is not None else 0
        while excess > 0 and skipped < len(sizes):
            excess -= sizes[skipped]
            skipped += 1
        if not dropped and not skipped:
            return 0

        def lines() -> Iterator[bytes]:
            yield first
            number = 0
            for line in read_lines(log):
                if line.record is not None and line.record.get("kind") != "cache" and keep(line.record):
                    number += 1
                    if number > skipped:
                        yield line.data + b"\n"

        rewrite(log, lines())
        remove_index(log.with_suffix(".db"))
        return dropped + skipped


def exported(log: Path) -> Iterator[dict[str, Any]]:
    """Servable answers of a log, as plain records that lmms-eval and `lq responses import` read."""
    for record in records(log):
        if row_of(record, record.get("model_hash", "")) is not None:
            yield {name: value for name, value in record.items() if name != "crc32"}
