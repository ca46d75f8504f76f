"""One whole response log: summary, check and pruning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from lmql_lite.cache.responses.index import is_servable, remove_index
from lmql_lite.errors import CacheError
from lmql_lite.store.log import RESPONSE, SUFFIX, LogWriter, opening, read_lines, rewrite

Record = dict[str, Any]


@dataclass(slots=True)
class LogSummary:
    """Contents of one log in numbers. `sampled` and `rejected` answers are not served; `damaged` counts lines."""

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
    newest: float = 0.0
    tasks: dict[str, int] = field(default_factory=dict)


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
            if not _is_answer(record, found):
                continue
            if (key := str(record["cache_key"])) in keys:
                found.superseded += 1
            else:
                task = str(record["task_name"])
                found.tasks[task] = found.tasks.get(task, 0) + 1
            keys.add(key)
            found.newest = max(found.newest, record["created_at"])
    found.answers = len(keys)
    return found


def _is_answer(record: Record, found: LogSummary) -> bool:
    """True for an answer that can be served. Other records are counted."""
    kind = record.get("kind")
    if kind == "cache":
        found.model = record.get("model_fingerprint", "")
    elif kind != RESPONSE:
        found.other += 1
    elif not record.get("deterministic"):
        found.sampled += 1
    elif not is_servable(record):
        found.rejected += 1
    else:
        return True
    return False


class LogInUse(CacheError):
    """Another process writes the log."""


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheError(f"{path} cannot be read ({error.strerror})") from error


@contextmanager
def writing(log: Path) -> Iterator[None]:
    """Holds the lock of a log, so that no cache writes it meanwhile. Raises LogInUse if one does, and CacheError."""
    try:
        held = LogWriter(log, b"")
    except BlockingIOError:
        raise LogInUse(f"{log} is in use by another process", hint="wait until it has ended") from None
    except OSError as error:
        raise CacheError(f"{log} cannot be written ({error.strerror})") from error
    with closing(held):
        yield


def prune(log: Path, keep: Callable[[Record], bool], max_bytes: int | None = None) -> int:
    """Drops the records that `keep` rejects, then the oldest until a log has at most `max_bytes`. Returns their number.

    Damaged lines are dropped too. Raises CacheError if a cache writes the log.
    """
    with writing(log), _readable(log):
        first, sizes, count = opening("", ""), [], 0
        for line in read_lines(log):
            record = line.record
            if record is not None and record.get("kind") == "cache":
                first = opening(record.get("model_fingerprint", ""), record.get("model_hash", ""))
                continue
            count += 1
            if record is not None and keep(record):
                sizes.append(len(line.data) + 1)
        excess, skipped = len(first) + sum(sizes) - max_bytes if max_bytes is not None else 0, 0
        while excess > 0 and skipped < len(sizes):
            excess -= sizes[skipped]
            skipped += 1
        dropped = count - len(sizes) + skipped
        if dropped:
            rewrite(log, chain([first], islice(_kept(log, keep), skipped, None)))
            remove_index(log.with_suffix(".db"))
        return dropped


def _kept(log: Path, keep: Callable[[Record], bool]) -> Iterator[bytes]:
    for line in read_lines(log):
        if line.record is not None and line.record.get("kind") != "cache" and keep(line.record):
            yield line.data + b"\n"
